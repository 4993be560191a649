"""The interface between sampling policy and devices.

Everything that touches the elements of a large array goes through these protocols, which each
backend implements: `cpu` with numba kernels, `cuda` with the kernels of `cuda/*.cu`. Code above
this interface never asks which backend it runs on; code below it knows nothing of PyG's arguments.
Both backends return the same numbers, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.types import (
    NO_RULES,
    BatchKey,
    Csc,
    Frontier,
    Picks,
    Rules,
    SampledGraph,
    SamplingPlan,
    Sizes,
    Table,
    Traffic,
)
from ..kernels import decode
from .host.hottest import Candidate
from .ids import Ids
from .placement import Placement
from .streams import Graphs, Streams

ID_LIMIT = 1 << 31  # local ids are int32

# How the kernels that decode call the dtypes of stored and wanted numbers; int8 with a factor for
# each row is `decode.INT8_BY_ROW`.
NUMBER_KINDS = {
    torch.int8: decode.INT8_BY_COLUMN,
    torch.float16: decode.FLOAT16,
    torch.bfloat16: decode.BFLOAT16,
    torch.float32: decode.FLOAT32,
}


def in_range(ids: npt.NDArray[np.int64], end: int) -> bool:
    """Tell whether all ids [n] are in [0, end)."""
    # Negative ones are the largest of all without a sign.
    return len(ids) == 0 or bool(np.maximum.reduce(ids.view(np.uint64)) < end)


class Workspace(Protocol):
    """Scratch memory for one batch at a time, reused from batch to batch.

    One thread at a time.
    """

    def sample(
        self,
        seeds: Sequence[Tensor | None],
        key: BatchKey,
        rules: Rules = NO_RULES,
        induced: bool = False,
    ) -> SampledGraph | None:
        """Sample one batch, in as few compiled calls as the backend can. Waits for the device.

        The same as `begin`, `hop` for each hop of the plan, and `finish`.

        Args:
            seeds: one int64 tensor [n_t] of node ids, which belong in [0, num_nodes[t]), on the
                host, for each node type, or None; duplicates are kept.
            key: the Philox key that all draws of the batch come from.
            rules: what the batch may take of the graph.
            induced: as in `finish`.

        Returns:
            The subgraph, as tensors of its own; or None if a seed is not a node.
        """

    def sample_padded(
        self, seeds: Sequence[Tensor | None], key: BatchKey, rules: Rules, sizes: Sizes
    ) -> SampledGraph | None:
        """Sample one batch, and pad it as `loading/shapes.py` does, not waiting for its counts.

        Args:
            seeds, key, rules: as in `sample`.
            sizes: of what is returned. What is above them is left out, and the counts tell it.

        Raises:
            NotImplementedError: a backend whose counts nobody waits for (`waits_for_counts`).
        """

    def begin(self, seeds: Sequence[Tensor | None], key: BatchKey, rules: Rules = NO_RULES) -> bool:
        """Begin a batch, as in `sample`. Returns whether all seeds are nodes; if not, none is."""

    def hop(self, hop: int, skip: Sequence[Tensor | None] | None = None) -> None:
        """Sample one hop; the hops of a plan follow one another from 0 on.

        It counts the edges of every frontier node, draws them, and gives local ids to their sources
        in order of first occurrence: relations in the order of the CSC, and the edges of a relation
        by frontier node. The sources that are new are the next frontier. The same as
        ``enter(hop, draw(hop, frontier(hop), key, rules))``.

        Args:
            hop: in [0, hops of the plan).
            skip: nodes that get no edges in this hop: for each type bool [N_t], on the backend's
                device, or None; None for no such nodes.
        """

    def finish(self, induced: bool = False) -> SampledGraph:
        """Return the batch, whose hops are done. Waits for the device.

        Args:
            induced: hand out all edges between the sampled nodes, by destination, in place of those
                that were drawn. Their number is not counted hop by hop.

        Raises:
            ValueError: `induced`, after edges were entered whose lists are in another workspace.
        """

    def frontier(self, hop: int) -> Frontier:
        """Return the nodes that a hop expands, of which all hops before it are done.

        Waits for the device, except for hop 0. The tensors are copies, on the backend's device.
        """

    def draw(self, hop: int, items: Frontier, key: BatchKey, rules: Rules = NO_RULES) -> Picks:
        """Draw the edges of any nodes in one hop. Waits for the device.

        A function of its arguments, the graph and the plan: the batch of the workspace is neither
        looked at nor changed, so `items` may belong to another batch, or to another rank.

        Args:
            hop: of the batch that the nodes belong to.
            items: the nodes; a part of a frontier, or several, will do.
            key: of that batch.
            rules: of that batch.

        Raises:
            ValueError: lists of wrong shapes or dtypes, and on the CPU ids that are not nodes.
        """

    def enter(self, hop: int, picks: Picks) -> None:
        """Take the edges of a hop from `draw`, or of another law, and number their sources.

        May wait for the device.

        Args:
            hop: as in `hop`, in place of which it is called.
            picks: for all items of the hop, not more of any item than its fan-out. Sources must be
                nodes and positions edges of their relations: nothing checks that.

        Raises:
            ValueError: wrong shapes or dtypes, or more edges than the plan has room for.
        """


class Memory(Protocol):
    """Where the arrays of a graph and the user's tables lie, and how they get there.

    On the CPU everything stays where it is. A GPU reads arrays in its own memory, or in host memory
    that is page-locked and mapped.
    """

    @property
    def placement(self) -> Placement:
        """Where each array was placed, for the user to read."""

    @property
    def checks_reads(self) -> bool:
        """Whether batches check what they read of a graph that is not `Csc.verified`."""

    def place_graph(self, csc: Csc, topology: str = "auto", device_bytes: int | None = None) -> Csc:
        """Return `csc` with its arrays where the backend's kernels can read them.

        Args:
            csc: the graph, with NumPy arrays; verified, unless the memory `checks_reads`.
            topology: "host", "device", or "auto" for the device as far as `device_bytes` allow.
            device_bytes: device memory that graph and tables may take in "auto"; None for half of
                what is free.

        Raises:
            ValueError: "device" where there is none, or a graph that had to be verified.
            PinningError: host memory that the device cannot read.
        """

    def to_numpy(self, csc: Csc) -> Csc:
        """Return a placed graph with NumPy arrays, so that another process can place it."""

    def place_tables(self, tables: Iterable[tuple[str, Tensor]], features: str = "auto") -> None:
        """Place tables that rows will be gathered from.

        Args:
            tables: names for messages, and contiguous tensors [N, ...].
            features: as `topology` of `place_graph`. The CPU selects the rows of tables that the
                device cannot read, with a warning.
        """

    def readable(self, table: Tensor) -> Tensor | None:
        """Return what `Backend.gather` takes for a contiguous table; None if it can take nothing.

        That is the table itself or a copy that follows it.
        """

    def ids(self, on_host: bool) -> Ids:
        """Return what brings the ids of one batch to where the user wants them.

        Args:
            on_host: in host memory, or else on the device of the batch.
        """

    def to_batch(self, value: Any, device: torch.device) -> Any:
        """Return a part of a batch on the device of the batch, without waiting for the copy.

        Args:
            value: a tensor, or an object with a method `to`.
            device: of the user's data that `value` was selected from.
        """

    def pin(self, batch: Any) -> Any:
        """Return a batch in page-locked memory, for `pin_memory=True`.

        A batch that is on a GPU already, or has no method `pin_memory`, is returned as it is.
        """


@dataclass
class CacheRequest:
    """The cache of rows that loaders ask a backend for."""

    size: str | int | float  # as in `Backend.fill_cache`
    policy: Any  # "visits", "presample", "degree", or tensors of the user's
    filled: bool = False

    def contradicts(self, other: CacheRequest) -> bool:
        """Whether one cache cannot be both."""
        same = self.policy is other.policy or (
            isinstance(self.policy, str) and self.policy == other.policy
        )
        return self.size != other.size or not same


class Backend(Protocol):
    """The computations of one device."""

    device: torch.device
    threads: int  # CPU threads that may share one batch
    default_producers: int  # threads that make batches with num_workers=0
    most_producers: int  # more threads than that would only take memory; 0: none can be had
    streams: Streams
    streams_of_caller: Streams  # for batches that are made in the thread that asks for them
    graphs: Graphs | None  # None where nothing can be captured

    @property
    def memory(self) -> Memory:
        """Where this backend reads graphs and tables."""

    gather_blocks: (
        int | None
    )  # of a GPU that may read host memory at once; None: what fills the link

    def workspace(self, csc: Csc, plan: SamplingPlan) -> Workspace:
        """Return a new workspace for a graph from `Memory.place_graph`."""

    def gather(
        self,
        tables: Sequence[Table],
        index: Tensor,
        end: int | None = None,
        traffic: Traffic | None = None,
        wrong: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the rows `index` of each table, of any dtype and shape.

        A decoded element is a product in float32, rounded once, and then once more to another
        dtype, so its bits depend on no device. Those of a NaN may.

        Args:
            tables: of N rows each, from `Memory.readable`.
            index: int64 [n], each in [0, N), on this backend's device.
            end: exclusive upper bound that all ids are known to respect; without it, the ids are
                checked first, which waits for a GPU.
            traffic: where to add what the rows ask of the link to host memory, as expected over
                the rows of a table: nothing for those in the device's own memory.
            wrong: int64 [1] on this backend's device, or None. A GPU writes an id out of range
                there in place of the error, and nobody waits for it: rows of such ids get all bits
                set, which is NaN, and -1 as an integer.

        Raises:
            IndexError: an id out of range.
        """

    waits_for_counts: bool  # whether `Workspace.sample` does, and `sample_padded` does not
    reads_over_link: bool  # whether rows may come from host memory over a link
    caches_rows: bool  # whether `fill_cache` does anything
    cache: CacheRequest | None  # that loaders over this backend share

    def fill_cache(self, tables: Sequence[Candidate], size: str | int | float) -> None:
        """Hold the rows that are read most often in device memory; `gather` finds them there.

        Batches are the same bits. A cached row follows its table as copies in device memory do.
        Where memory is short, there is one warning, and fewer rows are held. The CPU does nothing.

        Args:
            tables: placed ones, with the expected visits of their rows; those that lie in device
                memory are passed over.
            size: device memory that may be taken: bytes, as a float a share of what all rows of
                the tables would take, or "auto" for what graph and tables left of the budget.
        """

    def reduce(
        self,
        csc: Csc,
        relation: int,
        table: Tensor,
        kind: str,
        nodes: tuple[int, int],
        weight: Tensor | None = None,
    ) -> Tensor | None:
        """Reduce the rows of the in-neighbours of consecutive nodes; empty lists give 0.

        Each list is summed in its order, so the bits do not depend on `nodes`.

        Args:
            csc: a graph from `Memory.place_graph`.
            relation: which of its relations.
            table: [sources, width], float32, float64 or bfloat16, contiguous.
            kind: "sum", "mean", "max" or "min".
            nodes: first and last (excluded) destination node.
            weight: [edges of `nodes`], factors of the rows by position, for "sum"; of the dtype of
                the result.

        Returns:
            [last - first, width], float32 for bfloat16, else of the dtype of `table`; or None if
            the backend has no kernel for it.
        """


class WrongBatchesError(RuntimeError):
    """A device does not give the batches that the CPU gives."""


def row_out_of_range(row: int, num_rows: int) -> IndexError:
    """Return the error of `Backend.gather` for an id that a table has no row for."""
    return IndexError(
        f"Cannot gather row {row} of a tensor with {num_rows} rows. Did an attribute of the data "
        f"change its size, or a transform_sampler_output its ids?"
    )


def batch_too_large(nodes: int, edges: int) -> ValueError:
    """Return the error of a batch that has more nodes of a type, or edges in a hop, than ids."""
    return ValueError(
        f"One batch may reach {nodes} nodes of a type and {edges} edges in a hop, more than the "
        f"{ID_LIMIT} that local ids can count. Use a smaller batch_size or smaller num_neighbors."
    )
