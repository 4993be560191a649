"""Cuts a model into message passing over one hop and row-wise work between.

The design, for those who build on it
-------------------------------------

``cut(model, inputs)`` records the forward of a model (`tracer`) and sorts its operations into
steps:

* a `Convolution`: one call of a message-passing module (any PyG conv). Whoever runs it decides
  how: as the module does, by a sparse product, in chunks of destination nodes, on trimmed edges.
* a `Segment`: row-wise operations of one stage and one node (or edge) type, as a `GraphModule`
  that shares the model's parameters. It may run on any subset of rows: all nodes, a chunk, a
  prefix.
* at most one tail: what follows the last message passing and is not row-wise (a link-prediction
  head that picks rows by pairs, a pooling), also a `Segment`, with the reason in
  `Cut.tail_reason`.

Stages. The stage of a value is the largest number of message-passing calls on a way from the
inputs to it. Stage 0 holds what comes before the first message passing (encoders). Stage s
consists of its convolutions, which read values of earlier stages only, then one segment for each
node type. Rows of different nodes do not meet within a stage, except as sources of a convolution.

Values. A step reads and gives values by name. `Cut.values` tells for each one its space (`Nodes`
of a type, `Edges` of a type, `Connectivity`, `Constant`), its stage, how many `hops` of message
passing lie between it and the outputs at most (in a sampled batch only the rows within so many
hops of the seeds are needed), and the last stage that reads it. Skip connections and
JumpingKnowledge are values that several later stages read; nothing else has to be done for them.

Locality. `Convolution.one_hop` is empty if each output row depends on its own row, its in-edges
and their sources only. GCNConv (degrees of the neighbours) and SGConv (several hops) are not of
that kind, and the text says what else they depend on.

In-place operations. A segment may change its inputs in place (``ReLU(inplace=True)``): `mutates`
names them. An input from an earlier stage is then read by that segment alone, so a copy of its
rows does.

All of this is found out by trial on a small example made of rows of the user's inputs (see
`tracer`). In evaluation mode the steps are then run on the example and compared with the model
itself, so that a cut that is returned computes what the model computes.

Example:
    >>> pieces = cut(model, {"x": data.x, "edge_index": data.edge_index})
    >>> values = {}
    >>> for step in pieces.steps:                   # what `Cut.run` does
    ...     values.update(step.run(values))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from .modes import evaluating, one_thread
from .partition import Partition, PartitionedSegment
from .spaces import (
    Connectivity,
    CutError,
    Edges,
    Example,
    Nodes,
    Space,
    is_connectivity,
    leaves,
    make_example,
    same,
    spaces_of,
)
from .tracer import ProbingTracer, describe, is_message_passing

Values: TypeAlias = "Mapping[str, Any]"


@dataclass(frozen=True)
class Value:
    """What is known about a value that steps exchange."""

    name: str
    space: Space
    stage: int  # message-passing calls between the inputs and it, at most
    hops: int  # message-passing calls between it and the outputs, at most
    last_stage: int  # last stage that reads it; the number of stages if it is an output
    shape: tuple[int, ...]  # of one row; of all of it where the space has no rows
    dtype: torch.dtype | None  # None if it is no tensor


@dataclass(frozen=True)
class Segment:
    """Row-wise operations of one stage and type; runs on any rows, the same of each input."""

    stage: int
    space: Space  # Nodes(type), Edges(type) or Constant; Whole for the tail
    module: fx.GraphModule  # takes `inputs` in order, returns a tuple of `outputs`
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutates: tuple[str, ...]  # inputs that are changed in place: give copies where that matters
    batch_statistics: tuple[str, ...]  # modules that mix rows in training mode (BatchNorm)

    def run(self, values: Values) -> dict[str, Any]:
        """Return the outputs by name."""
        return dict(zip(self.outputs, self.module(*(values[n] for n in self.inputs)), strict=True))


@dataclass(frozen=True)
class Convolution:
    """One call of a message-passing module."""

    stage: int
    name: str  # of the node in the recorded graph, unique
    target: str  # of the module in the model, such as "convs.0"
    module: Any  # the MessagePassing module
    inputs: tuple[str, ...]  # names of all values in the arguments
    outputs: dict[Any, str]  # node type -> name of the value with its rows
    edge_types: tuple[Any, ...]
    one_hop: str  # "" or what else than its in-edges and their sources a row depends on
    _arguments: tuple[Any, Any] = field(repr=False)
    _several: bool = False  # whether the module returns a dict

    def arguments(self, lookup: Callable[[str], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs as the model passes them, with ``lookup(name)`` for each value."""
        args, kwargs = fx.node.map_arg(self._arguments, lambda node: lookup(node.name))
        return tuple(args), dict(kwargs)

    def bound(self, lookup: Callable[[str], Any]) -> dict[str, Any]:
        """Return the arguments by the names of the parameters of the module's forward."""
        args, kwargs = self.arguments(lookup)
        return dict(inspect.signature(self.module.forward).bind(*args, **kwargs).arguments)

    def named(self, result: Any) -> dict[str, Any]:
        """Return what the module returned, by the names of the values."""
        if self._several:
            return {name: result[key] for key, name in self.outputs.items()}
        return {next(iter(self.outputs.values())): result}

    def run(self, values: Values) -> dict[str, Any]:
        """Call the module as the model does, and return the outputs by name."""
        args, kwargs = self.arguments(lambda name: values[name])
        return self.named(self.module(*args, **kwargs))


Step: TypeAlias = "Segment | Convolution"


@dataclass(frozen=True)
class Cut:
    """A model in parts. `steps` is in an order in which they can run, stage after stage."""

    steps: tuple[Step, ...]
    stages: int  # number of stages, that is the number of hops plus one
    values: dict[str, Value]
    inputs: dict[str, tuple[str, Any]]  # value name -> (forward parameter, key in its dict or None)
    tail: Segment | None
    tail_reason: str  # why the tail is not row-wise; "" if there is none
    example: Example  # the small graph that the cut was tried on
    _output: Any = field(repr=False)

    def input_values(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the forward by the names of their values."""
        return {
            name: inputs[parameter] if key is None else inputs[parameter][key]
            for name, (parameter, key) in self.inputs.items()
        }

    def result(self, values: Values) -> Any:
        """Return what the forward returns, with each value replaced."""
        return fx.node.map_arg(self._output, lambda node: values[node.name])

    def structure(self) -> Any:
        """Return what the forward returns, with each value replaced by its name."""
        return self.result(_Names())

    def output_names(self) -> tuple[str, ...]:
        """Return the names of the values that the forward returns."""
        found: list[str] = []
        fx.node.map_arg(self._output, lambda node: found.append(node.name))
        return tuple(dict.fromkeys(found))

    def convolutions(self, stage: int) -> list[Convolution]:
        """Return the message passing of a stage."""
        return [s for s in self.steps if isinstance(s, Convolution) and s.stage == stage]

    def segments(self, stage: int) -> list[Segment]:
        """Return the row-wise parts of a stage."""
        return [s for s in self.steps if isinstance(s, Segment) and s.stage == stage]

    def run(self, inputs: Mapping[str, Any]) -> Any:
        """Run all steps on all rows: the same as the model itself."""
        values = self.input_values(inputs)
        for step in (*self.steps, *([self.tail] if self.tail else [])):
            values.update(step.run(values))
        return self.result(values)


class _Names(dict[str, Any]):
    """Gives each value its name."""

    def __missing__(self, key: str) -> str:
        return key


def bind(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the forward's parameters, without defaults."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    extra = bound.pop("kwargs", {})
    return {**bound, **extra}


def cut(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    levels: Mapping[str, Space] | None = None,
    training: bool = False,
) -> Cut:
    """Cut a model for arguments like `inputs`.

    Args:
        model: any PyG model of which `torch.fx` can record the forward: the `BasicGNN` family,
            `torch_geometric.nn.Sequential`, plain Modules, results of `to_hetero`, modules with
            `HeteroConv` or HGTConv, or a single conv. It is not changed.
        inputs: forward parameter -> value: a tensor, or a dict of tensors by node or edge type.
            A few rows are copied; parameters that are left out keep their defaults, and what is no
            tensor is taken as a constant of the cut.
        levels: spaces of parameters that `spaces.spaces_of` would tell wrongly.
        training: record the branches of the training mode. What is row-wise is found out in
            evaluation mode all the same; see `Segment.batch_statistics`.

    Raises:
        CutError: the reason why the model cannot be cut.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise CutError(f"Parameter {name!r} is not initialised: run the model once before.")
    if not any(is_message_passing(m) for m in model.modules()):
        raise CutError(f"{type(model).__name__} contains no message-passing module.")
    given = {n: v for n, v in inputs.items() if v is not None}
    spaces = spaces_of(given, levels)
    if not any(isinstance(s, Connectivity) for n in given for _, s in leaves(given[n], spaces[n])):
        raise CutError(
            f"None of the arguments {', '.join(map(repr, given))} is an edge_index: int64 or int32 "
            f"[2, number of edges], named edge_index, edge_index_dict, adj or adj_t."
        )
    device = next((p.device for p in model.parameters()), None)
    fresh = partial(make_example, given, spaces, device=device)
    root = _Single(model) if is_message_passing(model) else model
    modes = [(m, m.training) for m in root.modules()]
    tracer = ProbingTracer(fresh())
    try:
        root.train(training)
        with torch.no_grad(), one_thread():
            graph = _record(tracer, root)
            pieces = _pieces(root, graph, fresh())
            with evaluating(model):
                expected = model(**fresh().full)
                # The example may have been changed in place by the recorded operations.
                found = pieces.run(fresh().full)
    finally:
        for module, mode in modes:
            module.training = mode
    if not training and not same(_plain(expected), _plain(found)):
        raise CutError(
            f"{type(model).__name__} does not compute the same when its forward is recorded: it "
            f"decides by the type of an argument (isinstance), or changes a tensor in place."
        )
    return pieces


class _Single(torch.nn.Module):
    """A model that is a single conv: recorded as one call of it."""

    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, **inputs: Any) -> Any:
        return self.conv(**inputs)


def _record(tracer: ProbingTracer, root: torch.nn.Module) -> fx.Graph:
    try:
        return tracer.trace(root)
    except CutError:
        raise
    except fx.proxy.TraceError as error:
        raise CutError(
            f"The forward of {type(root).__name__} decides by data ({error}), so it cannot be cut."
        ) from error
    except Exception as error:
        raise CutError(
            f"The forward of {type(root).__name__} cannot be recorded by torch.fx: "
            f"{type(error).__name__}: {error}"
        ) from error


def _pieces(root: torch.nn.Module, graph: fx.Graph, example: Example) -> Cut:
    parts = Partition(root, graph)
    steps: list[Step] = []
    for stage in range(parts.stages):
        steps += [_convolution(root, node) for node in parts.convolutions(stage)]
        steps += [_segment(s) for s in parts.segments(stage)]
    tail = parts.tail()
    inputs = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            key = node.meta["key"]
            inputs[node.name] = (node.meta["input"], key)
    values = {node.name: _value(node, parts) for node in parts.exchanged}
    return Cut(
        tuple(steps), parts.stages, values, inputs, tail and _segment(tail), parts.tail_reason,
        example, parts.output,
    )  # fmt: skip


def _value(node: fx.Node, parts: Partition) -> Value:
    space, full = node.meta["space"], node.meta["full"]
    shape = tuple(full.shape) if isinstance(full, Tensor) else ()
    return Value(
        node.name,
        space,
        node.meta["stage"],
        parts.hops[node],
        parts.last_stage(node),
        shape[1:] if isinstance(space, (Nodes, Edges)) else shape,
        full.dtype if isinstance(full, Tensor) else None,
    )


def _convolution(root: torch.nn.Module, node: fx.Node) -> Convolution:
    several = isinstance(node.meta["full"], dict)
    outputs = (
        {n.args[1]: n.name for n in node.users} if several
        else {next(iter(node.meta["outputs"])): node.name}
    )  # fmt: skip
    return Convolution(
        stage=node.meta["stage"],
        name=node.name,
        target=str(node.target),
        module=root.get_submodule(str(node.target)),
        inputs=tuple(n.name for n in node.all_input_nodes),
        outputs=outputs,
        edge_types=tuple(
            n.meta["space"].edge_type
            for n in node.all_input_nodes
            if isinstance(n.meta["space"], Connectivity)
        ),
        one_hop=node.meta["one_hop"],
        _arguments=(node.args, node.kwargs),
        _several=several,
    )


def _segment(part: PartitionedSegment) -> Segment:
    return Segment(
        part.stage, part.space, part.module, part.inputs, part.outputs, part.mutates,
        part.batch_statistics,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    """Return a result with its containers as dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


__all__ = [
    "Connectivity",
    "Convolution",
    "Cut",
    "CutError",
    "Edges",
    "Nodes",
    "Segment",
    "Tensor",
    "Value",
    "bind",
    "cut",
    "describe",
    "is_connectivity",
]
