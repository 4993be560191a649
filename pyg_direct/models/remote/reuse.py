"""Rows of layer 1 that training takes from a table of earlier steps: `accelerate(reuse=)`."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ...batch.edges import SampledEdges
from ...batch.sampled import Reused
from ...core.arguments import check_choice, check_count, check_share
from ...core.private_torch import writes_to
from ...loading.reusing import NEVER, Rule, Schedule, hottest, refusal
from ..training.batch_sizes import copied_tensors
from ..training.certificate import Certificate, is_compared
from .gathers import Gathered
from .values import RowExchange

_numbers = itertools.count(1)
_tables_of: weakref.WeakKeyDictionary[torch.nn.Module, RowTables] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Reuse:
    """How a model that `accelerate` returns reuses rows of its first layer from earlier steps.

    The nodes that the last hop of a batch would expand are read in one place: layer 2 gathers their
    rows of layer 1. A row that was computed at most `staleness` batches ago is taken from a table,
    and the node gets no neighbours: their edges are not drawn, their features not gathered, and the
    row is not computed. Other rows are computed as ever, and go to the table. Historical embeddings
    are those of VR-GCN (Chen et al., ICML 2018) and GNNAutoScale (Fey et al., ICML 2021); that hot
    nodes alone have them, and that their neighbours are left out, is of NeutronOrch (Ai et al.,
    PVLDB 17, 2024).

    It changes what a model learns from: rows are of earlier weights, of other neighbours and
    another dropout. See the guide for where it pays, and for what accuracy it cost.

    Args:
        share: part of the nodes that have rows in the table, in (0, 1]. Memory: `share` times the
            nodes times the bytes of a row that layer 2 gathers, for each value that it gathers.
        staleness: a row is used by that many batches after the one that computed it, at least 0. An
            optimizer takes at most one step a batch, so no row is of weights that are more steps
            old; a step in which one is fails. With 0 all rows are computed, and have the gradients
            that reused ones have: to see what that alone does.
        gradient: what the weights of layer 1 learn of rows that could be reused. "none": nothing,
            as in NeutronOrch's released code. Their gradient is that of the other rows alone, which
            is too small, and leans to nodes that are met rarely: on a small graph with noisy labels
            it cost 2.1 points of accuracy at staleness 16 and 2.9 without any old row, each in 8 of
            8 seeds. "refresh": a share `refresh` of them at random is computed, with gradients
            divided by the share. The expectation is then that of all rows (at the values that were
            used), and its variance is larger. In the same trainings it cost nothing in the end.
        refresh: that share, in (0, 1]; only with ``gradient="refresh"``. With 1 nothing is reused.
        hot: which nodes, if not all: those that batches visit most by seeds, fan-outs and degrees,
            "visits" (`expected_visits`); those with most edges that leave them, "degree"; or those
            with the largest of your numbers, a tensor [num_nodes] of numbers of 0 or more.

    Raises:
        ValueError: a value out of its range.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=20, seed=0)
        >>> fast = pyg_direct.accelerate(model, loader, reuse=pyg_direct.Reuse(staleness=16))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> for batch in loader:
        ...     out = fast(batch.x, batch.edge_index)[: batch.batch_size]
        ...     F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        ...     optimizer.step()
        >>> fast.acceleration.reused().oldest_steps <= 16
        True
    """

    share: float = 1.0
    staleness: int = 16
    gradient: str = "none"
    refresh: float = 0.1
    hot: Any = "visits"

    def __post_init__(self) -> None:
        check_share("share", self.share)
        check_count("staleness", self.staleness)
        check_choice("gradient", self.gradient, ("none", "refresh"))
        check_share("refresh", self.refresh)
        if not isinstance(self.hot, Tensor):
            check_choice("hot", self.hot, ("visits", "degree"))


class ReusedRows(NamedTuple):
    """What a model with `reuse=` has reused so far; from ``model.acceleration.reused()``.

    Ages are in steps of the optimizer, of the rows that layer 2 gathered from the table.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=20, seed=0)
        >>> fast = pyg_direct.accelerate(model, loader, reuse=pyg_direct.Reuse(share=0.5))
        >>> for batch in loader:
        ...     out = fast(batch.x, batch.edge_index)
        >>> fast.acceleration.reused().batches
        15
    """

    batches: int  # that it was trained on
    rows: int  # of nodes that the last hop would expand
    reused_rows: int  # of these, that were not computed
    edges: int  # that were not drawn for these; with weights, or LABOR, as many as that at most
    mean_steps: float  # age of the reused rows
    oldest_steps: int

    @property
    def share(self) -> float:
        """Part of the rows that were reused, in [0, 1]."""
        return self.reused_rows / max(1, self.rows)


class _OptimizerSteps:
    """How many steps optimizers of a model's parameters have taken.

    Of several optimizers the one that takes most counts: rows are of weights that no optimizer has
    changed more often than that.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.count = 0
        self._round: set[int] = set()
        self._model = weakref.ref(model)
        reference = weakref.ref(self)

        def stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            steps = reference()
            if steps is not None:
                steps.add(optimizer)

        handle = register_optimizer_step_post_hook(stepped)
        weakref.finalize(self, handle.remove).atexit = False

    def add(self, optimizer: Optimizer) -> None:
        """Count a step, if the optimizer is one of the model's."""
        model = self._model()
        own = set() if model is None else {id(p) for p in model.parameters()}
        if any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            if not self._round or id(optimizer) in self._round:
                self.count += 1
                self._round = set()
            self._round.add(id(optimizer))


class _RowTable:
    """The rows of one value, and when each was computed.

    Attributes:
        rows: [h, ...]; None until the first were computed.
        batch: int64 [h], the batch that computed each row; `NEVER` of those that are not there.
        step: int64 [h], the steps that the optimizer had taken then.
    """

    def __init__(self, num_rows: int) -> None:
        self.rows: Tensor | None = None
        self.batch = torch.full((num_rows,), NEVER)
        self.step = torch.zeros(num_rows, dtype=torch.int64)


class ReusedValue:
    """The exchange of a value: rows of the table, and the gradient's rule."""

    def __init__(self, tables: RowTables, table: _RowTable, batch: Reused, of_edges: bool) -> None:
        self._tables, self._table, self._batch = tables, table, batch
        self._of_edges = of_edges

    def extent(self, count: int) -> tuple[int, int]:
        """See `RowExchange`."""
        batch = self._batch
        if count <= batch.end:
            return count, count
        if self._of_edges or count > batch.read:  # rows of nodes without edges
            return max(count, batch.read), max(count, batch.read)
        return batch.read, batch.end

    def forward(self, computed: Tensor, read: int) -> Tensor:
        """See `RowExchange`."""
        batch, table = self._batch, self._table
        self._keep(computed.detach())
        if read <= batch.end:
            return computed
        late = table.batch[batch.slots] < batch.computed_by
        if bool(late.any()):
            raise RuntimeError(
                f"{int(late.sum())} rows that batch {batch.batch} reuses are not in the table: the "
                f"model was not trained on the batches that were to compute them, in the order of "
                f"the loader, or has been given other weights or dtypes since. Train on every "
                f"batch, or begin a new iteration of the loader, which goes by what is there."
            )
        steps = self._tables.steps.count - table.step[batch.slots]
        self._tables.note_ages(steps)
        assert table.rows is not None
        return torch.cat([computed[: batch.end], table.rows[batch.slots], computed[batch.read :]])

    def _keep(self, computed: Tensor) -> None:
        """Write rows to the table that were computed for the first time."""
        batch, table = self._batch, self._table
        like = table.rows
        if like is None or like.shape[1:] != computed.shape[1:] or like.dtype != computed.dtype:
            table.rows = computed.new_empty(len(table.batch), *computed.shape[1:])
            table.batch.fill_(NEVER)
        assert table.rows is not None
        count = int(torch.searchsorted(batch.fresh, len(computed)))
        slots = batch.fresh_slots[:count]
        table.rows[slots] = computed[batch.fresh[:count]]
        table.batch[slots] = batch.batch
        table.step[slots] = self._tables.steps.count

    def backward(self, grad: Tensor) -> Tensor:
        """See `RowExchange`."""
        batch = self._batch
        own = grad[: self.extent(len(grad))[1]].clone()
        own[batch.end : batch.read] = 0  # rows that were replaced
        count = torch.searchsorted
        own[batch.cut[: int(count(batch.cut, len(own)))]] = 0
        own[batch.refreshed[: int(count(batch.refreshed, len(own)))]] /= self._tables.refresh
        return own


class RowTables:
    """The tables of a model, which a loader makes batches for.

    Args:
        reuse: as the user gave it.
        model: that is trained.
        loader: checked by `check_reuse`.
        certify: whether some batches compute all rows, to be compared with the plain model.
    """

    def __init__(self, reuse: Reuse, model: torch.nn.Module, loader: Any, certify: bool) -> None:
        nodes, num_nodes = hottest(loader, reuse.hot, reuse.share)
        self.number, self.refresh = next(_numbers), reuse.refresh
        self.steps = _OptimizerSteps(model)
        self._staleness, self._num_rows = reuse.staleness, len(nodes)
        self._model, self._weights = weakref.ref(model), _versions(model)
        self._steps_before, self._last, self._aged = 0, 0, False
        self._tables: dict[int, _RowTable] = {}
        self._counts, self._sum_of_steps = [0, 0, 0, 0], 0
        self._oldest = 0
        rule = Rule(
            reuse.staleness,
            reuse.refresh if reuse.gradient == "refresh" else 0.0,
            is_compared if certify else lambda batch: False,
        )
        computed = weakref.WeakMethod(self._computed)

        def written() -> tuple[Tensor, int]:
            found = computed()
            return (torch.full((len(nodes),), NEVER), 0) if found is None else found()

        loader._reusing = Schedule(self.number, nodes, num_nodes, rule, written)
        loader._iterator = None  # of persistent producers
        if model not in _tables_of:
            cast(Any, model).register_load_state_dict_post_hook(_forget_rows)
        _tables_of[model] = self

    def _computed(self) -> tuple[Tensor, int]:
        """Return which batch computed each row, int64 [h], the earliest of all tables, and the last
        batch that there was.
        """
        found = [table.batch for table in self._tables.values()]
        rows = torch.stack(found).amin(0) if found else torch.full((self._num_rows,), NEVER)
        return rows, self._last

    def loads_into(self, model: torch.nn.Module) -> None:
        """Say that this model, which may load states as well, shares all with the trained one."""
        _tables_of[model] = self

    def clear(self) -> None:
        """Forget all rows."""
        self._tables.clear()

    def check_edges(self, edges: list[tuple[Any, SampledEdges]]) -> None:
        """Raise a RuntimeError if the model is trained on edges whose origin is not known.

        They may be of a batch that leaves out neighbours.
        """
        known = len(edges) > 0 and all(sampled.hops is not None for _, sampled in edges)
        model: Any = self._model()
        if not known and model.training and torch.is_grad_enabled():
            raise RuntimeError(
                "A model with accelerate(reuse=) is trained on edges as its loader gives them, and "
                "these were changed, or are not from it. Pass batch.edge_index itself."
            )

    def begin(self, batch: Reused) -> None:
        """Begin a training step.

        Raises:
            RuntimeError: batches of another model, or one that is evaluated.
        """
        model: Any = self._model()
        if batch.schedule != self.number:
            raise RuntimeError(OTHER_MODEL)
        if not (model.training and torch.is_grad_enabled()):
            raise RuntimeError(
                "A batch that leaves out neighbours, for accelerate(reuse=), was given to a model "
                "that is evaluated. Evaluate on a loader of its own, or by pyg_direct.inference."
            )
        weights = _versions(model)
        if weights != self._weights and self.steps.count == self._steps_before:
            self.clear()  # they are of other weights, and not by steps that are counted
        self._weights, self._steps_before = weights, self.steps.count
        self._last, self._aged = batch.batch, False
        reused = batch.read - batch.end
        for place, count in enumerate((1, batch.read - batch.first, reused, batch.edges)):
            self._counts[place] += count

    def exchanges(self, batch: Reused) -> Callable[[Gathered], RowExchange | None]:
        """Return what gives the exchange of each value of a step; see `Exchanges`."""
        places = itertools.count()

        def exchange_of(gathered: Gathered) -> RowExchange | None:
            if gathered.layer != 1 and not gathered.of_edges:
                return None
            place = next(places)
            if place not in self._tables:
                self._tables[place] = _RowTable(self._num_rows)
            return ReusedValue(self, self._tables[place], batch, gathered.of_edges)

        return exchange_of

    def note_ages(self, steps: Tensor) -> None:
        """Check the ages of rows that are used, in steps of the optimizer, int64 [n].

        Those of the first value of a step are counted: the others have the same rows.
        """
        oldest = int(steps.max()) if len(steps) else 0
        if oldest > self._staleness:
            raise RuntimeError(
                f"A row is {oldest} steps of the optimizer old, and reuse= allows "
                f"staleness={self._staleness}: a row is used by so many batches, and there were "
                f"several steps a batch. Take one a batch, or allow an older one."
            )
        self._oldest = max(self._oldest, oldest)
        self._sum_of_steps += 0 if self._aged else int(steps.sum())
        self._aged = True

    def reused(self) -> ReusedRows:
        """Return what was reused so far."""
        batches, rows, reused, edges = self._counts
        mean = self._sum_of_steps / max(1, reused)
        return ReusedRows(batches, rows, reused, edges, mean, self._oldest)


OTHER_MODEL = (
    "A batch leaves out neighbours whose rows another model has, or the model that this one is a "
    "copy of: its loader was given to accelerate(reuse=) with that. Call accelerate again for this "
    "model, or give it a loader of its own."
)


def check_reuse(reuse: Any, model: torch.nn.Module, loaders: Any, all_statistics: bool) -> None:
    """Raise a TypeError or ValueError if a model cannot reuse rows of batches of some loaders."""
    if not isinstance(reuse, Reuse):
        raise TypeError(f"reuse must be a pyg_direct.Reuse or None, got {type(reuse).__name__}.")
    if len(loaders) != 1:
        raise ValueError(
            f"accelerate(reuse=) takes one loader, that of the training, got {len(loaders)}. "
            f"Accelerate the model again for the others, without reuse=."
        )
    reason = refusal(loaders[0])
    if reason:
        raise ValueError(
            f"accelerate(reuse=) needs a NeighborLoader that samples a homogeneous graph on the "
            f"CPU, hop by hop in one process, got one with: {reason}."
        )
    if any(map(is_lazy, itertools.chain(model.parameters(), model.buffers()))):
        raise ValueError(
            "accelerate(reuse=) needs a model whose parameters have their shapes. Call the model "
            "on a batch of another loader first."
        )
    modules = model.named_modules()
    norms = [name for name, part in modules if getattr(part, "running_mean", None) is not None]
    if all_statistics and norms:
        raise ValueError(
            f"accelerate(reuse=) computes some rows of a batch, and {norms[0]!r} has "
            f"statistics over all of them. Pass batch_norm='needed', for those over the rows that "
            f"are computed, or use LayerNorm."
        )


def missing_rows_matter(
    model: torch.nn.Module, step: Callable[..., Any], given: tuple[Any, Any]
) -> bool:
    """Whether outputs or gradients depend on rows of layer 1 that lack their edges.

    An operation of torch that runs on all rows asks for them, too, and leaves them to be replaced.

    Args:
        model: the plain model.
        step: runs a step, given arguments, what is added to these rows, and a copy of the model.
        given: the arguments of the forward.
    """

    def shifted(shift: float, twin: torch.nn.Module) -> Any:
        args, kwargs = copied_tensors(given)
        return step(args, kwargs, shift, twin), (args, kwargs)

    return bool(Certificate().check(model, partial(shifted, 0.0), partial(shifted, 1.0), given))


def _versions(model: torch.nn.Module) -> list[tuple[int, int]]:
    """Return which tensors the parameters are, and how often each was written to."""
    return [(id(p), writes_to(p)) for p in model.parameters()]


def _forget_rows(model: torch.nn.Module, keys: Any) -> None:
    """Clear the tables of a model that has loaded a state; a hook that can be pickled with it."""
    if model in _tables_of:
        _tables_of[model].clear()
