"""A training step on a batch that ranks make together: each computes the nodes that it owns.

Values that messages read are exchanged before, their gradients on the way back; outputs of seeds go
to the rank whose loop has the seeds. Nothing that leads to an exchange is decided by a rank alone:
the ranks run the same model, and agree in each exchange on how many hops are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from ...batch.edges import SampledEdges
from ...core.cooperation import Cooperation
from ...core.private_torch import tree_leaves, writes_to
from ...ranks.board import ExchangeError
from ...ranks.channel import Channel
from ..lazy.batch_run import BatchRun
from ..lazy.rules import Operator, keeps_rows
from ..lazy.tensor import TableTensor, leave, seen, seen_with_fills
from ..lazy.values import Fill, Leaf, Rows, Value, compute_rows
from ..training.batch_sizes import BatchSizes, Entered, NotAPrefix
from .common_rows import CommonNorm, PaddingRows, Statistics
from .gathers import BY_DIM, BY_INDEX, Exchanges, Gathered
from .messages import OutputRows, RowBlocks, SourceRows, StepMessages
from .values import exchanged

# Operations that move rows and combine no numbers of several rows.
MOVES = {
    "cat", "clone", "copy", "expand", "index", "index_put", "index_select", "masked_fill",
    "permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t",
    "transpose", "unbind", "unsqueeze", "view", "_unsafe_view", "where",
}  # fmt: skip
PUTS = {"index_copy", "index_put", "scatter"}


def check_not_lazy(is_lazy: bool) -> None:
    """Raise a RuntimeError for a model that gets the shapes of parameters from its first batch."""
    if is_lazy:
        raise RuntimeError(
            "This model has lazy parameters, whose shapes a cooperative batch cannot give. Run it "
            "once on any other batch of the same attributes, or give its layers their sizes."
        )


def channel_of(common: Cooperation) -> Channel:
    """Return the channel of a batch's ranks, for the thread that computes."""
    if common.size > 1 and common.group is None:
        raise RuntimeError(
            "This batch of several ranks was copied from another process, so it cannot be computed."
        )
    channel: Channel | None = common.channel
    return Channel(None, common.timeout_seconds) if channel is None else channel


@contextlib.contextmanager
def telling(channel: Channel) -> Iterator[None]:
    """Tell the other ranks of an error here, which they raise, too."""
    try:
        yield
    except ExchangeError:  # all know of it
        raise
    except Exception as error:
        if channel.size > 1:
            with contextlib.suppress(ExchangeError):
                StepMessages(channel).fail(f"{type(error).__name__}: {error}")
        raise


class CooperativeRun(BatchRun):
    """A step of which no operation may mix the rows of different nodes.

    Args:
        padding: of the batch.
        common: what the batch says of its ranks.

    Attributes:
        channel: of the ranks.
        is_in_forward: whether the forward runs.
    """

    exchanges: CommonExchanges  # from the forward on

    def __init__(self, padding: PaddingRows, common: Cooperation) -> None:
        super().__init__(padding.edges[0][1].device, all_statistics=False)
        self.channel, self.is_in_forward = channel_of(common), True
        self._messages = StepMessages(self.channel)
        self._common = common
        self._blocks = {t: RowBlocks(n, padding.nodes[t]) for t, n in common.nodes.items()}
        self._num_edges = padding.num_edges
        self._asked = 0
        self._only_moves = False
        self._norms: list[tuple[CommonNorm, int]] = []  # that change statistics of modules

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an operation, or remember that it is to be done on the rows that are needed."""
        if self.is_in_forward:
            first = args[0] if func is torch.ops.aten.mm.default else None
            if isinstance(first, TableTensor) and first.node.dim == 1:
                raise refusal("mm multiplies over the rows")
            return super().call(func, args, kwargs)
        with telling(self.channel):
            return super().call(func, args, kwargs)

    def all_rows(self, node: Value) -> Tensor:
        """Return all rows of a value; not to be written to.

        Where a backward asks for them, a rank may have computed all that it has, and others not. So
        they are computed again on all ranks, which then take part in the same exchanges.
        """
        again = not self.is_in_forward and node.support is None
        return compute_rows(node, Rows(node.num_rows), again)

    def type_of(self, num_rows: int) -> Any:
        """Return (node type,) of which there are as many rows; () if there is none."""
        found = [t for t, blocks in self._blocks.items() if blocks.num_rows == num_rows]
        return tuple(found[:1])

    def exchange_of(self, gathered: Gathered) -> SourceRows | None:
        """Return how the rows of a value that messages read come here."""
        if gathered.is_input or self.channel.size == 1:
            return None
        node_type = None if gathered.edge_type is None else gathered.edge_type[0]
        title, each = self._rows_of(gathered, "value", f" of {node_type or 'the nodes'}")
        return SourceRows(self._messages, self._blocks[node_type], title, each)

    def outputs_of(self, out: TableTensor) -> tuple[TableTensor, int]:
        """Return an output whose first rows are the loop's seeds, and their number."""
        found = self.type_of(out.size(0))
        if not found:
            raise refusal(f"it returns a tensor of shape {tuple(out.shape)}, not rows of nodes")
        blocks = self._blocks[found[0]]
        if found[0] != self._common.input_type:
            return out, blocks.seeds
        title, each = self._rows_of(out, "output")
        way = OutputRows(self._messages, blocks, title, each, self._common.outputs)
        return exchanged(out, way), blocks.seeds

    def _rows_of(self, value: Gathered | TableTensor, what: str, of: str = "") -> tuple[str, int]:
        """Return the title of rows that go between ranks, the same on all, and the bytes of one."""
        self._asked += 1
        shape = (*value.shape[1:],)
        title = f"{what} {self._asked}{of}, {shape} {value.dtype}"
        return title, prod(shape) * value.dtype.itemsize

    # --- what mixes rows ---

    def _on_whole(self, known: Operator, args: Any, kwargs: Any) -> Any:
        if not self.is_in_forward:
            return super()._on_whole(known, args, kwargs)
        apart = known.name in MOVES or any(
            keeps_rows(known.func, args, kwargs, how) for how in (seen, seen_with_fills)
        )
        if not apart:
            raise refusal(f"{known.func} needs all rows of a batch")
        with self._moving(apart):
            found = super()._on_whole(known, args, kwargs)
        self._check_places(known, (args, kwargs), found)
        return found

    def _check_places(self, known: Operator, given: Any, found: Any) -> None:
        """Raise a MixedRowsError if rows were put where it is not known whose they are.

        Some of the edges may be picked, but not be put in tables of other sizes: those of layers
        that pad lists of neighbours are as long as the longest one that this rank has.
        """
        tables = [v for v in tree_leaves(given) if isinstance(v, TableTensor)]
        puts = known.name.rstrip("_") in PUTS
        if any(
            t.node not in self.exchanges.inputs
            and (self._has_rows(t) if puts else self.type_of(t.size(0)))
            for t in tables
        ):
            for v in tree_leaves(found):
                if isinstance(v, Tensor) and not self._has_rows(v):
                    raise refusal(f"{known.func} joins, pads or reorders rows")

    def _has_rows(self, tensor: Tensor) -> bool:
        """Whether a tensor has as many rows as there are nodes of some type, or edges."""
        rows = tensor.size(0) if tensor.dim() > 0 else 0
        return bool(self.type_of(rows)) or rows in self.exchanges.edge_counts

    def _change(self, known: Operator, args: Any, kwargs: Any) -> Any:
        with self._moving(known.name.rstrip("_") in MOVES):
            found = super()._change(known, args, kwargs)
        if self.is_in_forward:
            self._check_places(known, (args, kwargs), found)
        return found

    @contextlib.contextmanager
    def _moving(self, only_moves: bool) -> Iterator[None]:
        before, self._only_moves = self._only_moves, only_moves
        try:
            yield
        finally:
            self._only_moves = before

    def whole(self, table: TableTensor) -> Tensor:
        """Return all rows; not to be written to."""
        given = table.plain is not None or isinstance(table.node, (Leaf, Fill))
        listed = not table.dtype.is_floating_point  # which edges are meant, for example
        if self.is_in_forward and not (given or listed or self._only_moves):
            raise refusal(f"it reads all rows of a tensor of shape {tuple(table.shape)}")
        return super().whole(table)

    def norm(self, func: Any, x: Value, rest: Any) -> CommonNorm:
        """Return what is normalised by the statistics of the rows of all ranks."""
        found = self.type_of(x.num_rows)
        if len(x.shape) != 2 or not (found or x.num_rows in self._num_edges):
            raise refusal(f"batch statistics of a tensor of shape {tuple(x.shape)}")
        first, last = 0, self._num_edges.get(x.num_rows, 0)
        if found:
            blocks = self._blocks[found[0]]
            first, last = blocks.seeds, blocks.own[-1]
        self._asked += 1
        statistics = Statistics(self._messages, f"norm {self._asked}, {x.shape[1]}", x.shape[1])
        norm = CommonNorm(func, x, rest, statistics, first, last)
        if norm.is_learning:
            self._norms.append((norm, last))
        return norm

    def unused_norms(self) -> list[tuple[Value, int]]:
        """Return norms whose rows were not read, with the rows that statistics are of."""
        return [(norm, rows) for norm, rows in self._norms if not norm.is_measured]


class _JointRead(Value):
    """Nothing, for which some rows of several values are computed.

    Args:
        read: the values, with the number of rows of each.
    """

    __slots__ = ("_rows",)

    def __init__(self, read: list[tuple[Value, int]]) -> None:
        super().__init__((0,), torch.float32, torch.device("cpu"), 0)
        self._rows = [rows for _, rows in read]
        self.reads(*(value for value, _ in read))

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return the rows to compute first."""
        return [(v, Rows(n)) for v, n in zip(self.inputs, self._rows, strict=True)]

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        return torch.empty(0)


class _JointBackward(torch.autograd.Function):
    """Lets the backward of one output run that of all: a loss may leave some of them out."""

    @staticmethod
    def forward(ctx: Any, *outs: Tensor) -> Any:
        return tuple(out.view_as(out) for out in outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads


def run_together(
    forward: Callable[..., Any], edges: Any, common: Cooperation, args: Any, kwargs: Any
) -> tuple[Any, BatchRun]:
    """Run a forward on this rank's part of a batch, and return the outputs of the loop's seeds.

    Args:
        forward: of the model.
        edges: of the batch, with their types.
        common: what they say of its ranks.
        args, kwargs: of the forward.

    Raises:
        MixedRowsError: the model cannot run on such a batch.
        ExchangeError: another rank failed, or did not take part in time.
    """
    with telling(channel_of(common)):
        padding = PaddingRows(edges, common)
        try:
            sizes = BatchSizes(padding.edges)
        except NotAPrefix:
            raise RuntimeError(
                "The edges of a cooperative batch were written to. Change the graph before."
            ) from None
        run = CooperativeRun(padding, common)
        with CommonExchanges(run, padding.edges):
            entered = Entered(run, sizes)
            given, named = entered.of(padding.of((args, kwargs)))
            out = forward(*given, **named)
        run.is_in_forward = False
        out = _outputs(run, sizes, out)
        run.saved.check()
        entered.write_back()
    return out, run


def _outputs(run: CooperativeRun, sizes: BatchSizes, out: Any) -> Any:
    """Return what a forward gave with the rows of the loop's seeds, computed at once."""
    tables: list[tuple[TableTensor, int]] = []

    def see(value: Tensor, _: int) -> Tensor:
        if isinstance(value, TableTensor) and value.dim() > 0:
            tables.append(run.outputs_of(value))
        return value

    sizes.seeds_of(out, see)
    read = [*((table.node, rows) for table, rows in tables), *run.unused_norms()]
    if len(read) > 1:
        compute_rows(_JointRead(read), Rows(0))
    left: list[Tensor] = [leave(table, rows) for table, rows in tables]
    seeds = [place for place, t in enumerate(left) if t.requires_grad and len(t) > 0]
    if len(seeds) > 1:
        tied = cast(Any, _JointBackward.apply)(*[left[place] for place in seeds])
        for place, t in zip(seeds, tied, strict=True):
            left[place] = t
    found = iter(left)

    def take(value: Tensor, rows: int) -> Tensor:
        if isinstance(value, TableTensor) and value.dim() > 0:
            return next(found)
        return leave(value, rows)

    return sizes.seeds_of(out, take)


SUMS = {
    getattr(of, name)
    for of, names in (
        (torch, ("scatter_add", "scatter_reduce", "index_add", "index_reduce")),
        (Tensor, ("scatter_add", "scatter_reduce", "index_add", "index_reduce")),
        (Tensor, ("scatter_add_", "scatter_reduce_", "index_add_", "index_reduce_")),
    )
    for name in names
}

COUNTS = {torch.bincount, Tensor.bincount}


class MixedRowsError(RuntimeError):
    """A model that cannot run on a batch which ranks make together."""


def refusal(what: str) -> MixedRowsError:
    """Return the error of a model that mixes rows."""
    return MixedRowsError(
        f"This model cannot run on a cooperative batch, of which each rank has some rows only: "
        f"{what}. Leave cooperative=True out; share_rows=True shares the loading for any model."
    )


class CommonExchanges(Exchanges):
    """Exchanges of a step in which each rank has some rows only.

    Args:
        run: the step, a `CooperativeRun`.
        edges: see `Exchanges`.
    """

    def __init__(self, run: CooperativeRun, edges: list[tuple[Any, SampledEdges]]) -> None:
        super().__init__(run, edges, run.exchange_of)
        self._common, self._ends = run, []
        self.edge_counts: set[int] = set()  # with and without self-loops
        for _, sampled in edges:
            source, destination = sampled.as_tensor()
            for kept in (destination, destination[source != destination]):
                rows = sampled.num_ends[1]
                self._ends.append((rows, kept))
                self.edge_counts |= {len(kept), len(kept) + rows}
        self._known: dict[int, bool] = {}
        self._entered: dict[tuple[int, int], tuple[Tensor, TableTensor]] = {}

    def __exit__(self, *error: Any) -> None:
        """Forget the tensors of the forward."""
        super().__exit__(*error)
        self._entered.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let a gather read exchanged rows, also of what is computed of the edges alone."""
        table: Any = args[0] if args else None
        plain = type(table) in (Tensor, torch.nn.Parameter) and table.dim() > 0
        if plain and func in COUNTS and len(table) in self.edge_counts:
            self._check_count(table)
        if plain and self._common.type_of(len(table)):
            if func in SUMS:
                self._check_plain_sum(table, *args[1:], **(kwargs or {}))
            elif func in BY_DIM | BY_INDEX and self._is_by_sources(table, args, kwargs or {}):
                args = (self._enter(table), *args[1:])
        return super().__torch_function__(func, types, args, kwargs)

    def _is_by_sources(self, table: Tensor, args: Any, kwargs: Any) -> bool:
        index = kwargs.get("index", args[-1])
        return self._read(len(table), index)[0]

    def _enter(self, table: Tensor) -> TableTensor:
        """Return a tensor of the step with the rows of a plain one."""
        key = id(table), writes_to(table)
        if key not in self._entered:
            run = self._common
            made = run.enter(table if table.requires_grad else run.saved.kept(table))
            self._entered[key] = table, made
        return self._entered[key][1]

    def _check_plain_sum(self, table: Tensor, dim: int, index: Any, *_: Any, **__: Any) -> None:
        if type(index) is Tensor and table.size(dim) > 0:
            listed = index if index.dim() < 2 else index.movedim(dim, 0).flatten(1)[:, 0]
            self.check_sum(listed, table.size(dim))

    def check(self, value: Value, index: Tensor) -> None:
        """Raise a RuntimeError if a value is gathered in a way that would miss rows of others."""
        super().check(value, index)
        is_known = value in self.inputs or value in self.exchanged or isinstance(value, Fill)
        if not self._common.is_in_forward or is_known:
            return
        if value.num_rows in self.edge_counts and not self._common.type_of(value.num_rows):
            return
        if not self._goes_to(value.num_rows, index):
            raise refusal("rows are picked neither by sources nor by destinations of edges")

    def check_sum(self, index: Tensor, rows: int) -> None:
        """Raise a RuntimeError if messages are summed by anything but destinations."""
        listed = index.dim() == 1 and self._common.is_in_forward
        if listed and not self._goes_to(rows, index):
            raise refusal("messages are summed by other lists than the destinations of edges")

    def _check_count(self, index: Tensor) -> None:
        """Raise a RuntimeError if edges are counted by anything but destinations."""
        if not any(self._goes_to(rows, index) for rows, _ in self._ends):
            raise refusal("edges are counted by other lists than their destinations")

    def refused(self, what: str) -> RuntimeError:
        """See `Exchanges`."""
        return refusal(what)

    def _goes_to(self, num_rows: int, index: Tensor) -> bool:
        """Whether a list is one of destinations, which self-loops may follow."""
        index = self._common.lists.one(index)
        if id(index) not in self._known:
            self._known[id(index)] = any(
                rows == num_rows and _is_list(index, listed, rows) for rows, listed in self._ends
            )
        return self._known[id(index)]


def _is_list(index: Tensor, listed: Tensor, num_rows: int) -> bool:
    loops = index[len(listed) :]
    if len(loops) not in (0, num_rows) or not torch.equal(index[: len(listed)], listed.long()):
        return False
    return len(loops) == 0 or torch.equal(loops, torch.arange(num_rows, device=loops.device))
