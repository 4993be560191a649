"""Sorts the operations of a recorded forward into steps; see `cutter` for what the steps are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, fx

from .spaces import Constant, Count, CutError, Edges, Nodes, Space, Whole
from .tracer import describe


class PartitionedSegment(NamedTuple):
    """Row-wise operations of one stage and type; fields as in `cutter.Segment`."""

    stage: int
    space: Space
    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutates: tuple[str, ...]
    batch_statistics: tuple[str, ...]


class Partition:
    """The steps of a recorded forward.

    Args:
        root: the model.
        graph: what `ProbingTracer` recorded of it.

    Raises:
        CutError: the operations cannot be sorted into steps.
    """

    def __init__(self, root: torch.nn.Module, graph: fx.Graph) -> None:
        self._root = root
        self._nodes = list(graph.nodes)
        end = self._nodes[-1]
        self.output = end.args[0]
        self._results = set(end.all_input_nodes)
        self._find_hops(end)
        self._check_in_place()
        self.stages = 1 + max(
            (n.meta["stage"] for n in self.hops if isinstance(n.meta["space"], (Nodes, Edges))),
            default=0,
        )
        self._last: dict[fx.Node, int] = {n: self.stages for n in self._results}
        self._tail_nodes = [n for n in self.hops if isinstance(n.meta["space"], Whole)]
        self._groups = self._grouped()
        self._built = self._built_segments()
        self.exchanged: list[fx.Node] = [n for n in self.hops if n in self._last]

    def convolutions(self, stage: int) -> list[fx.Node]:
        """Return the message-passing calls of a stage, as recorded."""
        return [n for n in self.hops if "one_hop" in n.meta and n.meta["stage"] == stage]

    def segments(self, stage: int) -> list[PartitionedSegment]:
        """Return the row-wise parts of a stage; those over edges and constants come first."""
        return [self._built[key] for key in self._groups if key[0] == stage]

    def tail(self) -> PartitionedSegment | None:
        """Return what is not row-wise."""
        if not self._tail_nodes:
            return None
        return self._module((self.stages, self._tail_nodes[0].meta["space"]), self._tail_nodes)

    @property
    def tail_reason(self) -> str:
        """Why the tail is not row-wise."""
        return self._tail_nodes[0].meta["space"].reason if self._tail_nodes else ""

    def last_stage(self, node: fx.Node) -> int:
        """Return the last stage that reads a value; the number of stages for outputs."""
        return self._last[node]

    def _find_hops(self, end: fx.Node) -> None:
        """Set `hops` for all operations that the output needs, in recorded order."""
        far: dict[fx.Node, int] = dict.fromkeys(self._results, 0)
        for node in reversed(self._nodes[:-1]):
            if node in far:
                step = 1 if "one_hop" in node.meta else 0
                for source in node.all_input_nodes:
                    far[source] = max(far.get(source, 0), far[node] + step)
        self.hops = {n: far[n] for n in self._nodes if n in far}

    def _check_in_place(self) -> None:
        for node in self._nodes:
            for changed in node.meta.get("mutates", ()):
                readers = [u for u in changed.users if u in self.hops or u.op == "output"]
                earlier = changed.op == "placeholder" or changed.meta["stage"] < node.meta["stage"]
                if node not in self.hops or (earlier and len(readers) > 1):
                    raise CutError(
                        f"{describe(node)} changes {changed.name!r} in place, and it is read "
                        f"elsewhere. Use the form that returns a new tensor."
                    )

    def _grouped(self) -> dict[tuple[int, Space], list[fx.Node]]:
        groups: dict[tuple[int, Space], list[fx.Node]] = {}
        loose = {n for n in self._results if _is_inlined(n)}
        for node in self.hops:
            if "one_hop" in node.meta:
                loose.update(n for n in node.all_input_nodes if _is_inlined(n))
        for node in self.hops:
            space = node.meta["space"]
            if node.op == "placeholder" or "one_hop" in node.meta or _is_taken(node):
                continue
            if isinstance(space, (Nodes, Edges)):
                key = (node.meta["stage"], replace(space, dim=0))
                groups.setdefault(key, []).append(node)
            elif node in loose:
                if not isinstance(space, Constant):
                    raise CutError(f"{describe(node)}: a number of rows is given to a layer.")
                groups.setdefault((0, Constant()), []).append(node)
        order = sorted(groups, key=lambda key: isinstance(key[1], Nodes))
        return {key: groups[key] for key in order}

    def _built_segments(self) -> dict[tuple[int, Space], PartitionedSegment]:
        """Note which values the steps exchange, and build the row-wise ones."""
        home = {n: key for key, nodes in self._groups.items() for n in nodes}
        for node in self.hops:
            if "one_hop" in node.meta:
                for source in node.all_input_nodes:
                    self._note(source, node.meta["stage"])
        closures = {key: self._closure(nodes) for key, nodes in self._groups.items()}
        for key, nodes in closures.items():
            own = set(nodes)
            for node in nodes:
                for source in node.all_input_nodes:
                    if source not in own:
                        self._note(source, key[0])
        tail = self._closure(self._tail_nodes)
        for node in tail:
            for source in node.all_input_nodes:
                if source not in set(tail):
                    self._note(source, self.stages)
        for node in self._last:
            if node in home and not _is_inlined(node):
                self._check_exchangeable(node)
        return {key: self._module(key, nodes) for key, nodes in self._groups.items()}

    def _note(self, node: fx.Node, stage: int) -> None:
        self._last[node] = max(self._last.get(node, 0), stage)

    def _check_exchangeable(self, node: fx.Node) -> None:
        space = node.meta["space"]
        if not isinstance(node.meta["full"], Tensor) or getattr(space, "dim", 0) != 0:
            raise CutError(
                f"{describe(node)} gives rows along another dimension than the first, or several "
                f"tensors, to another layer."
            )

    def _closure(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        """Return the operations with the constants and row counts they need, in recorded order."""
        found, todo = set(nodes), list(nodes)
        while todo:
            for source in todo.pop().all_input_nodes:
                if source not in found and _is_inlined(source):
                    found.add(source)
                    todo.append(source)
        return [n for n in self.hops if n in found]

    def _module(self, key: tuple[int, Space], nodes: list[fx.Node]) -> PartitionedSegment:
        inside = self._closure(nodes)
        own, copies = set(inside), {}
        graph = fx.Graph()
        inputs: list[fx.Node] = []
        for node in inside:
            for source in node.all_input_nodes:
                if source not in own and source not in inputs:
                    inputs.append(source)
        for source in inputs:
            copies[source] = graph.placeholder(source.name)
        for node in inside:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            copies[node].meta = {}
        outputs = [n for n in nodes if n in self._last]
        graph.output(tuple(copies[n] for n in outputs))
        statistics = [str(n.target) for n in inside if n.meta.get("batch_statistics")]
        mutates = {m.name for n in inside for m in n.meta.get("mutates", ()) if m not in own}
        return PartitionedSegment(
            *key,
            fx.GraphModule(self._root, graph),
            tuple(n.name for n in inputs),
            tuple(n.name for n in outputs),
            tuple(sorted(mutates)),
            tuple(statistics),
        )


def _is_inlined(node: fx.Node) -> bool:
    """Whether each step that needs a value computes it anew: constants and numbers of rows."""
    if node.op == "placeholder" or "one_hop" in node.meta:
        return False
    return isinstance(node.meta["space"], (Constant, Count))


def _is_taken(node: fx.Node) -> bool:
    """Whether a node takes one type's rows out of the dict that message passing returned."""
    return any(
        "outputs" in n.meta and isinstance(n.meta["full"], dict) for n in node.all_input_nodes
    )
