"""`accelerate`: a model that trains faster on sampled batches, with the same numbers."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data, HeteroData

from ..batch.edges import SampledEdges
from ..loading.base import DirectLoader
from ..loading.hops import hand_out_hops
from .cutter import CutError, cut
from .prefixes import NotAPrefix
from .trimmed import TrimmedModel

M = TypeVar("M", bound=torch.nn.Module)

MAX_CUTS = 8  # kinds of arguments and modes; a model called in more ways runs as it is


class Acceleration:
    """What an accelerated model knows beside what the plain one does; `model.acceleration`.

    Attributes:
        plain: the model as it was given; it shares everything with the accelerated one.
        reason: why the model runs as it is, "" if it does not.
    """

    def __init__(self, plain: torch.nn.Module, all_statistics: bool) -> None:
        self.plain = plain
        self.all_statistics = all_statistics
        self.reason = ""
        self._forward = plain.forward
        self._ways: dict[Any, TrimmedModel | None] = {}
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
        if not any(map(_has_hops, values)):
            if any(isinstance(value, (Data, HeteroData)) for value in values):
                self._give_up("its forward takes a whole Data; let it take x and edge_index")
            return self._forward(*args, **kwargs)
        inputs = self._inputs(args, kwargs)

        def plain() -> Any:
            tensors, named = _map_edges((args, kwargs), SampledEdges.as_tensor)
            return self._forward(*tensors, **named)

        try:
            way = self._way(inputs)
            if way is not None:
                return way.run(inputs, plain)
        except NotAPrefix:  # the user changed what the sampler gave
            pass
        return plain()

    def forms(self) -> dict[str, str]:
        """Return how each call of a layer runs, by its name in the recorded model."""
        return {
            k: v for way in self._ways.values() if way is not None for k, v in way.forms.items()
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

    def _way(self, inputs: dict[str, Any]) -> TrimmedModel | None:
        key = self._key(inputs)
        if key not in self._ways:
            named = chain(self.plain.named_parameters(), self.plain.named_buffers())
            lazy = [name for name, value in named if is_lazy(value)]
            if lazy and lazy != self._lazy:  # this call may initialise them; the next one is cut
                self._lazy = lazy
                return None
            if len(self._ways) == MAX_CUTS:
                self._give_up(f"it was called in more than {MAX_CUTS} ways, the last: {key[1]}")
                return None
            self._ways[key] = self._new_way(inputs)
        return self._ways[key]

    def _new_way(self, inputs: dict[str, Any]) -> TrimmedModel | None:
        plain = _map_edges(inputs, SampledEdges.as_tensor)
        training = self.plain.training
        try:
            pieces = cut(self.plain, plain, training=training)
            return TrimmedModel(pieces, plain, self.all_statistics, training)
        except CutError as error:
            self._give_up(str(error))
            return None
        finally:
            # The trials ran without gradients, and before torch 2.5 autocast would give the step
            # the copies of the weights that it made for them.
            torch.clear_autocast_cache()

    def _give_up(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason
            warnings.warn(
                f"pyg_direct.accelerate runs {type(self.plain).__name__} as it is: {reason}",
                stacklevel=6,
            )

    def _key(self, inputs: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(_modes(self.plain)), tuple(
            (name, _kind(value)) for name, value in inputs.items()
        )


def accelerate(model: M, *loaders: DirectLoader, batch_norm: str = "all") -> M:
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

    Args:
        model: any model; its parameters, state_dict, class and attributes are those of the result,
            which shares them. It can still be used itself.
        *loaders: `pyg_direct` loaders whose batches the model will see. From now on their edges
            are `torch_geometric.EdgeIndex` with all that is known of them. A transform that
            changes edges gets and gives plain tensors, on which the model runs as it is.
        batch_norm: modules with statistics over the batch, in training mode: "all" rows of the
            batch, as in the plain model, so that the layers before them run on all rows, too; or
            those "needed", which is faster and gives other numbers.

    Returns:
        A model of the same class with the same signature. On batches of `loaders`, its outputs are
        those of the *seeds*: [batch_size, C], or a dict with the seeds' rows of each node type
        (``out[:batch.batch_size]``, and rows picked by `edge_label_index`, are as always). On plain
        tensors it does what the model does. `result.acceleration.forms()` tells how layers run.

    Raises:
        TypeError: not a module, or not a loader of ours.
        ValueError: a model within DistributedDataParallel or `torch.compile` (accelerate it first),
            or an unknown `batch_norm`.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=200)
        >>> fast = pyg_direct.accelerate(model, loader)
        >>> for batch in loader:
        ...     out = fast(batch.x, batch.edge_index)[: batch.batch_size]
        >>> out.shape
        torch.Size([100, 4])
    """
    _check(model, loaders)
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
    accelerated = _accelerated(plain_of(model), batch_norm == "all")
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
    if not loaders:
        raise TypeError("accelerate() needs the loaders whose batches the model will see.")
    for loader in loaders:
        if not isinstance(loader, DirectLoader):
            raise TypeError(
                f"accelerate() needs loaders of pyg_direct (NeighborLoader, LinkNeighborLoader), "
                f"got {type(loader).__module__}.{type(loader).__name__}."
            )


def _accelerated(plain: M, all_statistics: bool) -> M:
    """Return an object of a subclass of the model's class that shares the model's attributes."""
    state = Acceleration(plain, all_statistics)
    kind: Any = type(plain)

    uncompiled = torch.compiler.disable(state.run)  # type: ignore[no-untyped-call]

    @functools.wraps(plain.forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        # The wrapper of `disable` takes time at each step, so it is entered only where it matters.
        return (uncompiled if torch.compiler.is_compiling() else state.run)(args, kwargs)

    def reduce(self: Any, protocol: Any = None) -> Any:
        return _accelerated, (plain, all_statistics)

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


def _has_hops(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_hops, value.values()))
    return isinstance(value, SampledEdges)


def _map_edges(value: Any, change: Any) -> Any:
    """Return containers with each `SampledEdges` in them changed."""
    if isinstance(value, SampledEdges):
        return change(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_map_edges(v, change) for v in value)
    if type(value) is dict:
        return {key: _map_edges(v, change) for key, v in value.items()}
    return value


def _modes(module: torch.nn.Module) -> list[Any]:
    """Return what modules a model has, and their modes: a recorded forward holds for them only."""
    found: list[Any] = []
    rest = [module]
    while rest:
        module = rest.pop()
        found += (id(module), module.training)
        rest += [child for child in module._modules.values() if child is not None]
    return found


def _kind(value: Any) -> Any:
    """Return what has to be the same of an argument for a recorded forward to hold."""
    if isinstance(value, SampledEdges):
        value = value.as_tensor()  # what a subclass is asked goes through Python
    if isinstance(value, Tensor):
        return value.dtype, value.dim()
    if isinstance(value, Mapping):
        return tuple((key, _kind(v)) for key, v in value.items())
    return type(value), str(value)
