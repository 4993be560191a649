"""`accelerate`: a model that trains faster on sampled batches, with the same numbers."""

from __future__ import annotations

import functools
import inspect
import warnings
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data, HeteroData

from ..batch.edges import SampledEdges
from ..core.arguments import check_flag
from ..core.private_torch import compiled_in_place, in_backward
from ..loading.base import DirectLoader
from ..loading.hops import hand_out_hops
from .arguments import (
    copied_tensors,
    has_hops,
    kind_of,
    map_edges,
    modes_of,
    modes_of_torch,
    run_plain,
    tensors_of,
)
from .certificate import Certificate
from .cutter import CutError, cut
from .model_state import ModelState, Recorded
from .modes import same_generators
from .prefixes import NotAPrefix, Prefixes
from .tracer import is_recorded_through
from .trimmed import TrimmedModel

M = TypeVar("M", bound=torch.nn.Module)

MAX_CUTS = 8  # kinds of arguments and modes; a model called in more ways runs as it is


@dataclass
class _Way:
    """A trimmed model for one kind of arguments and modes.

    Attributes:
        trimmed: the model.
        recorded: what it was recorded with.
        is_new: whether it has not been compared with the plain model.
    """

    trimmed: TrimmedModel
    recorded: Recorded
    is_new: bool = True


class Acceleration:
    """What an accelerated model knows beside what the plain one does; `model.acceleration`.

    Attributes:
        plain: the model as it was given; it shares everything with the accelerated one.
        reason: why the model runs as it is, "" if it does not.
    """

    def __init__(self, plain: torch.nn.Module, all_statistics: bool, certify: bool) -> None:
        self.plain = plain
        self.all_statistics = all_statistics
        self.reason = ""
        self._refuted = False  # numbers differ, or a step failed: plain for all that comes
        self._certificate = Certificate() if certify else None
        self._forward = plain.forward
        self._recorded_again = 0
        self._ways: dict[Any, _Way | None] = {}
        self._lazy: list[str] = []  # parameters and buffers that the last call found without shape
        self._signature = inspect.signature(plain.forward)
        parameters = self._signature.parameters.values()
        plain_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self._has_plain_parameters = all(p.kind in plain_kinds for p in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind == plain_kinds[0])
        self._required = {p.name for p in parameters if p.default is inspect.Parameter.empty}

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model: trimmed where the arguments hold sampled edges, else as it is."""
        values = (*args, *kwargs.values())
        if not any(map(has_hops, values)):
            if any(isinstance(value, (Data, HeteroData)) for value in values):
                self._give_up("its forward takes a whole Data; let it take x and edge_index")
            return self._forward(*args, **kwargs)
        if self._refuted:
            return run_plain(self._forward, args, kwargs)
        inputs = self._inputs(args, kwargs)
        way = self._way(inputs)
        try:
            batch = way.trimmed.batch_of(inputs) if way is not None else None
        except NotAPrefix:  # the user changed what the sampler gave
            batch = None
        if way is None or batch is None:
            return run_plain(self._forward, args, kwargs)
        if way.trimmed.is_small(batch[1]):
            out = run_plain(self._forward, args, kwargs)
            try:
                return way.trimmed.seeds_of(out, batch[1])
            except (NotAPrefix, KeyError, TypeError, ValueError):  # another structure
                return out
        return self._trimmed(way, batch, inputs, args, kwargs)

    def _trimmed(
        self,
        way: _Way,
        batch: tuple[dict[str, Any], Prefixes],
        inputs: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a trimmed model if it gives the numbers of the plain one, else the plain one."""
        reason = ""
        try:
            reason = self._compared(way, batch[1], inputs, args, kwargs)
            if not reason:
                return way.trimmed.run(*batch)
        except NotAPrefix:
            pass
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            if in_backward():  # a checkpoint ends what it computes again by an exception
                raise
            reason = f"it fails on some of the rows ({type(error).__name__}: {error})"
        out = run_plain(self._forward, args, kwargs)  # raises what is a mistake in the arguments
        if reason:
            self._refuted, self.reason = True, ""
            self._give_up(reason)
        return out

    def _compared(
        self,
        way: _Way,
        prefixes: Prefixes,
        inputs: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> str:
        """Return in what a trimmed model differs from the plain one, if that is to be looked at."""
        if self._certificate is None or not way.trimmed.same_as_plain or in_backward():
            return ""
        if not self._certificate.is_due(way.recorded.attributes_changed() or way.is_new):
            return ""
        way.is_new = False

        def accelerated() -> Any:
            given = copied_tensors(inputs)
            return way.trimmed.run(*way.trimmed.batch_of(given)), tensors_of(given)

        def plain(twin: torch.nn.Module) -> Any:
            given = copied_tensors((args, kwargs))
            out = way.trimmed.seeds_of(run_plain(twin.forward, *given), prefixes)
            return out, tensors_of(self._inputs(*given))

        return self._certificate.check(self.plain, accelerated, plain)

    def forms(self) -> dict[str, str]:
        """Return how each call of a layer runs, by its name in the recorded model."""
        return {
            k: v
            for way in self._ways.values()
            if way is not None
            for k, v in way.trimmed.forms.items()
        }

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, without the counts that `trim_to_layer` of PyG takes."""
        given = dict(zip(self._positional, args, strict=False))
        names = given.keys() | kwargs.keys()
        known = len(names) == len(args) + len(kwargs) and names >= self._required
        if self._has_plain_parameters and known and names <= self._signature.parameters.keys():
            inputs = {**given, **kwargs}
        else:  # takes longer than all else that a small batch needs
            inputs = self._bound(args, kwargs)
        for name in [name for name in inputs if name.startswith("num_sampled_")]:
            parameter = self._signature.parameters.get(name)
            if parameter is not None and parameter.default is None:
                inputs.pop(name)
        return inputs

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name as Python binds them, or raise its TypeError."""
        inputs = self._signature.bind(*args, **kwargs).arguments
        for name, parameter in self._signature.parameters.items():
            if parameter.kind == inspect.Parameter.VAR_KEYWORD:
                inputs.update(inputs.pop(name, {}))
        return inputs

    def _way(self, inputs: dict[str, Any]) -> _Way | None:
        key = self._key(inputs)
        way = self._ways.get(key)
        if way is not None and way.recorded.parts_changed():
            del self._ways[key]
            self._recorded_again += 1
        if key not in self._ways:
            named = chain(self.plain.named_parameters(), self.plain.named_buffers())
            lazy = [name for name, value in named if is_lazy(value)]
            if lazy and lazy != self._lazy:  # this call may initialise them; the next one is cut
                self._lazy = lazy
                return None
            if len(self._ways) + self._recorded_again >= MAX_CUTS:
                self._give_up(f"it was called in more than {MAX_CUTS} ways, the last: {key[1]}")
                return None
            self._ways[key] = self._new_way(inputs)
        return self._ways[key]

    def _new_way(self, inputs: dict[str, Any]) -> _Way | None:
        plain = map_edges(inputs, SampledEdges.as_tensor)
        training, state = self.plain.training, ModelState(self.plain)
        try:
            with same_generators(self.plain.parameters()), torch.inference_mode(False):
                pieces = cut(self.plain, plain, training=training)
                trimmed = TrimmedModel(pieces, plain, self.all_statistics, training)
            return _Way(trimmed, Recorded(self.plain, is_recorded_through))
        except CutError as error:
            self._give_up(str(error))
        except Exception as error:  # a forward may hold anything
            self._give_up(f"its forward cannot be recorded ({type(error).__name__}: {error})")
        finally:
            # The trials ran without gradients, and before torch 2.5 autocast would give the step
            # the copies of the weights that it made for them.
            torch.clear_autocast_cache()
            state.restore()
        return None

    def _give_up(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason
            warnings.warn(
                f"pyg_direct.accelerate runs {type(self.plain).__name__} as it is: {reason}",
                stacklevel=6,
            )

    def _key(self, inputs: dict[str, Any]) -> tuple[Any, ...]:
        return (
            tuple(modes_of(self.plain)),
            tuple((name, kind_of(value)) for name, value in inputs.items()),
            modes_of_torch(),
        )


def accelerate(
    model: M, *loaders: DirectLoader, batch_norm: str = "all", certify: bool = True
) -> M:
    """Return a model that trains faster on the batches of our loaders, and gives the same numbers.

    The seeds' outputs of an L-layer model depend on ever fewer rows from layer to layer. A sampled
    batch lists nodes and edges hop by hop, edges by destination, so what layer l needs are the
    first rows and the first edges of the batch, and the edges are a CSR matrix already. Layers
    whose messages are their sources' rows (SAGEConv, GCNConv, GINConv, GraphConv, with sum, mean,
    max or min) run as one sparse product over a prefix of that matrix, without writing messages
    down; all others on a prefix of the edges. Everything between runs on the rows that are still
    needed. Layers that normalise by degree do so over the whole batch, as in the plain model
    (PyG's `trim_to_layer` changes the numbers of GCNConv). Small batches, whose steps take the time
    of Python, run through the plain model, which is faster there.

    The forward is recorded at the first batch (of a model with lazy parameters, at the first one
    after that which initialises them), by `torch.fx` and by trials on a few rows. A model
    that cannot be cut runs as it is; one warning says why.

    A recording cannot see everything: a custom backward, numbers drawn by Python, globals. So the
    1st, the 64th and each 4,096th step on the needed rows, and those after a number, text or flag
    of the model was changed, are also computed by the plain model, with dropout left out of both.
    If outputs, gradients, buffers or what the forward stores differ by more than rounding does
    (1e-3 of the largest number for float32, 1e-7 for float64, 0.1 for less precise dtypes), one
    warning says in what, and the plain model runs from then on.

    Args:
        model: any model; its parameters, state_dict, class and attributes are those of the result,
            which shares them. It can still be used itself.
        *loaders: `pyg_direct` loaders whose batches the model will see. From now on their edges
            are `torch_geometric.EdgeIndex` with all that is known of them. A transform that
            changes edges gets and gives plain tensors, on which the model runs as it is.
        batch_norm: modules with statistics over the batch, in training mode: "all" rows of the
            batch, as in the plain model, so that the layers before them run on all rows, too; or
            those "needed", which is faster and gives other numbers.
        certify: compare with the plain model, as above. Models with `batch_norm="needed"` are not
            compared in training mode, models that `copy.deepcopy` cannot copy, or that write to
            tensors of their own of 64 MiB or more, never.

    Returns:
        A model of the same class with the same signature. On batches of `loaders`, its outputs are
        those of the *seeds*: [batch_size, C], or a dict with the seeds' rows of each node type
        (``out[:batch.batch_size]``, and rows picked by `edge_label_index`, are as always). On plain
        tensors it does what the model does. `result.acceleration.forms()` tells how layers run.

    Raises:
        TypeError: not a module, or not a loader of ours.
        ValueError: a model within DistributedDataParallel or `torch.compile`, or one on which or on
            whose parts `.compile()` was called (accelerate it first), or an unknown `batch_norm`.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=200)
        >>> fast = pyg_direct.accelerate(model, loader)
        >>> for batch in loader:
        ...     out = fast(batch.x, batch.edge_index)[: batch.batch_size]
        >>> out.shape
        torch.Size([100, 4])
    """
    _check(model, loaders)
    check_flag("certify", certify)
    if batch_norm not in ("all", "needed"):
        raise ValueError(f"batch_norm must be 'all' or 'needed', got {batch_norm!r}.")
    reasons = [hand_out_hops(loader) for loader in loaders]
    for loader, reason in zip(loaders, reasons, strict=True):
        if reason:
            warnings.warn(
                f"pyg_direct.accelerate: batches of this {type(loader).__name__} run through the "
                f"model as it is, as the order of their edges is not known: {reason}.",
                stacklevel=2,
            )
    accelerated = _accelerated(plain_of(model), batch_norm == "all", certify)
    if all(reasons):
        cast(Any, accelerated).acceleration.reason = reasons[0]
    return accelerated


def plain_of(model: M) -> M:
    """Return the model that an accelerated one was made from; any other model as it is."""
    known = getattr(model, "acceleration", None)
    return cast(M, known.plain) if isinstance(known, Acceleration) else model


def _check(model: Any, loaders: tuple[Any, ...]) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    wrappers = (DistributedDataParallel, torch.nn.DataParallel)
    if isinstance(model, wrappers) or hasattr(model, "_orig_mod"):
        raise ValueError(
            f"accelerate() needs the model itself, got a {type(model).__name__} around it. Call "
            f"accelerate first and wrap its result."
        )
    compiled = [name for name, part in model.named_modules() if compiled_in_place(part)]
    if compiled:
        which = f"its part {compiled[0]!r}" if compiled[0] else "the model"
        raise ValueError(
            f"accelerate() needs a model that is not compiled, but .compile() was called on "
            f"{which}. Call accelerate first and compile its result."
        )
    if not loaders:
        raise TypeError("accelerate() needs the loaders whose batches the model will see.")
    for loader in loaders:
        if not isinstance(loader, DirectLoader):
            raise TypeError(
                f"accelerate() needs loaders of pyg_direct (NeighborLoader, LinkNeighborLoader), "
                f"got {type(loader).__module__}.{type(loader).__name__}."
            )


def _accelerated(plain: M, all_statistics: bool, certify: bool) -> M:
    """Return an object of a subclass of the model's class that shares the model's attributes."""
    state = Acceleration(plain, all_statistics, certify)
    kind: Any = type(plain)

    uncompiled = torch.compiler.disable(state.run)  # type: ignore[no-untyped-call]

    @functools.wraps(plain.forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        # The wrapper of `disable` takes time at each step, so it is entered only where it matters.
        return (uncompiled if torch.compiler.is_compiling() else state.run)(args, kwargs)

    def reduce(self: Any, protocol: Any = None) -> Any:
        return _accelerated, (plain, all_statistics, certify)

    body = {
        # A property, as some models have a forward among their own attributes (PyG's Sequential).
        "forward": property(lambda self: run),
        "acceleration": state,
        "__reduce__": reduce,
        "__reduce_ex__": reduce,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    made: Any = object.__new__(type(kind.__name__, (kind,), body))
    # One dict, so that modes and attributes that are set on one are those of the other.
    object.__setattr__(made, "__dict__", plain.__dict__)
    accelerated: M = made
    return accelerated
