"""How many rows a sampled batch has, and what enters and leaves a step on them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..batch.edges import SampledEdges
from ..core.private_torch import tree_map
from ..loading.reusing import Reused
from .batch_run import BatchRun


class NotAPrefix(Exception):  # noqa: N818 (no error: another way is taken)
    """The rows of a batch are not those that its hops tell."""


class BatchSizes:
    """The numbers of nodes, edges and seeds of a batch.

    Args:
        edges: of all edge types, with the type, or with None where it is not known.

    Attributes:
        edges, num_edges: the edges with their types, and how many there are.
        device: where they are.
        reused: which rows of layer 1 a table has; None for none.

    Raises:
        NotAPrefix: edges that were written to.
    """

    def __init__(self, edges: list[tuple[Any, SampledEdges]]) -> None:
        self.edges = edges
        self.device = edges[0][1].device
        self.num_edges = 0
        self.reused: Reused | None = None
        self._seeds: dict[int, set[int]] = {}  # by the number of nodes
        self._of_type: dict[Any, tuple[int, int]] = {}  # rows and seeds of each node type
        self._edge_counts: set[int] = set()
        for key, sampled in edges:
            hops = sampled.hops
            if hops is None:
                raise NotAPrefix("the edges were written to")
            self.reused = self.reused or hops.reused
            types = key[::2] if type(key) is tuple and len(key) == 3 else (None, None)
            for name, counts in zip(types, (hops.source, hops.destination), strict=True):
                self._seeds.setdefault(counts[-1], set()).add(counts[0])
                self._of_type[name] = counts[-1], counts[0]
            count = hops.edge[-1] if hops.edge else 0
            self.num_edges += count
            self._edge_counts.add(count)

    def has_rows(self, value: Tensor) -> bool:
        """Whether a tensor has a row for each node of a type, or each edge."""
        rows = value.size(0) if value.dim() > 0 else 0
        return rows > 1 and (rows in self._seeds or rows in self._edge_counts)

    def seeds_of(self, out: Any, take: Callable[[Tensor, int], Tensor] | None = None) -> Any:
        """Return the seeds' rows of what has a row for each node.

        Of a tensor in a dict by node type, these are the seeds of the type. Any other is taken for
        one of the node type that has as many nodes. If several do, and have other numbers of seeds,
        all rows are returned, as of sparse tensors.

        Args:
            out: what a model returned: tensors in dicts, lists, tuples, named tuples, dataclasses.
            take: returns the first rows of a tensor; called with all of them, too.
        """
        take = take or _first
        if isinstance(out, Tensor):
            if out.layout != torch.strided:
                return out
            rows = out.size(0) if out.dim() > 0 else 0
            seeds = self._seeds.get(rows, set())
            return take(out, next(iter(seeds)) if len(seeds) == 1 else rows)
        if isinstance(out, dict):
            return self._seeds_by_key(out, take)
        if dataclasses.is_dataclass(out) and not isinstance(out, type):
            fields = {f.name: getattr(out, f.name) for f in dataclasses.fields(out)}
            return dataclasses.replace(
                out, **{n: self.seeds_of(v, take) for n, v in fields.items()}
            )
        if isinstance(out, tuple) and hasattr(out, "_fields"):
            return type(out)(*[self.seeds_of(v, take) for v in out])
        if type(out) in (list, tuple):
            return type(out)([self.seeds_of(v, take) for v in out])
        return out

    def _seeds_by_key(self, out: dict[Any, Any], take: Callable[[Tensor, int], Tensor]) -> Any:
        found = copy.copy(out)
        for key, value in out.items():
            rows, seeds = self._of_type.get(key, (0, 0))
            known = key is not None and isinstance(value, Tensor) and value.dim() > 0
            known = known and rows == value.size(0)
            found[key] = take(value, seeds) if known else self.seeds_of(value, take)
        return found


def _first(value: Tensor, rows: int) -> Tensor:
    return value[:rows] if value.dim() > 0 else value


class Entered:
    """The arguments of a step, as its tensors.

    Args:
        run: the step.
        sizes: of the batch.
    """

    def __init__(self, run: BatchRun, sizes: BatchSizes) -> None:
        self._run, self._sizes = run, sizes
        self._made: list[tuple[Tensor, Any, Any]] = []

    def of(self, arguments: Any) -> Any:
        """Return arguments with tensors of the step for what has rows, and plain edges."""
        return tree_map(self._entered, arguments)

    def _entered(self, value: Any) -> Any:
        if isinstance(value, SampledEdges):
            return value.as_tensor()
        if type(value) not in (Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            return value
        if not self._sizes.has_rows(value) or value.device != self._run.device:
            return value
        known = next((made for given, made, _ in self._made if given is value), None)
        if known is not None:
            return known
        made: Any = self._run.enter(value)
        self._made.append((value, made, made.node))
        if self._run.exchanges is not None:
            self._run.exchanges.inputs.add(made.node)
        return made

    def write_back(self) -> None:
        """Write to the arguments what the forward has written to them."""
        for value, made, node in self._made:
            if made.node is not node:
                node.keep_own()
                with torch.no_grad():
                    value.copy_(made.whole())
