"""Which batches a loader makes, and its position among them: order, ranks and states."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch import Tensor
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data, HeteroData

from ..batch.roles import KnownRoles
from ..core.arguments import check_flag
from ..core.mapped_files import fingerprint_of
from ..core.private_torch import batches_of
from ..core.pyg import fields_of, stores_of
from ..ranks.board import Board, ExchangeError
from ..ranks.split import Split
from ..sampling.sampler import NeighborSampler, keyed
from .order import ClusterOrder
from .progress import EpochShard, Progress, SeedOrder
from .site import Site
from .states import COOPERATIVE, EDGES, TAIL, difference, of_ranks

TIMEOUT_SECONDS = 1800.0  # that ranks wait for each other, unless a loader has a timeout=


class SharedOrder(DistributedSampler[int]):
    """What ``loader.sampler`` is with `split_by_rank=`.

    It gives the positions of all seeds: what is split among ranks are batches. A subclass, since
    Lightning puts no sampler of its own in place of a DistributedSampler.
    """

    def __init__(self, sampler: Any, progress: Progress) -> None:
        self._sampler, self._progress = sampler, progress

    def __iter__(self) -> Iterator[int]:
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """Make the next epoch the one of this number. Without it, epochs are numbered 0, 1, 2, ...

        All ranks must do the same.
        """
        self._progress.next_epoch = int(epoch)


class Resuming(torch.utils.data.DataLoader[Any]):
    """The part of a loader that knows its batches only by their numbers."""

    _progress: Progress
    _split: Split
    _exchange: Any = None  # with other ranks, of a partitioned graph
    _reusing: Any = None  # decides which rows a model has already; see `reusing.Schedule`
    _site: Site
    _roles: KnownRoles
    data: Any
    _board: Board | None = None  # of the ranks, once they have begun to meet
    _feature_dtype: torch.dtype | None
    _shuffle_generator: torch.Generator | None

    def _num_seeds(self) -> int:
        raise NotImplementedError

    def _seed_parts(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        """Return what the seeds of a batch depend on: arguments by name, and tensors."""
        raise NotImplementedError

    @property
    def sampler(self) -> Any:
        """What gives the positions of the seeds."""
        own = self.__dict__["sampler"]
        return SharedOrder(own, self._progress) if self._split.is_given else own

    @sampler.setter
    def sampler(self, sampler: Any) -> None:
        self.__dict__["sampler"] = sampler

    def _ranks(self) -> EpochShard:
        return EpochShard(*self._split.place(), self._split.tail, self._split.cooperative)

    def __len__(self) -> int:
        """Return the number of steps in an epoch, with `split_by_rank=` those of this rank."""
        return self._ranks().steps(self._num_batches())

    def _num_batches(self) -> int:
        """Return the number of batches in an epoch, those of all ranks."""
        return super().__len__()

    def _order(self) -> SeedOrder:
        agree = self._agree if self._split.is_given else None
        generators = self.generator, self._shuffle_generator
        return SeedOrder(batches_of(self), *generators, self._ranks(), agree)

    def _met(self) -> tuple[Any, Board | None]:
        """Return the process group of the ranks, and their board for this loader; None for one."""
        if not self._split.is_given or self._split.group is None:
            return None, None
        group = self._split.group
        if self._board is None and dist.get_world_size(group) > 1:
            way = "split_by_rank= alone" if self._exchange is None else self._exchange.argument
            self._board = Board(group, way)
        return group, self._board

    def _contents(self) -> dict[str, Any]:
        """Return what tells the graph from others, as all ranks must have the same one.

        Rows that ranks share are read by their owners alone; other ranks may have anything there.
        """
        sampler, found = self._site.sampler, dict[str, Any]()
        if isinstance(sampler, NeighborSampler):
            found[EDGES] = keyed(sampler).graph.csc.checksum
        if self._exchange is None and isinstance(self.data, (Data, HeteroData)):
            stores = stores_of(self.data)
            values = [
                fields_of(store)[attribute.name]
                for key, store in stores.items()
                for attribute in chain(*self._roles.of(key, store))
            ]
            dense = [v for v in values if type(v) is Tensor and v.layout == torch.strided]
            found["attributes"] = fingerprint_of(dense)
        return found

    def _seconds(self) -> float:
        """Return how long this rank waits for others."""
        return self.timeout or TIMEOUT_SECONDS

    def _tell(self, error: BaseException) -> None:
        """Tell the ranks that this one cannot begin an epoch, who begin anew in the next one."""
        if self._exchange is not None and self._exchange.has_begun:
            self._exchange.fail(error)
            return
        board, self._board = self._board, None
        if board is not None and not isinstance(error, ExchangeError):
            board.tell(f"{type(error).__name__}: {error}")

    def _agree(self, values: dict[str, Any], offer: int = 0) -> int:
        """Compare `values` and the fingerprint with those of the other ranks; see `Agree`.

        Raises:
            ValueError: they differ; on all ranks, and the message says in what.
        """
        _, board = self._met()
        if board is None:
            return offer
        here = {**self._fingerprint(), **self._contents(), **values}
        said = here, offer
        every = board.values(said, self._seconds())
        for rank, (there, _) in enumerate(every):
            differing = [name for name in {**here, **there} if _differ(name, there, here)]
            if differing:
                text = "; ".join(difference(name, there, here) for name in differing)
                raise ValueError(
                    f"The ranks would not share one list of batches: rank {rank} has a loader with "
                    f"{text}. Build all with the same data, seeds and arguments, and load the same "
                    f"state on all of them."
                )
        first: int = every[0][1]
        return first

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader, also in the middle of an epoch.

        After `load_state_dict` the next epoch yields exactly the batches that were left, in this or
        in another process. Where `sampler=` or `batch_sampler=` is given, it must give the same
        order again when it is iterated under the same state of torch's default generator (or of
        `generator=`). Of several iterators the one that was begun last counts.

        With `split_by_rank=`, a step counts as done on all ranks when this one has its batch. The
        state holds neither rank nor world size: any rank's serves all of them (with
        ``tail="uneven"`` that of the first rank, whose last step is the last of all), on any number
        of ranks, and also a loader in a single process. With `cooperative=True` it serves as many
        ranks as it was taken on, whose seeds make up a batch.
        """
        return self._progress.state_dict(self._fingerprint())

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        """Make the next epoch continue where `state_dict` was taken. An error changes nothing.

        Args:
            state: what `state_dict` returned, in this or an older version.
            strict: refuse a state of a loader over another graph or seeds, or with other arguments
                that decide what is in a batch. False gives a warning instead, and other batches
                than those that were left. Large arrays are compared at 1024 positions each, and
                features not at all.

        Raises:
            ValueError: no such state, or one of another loader; the message says what differs.
        """
        try:
            num_batches = self._num_batches()
        except TypeError:  # a sampler need not know its length
            num_batches = None
        strict = check_flag("strict", strict)
        self._progress.load_state_dict(state, self._fingerprint(), num_batches, strict)

    def _fingerprint(self) -> dict[str, Any]:
        """Return everything that decides what the batches are, as numbers and texts."""
        seeds, tensors = self._seed_parts()
        sampler = self._site.sampler
        drawing: dict[str, Any] = {"sampler": type(sampler).__name__}
        arrays: list[Any] = []
        if isinstance(sampler, NeighborSampler):
            arguments, arrays = keyed(sampler).fingerprint_parts()
            drawing.update(arguments, batch_dependency=self._progress.batch_dependency)
        own = self.__dict__["sampler"]
        order = [type(part).__name__ for part in (batches_of(self), own)]
        ordered = isinstance(own, ClusterOrder)
        clusters: dict[str, Any] = {"clusters": fingerprint_of([own.cluster])} if ordered else {}
        return {
            "seed": self._progress.seed,
            "num_seeds": self._num_seeds(),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "order": "/".join(order),
            "generator": self.generator is not None,
            **({TAIL: self._split.tail} if self._split.is_given else {}),
            **({COOPERATIVE: self._ranks().world_size} if self._split.cooperative else {}),
            **of_ranks(getattr(batches_of(self), "sampler", None)),
            **clusters,
            "feature_dtype": self._feature_dtype and str(self._feature_dtype),
            **seeds,
            "seeds": fingerprint_of(tensors),
            **drawing,
            "graph": fingerprint_of(arrays),
        }


def _differ(name: str, there: dict[str, Any], here: dict[str, Any]) -> bool:
    """Whether something of two ranks differs, as far as that is known."""
    one, other = there.get(name), here.get(name)
    if name == EDGES and one is not None and other is not None and one[0] != other[0]:
        return False  # of arrays in memory and of files other checksums are known
    return bool(one != other)
