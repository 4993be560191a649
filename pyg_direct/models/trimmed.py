"""A cut model on a sampled batch: each step on the rows that the seeds' outputs depend on."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, fx

from ..batch.edges import HopEnds, SampledEdges
from .costs import Form, StepCosts
from .cutter import Convolution, Cut, CutError, Segment
from .modes import evaluating
from .prefixes import ALL, NotAPrefix, Prefixes
from .products import both_ends, call_gcn, call_with_product, is_gcn, is_product, without_messages
from .spaces import Connectivity, Count, Edges, Nodes, ends, make_example, same, spaces_of


@dataclass(frozen=True)
class _Ref:
    """Stands for a value in the arguments of a layer."""

    name: str


class TrimmedModel:
    """Runs the steps of a cut on the prefixes of a batch.

    What each step has to compute follows from the outputs: they are wanted for the seeds, that is
    within 0 hops, and a layer of message passing needs its sources within one hop more. A layer
    whose rows depend on more than their own edges, and one with statistics over the rows of the
    batch, gets all rows.

    Args:
        pieces: the model, cut for arguments like `inputs`.
        inputs: forward parameter -> value.
        all_statistics: let modules with running statistics see all rows of the batch in training
            mode, as in the plain model, and not the rows that are needed alone.
        training: the mode that the model was cut in.

    Raises:
        CutError: the steps do not give the same on a part of the rows.

    Attributes:
        forms: name of each call of a layer -> how it is called.
    """

    def __init__(
        self, pieces: Cut, inputs: Mapping[str, Any], all_statistics: bool, training: bool = False
    ) -> None:
        self._cut = pieces
        self._all_statistics = all_statistics
        self._spaces = {name: value.space for name, value in pieces.values.items()}
        self._edge_types = {
            name: space.edge_type
            for name, space in self._spaces.items()
            if isinstance(space, Connectivity)
        }
        self._arguments = {
            step.name: step.bound(_Ref) for step in pieces.steps if isinstance(step, Convolution)
        }
        self._outputs = pieces.output_names()
        self._structure = pieces.structure()
        self._has_statistics = training and any(
            isinstance(step, Segment) and step.batch_statistics for step in pieces.steps
        )
        self._tail, self._tail_hops = _guarded(pieces.tail, pieces)
        self.forms: dict[str, Form] = {}
        self._costs = StepCosts()
        example = self._example(inputs)
        found = self._choose_forms(*example)
        self._hops = self._needed()
        if not training:  # dropout draws for other rows
            self._check(*example, found)

    def batch_of(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Prefixes]:
        """Return the values of a batch, and the prefixes of their rows.

        Args:
            inputs: forward parameter -> value, with `SampledEdges` as edges.

        Raises:
            NotAPrefix: the arguments are not what the sampler gave; run the plain model.
        """
        values = self._cut.input_values(inputs)
        sampled = {key: values[name] for name, key in self._edge_types.items()}
        if not all(isinstance(edges, SampledEdges) for edges in sampled.values()):
            raise NotAPrefix("edges that do not come from the sampler")
        prefixes = Prefixes(sampled)
        self._check_inputs(values, prefixes)
        return values, prefixes

    def is_small(self, prefixes: Prefixes) -> bool:
        """Whether the plain model is faster on a batch, and gives the same numbers."""
        return self.same_as_plain and not self._costs.pay(prefixes.all_edges)

    @property
    def same_as_plain(self) -> bool:
        """Whether the numbers are meant to be those of the plain model."""
        return self._all_statistics or not self._has_statistics

    def run(self, values: dict[str, Any], prefixes: Prefixes) -> Any:
        """Return what the model returns, of its rows those of the seeds.

        Raises:
            NotAPrefix: values on the way do not have the rows that they should have.
        """
        for step in self._cut.steps:
            self._run_step(step, values, prefixes)
        if self._tail is not None:
            trimmed = self._trimmed(self._tail.inputs, values, prefixes, self._tail_hops)
            try:
                values.update(self._tail.run(trimmed))
            except NotAPrefix:
                self._tail_hops = ALL  # it reads more than the seeds, so it does in each batch
                self._hops = self._needed()
                raise
        values.update(self._trimmed(self._outputs, values, prefixes, 0))
        return self._cut.result(values)

    def seeds_of(self, out: Any, prefixes: Prefixes) -> Any:
        """Return the seeds' rows of what the plain model returned."""
        return self._seeds_of(out, self._structure, prefixes)

    def _columns(self, conv: Convolution, values: Mapping[str, Any]) -> int:
        """Return how many columns the widest rows have that a layer is given of nodes."""
        given = (values[name] for name in conv.inputs if _of_nodes(self._spaces.get(name)))
        return max((x.size(-1) for x in given if isinstance(x, Tensor)), default=0)

    def _seeds_of(self, out: Any, names: Any, prefixes: Prefixes) -> Any:
        """Return the seeds' rows of what the plain model returned; `names` has its structure."""
        if isinstance(names, str):
            return prefixes.trim(out, self._spaces[names], 0) if names in self._spaces else out
        if isinstance(names, Mapping):
            return {key: self._seeds_of(out[key], name, prefixes) for key, name in names.items()}
        if isinstance(names, (tuple, list)):
            entries = [self._seeds_of(o, n, prefixes) for o, n in zip(out, names, strict=True)]
            return type(out)(entries) if type(out) in (tuple, list) else type(out)(*entries)
        return out

    def _check_inputs(self, values: Mapping[str, Any], prefixes: Prefixes) -> None:
        """Raise if an input has not as many rows as there were nodes or edges sampled."""
        for name, value in values.items():
            space = self._spaces.get(name)
            if isinstance(space, (Nodes, Edges)) and isinstance(value, Tensor):
                rows = prefixes.num_rows(space, ALL)
                if rows is not None and value.size(getattr(space, "dim", 0)) != rows:
                    raise NotAPrefix(f"{tuple(value.shape)} where {rows} rows were sampled")

    def _trimmed(
        self, names: tuple[str, ...], values: Mapping[str, Any], prefixes: Prefixes, hops: float
    ) -> dict[str, Any]:
        return {
            name: prefixes.trim(values[name], self._spaces[name], hops)
            if name in self._spaces
            else values[name]
            for name in names
        }

    def _run_step(
        self, step: Segment | Convolution, values: dict[str, Any], prefixes: Prefixes
    ) -> None:
        hops = max(self._hops.get(name, 0.0) for name in _outputs(step))
        if isinstance(step, Convolution):
            values.update(self._call(step, self.forms[step.name], values, prefixes, hops))
            return
        out = step.run(self._trimmed(step.inputs, values, prefixes, hops))
        rows = prefixes.num_rows(step.space, hops)
        for name, value in out.items():
            if rows is not None and isinstance(value, Tensor) and value.size(0) != rows:
                raise NotAPrefix(f"{name} has {value.size(0)} rows where {rows} are needed")
        values.update(out)

    def _call(
        self,
        conv: Convolution,
        form: Form,
        values: Mapping[str, Any],
        prefixes: Prefixes,
        hops: float,
    ) -> dict[str, Any]:
        """Return the outputs of a layer for the destinations within so many hops."""
        spaces, names = self._spaces, self._arguments[conv.name]
        module: Any = conv.module
        if form == "gcn":
            edge_type = conv.edge_types[0]
            x = prefixes.trim(values[names["x"].name], spaces[names["x"].name], hops + 1)
            weight = names.get("edge_weight")
            weight = None if weight is None else values[weight.name]
            return conv.named(call_gcn(module, prefixes, edge_type, hops, x, weight))

        def take(part: Any, far: float) -> Any:
            """Replace each value by its rows; those of nodes within `far` hops."""
            if isinstance(part, _Ref):
                space = spaces[part.name]
                return prefixes.trim(values[part.name], space, far if _of_nodes(space) else hops)
            if isinstance(part, (tuple, list)):
                return type(part)(take(p, far) for p in part)
            if isinstance(part, dict):
                return {key: take(p, far) for key, p in part.items()}
            return part

        arguments = {name: take(part, hops + 1) for name, part in names.items()}
        if form in ("pair", "product"):
            x = names["x"]
            near, far = x if isinstance(x, tuple) else (x, x)
            if form == "product" and near is far:
                rows = prefixes.num_nodes(ends(conv.edge_types[0])[1], hops)
                arguments["x"] = both_ends(arguments["x"], cast(int, rows))
            else:
                arguments["x"] = (take(near, hops + 1), take(far, hops))
        if form in ("product", "square product"):
            matrix = prefixes.matrix(conv.edge_types[0], hops)
            found = conv.named(call_with_product(module, matrix, arguments))
        else:
            found = conv.named(without_messages(module)(**arguments))
        return {
            name: prefixes.trim(found[name], Nodes(node_type), hops)
            for node_type, name in conv.outputs.items()
        }

    def _needed(self) -> dict[str, float]:
        """Return within how many hops of the seeds each value is needed."""
        needed: dict[str, float] = dict.fromkeys(self._outputs, 0.0)

        def need(name: str, hops: float) -> None:
            needed[name] = max(needed.get(name, 0.0), hops)

        for name in self._tail.inputs if self._tail is not None else ():
            need(name, self._tail_hops)
        for step in reversed(self._cut.steps):
            hops = max(needed.get(name, 0.0) for name in _outputs(step))
            if self._needs_all(step):
                hops = ALL
            elif isinstance(step, Convolution):
                hops += 1
            for name in (*step.inputs, *(_outputs(step) if hops == ALL else ())):
                need(name, hops)
        return needed

    def _needs_all(self, step: Segment | Convolution) -> bool:
        """Whether a step has to run on all rows of the batch."""
        statistics = self._all_statistics and any(
            module.training and getattr(module, "running_mean", None) is not None
            for module in step.module.modules()
        )
        if isinstance(step, Convolution):
            return statistics or self.forms[step.name] == "whole"
        return statistics or any(isinstance(self._spaces.get(name), Count) for name in step.inputs)

    def _example(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Prefixes]:
        """Return values for a trial; of each type the first half of the nodes are the seeds."""
        given = {name: value for name, value in inputs.items() if value is not None}
        example = make_example(given, spaces_of(given))
        values = self._cut.input_values(example.full)
        half = {key: count // 2 for key, count in example.node_counts.items()}
        sampled = {}
        for name, edge_type in self._edge_types.items():
            source, destination = ends(edge_type)
            edge_index = values[name]
            first = int((edge_index[1] < half[destination]).sum())
            hops = HopEnds(
                (half[source], example.node_counts[source]),
                (half[destination], example.node_counts[destination]),
                (first, edge_index.size(1)),
            )
            sampled[edge_type] = SampledEdges(edge_index, hops)
        return values, Prefixes(sampled)

    def _choose_forms(self, inputs: Mapping[str, Any], prefixes: Prefixes) -> dict[str, Any]:
        """Take for each layer the first form that gives its numbers; return all values."""
        values = dict(inputs)
        for step in self._cut.steps:
            with torch.no_grad(), evaluating(step.module):
                found = step.run(values)
                if isinstance(step, Convolution):
                    self.forms[step.name] = self._form(step, values, prefixes, found)
                    self._costs.add(
                        step.edge_types, self.forms[step.name], self._columns(step, values)
                    )
            values.update(found)
        return values

    def _check(
        self, inputs: Mapping[str, Any], prefixes: Prefixes, expected: Mapping[str, Any]
    ) -> None:
        """Run all steps on the prefixes, as on a batch."""
        values = dict(inputs)
        for step in self._cut.steps:
            try:
                with torch.no_grad(), evaluating(step.module):
                    self._run_step(step, values, prefixes)
            except Exception as error:
                raise CutError(f"it fails on some of the rows: {error}") from error
        outputs = tuple(name for name in self._outputs if name in values)
        wanted = self._trimmed(outputs, expected, prefixes, 0)
        if not same(wanted, self._trimmed(outputs, values, prefixes, 0)):
            raise CutError("it gives other numbers on some of the rows")

    def _form(
        self,
        conv: Convolution,
        values: Mapping[str, Any],
        prefixes: Prefixes,
        expected: Mapping[str, Any],
    ) -> Form:
        for form in _candidates(conv, self._arguments[conv.name]):
            try:
                found = self._call(conv, form, values, prefixes, 0)
            except Exception:  # a layer that takes no pair, or another kind of argument
                continue
            wanted = {
                name: prefixes.trim(expected[name], Nodes(node_type), 0)
                for node_type, name in conv.outputs.items()
            }
            if same(wanted, found):
                return form
        return "whole"


def _candidates(conv: Convolution, names: Mapping[str, Any]) -> list[Form]:
    """Return the ways in which a layer may be called, the cheapest first."""
    if names.get("size") is not None:
        return []
    if conv.one_hop:
        return ["gcn"] if is_gcn(conv.module) and isinstance(names["x"], _Ref) else []
    if len(conv.edge_types) > 1 or "x" not in names:
        return ["square"]
    forms: list[Form] = ["pair", "square"]
    return ["product", "square product", *forms] if is_product(conv.module) else forms


def _outputs(step: Segment | Convolution) -> tuple[str, ...]:
    return step.outputs if isinstance(step, Segment) else tuple(step.outputs.values())


def _of_nodes(space: Any) -> bool:
    return isinstance(space, Nodes)


def _guarded(tail: Segment | None, pieces: Cut) -> tuple[Segment | None, float]:
    """Return the tail as it runs on the rows of the seeds, and how many hops it needs.

    A tail that only picks rows by index, as a link-prediction head does, needs the seeds alone, if
    the index says so: that is looked at in each batch.
    """
    if tail is None:
        return None, 0
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    rows: set[fx.Node] = set()
    for node in tail.module.graph.nodes:
        if node.op == "placeholder" and isinstance(_space(node.name, pieces), (Nodes, Edges)):
            rows.add(node)
        elif node.op != "placeholder" and rows & set(node.all_input_nodes):
            # Rows in an index, or edges, are never those of the seeds alone.
            if node.target is not operator.getitem or node.args[1] in rows:
                return tail, ALL
            x, index = node.args
            known = isinstance(x, fx.Node) and isinstance(_space(x.name, pieces), Nodes)
            if not (known and isinstance(index, fx.Node)):
                return tail, ALL
            picked = fx.node.map_arg((x, index), lambda n: copies[n])
            copies[node] = graph.call_function(_pick, picked)
            continue
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    module = fx.GraphModule(tail.module, graph)
    return replace(tail, module=module), 0


def _space(name: str, pieces: Cut) -> Any:
    return pieces.values[name].space if name in pieces.values else None


def _pick(x: Tensor, index: Any) -> Tensor:
    """Return ``x[index]``, where x holds the rows of the seeds only."""
    whole = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)
    if not whole or (index.numel() > 0 and bool((index < 0).any() | (index >= x.size(0)).any())):
        raise NotAPrefix("rows of other nodes than the seeds are picked")
    return x[index]
