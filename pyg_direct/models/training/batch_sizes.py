"""Arguments of an accelerated model: the rows of a sampled batch, and containers with its edges."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data, HeteroData

from ...batch.edges import SampledEdges
from ...batch.sampled import Reused
from ...core.arguments import check_model
from ...core.cooperation import Cooperation
from ...core.private_torch import compiled_in_place, tree_leaves, tree_map
from ...loading.base import DirectLoader
from ..lazy.tensor import TableTensor
from ..lazy.values import Leaf, Value


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

        def seeds(value: Tensor, path: tuple[Any, ...]) -> Tensor:
            if value.layout != torch.strided:
                return value
            rows = value.size(0) if value.dim() > 0 else 0
            of_type = self._of_type.get(path[-1], (0, 0)) if path and value.dim() > 0 else (-1, 0)
            if rows == of_type[0]:
                return take(value, of_type[1])
            known = self._seeds.get(rows, set())
            return take(value, next(iter(known)) if len(known) == 1 else rows)

        return mapped(seeds, out)


def mapped(change: Callable[[Tensor, tuple[Any, ...]], Any], value: Any, *path: Any) -> Any:
    """Return a result with each tensor changed, in dicts, lists, tuples and dataclasses.

    Args:
        change: gets a tensor and its place: keys, field names and positions.
        value: the result.
        *path: its own place.
    """
    if isinstance(value, Tensor):
        return change(value, path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if f.init]
        found = {n: mapped(change, getattr(value, n), *path, n) for n in names}
        return dataclasses.replace(value, **found)
    if isinstance(value, Mapping):
        entries = {key: mapped(change, entry, *path, key) for key, entry in value.items()}
        if not isinstance(value, dict):
            return entries
        copied = copy.copy(value)  # of its own class
        copied.update(entries)
        return copied
    if isinstance(value, (tuple, list)):
        parts = [mapped(change, entry, *path, i) for i, entry in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _first(value: Tensor, rows: int) -> Tensor:
    return value[:rows] if value.dim() > 0 else value


class Step(Protocol):
    """What takes tensors into a step."""

    device: torch.device
    exchanges: Any

    def enter(self, x: Tensor) -> TableTensor:
        """Return a plain tensor as one of the step."""


class Entered:
    """The arguments of a step, as its tensors.

    Args:
        run: the step.
        sizes: of the batch.
    """

    def __init__(self, run: Step, sizes: BatchSizes) -> None:
        self._run, self._sizes = run, sizes
        self._made: list[tuple[Tensor, TableTensor, Value]] = []

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
        made = self._run.enter(value)
        self._made.append((value, made, made.node))
        if self._run.exchanges is not None:
            self._run.exchanges.inputs.add(made.node)
        return made

    def write_back(self) -> None:
        """Write to the arguments what the forward has written to them."""
        for value, made, node in self._made:
            if made.node is not node:
                assert isinstance(node, Leaf)
                node.keep_own()
                with torch.no_grad():
                    value.copy_(made.whole())


UNKNOWN_EDGES = (
    "its edges are not from a loader that was passed to accelerate(), or were modified since, for "
    "example by transform= or in the loop; modify them in the whole graph or in the model's forward"
)

LONGEST_REASON = 200  # characters of an error that are told


def edges_in(value: Any, key: Any = None) -> Iterator[tuple[Any, SampledEdges]]:
    """Yield the sampled edges in containers, each with the key that it has in a mapping."""
    if isinstance(value, SampledEdges):
        yield key, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from edges_in(part, name)
    elif type(value) in (tuple, list):
        for part in value:
            yield from edges_in(part, key)


def why_unknown(arguments: tuple[Any, ...], refused: list[str]) -> tuple[str, bool]:
    """Return why some arguments have no sampled edges, and whether that is an error.

    Args:
        arguments: of a forward.
        refused: why the order of the edges is not known in batches of some loaders.
    """
    if any(isinstance(value, (Data, HeteroData)) for value in arguments):
        what = "its forward takes a whole Data; let it take x and edge_index, or accelerate"
        return f"{what} the module in it that does: model.gnn = accelerate(model.gnn, loader)", True
    return UNKNOWN_EDGES + "".join(f" ({reason})" for reason in refused), False


def common_of(edges: list[tuple[Any, SampledEdges]]) -> Cooperation | None:
    """Return what edges say of the ranks that make their batch together; None for one rank's."""
    return next((sampled.common for _, sampled in edges if sampled.common is not None), None)


def without_counts(forward: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Leave out the counts that `trim_to_layer` of PyG takes: rows are left out already."""
    counts = [name for name in kwargs if name.startswith("num_sampled_")]
    if not counts:
        return kwargs
    parameters = inspect.signature(forward).parameters
    options = {name for name, p in parameters.items() if p.default is None}
    return {k: v for k, v in kwargs.items() if k not in counts or k not in options}


def map_edges(value: Any, change: Any) -> Any:
    """Return containers with each `SampledEdges` in them changed."""
    if isinstance(value, SampledEdges):
        return change(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(map_edges(v, change) for v in value)
    if type(value) is dict:
        return {key: map_edges(v, change) for key, v in value.items()}
    return value


def run_plain(forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a forward with plain tensors for the edges."""
    if next(edges_in((args, kwargs)), None) is None:
        return forward(*args, **kwargs)
    tensors, named = map_edges((args, kwargs), SampledEdges.as_tensor)
    return forward(*tensors, **named)


def copied_tensors(value: Any) -> Any:
    """Return arguments with copies of their tensors, which a forward may write to."""

    copies: dict[int, Tensor] = {}  # one for a tensor that is given twice

    def copied(leaf: Any) -> Any:
        if type(leaf) is not Tensor:
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    return tree_map(copied, value)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the dense tensors among arguments, beside edges: a forward may write to them."""
    found = (leaf for leaf in tree_leaves(value) if type(leaf) is Tensor)
    return [leaf for leaf in found if leaf.layout == torch.strided]


def failure(error: Exception) -> str:
    """Say in one line that a step failed; torch's errors may list all its backends."""
    text = str(error).partition("\n")[0]
    text = text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."
    return f"its forward failed on a subset of the rows ({type(error).__name__}: {text})"


def check_accelerable(model: Any, loaders: tuple[Any, ...]) -> None:
    """Raise a TypeError or ValueError for what `accelerate` cannot be given."""
    check_model(model)
    wrappers = DistributedDataParallel, torch.nn.DataParallel
    if isinstance(model, wrappers) or hasattr(model, "_orig_mod"):
        raise ValueError(
            f"accelerate() needs the model itself, got it wrapped in {type(model).__name__}. Call "
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
        raise TypeError(
            "accelerate() needs at least one loader, whose batches the model is called on."
        )
    for loader in loaders:
        if not isinstance(loader, DirectLoader):
            raise TypeError(
                f"accelerate() needs loaders of pyg_direct (NeighborLoader, LinkNeighborLoader), "
                f"got {type(loader).__module__}.{type(loader).__name__}."
            )
