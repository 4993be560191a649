"""Long lists in pieces: messages of some edges at a time, combined to those of all.

A sum, mean, maximum or minimum of messages is combined from those of the pieces. Weights of a
softmax over the in-edges (attention) are combined as in the online softmax (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018): each piece is computed with
``exp(score - m)``, where m is the largest score of a target in the piece, and is scaled by
``exp(m - M) / s`` with the largest score M and the sum s of all pieces.

Whether this is right for a convolution is tried on a small graph (`choice`): it is if its messages
are aggregated by one of the four, and depend on the other edges by a softmax at most.

Example: scores [0, 1 | 3] in pieces of two, values v. The first piece gives m = 1,
s = exp(-1) + 1 and ``exp(-1) v0 + v1``, the second m = 3, s = 1 and v2. With M = 3 the first is
scaled by exp(-2): the sum is ``exp(-3) v0 + exp(-2) v1 + v2``, divided by the sum of the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.utils import scatter, softmax

from .calls import renamed, uses_name

# Takes some edges and the rows of arguments for them; returns edge_index, size and all arguments.
ArgumentsOf: TypeAlias = "Callable[[slice, dict[str, Any]], tuple[Tensor, Any, dict[str, Any]]]"


class _Softmax:
    """Takes the place of PyG's `softmax` in a piece: weights that are not divided by their sum."""

    largest: Tensor | None = None  # [targets, ...], -inf without edges
    total: Any = None  # of the weights, [targets, ...]

    def __call__(
        self, src: Tensor, index: Tensor, ptr: Any = None, num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:  # fmt: skip
        if self.largest is not None or num_nodes is None or dim != 0:
            raise NotImplementedError("no single softmax over the in-edges")
        self.largest = _largest(src, index, num_nodes)
        weight = (src - self.largest[index]).exp()
        self.total = scatter(weight, index, 0, num_nodes, reduce="sum")
        return weight


class _Result(NamedTuple):
    out: Tensor
    targets: Tensor  # int64 [edges]
    weights: _Softmax


class Pieces:
    """Runs a function of a message-passing module on some edges at a time.

    Args:
        module: the message-passing module.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        methods = ("message", "edge_update")
        self._names = [m for m in methods if uses_name(module, m, "softmax", softmax)]
        self.right = False  # whether the results are those of all edges at once; found by trial

    def run(
        self,
        function: str,
        arguments: ArgumentsOf,
        per_edge: Mapping[str, Tensor],
        targets: int,
        edges: int,
        limit: int,
    ) -> Tensor:
        """Return what the function gives for all edges.

        Args:
            function: "propagate", of which the rows of the targets are returned; or
                "edge_updater", of which those of the edges are.
            arguments: of the function, for some edges.
            per_edge: arguments with a row for each edge.
            targets: number of target nodes.
            edges: number of edges.
            limit: of edges at a time.

        Raises:
            NotImplementedError: messages that are not combined by a sum, mean, maximum or minimum,
                or several softmaxes.
        """
        results = (
            self._result(function, arguments, per_edge, slice(first, min(first + limit, edges)))
            for first in range(0, edges, limit)
        )
        if function == "edge_updater":
            return _of_edges(list(results))
        if self._module.aggr not in COMBINED:
            raise NotImplementedError(f"aggregation {self._module.aggr!r} of a list in pieces")
        return COMBINED[self._module.aggr](results, targets)

    def _result(
        self, function: str, arguments: ArgumentsOf, per_edge: Mapping[str, Tensor], part: slice
    ) -> _Result:
        edge_index, size, kwargs = arguments(part, {k: v[part] for k, v in per_edge.items()})
        weights = _Softmax()
        clone = renamed(self._module, {name: {"softmax": weights} for name in self._names})
        out = getattr(clone, function)(edge_index, size=size, **kwargs)
        return _Result(out, edge_index[1], weights)


def _of_edges(results: list[_Result]) -> Tensor:
    """Return the rows of all edges; weights of a softmax are divided by the sum of all of them."""
    if results[0].weights.largest is None:
        return torch.cat([r.out for r in results])
    found = [r.weights.largest for r in results if r.weights.largest is not None]
    largest = torch.stack(found).amax(dim=0)
    factors = [_factor(own, largest) for own in found]
    total = sum(f * r.weights.total for f, r in zip(factors, results, strict=True)) + 1e-16
    return torch.cat([
        r.out * _like(f / total, r.out)[r.targets] for f, r in zip(factors, results, strict=True)
    ])  # fmt: skip


def _summed(results: Iterator[_Result], targets: int) -> Tensor:
    """Return the sums of messages, also of those with the weights of a softmax."""
    out, _, weights = next(results)
    largest, total = weights.largest, weights.total
    for more, _, weights in results:
        if largest is None or weights.largest is None:
            out = out + more
            continue
        both = torch.maximum(largest, weights.largest)
        before, now = _factor(largest, both), _factor(weights.largest, both)
        out = out * _like(before, out) + more * _like(now, more)
        total, largest = total * before + weights.total * now, both
    return out if largest is None else out / _like(total + 1e-16, out)


def _averaged(results: Iterator[_Result], targets: int) -> Tensor:
    """Return the means of messages, for targets without edges 0."""
    out: Any = 0
    count: Any = 0
    for more, index, _ in results:
        edges = torch.bincount(index, minlength=targets).to(more.dtype)
        out, count = out + more * _like(edges, more), count + edges
    return out / _like(count.clamp(min=1), out)  # type: ignore[no-any-return]


def _extreme(results: Iterator[_Result], targets: int, better: Any) -> Tensor:
    """Return the maximum or minimum of messages, for targets without edges 0, as PyG does."""
    out, index, _ = next(results)
    seen = torch.bincount(index, minlength=targets) > 0
    for more, index, _ in results:
        here = torch.bincount(index, minlength=targets) > 0
        found = torch.where(_like(seen, out), better(out, more), more)
        out = torch.where(_like(here, out), found, out)
        seen = seen | here
    return out


def _largest(scores: Tensor, index: Tensor, targets: int) -> Tensor:
    """Return the largest score of each target, -inf for those without edges."""
    found = scores.new_full((targets, *scores.shape[1:]), -torch.inf)
    place = _like(index, scores).expand_as(scores)
    return found.scatter_reduce_(0, place, scores, "amax")


def _factor(own: Tensor, largest: Tensor) -> Tensor:
    """Return ``exp(own - largest)``; 0 for targets without edges so far."""
    return (own - largest).exp().nan_to_num_(0.0)


def _like(values: Tensor, rows: Tensor) -> Tensor:
    """Return values with as many dimensions as `rows`."""
    return values.view(values.shape + (1,) * (rows.dim() - values.dim()))


COMBINED: dict[str, Callable[[Iterator[_Result], int], Tensor]] = {
    "add": _summed,
    "sum": _summed,
    "mean": _averaged,
    "max": partial(_extreme, better=torch.maximum),
    "min": partial(_extreme, better=torch.minimum),
}
