"""Whether batches leak the future or break their law, and the command `pyg-direct audit`."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import EdgeSamplerInput

from ..core.arguments import check_count, missing_attribute
from ..core.pyg import SubgraphType
from ..files.open import open_graph
from ..graph.attributes import names_in
from ..sampling.fanouts import as_num_neighbors, fanouts_of
from ..sampling.sampler import NeighborSampler, keyed
from ..sampling.time_bounds import NO_BOUNDS, bounds_of
from . import arguments
from .audit_checks import Law, checks_of
from .command import refuse


@dataclass
class Audit:
    """The findings of `pyg_direct.audit`. ``print(audit)`` is a report.

    Attributes:
        batches: how many were looked at.
        checked: by check, of how many things.
        wrong: by check, how many of them broke it; only checks with findings.
        examples: by check, the first finding, with the number of its batch.
        unchecked: what could not be checked, and why.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [2], batch_size=64, seed=0)
        >>> result = pyg_direct.audit(loader, batches=1)
        >>> result.batches, result.ok, result.wrong
        (1, True, {})
    """

    batches: int = 0
    checked: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.wrong

    def __str__(self) -> str:
        nothing = "no finding" if any(self.checked.values()) else "nothing was checked"
        found = nothing if self.ok else "FINDINGS"
        lines = [f"{self.batches} batches: {found}"]
        for check, number in self.checked.items():
            wrong = self.wrong.get(check, 0)
            lines.append(f"  {'ok  ' if wrong == 0 else 'FAIL'} {check}: {wrong} of {number}")
            if wrong > 0:
                lines.append(f"       first: {self.examples[check]}")
        return "\n".join([*lines, *(f"  not checked: {text}" for text in self.unchecked)])


def audit(
    loader: Any,
    batches: int | Iterable[Any] = 32,
    *,
    time_attr: str | None = None,
    weight_attr: str | None = None,
) -> Audit:
    """Certify on the loader's own data that its batches obey their law.

    Each edge of a batch is looked up in ``loader.data``, whatever sampler, transform or collation
    it came through. With `e_id` and `n_id` in the batch it is checked that

    * edges are those of the graph, between the nodes that it says;
    * with `time_attr`, no edge is later than any seed that its message reaches, and none is earlier
      than that seed's window (also without a temporal sampler, which is how a leak shows);
    * no seed link is among the edges of its own subgraph; with times of edges, at the link's time;
      nor an edge back, where the loader leaves those out;
    * no node has more edges in a hop than its fan-out, or one of them twice (without `replace`);
      with ``sampling="adaptive"``, no hop has more than the budgets of its metapaths;
    * with `weight_attr`, no edge of weight 0 was drawn, but where all neighbours are taken.

    Args:
        loader: a `NeighborLoader`, `LinkNeighborLoader`, or one of PyG's own, over a `Data` or
            `HeteroData`. Its next epoch is iterated, and is still the next one afterwards; torch's
            default generators are left as they were.
        batches: how many, from the first on; fewer if the epoch has fewer. Or the batches
            themselves, such as those of an epoch that was resumed or recorded.
        time_attr: attribute of nodes or edges. Give it wherever the data have times.
        weight_attr: attribute of edges.

    Raises:
        TypeError: no such loader, or data that are not PyG's.
        ValueError: `subgraph_type='bidirectional'`, whose edges were not all drawn; or no attribute
            of that name.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=64)
        >>> pyg_direct.audit(loader, batches=3).ok
        True
    """
    law = _law_of(loader, time_attr, weight_attr)
    result = Audit(unchecked=list(_unchecked(loader, law)))
    for number, batch in enumerate(_next_epoch(loader, batches)):
        result.batches += 1
        for found in checks_of(law, batch):
            name = found.check
            result.checked[name] = result.checked.get(name, 0) + found.checked
            if found.wrong > 0:
                result.wrong[name] = result.wrong.get(name, 0) + found.wrong
                result.examples.setdefault(name, f"batch {number}: {found.example}")
    return result


def _next_epoch(loader: Any, batches: int | Iterable[Any]) -> Iterator[Any]:
    """Yield the given batches, or those of the next epoch, which stays the next one."""
    if not isinstance(batches, int):
        yield from batches
        return
    count = check_count("batches", batches, least=1)
    state = loader.state_dict() if hasattr(loader, "state_dict") else None
    with torch.random.fork_rng(devices=[]):
        yield from itertools.islice(loader, count)
    if state is not None:
        loader.load_state_dict(state)


def _law_of(loader: Any, time_attr: str | None, weight_attr: str | None) -> Law:
    sampler = getattr(loader, "node_sampler", None) or getattr(loader, "link_sampler", None)
    data, seeds = getattr(loader, "data", None), getattr(loader, "input_data", None)
    if sampler is None or seeds is None or not isinstance(data, (Data, HeteroData)):
        raise TypeError(
            f"audit needs a loader of neighbourhoods over a Data or HeteroData, got "
            f"{type(loader).__name__} over {type(data).__name__}."
        )
    if getattr(sampler, "subgraph_type", None) == SubgraphType.bidirectional:
        raise ValueError(
            "audit cannot tell the edges that were drawn from the opposite ones that "
            "subgraph_type='bidirectional' adds. Audit the loader with 'directional'."
        )
    for name, attribute in (("time_attr", time_attr), ("weight_attr", weight_attr)):
        if attribute is not None and not any(attribute in store for store in data.stores):
            raise missing_attribute(name, attribute, "the data", names_in(data))
    kinds: list[Any] = [None] if isinstance(data, Data) else data.edge_types
    hops: Any = []
    if getattr(sampler, "num_neighbors", None) is not None:
        hops = fanouts_of(as_num_neighbors(sampler.num_neighbors), kinds, kinds != [None])
    own, reverse = isinstance(sampler, NeighborSampler), False
    seed_edges = keyed(sampler).seed_edges if own else None
    if seed_edges is not None:
        for relation, is_reverse in seed_edges.relations_of(seeds.input_type):
            reverse = kinds[relation] if is_reverse else reverse
    counted = getattr(sampler, "subgraph_type", None) != SubgraphType.induced
    return Law(
        data=data,
        input_type=seeds.input_type,
        fanouts={kind: list(k) for kind, k in zip(kinds, zip(*hops, strict=True), strict=False)},
        replace=bool(getattr(sampler, "replace", False)),
        backward=getattr(sampler, "sample_direction", "forward") == "backward",
        time_attr=time_attr,
        weight_attr=weight_attr,
        reverse=reverse,
        links=isinstance(seeds, EdgeSamplerInput),
        bounds=NO_BOUNDS if seeds.input_id is not None else bounds_of(seeds),
        window=getattr(sampler, "time_window", None),
        adaptive=own and counted and keyed(sampler).settings.sampling == "adaptive",
    )


def _unchecked(loader: Any, law: Law) -> Iterator[str]:
    """Yield the checks that are impossible, and why."""
    sampler = getattr(loader, "node_sampler", None) or loader.link_sampler
    if law.time_attr is None and getattr(sampler, "is_temporal", False):
        yield "times, as time_attr= was not given, and the loader has one"
    weighted = isinstance(sampler, NeighborSampler) and keyed(sampler).graph.csc.weights is not None
    if law.weight_attr is None and weighted:
        yield "weights, as weight_attr= was not given, and the loader has one"
    if bounds_of(loader.input_data) is not law.bounds:
        yield "the windows of the seeds, as input_id= renames their positions"
    if getattr(sampler, "subgraph_type", None) == SubgraphType.induced:
        yield "fan-outs and weights, as an induced subgraph has edges that were not drawn"


def main(argv: list[str] | None = None) -> None:
    """Audit batches over a saved graph; see `run`."""
    run(*arguments.audit(argv))


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Audit batches over a saved graph; exit with 1 at a finding, or where nothing was checked."""
    try:
        data = open_graph(args.path)
        if args.seed_type is None and isinstance(data, HeteroData):
            parser.error(f"--seed-type is needed, one of {data.node_types}")
        if args.seed_type is not None and isinstance(data, Data):
            parser.error("The graph has no node types: leave --seed-type out.")
        sampler = NeighborSampler(
            data, args.fanout, time_attr=args.time_attr, time_window=args.time_window,
            weight_attr=args.weight_attr, temporal_strategy=args.strategy, seed=args.seed,
        )  # fmt: skip
        num_nodes = keyed(sampler).num_nodes_of(args.seed_type)
        time = None if args.seed_time is None else torch.full((num_nodes,), args.seed_time)
        order = torch.Generator().manual_seed(args.seed)
        nodes = torch.arange(num_nodes)
        loader = NodeLoader(
            data, sampler, nodes if args.seed_type is None else (args.seed_type, nodes), time,
            batch_size=args.batch_size, shuffle=True, generator=order,
        )  # fmt: skip
        result = audit(loader, args.batches, time_attr=args.time_attr, weight_attr=args.weight_attr)
    except (ValueError, TypeError, OSError) as error:
        refuse(parser, error, {"temporal_strategy": "strategy"})
    print(result)
    sys.exit(0 if result.ok and any(result.checked.values()) else 1)


if __name__ == "__main__":
    main()
