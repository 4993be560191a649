"""Speed of heterogeneous, link, weighted and temporal loading on the CPU, in one interleaved run.

Heterogeneous and link loading stand against PyG, on pyg-lib where that is installed. Weighted and
temporal sampling stand against our own uniform sampling on the same graph, as edges per second, and
against PyG's, which has neither without pyg-lib. All contestants share a process and the graph, and
take turns, each once the workers of the one before have nothing left to prepare.

    python -m benchmarks others   # needs 20 GB of memory
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

import pyg_direct
from benchmarks import graphs
from benchmarks.cpu import derive
from benchmarks.cpu.cases import (
    NUM_WORKERS,
    OURS,
    PYG_LIB,
    TORCH_SPARSE,
    Contestant,
    available,
)
from benchmarks.cpu.child import Server
from benchmarks.cpu.contestants import endless
from benchmarks.load import Watch, taken_by_others
from benchmarks.result import new_result, number, parser, quartiles, table, write
from benchmarks.statistics import spread
from examples.support.synthetic import power_law_graph

# PyG prefers pyg-lib by itself, so that is what is measured where it is installed.
RIVAL = PYG_LIB if available(PYG_LIB) else TORCH_SPARSE
LIBRARIES = {OURS: pyg_direct} | ({RIVAL: torch_geometric.loader} if available(RIVAL) else {})
NODES, LINKS = "NeighborLoader", "LinkNeighborLoader"
LAST_TIME = 1_000_000
TITLE = "Heterogeneous, link, weighted and temporal loading on the CPU"
UNIFORM, DISJOINT, REPLACE = "uniform", "uniform, disjoint", "uniform, with replacement"

# Sampling -> (arguments, what to compare with besides `UNIFORM`: the same without the new feature).
# Temporal sampling is disjoint, which has a cost of its own.
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    UNIFORM: ({}, UNIFORM),
    REPLACE: ({"replace": True}, UNIFORM),
    DISJOINT: ({"disjoint": True}, UNIFORM),
    "weighted": ({"weight_attr": "weight"}, UNIFORM),
    "weighted, with replacement": ({"weight_attr": "weight", "replace": True}, REPLACE),
    "temporal, uniform": ({"time_attr": "time"}, DISJOINT),
    "temporal, last": ({"time_attr": "time", "temporal_strategy": "last"}, DISJOINT),
    "weighted and temporal": ({"weight_attr": "weight", "time_attr": "time"}, DISJOINT),
}


class Case(NamedTuple):
    """A graph, and how to load it."""

    name: str
    loader: str
    arguments: dict[str, Any]  # of the loader
    batches: int  # timed in one round
    warmup: int  # batches before them: more than any loader prepares ahead
    rounds: int


class VariantsCase(NamedTuple):
    """A generated graph, and how to sample from it."""

    num_nodes: int
    num_edges: int
    fanout: list[int]
    batch_size: int
    batches: int
    rounds: int


def node_case(name: str, seed_type: str, batch_size: int, batches: int, rounds: int) -> Case:
    """Return heterogeneous loading with fan-out 10/10 around nodes of one type."""
    arguments = {"num_neighbors": [10, 10], "input_nodes": (seed_type, None)}
    return Case(name, NODES, arguments | {"batch_size": batch_size}, batches, 6, rounds)


def link_case(name: str, fanout: list[int], batch_size: int, batches: int, rounds: int) -> Case:
    """Return link loading with one negative for each link."""
    arguments = {"num_neighbors": fanout, "neg_sampling": "binary", "batch_size": batch_size}
    return Case(name, LINKS, arguments, batches, 6, rounds)


def toy_cases() -> list[tuple[Case, Callable[[], Any]]]:
    """Return cases that take no time."""
    return [
        (node_case("20 edge types", "n0", 16, 2, 1), lambda: graphs.many_types(500, 4000, 8)),
        (link_case("links", [4, 3], 32, 2, 1), lambda: power_law_graph(500, 4000, 8)),
    ]


def real_cases(args: argparse.Namespace) -> list[tuple[Case, Callable[[], Any]]]:
    """Return what is measured against the rival: cases, and functions that make their graphs."""
    edges = args.hetero_edges
    return [
        (
            node_case("debian_hetero", "package", 512, 10, 7),
            lambda: graphs.debian_hetero(),
        ),
        (
            # A seed has neighbours of 4 types, and each of these of 4: 128 are 200,000 edges.
            node_case(f"20 edge types, {edges / 1e6:.0f}M edges", "n0", 128, 5, 5),
            lambda: graphs.many_types(edges // 25, edges, 64),
        ),
        (
            link_case("links, 200k nodes, 5M edges", [10, 5], 512, 8, 7),
            lambda: power_law_graph(200_000, 5_000_000, 100),
        ),
    ]


def make_server(who: Contestant, case: Case, data: Any) -> tuple[Server, float]:
    """Return the contestant, ready for batches and for sampling alone, and its seconds to build.

    Sampling alone is a loader over the graph without attributes, with the same sampler.
    """
    server = Server(who, case)  # type: ignore[arg-type]  # that it looks into only to build
    make = getattr(LIBRARIES[who.loader], case.loader)
    common = {**case.arguments, "num_workers": who.num_workers, "shuffle": True}
    if case.loader == LINKS:
        common["edge_label_index"] = data.edge_index
    start = time.perf_counter()
    server.loader = make(data, **common)
    seconds = time.perf_counter() - start
    sampler = server.loader.link_sampler if case.loader == LINKS else server.loader.node_sampler
    server.next_batch = endless(server.loader).__next__
    server.next_sample = endless(
        make(graphs.bare(data), neighbor_sampler=sampler, **common)
    ).__next__
    return server, seconds


def run_case(case: Case, make_graph: Callable[[], Any]) -> dict[str, Any]:
    """Measure all contestants on one graph."""
    print(f"\n{case.name}", flush=True)
    data = make_graph()
    samples: dict[tuple[Contestant, str], list[float]] = defaultdict(list)
    servers = []
    for workers in NUM_WORKERS:
        for loader in LIBRARIES:
            who = Contestant(loader, workers, "default")
            server, seconds = make_server(who, case, data)
            samples[who, "construct_seconds"].append(seconds)
            servers.append(server)
    watch = Watch()
    for turn in range(-1, case.rounds):  # round -1 is thrown away: code and memory are fetched
        # Begin with another one each time, so that none always follows the same one.
        first = turn % len(servers)
        for server in servers[first:] + servers[:first]:
            batch = server.batches(case.batches, case.warmup)
            sampling = server.sampling(case.batches, case.warmup)
            if turn < 0:
                continue
            found = {f"batch_{key}": value for key, value in batch.items()}
            found |= {"sampling_ms": sampling["ms"], "sampling_cpu_ms": sampling["cpu_ms"]}
            for metric, value in found.items():
                samples[server.contestant, metric].append(value)
        watch.round()
    rows = [
        {**who._asdict(), "metric": metric, **spread(values), "samples": values}
        for (who, metric), values in samples.items()
    ]
    ratios = derive.ratios(rows)
    for row in ratios:
        print(f"  {row['metric']}, {row['num_workers']} workers: {row['ratio']:.2f}", flush=True)
    sizes = {"num_nodes": data.num_nodes, "num_edges": data.num_edges}
    shown = {"rows": rows, "ratios": ratios, "others_cores": watch.cores[1:]}
    return {"case": case._asdict(), **sizes, **shown}


def variant_graph(case: VariantsCase) -> Data:
    """Return a power-law graph with random weights and times of its edges, and 100 features."""
    data = power_law_graph(case.num_nodes, case.num_edges, 100)
    generator = torch.Generator().manual_seed(0)
    data.weight = torch.rand(case.num_edges, generator=generator)
    data.time = torch.randint(LAST_TIME, (case.num_edges,), generator=generator)
    return data


def run_variants(case: VariantsCase) -> dict[str, Any]:
    """Measure ways of sampling in turn, all around the same seeds, in edges a second.

    Once the sampler alone, and once whole batches with their features: ours, and those that PyG has
    with what is installed.
    """
    data = variant_graph(case)
    sizes = (case.batches, case.batch_size)
    generator = torch.Generator().manual_seed(1)
    seeds = torch.randint(case.num_nodes, sizes, generator=generator)
    times = torch.randint(LAST_TIME, (case.num_nodes,), generator=generator)
    loaders: dict[tuple[str, str], Any] = {}
    refused: dict[str, str] = {}

    def sample(loader: Any, node: Tensor) -> int:
        asked = NodeSamplerInput(
            None, node, time=times[node] if loader.node_sampler.is_temporal else None
        )
        return int(loader.node_sampler.sample_from_nodes(asked).row.numel())

    def load(loader: Any, node: Tensor) -> int:
        return int(loader(node).edge_index.size(1))

    for name, (arguments, _) in VARIANTS.items():
        extra = {"input_time": times} if "time_attr" in arguments else {}
        for library, package in LIBRARIES.items():
            try:
                loader = package.NeighborLoader(data, case.fanout, **arguments, **extra)
                load(loader, seeds[0])
            except (ImportError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
                if library == OURS:
                    raise
                refused[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            else:
                loaders[library, name] = loader

    samples: dict[tuple[str, tuple[str, str]], list[float]] = defaultdict(list)
    names = list(loaders)
    watch = Watch()
    for turn in range(-1, case.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            for what, run in (("sampling alone", sample), ("whole batch", load)):
                start = time.perf_counter()
                edges = sum(run(loaders[name], node) for node in seeds)
                if turn >= 0:
                    samples[what, name].append(edges / (time.perf_counter() - start))
        watch.round()
    rows = [
        {"what": what, "sampling": name, **spread(values), "samples": values}
        for (what, (library, name)), values in samples.items()
        if library == OURS
    ]
    rivals = [
        {"what": what, "sampling": name, "loader": library, **spread(values), "samples": values}
        for (what, (library, name)), values in samples.items()
        if library != OURS
    ]
    speed = {(row["what"], row["sampling"]): row["median"] for row in rows}
    for row in rivals:
        row["ratio"] = speed[row["what"], row["sampling"]] / row["median"]
    for row in rows:
        row["counterpart"] = VARIANTS[row["sampling"]][1]
        row["of_uniform"] = row["median"] / speed[row["what"], UNIFORM]
        row["of_counterpart"] = row["median"] / speed[row["what"], row["counterpart"]]
        print(f"  {row['sampling']}, {row['what']}: {row['of_uniform']:.2f} of uniform", flush=True)
    found = {"rows": rows, "rivals": rivals, "refused": refused, "others_cores": watch.cores[1:]}
    return {"case": case._asdict(), **found}


def _case_table(graph: dict[str, Any]) -> list[str]:
    case = graph["case"]
    arguments = case["arguments"]
    fanout = "/".join(map(str, arguments["num_neighbors"]))
    what = "link loading with binary negatives" if case["loader"] == LINKS else "node loading"
    ratios = {(row["metric"], row["num_workers"]): row for row in graph["ratios"]}
    libraries = list(dict.fromkeys(row["loader"] for row in graph["rows"]))
    rows = []
    for metric, title in derive.METRICS.items():
        unit = "s" if metric.endswith("seconds") else "ms"
        for workers in NUM_WORKERS:
            found = [row for row in graph["rows"] if row["metric"] == metric]
            medians = {r["loader"]: r["median"] for r in found if r["num_workers"] == workers}
            ratio = _ratio_cells(ratios.get((metric, str(workers))))
            measured = [number(medians[name]) for name in libraries]
            rows.append([f"{title}, {unit}", str(workers), *measured, *ratio])
    for metric, title in derive.METRICS.items():
        best = ratios.get((metric, "best"))
        if best is not None and metric in ("batch_ms", "sampling_ms"):
            empty = ["" for _ in libraries]
            rows.append([f"{title}, best against best", "", *empty, *_ratio_cells(best)])
    return [
        "",
        f"## {case['name']}",
        "",
        f"{graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges; {what}, fan-out {fanout}, "
        f"batch size {arguments['batch_size']}; {case['rounds']} rounds of {case['batches']} "
        "batches.",
        "",
        *table(["", "workers", *libraries, "times less", "quartiles"], rows),
        *taken_by_others(graph.get("others_cores")),
    ]


def _ratio_cells(ratio: dict[str, Any] | None) -> list[str]:
    if ratio is None:
        return ["", ""]
    return [f"{ratio['ratio']:.1f}", f"{ratio['p25']:.1f} to {ratio['p75']:.1f}"]


def _variants_table(found: dict[str, Any]) -> list[str]:
    case = found["case"]
    rivals = {(row["what"], row["sampling"]): row for row in found.get("rivals", ())}
    head = ["", "sampling", "million edges a second"]
    if rivals:
        (library,) = {row["loader"] for row in rivals.values()}
        head += [library, "times as many"]
    head += ["of uniform", "of its counterpart"]
    told = [
        f"PyG does not sample {name} with what is installed: `{why}`"
        for name, why in found.get("refused", {}).items()
    ]
    rows = []
    for row in sorted(found["rows"], key=lambda row: str(row["what"])):
        speed = quartiles(row, 1e-6)
        shares = [f"{row[key]:.2f}" for key in ("of_uniform", "of_counterpart")]
        rival = rivals.get((row["what"], row["sampling"]))
        theirs = [] if not rivals else ["", ""]
        if rival is not None:
            theirs = [quartiles(rival, 1e-6), f"{rival['ratio']:.1f}"]
        rows.append([row["what"], row["sampling"], speed, *theirs, *shares, row["counterpart"]])
    return [
        "",
        "## Weighted and temporal sampling",
        "",
        "PyG has neither without pyg-lib. pyg_direct's own uniform sampling is the measure; where",
        "PyG was measured in the same run, it stands beside it. A",
        f"graph of {case['num_nodes']:,} nodes and {case['num_edges']:,} edges, fan-out "
        f"{'/'.join(map(str, case['fanout']))}, batch size {case['batch_size']}, 100 features, no "
        f"workers; {case['rounds']} rounds of {case['batches']} batches.",
        "",
        *table([*head, "counterpart"], rows),
        *(["", *told] if told else []),
        *taken_by_others(found.get("others_cores")),
    ]


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    lines = [
        "",
        "Medians over the rounds of one interleaved run, all contestants in one process. `times",
        "less` is the ratio of the medians, the quartiles are of the ratios round by round. Each",
        "loader is constructed once. `sampling alone` is a loader over the graph without",
        "attributes.",
    ]
    for graph in result["graphs"]:
        lines += _case_table(graph)
    return lines + _variants_table(result["variants"])


def main(argv: list[str] | None = None) -> None:
    """Run everything and write the results."""
    arguments = parser(__doc__)
    arguments.add_argument("--hetero-edges", type=int, default=50_000_000, help="of all types")
    arguments.add_argument("--rounds", type=int, help="instead of each case's own number")
    args = arguments.parse_args(argv)
    torch.manual_seed(0)
    result = new_result("others", args.quick, graphs=[])
    if not args.quick:  # a construction is timed once, so all code must be in memory before
        for case, make_graph in toy_cases():
            run_case(case, make_graph)
    for case, make_graph in toy_cases() if args.quick else real_cases(args):
        case = case._replace(rounds=args.rounds or case.rounds)
        result["graphs"].append(run_case(case, make_graph))
        gc.collect()  # iterators with workers are cycles
    variants = (
        VariantsCase(500, 4000, [4, 3], 32, 2, 1)
        if args.quick
        else VariantsCase(200_000, 5_000_000, [15, 10, 5], 1024, 6, 7)
    )
    result["variants"] = run_variants(variants._replace(rounds=args.rounds or variants.rounds))
    write(result, args.out)
