"""Which way to run a convolution: the fastest that is right on a small graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .blocks import Block, Scope, blocks_of
from .cutter import Convolution
from .layers import Layer, Local
from .messages import REDUCTIONS, Messages, Reduced
from .normalisation import normalisation_of
from .spaces import CutError, ends, same

PIECE = 5  # edges of a piece on the small graph


def choose(conv: Convolution, scope: Scope, expected: dict[str, Tensor]) -> Layer:
    """Return the fastest way to run a convolution that is right on the example.

    Args:
        conv: the call of a module.
        scope: all nodes of the example, with the inputs of the convolution.
        expected: what the module gives, by the names of the values.

    Raises:
        CutError: no way is right; the message says why.
    """
    reasons = []
    for make in _ways(conv, scope):
        try:
            layer = make()
            if _agrees(layer, scope, expected):
                if type(layer) is Messages:
                    layer.splits = _splits(layer, scope, expected)
                return layer
            reasons.append("other numbers")
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}")
    raise CutError(
        f"{conv.target!r} ({type(conv.module).__name__}) cannot be computed from one-hop "
        f"neighbourhoods: its rows depend on {conv.one_hop or reasons[-1]}."
    )


def is_weighted_sum(conv: Convolution) -> bool:
    """Whether messages are rows of the sources, or those times a weight, and what they are only.

    Tried on numbers of several scales and both signs, so that an activation inside is noticed.
    """
    module = conv.module
    hooked = any(hooks for name, hooks in vars(module).items() if name.endswith("_hooks"))
    known = {"x_j", "edge_weight"}
    if hooked or module.explain or not isinstance(module.aggr, str):
        return False
    names = set(module._user_args)
    if module.aggr not in REDUCTIONS or names - known or "x_j" not in names:
        return False
    draw = torch.Generator().manual_seed(0)
    edge_index = torch.randint(9, (2, 40), generator=draw)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    kind = REDUCTIONS[module.aggr]
    for scale in (1e-3, 1.0, 1e3):
        x = torch.randn(9, 4, generator=draw) * scale
        weights: list[Tensor | None] = [None]
        if "edge_weight" in module._user_args:
            weights.append(torch.randn(40, generator=draw))
        for weight in weights:
            message = x[edge_index[0]] if weight is None else weight.view(-1, 1) * x[edge_index[0]]
            reduce = {"max": "amax", "min": "amin"}.get(kind, kind)
            wanted = torch.zeros(11, 4).scatter_reduce_(
                0, edge_index[1].view(-1, 1).expand(-1, 4), message, reduce, include_self=False
            )
            given = {} if "edge_weight" not in module._user_args else {"edge_weight": weight}
            try:
                found = module.propagate(
                    edge_index, x=(x, x.new_zeros(11, 4)), size=(9, 11), **given
                )
            except Exception:
                return False
            if not same(found, wanted) or (weight is not None and kind != "sum"):
                return False
    return True


def _ways(conv: Convolution, scope: Scope) -> Iterator[Callable[[], Layer]]:
    """Yield constructors, the fastest first."""
    norm = normalisation_of(conv, scope)
    if len(conv.edge_types) == 1 and scope.reduces and conv.module.flow == "source_to_target":

        def one_hop_or_several(make: type[Messages]) -> Layer:
            layer = make(conv, scope, norm)
            if conv.one_hop and norm is None and not layer.several_hops:
                raise CutError(conv.one_hop)
            return layer

        if is_weighted_sum(conv):
            yield lambda: one_hop_or_several(Reduced)
        yield lambda: one_hop_or_several(Messages)
    if conv.one_hop == "" or norm is not None:
        yield lambda: Local(conv, norm).learn(scope.cut.values)


def _splits(layer: Messages, scope: Scope, expected: dict[str, Tensor]) -> bool:
    """Return whether a layer gives the same for lists in pieces."""
    layer.max_edges, layer.splits = PIECE, True
    try:
        return _agrees(layer, scope, expected)
    except Exception:
        return False
    finally:
        layer.max_edges = None


def _agrees(layer: Layer, scope: Scope, expected: dict[str, Tensor]) -> bool:
    """Run a layer on small blocks of the example, and compare."""
    tables = dict(scope.tables)
    trial = replace(scope, tables=tables, constants=dict(scope.constants), degrees={})
    source_type = layer.source_type
    blocks = partial(blocks_of, max_rows=6, max_edges=17)
    of_sources = [
        Block(trial, source_type, first, last)
        for first, last, _ in blocks(trial.num_nodes(source_type), [])
    ]
    if layer.norm is not None:
        trial.degrees[layer.norm.key] = layer.norm.measured(of_sources)
    for round_ in range(layer.rounds):
        names = layer.prepared_in(round_)
        parts = [layer.prepare(block, round_) for block in of_sources] if names else []
        tables.update({name: torch.cat([part[name] for part in parts]) for name in names})
    for node_type, name in layer.conv.outputs.items():
        lists = [trial.list_ends(e) for e in layer.conv.edge_types if ends(e)[1] == node_type]
        for first, last, _ in blocks(trial.num_nodes(node_type), lists):
            rows = layer.run(Block(trial, node_type, first, last))
            if not same(rows.to(expected[name].device), expected[name][first:last]):
                return False
    return True
