"""`accelerate`: a model that trains faster on sampled batches, with the same numbers."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch.nn.parameter import is_lazy

from ...core.arguments import check_flag
from ...core.cooperation import Cooperation
from ...core.private_torch import in_backward, is_transformed
from ...loading.base import DirectLoader, hand_out_hops
from ...ops.devices import is_capturing
from ..lazy.batch_run import BatchRun
from ..lazy.forms import Forms
from ..lazy.modes import eagerly
from ..lazy.sums import Missing, NotCutError
from ..lazy.tensor import leave
from ..remote.cooperative import check_not_lazy, run_together
from ..remote.gathers import Exchanges, Gathered
from ..remote.reuse import (
    OTHER_MODEL,
    Reuse,
    ReusedRows,
    RowTables,
    check_reuse,
    missing_rows_matter,
)
from ..remote.values import RowExchange
from .batch_sizes import (
    BatchSizes,
    Entered,
    NotAPrefix,
    check_accelerable,
    common_of,
    copied_tensors,
    edges_in,
    failure,
    run_plain,
    why_unknown,
    without_counts,
)
from .certificate import Certificate, kind_of_call
from .costs import StepCosts, StepTimes
from .undo import undo_of
from .with_forward import with_forward

M = TypeVar("M", bound=torch.nn.Module)
TOLD_AFTER = 3  # calls of the training whose edges are not known


class Acceleration:
    """What an accelerated model knows beside what the plain one does; `model.acceleration`.

    Attributes:
        plain: the model as it was given; it shares everything with the accelerated one.
        reason: why the last call ran the plain model, "" if it ran on the needed rows; before
            the first call, why batches of loaders will.
    """

    def __init__(self, plain: torch.nn.Module, all_statistics: bool, certify: bool) -> None:
        self.plain = plain
        self.tables: RowTables | None = None
        self.all_statistics = all_statistics
        self.reason = ""
        self.refused: list[str] = []  # why batches of some loaders cannot be told
        self._refuted = ""  # numbers differ, or a step failed: plain for all that comes
        self._warned: set[str] = set()
        self._unknown = 0  # calls so far whose edges are not known
        self._certificate = Certificate() if certify else None
        self._may_be_lazy = True
        self._costs = StepCosts()
        self._times = StepTimes()
        self._how = Forms()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model on the needed rows if arguments hold sampled edges, else plain."""
        kwargs = without_counts(self.plain.forward, kwargs)
        edges = list(edges_in((args, kwargs)))
        if self.tables is not None:
            self.tables.check_edges(edges)
        if not edges:
            reason, warn = why_unknown((*args, *kwargs.values()), self.refused)
            return self._as_it_is(reason, args, kwargs, warn or self._often())
        if (common := common_of(edges)) is not None:
            return self._together(common, edges, args, kwargs)
        if any(e.hops is not None and e.hops.reused is not None for _, e in edges):
            return self._with_tables(BatchSizes(edges), args, kwargs)
        if self._refuted:
            return self._as_it_is(self._refuted, args, kwargs)
        try:
            sizes = BatchSizes(edges)
        except NotAPrefix as changed:  # the user changed what the sampler gave
            return self._as_it_is(str(changed), args, kwargs, self._often())
        reason = self._unfit(sizes)
        if reason:
            warn = reason in self._times.slower.values()
            return sizes.seeds_of(self._as_it_is(reason, args, kwargs, warn))
        return self._on_needed_rows(sizes, args, kwargs)

    def _as_it_is(self, reason: str, args: Any, kwargs: Any, warn: bool = False) -> Any:
        """Run the plain model, and say why: in `reason`, and in one warning if that is wanted."""
        out = run_plain(self.plain.forward, args, kwargs)  # raises for wrong arguments
        self.reason = reason
        if warn and reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(
                f"pyg_direct.accelerate runs {type(self.plain).__name__} as it is: {reason}",
                stacklevel=6,
            )
        return out

    def _often(self) -> bool:
        """Count a call whose edges are not known; return whether to warn of it.

        In evaluation that may be wanted, as on a whole graph.
        """
        self._unknown += self.plain.training and torch.is_grad_enabled()
        return self._unknown == TOLD_AFTER and not self.refused

    def _unfit(self, sizes: BatchSizes) -> str:
        """Return why a batch is one for the plain model, "" if it is not."""
        if self._is_lazy():
            return "it has lazy parameters, which get their shapes from a batch"
        if is_transformed():
            return "a transform of torch.func or forward-mode AD is active"
        if self._same_as_plain() and not self._costs.pay(sizes.num_edges):
            return f"a batch of {sizes.num_edges} edges is expected to run faster on all rows"
        return self._times.slower.get(self._kind(), "")

    def _kind(self) -> tuple[bool, bool]:
        """Return what kind of call it is: those of another one may take another time."""
        return self.plain.training, torch.is_grad_enabled()

    def _timed(self, sizes: BatchSizes, args: Any, kwargs: Any) -> Any:
        """Run the model on the needed rows; some of the first calls are of the plain model."""
        needed = functools.partial(self._step, sizes, args, kwargs)
        if in_backward() or is_capturing(sizes.device) or not self._same_as_plain():
            return needed()

        def plain() -> Any:
            return sizes.seeds_of(run_plain(self.plain.forward, args, kwargs))

        return self._times.run(self._kind(), sizes.num_edges, needed, plain, sizes.device)

    def _together(self, common: Cooperation, edges: Any, args: Any, kwargs: Any) -> Any:
        """Run the model on this rank's part of a batch that ranks make together."""
        with eagerly():
            check_not_lazy(self._is_lazy())
            out, run = run_together(self.plain.forward, edges, common, args, kwargs)
        self._how, self.reason = run.forms, ""
        return out

    def _on_needed_rows(self, sizes: BatchSizes, args: Any, kwargs: Any) -> Any:
        """Run the model on the needed rows if that gives its numbers, else the plain model."""
        try:
            reason = self._compared(sizes, args, kwargs)
            if not reason:
                return self._timed(sizes, args, kwargs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            if in_backward():  # a checkpoint ends what it computes again by an exception
                raise
            reason = failure(error)
        out = self._as_it_is(reason, args, kwargs, warn=True)
        self._refuted = reason
        return out

    def _with_tables(self, sizes: BatchSizes, args: Any, kwargs: Any) -> Any:
        """Run the model on a batch of which some rows of layer 1 are in its tables.

        Raises:
            RuntimeError: it cannot be run so. The plain model could not be, either: such a batch
                leaves out neighbours.
        """
        reused = sizes.reused
        if self.tables is None or reused is None:
            raise RuntimeError(OTHER_MODEL)
        self.tables.begin(reused)
        reason = self._compared(sizes, args, kwargs) if reused.certified else ""
        if reason:
            name = type(self.plain).__name__
            raise RuntimeError(f"accelerate(reuse=) cannot run {name}: {reason}")
        try:
            return self._step(sizes, args, kwargs)
        except NotCutError:
            step = functools.partial(self._step, sizes)
            if missing_rows_matter(self.plain, step, (args, kwargs)):
                raise
        return self._step(sizes, args, kwargs, shift=0.0)

    def _exchanges(self, sizes: BatchSizes) -> Callable[[Gathered], RowExchange | None] | None:
        """Return what gives the exchange of each value of a step; None for none."""
        reused = sizes.reused
        return None if self.tables is None or reused is None else self.tables.exchanges(reused)

    def reused(self) -> ReusedRows | None:
        """Return what the training has reused so far; None without `reuse=`."""
        return None if self.tables is None else self.tables.reused()

    def _step(
        self,
        sizes: BatchSizes,
        args: Any,
        kwargs: Any,
        shift: float | None = None,
        twin: torch.nn.Module | None = None,
    ) -> Any:
        """Run the forward on tensors that compute needed rows, and return those of the seeds.

        If it fails, all that can be reached from the model is as before.

        Args:
            sizes: of the batch.
            args, kwargs: of the forward.
            shift: a number that is added to rows of layer 1 that must not be read.
            twin: a copy of the model, which is run with the random numbers of the plain one.
        """
        run = BatchRun(sizes.device, self.all_statistics, twin is None)
        # A checkpoint ends what it computes again by an exception, and a copy is used once.
        once = twin is not None or in_backward()
        undo = None if once else undo_of(self.plain, sizes, (args, kwargs))
        known = None if undo is None else undo.state.all_tensors()  # parameters among them
        run.saved.leave_plain(known or (twin or self.plain).parameters())
        try:
            with ExitStack() as stack:
                stack.enter_context(eagerly())
                if (exchange_of := self._exchanges(sizes)) is not None:
                    missing = Missing.of(sizes.reused, shift)
                    stack.enter_context(Exchanges(run, sizes.edges, exchange_of, missing))
                entered = Entered(run, sizes)
                given, named = entered.of((args, kwargs))
                with nullcontext() if undo is None else undo.watching():
                    out = (twin or self.plain).forward(*given, **named)
                out = sizes.seeds_of(out, leave)
                run.saved.check()
        except Exception:
            if undo is not None:
                undo.restore()
            raise
        entered.write_back()
        self.reason = ""
        self._costs.learn(sizes.num_edges, run.entries, run.calls, run.products)
        if run.forms.sums or not self._how.sums:  # a batch without edges has none
            self._how = run.forms
        return out

    def _compared(self, sizes: BatchSizes, args: Any, kwargs: Any) -> str:
        """Return in what a step differs from the plain model, if that is to be looked at."""
        if self._certificate is None or not self._same_as_plain() or in_backward():
            return ""
        call = None if sizes.reused is None else sizes.reused.batch
        if not self._certificate.is_due(kind_of_call(self.plain, (args, kwargs)), call):
            return ""

        def accelerated(twin: torch.nn.Module) -> Any:
            given = copied_tensors((args, kwargs))
            return self._step(sizes, given[0], given[1], None, twin), given

        def plain(twin: torch.nn.Module) -> Any:
            given = copied_tensors((args, kwargs))
            return sizes.seeds_of(run_plain(twin.forward, *given)), given

        return self._certificate.check(self.plain, accelerated, plain, (args, kwargs))

    def _is_lazy(self) -> bool:
        """Whether parameters get their shapes from a batch, which has to be a plain one."""
        if self._may_be_lazy:
            tensors = itertools.chain(self.plain.parameters(), self.plain.buffers())
            self._may_be_lazy = any(map(is_lazy, tensors))
        return self._may_be_lazy

    def _same_as_plain(self) -> bool:
        """Whether the numbers are meant to be those of the plain model."""
        measuring = (m for m in self.plain.modules() if m.training)
        return self.all_statistics or not any(
            getattr(m, "running_mean", None) is not None for m in measuring
        )

    def forms(self) -> dict[str, str]:
        """Return how the last step on needed rows ran: its sums, and what needed all rows.

        `sums` are ``products`` with a sparse matrix, ``messages`` that are written down, or both;
        `all rows` names the operations of torch that ran on all rows of the batch, and `all rows of
        gradients` those of its backward; `as it is` says why the last call ran the plain model,
        `not compared` why its numbers were not.
        """
        left_out = "" if self._certificate is None else self._certificate.left_out
        found = {**self._how.texts(), "as it is": self.reason, "not compared": left_out}
        return {kind: text for kind, text in found.items() if text}


def accelerate(
    model: M,
    *loaders: DirectLoader,
    batch_norm: str = "all",
    certify: bool = True,
    reuse: Reuse | None = None,
) -> M:
    """Return a model that trains faster on the batches of our loaders, and gives the same numbers.

    The seeds' outputs of an L-layer model depend on ever fewer rows from layer to layer. A sampled
    batch lists nodes and edges hop by hop, edges by destination, so what layer l needs are the
    first rows and the first edges of the batch. The model's own forward runs at each step, on
    tensors of full shape that compute nothing until rows are asked for, and then those that are
    needed; nothing of it is recorded. A sum of gathered rows, times a weight for each edge where
    there is one, is one sparse product, without messages; of all other operations of torch, those
    that keep rows apart run on the needed rows, and the rest on all rows. Layers that normalise by
    degree do so over the whole batch, as in the plain model (PyG's `trim_to_layer` changes the
    numbers of GCNConv). Small batches, whose steps take the time of Python, run through the plain
    model, which is faster there, as do those that give lazy parameters their shapes.

    Code that takes the memory of a tensor, or asks for its exact type, cannot be served. So before
    the 1st, the 64th and each 4,096th step on the needed rows, of training and of evaluation, a
    copy of the model takes it as well, and a copy that is plain, with the same random numbers. If
    outputs, gradients or what the copies hold differ by more than rounding does (1e-3 of the
    largest number for float32, 1e-7 for float64, 0.1 for less precise dtypes), or a step fails, one
    warning says in what, and the plain model runs from then on, from the state before the step.

    On a batch of `cooperative=True` each rank computes the nodes that it owns, and the outputs are
    those of the seeds of its own loop. All ranks have to run the same model in each step, and the
    backward of what it returns; a model that mixes rows of different nodes raises a RuntimeError.

    Args:
        model: any model; its parameters, state_dict, class and attributes are those of the result,
            which shares them. It can still be used itself.
        *loaders: `pyg_direct` loaders whose batches the model will see. From now on their edges
            know how many of them each hop has; to all else they are plain tensors, and so are those
            that a transform of the loader changes, on which the model runs as it is.
        batch_norm: modules with statistics over the batch, in training mode: "all" rows of the
            batch, as in the plain model, so that the layers before them run on all rows, too; or
            those "needed", which is faster and gives other numbers.
        certify: compare with the plain model, as above. Models with `batch_norm="needed"` are not
            compared in training mode, models that `copy.deepcopy` cannot copy, or that write to
            tensors of their own of 64 MiB or more, never; nor is any on a cooperative batch.
        reuse: take rows of layer 1 from a table of earlier steps, which changes what the model
            learns from; see `Reuse`. Needs one `NeighborLoader` over a homogeneous graph, on the
            CPU, with at most one worker: that of the training, whose batches no other model can
            use. Evaluation takes other loaders. The table is not part of the model's state: it is
            empty in copies, and after a state was loaded. Batches in which the model is compared
            with the plain one compute all rows.

    Returns:
        A model of the same class with the same signature. On batches of `loaders`, its outputs are
        those of the *seeds*: [batch_size, C], or a dict with the seeds' rows of each node type
        (``out[:batch.batch_size]``, and rows picked by `edge_label_index`, are as always). On plain
        tensors it does what the model does. `result.acceleration.forms()` tells how a step ran.

    Raises:
        TypeError: not a module, or not a loader of ours.
        ValueError: a model within DistributedDataParallel or `torch.compile`, or one on which or on
            whose parts `.compile()` was called (accelerate it first), an unknown `batch_norm`, or
            a loader or a model that `reuse` does not fit, or "needed" with a loader that has
            `cooperative=True`.
        RuntimeError: in the forward, with `reuse`: a batch whose rows are not in the table, or too
            old; a model that reads rows of layer 1 otherwise than by the sources of edges; or one
            that is evaluated on a batch of the training.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=200)
        >>> fast = pyg_direct.accelerate(model, loader)
        >>> for batch in loader:
        ...     out = fast(batch.x, batch.edge_index)[: batch.batch_size]
        >>> out.shape
        torch.Size([100, 4])
    """
    check_accelerable(model, loaders)
    check_flag("certify", certify)
    if batch_norm not in ("all", "needed"):
        raise ValueError(f"batch_norm must be 'all' or 'needed', got {batch_norm!r}.")
    if reuse is not None:
        check_reuse(reuse, plain_of(model), loaders, batch_norm == "all")
    if batch_norm == "needed" and any(loader._split.cooperative for loader in loaders):
        raise ValueError(
            "batch_norm='needed' cannot be used with a loader that has cooperative=True: no rank "
            "knows which rows the others need. Leave batch_norm out."
        )
    reasons = [hand_out_hops(loader) for loader in loaders]
    for loader, reason in zip(loaders, reasons, strict=True):
        if reason:
            warnings.warn(
                f"pyg_direct.accelerate: batches of this {type(loader).__name__} run through the "
                f"model as it is, as the order of their edges is not known: {reason}.",
                stacklevel=2,
            )
    accelerated = _accelerated(plain_of(model), batch_norm == "all", certify)
    for loader in loaders:
        loader._reusing = None
    state: Acceleration = cast(Any, accelerated).acceleration
    state.refused = [reason for reason in reasons if reason]
    state.reason = "; ".join(state.refused)
    if reuse is not None:
        state.tables = RowTables(reuse, plain_of(model), loaders[0], certify)
        state.tables.loads_into(accelerated)
    return accelerated


def acceleration(model: torch.nn.Module) -> Acceleration:
    """Return what an accelerated model knows of its steps: `model.acceleration`, for type checkers.

    These do not know the attribute, as the model keeps its class.

    Args:
        model: from `accelerate`.

    Raises:
        TypeError: another model.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=200)
        >>> fast = pyg_direct.accelerate(model, loader)
        >>> pyg_direct.acceleration(fast).reason
        ''
    """
    known = getattr(model, "acceleration", None)
    if not isinstance(known, Acceleration):
        raise TypeError(
            f"{type(model).__name__} is not an accelerated model: pass the result of "
            f"pyg_direct.accelerate(model, loader), not a wrapper of it."
        )
    return known


def plain_of(model: M) -> M:
    """Return the model that an accelerated one was made from; any other model unchanged."""
    known = getattr(model, "acceleration", None)
    return cast(M, known.plain) if isinstance(known, Acceleration) else model


def _accelerated(plain: M, all_statistics: bool, certify: bool) -> M:
    """Return an object of a subclass of the model's class that shares the model's attributes."""
    state = Acceleration(plain, all_statistics, certify)

    def reduce(self: Any, protocol: Any = None) -> Any:
        return _accelerated, (plain, all_statistics, certify)

    more = {"acceleration": state, "__reduce__": reduce, "__reduce_ex__": reduce}
    return with_forward(plain, state.run, more)
