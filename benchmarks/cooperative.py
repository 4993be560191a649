"""Batches that ranks make together, beside ranks that each make their own: rows, edges, bytes.

Ranks are processes over gloo on one machine, which have the whole graph in memory: what is counted
holds on several machines, too. Every rank has an epoch of batches of its own, and for each kind of
owners one of batches made together, of the same seeds, on which an accelerated model is trained.
`pyg-direct plan` counts the same from other seeds, and must come within 2 % of each count.

    python -m benchmarks cooperative
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import coalesce

import pyg_direct
from benchmarks import child, result
from benchmarks.labor.graphs import community_graph, graph
from examples.support.synthetic import power_law_graph
from pyg_direct.core.units import count_of
from pyg_direct.tools.plan import MACHINES
from pyg_direct.tools.plan_cooperative import Rates, common_step, owners_of
from pyg_direct.tools.plan_orders import Batching
from pyg_direct.tools.plan_ranks import RanksAsked, Work, step_of_ranks

TITLE = "Batches that ranks make together"
GRAPHS = ("power law", "community", "debian")
OWNERS = ("hash", "ldg")
SAMPLINGS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "LABOR": {"sampling": "labor"},
    "LABOR, kappa 64": {"sampling": "labor", "batch_dependency": 64},
}
WIDTH, DEGREE = 100, 25  # float32 columns and edges a node, of drawn graphs
WIDTHS = (128, 128, 16)  # that layers write
FAN_OUT, BATCH_SIZE = [10, 10, 10], 1024
STEPS = {"debian": 12}  # of an epoch, and of a plan; small batches differ more
OTHER_STEPS = 4
WORLD_SIZES = (2, 4)
RATES = Rates(MACHINES["pcie4-24gb"].link_bytes_per_s, 1e13)
MOST_OFF = 0.02  # of what is planned, from what is counted
ALONE, TOGETHER = "alone", "together"
PARTS = "parts.pt"


def counts_of(batch: Any, rows: int) -> list[float]:
    """Return rows, sampled edges and edges that as many layers as hops read, of a batch."""
    by_hop = np.array(batch.num_sampled_edges)
    # The first layer reads the edges of all hops, the next those of all but the last, ...
    return [rows, by_hop.sum(), np.cumsum(by_hop).sum()]


def alone(data: Data, seeds: Any, options: dict[str, Any]) -> dict[str, float]:
    """Run an epoch of own batches; return counts of a step here, and of all ranks' in common."""
    loader = pyg_direct.NeighborLoader(data, FAN_OUT, seeds, **options)
    batches = list(loader)
    rows, edges, read = np.mean([counts_of(b, b.num_nodes) for b in batches], 0).tolist()
    ids: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ids, [batch.n_id.numpy() for batch in batches])
    common = np.mean([len(np.unique(np.concatenate(step))) for step in zip(*ids, strict=True)])
    return {"rows": rows, "edges": edges, "read": read, "common": float(common) / len(ids)}


def together(data: Data, seeds: Any, options: dict[str, Any]) -> dict[str, float]:
    """Train an epoch on common batches; return counts of a step of this rank."""
    loader = pyg_direct.NeighborLoader(data, FAN_OUT, seeds, cooperative=True, **options)
    for _ in loader:  # in the first epoch ranks meet
        pass
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, WIDTHS[0], len(WIDTHS), WIDTHS[-1])
    fast, counts = pyg_direct.accelerate(model, loader), []
    for batch in loader:
        counts.append(counts_of(batch, 0))
        fast(batch.x, batch.edge_index)[: batch.batch_size].sum().backward()
    _, edges, read = np.mean(counts, 0).tolist()
    traffic = loader.stats().epochs[-1].exchange
    assert traffic is not None
    steps = len(counts)
    return {
        "rows": traffic.loaded_rows / steps,
        "edges": edges,
        "read": read,
        "fetched": traffic.fetched_rows / steps,
        "loading_bytes": sum(traffic.sent_bytes) / steps,
        "layer_bytes": sum(traffic.computing_sent_bytes) / steps,
        "loading_collectives": traffic.collectives / steps,
        "layer_collectives": traffic.computing_collectives / steps,
    }


def run_rank(spec: dict[str, Any]) -> None:
    """Be one rank; print what its batches had, and what it exchanged."""
    torch.set_num_threads(1)
    ranks, size, folder = spec["world_size"], spec["batch_size"], Path(spec["folder"])
    dist.init_process_group(
        "gloo", f"file://{spec['meeting']}", rank=spec["rank"], world_size=ranks
    )
    data: Any = pyg_direct.open(folder / "whole")
    data.x = data.x.clone()  # in memory
    seeds = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    seeds = seeds[: ranks * size * spec["steps"]]
    parts = torch.load(folder / PARTS)[str(ranks)]
    found: dict[str, Any] = {}
    for sampling, more in SAMPLINGS.items():
        options = {"batch_size": size, "seed": 0, "split_by_rank": True, **more}
        found[sampling] = {ALONE: alone(data, seeds, options)}
        for owners in OWNERS:
            given = "hash" if owners == "hash" else parts
            found[sampling][owners] = together(data, seeds, options | {"owners": given})
    print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


def planned(data: Data, spec: dict[str, Any], ranks: int, parts: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan counts of a step, by sampling, alone and by owners."""
    columns, found = data.num_features, dict[str, Any]()
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    for sampling, more in SAMPLINGS.items():
        law = more.get("sampling", "uniform")
        batching = Batching(FAN_OUT, spec["batch_size"], sampling=law)
        asked = RanksAsked(
            ranks, batching, {None: 4 * columns}, {None: columns}, WIDTHS, spec["steps"], window=1
        )
        step = step_of_ranks(bare, asked)
        work = step.alone
        found[sampling] = {
            ALONE: {"rows": work.rows, "edges": work.edges, "read": work.read_edges,
                    "flop": work.flop}
        }  # fmt: skip
        if "batch_dependency" not in more:  # which batches of other ranks share
            found[sampling][ALONE]["common"] = step.common
        for name, owners in parts.items():
            common = common_step(bare, asked, owners)
            work = common.work
            found[sampling][name] = {
                "rows": work.rows, "edges": work.edges, "read": work.read_edges,
                "flop": work.flop, "fetched": common.fetched,
                "loading_bytes": common.loading_bytes, "layer_bytes": 2 * common.layer_bytes,
                "loading_collectives": common.loading_collectives,
            }  # fmt: skip
    return found


def cases_of(every: Sequence[dict[str, Any]], plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the figures of a step by sampling and owners: sums over ranks, beside the plan's."""

    def summed(sampling: str, way: str) -> dict[str, float]:
        of_ranks = [of_rank[sampling][way] for of_rank in every]
        sums = {name: sum(of_rank[name] for of_rank in of_ranks) for name in of_ranks[0]}
        return {n: v / len(every) if n.endswith("collectives") else v for n, v in sums.items()}

    for sampling, of_sampling in plan.items():
        for owners in OWNERS:
            edges = [of_rank[sampling][owners]["edges"] for of_rank in every]
            yield {
                "ranks": len(every), "sampling": sampling, "owners": owners,
                ALONE: summed(sampling, ALONE), TOGETHER: summed(sampling, owners),
                "planned": {ALONE: of_sampling[ALONE], TOGETHER: of_sampling[owners]},
                "largest": max(edges) * len(edges) / sum(edges),
            }  # fmt: skip


def off(case: dict[str, Any]) -> float:
    """Return by which share of a count the plan is off, at most."""
    return max(
        abs(value / case[way][name] - 1)
        for way in (ALONE, TOGETHER)
        for name, value in case["planned"][way].items()
        if name in case[way]
    )


def least_link(case: dict[str, Any], row_bytes: int) -> float:
    """Return how many bytes a second a rank must send, so that a common batch takes no longer."""
    alone, together = (
        Work(n["rows"], row_bytes * n["rows"], n["edges"], n["read"], case["planned"][way]["flop"])
        for way, n in ((ALONE, case[ALONE]), (TOGETHER, case[TOGETHER]))
    )
    sent = case[TOGETHER]["loading_bytes"] + case[TOGETHER]["layer_bytes"]
    saved = sum(RATES.seconds_saved(alone, together, case["ranks"]))
    return sent / case["ranks"] / saved


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    saved, sent = list[list[str]](), list[list[str]]()
    for name, of_graph in found["graphs"].items():
        for case in of_graph["cases"]:
            one, common, plan = case[ALONE], case[TOGETHER], case["planned"]
            head = [name, str(case["ranks"]), case["sampling"]]
            if case["owners"] == OWNERS[0]:
                pairs = [(one[n], common[n], 1e3) for n in ("rows", "edges", "read")]
                pairs.append((plan[ALONE]["flop"], plan[TOGETHER]["flop"], 1e9))
                texts = [f"{a / u:,.1f} to {b / u:,.1f} ({a / b:.2f}x)" for a, b, u in pairs]
                saved.append([*head, f"{one['common'] / 1e3:,.1f}", *texts])
            of_rank = 1e6 * case["ranks"]
            less = of_graph["row_bytes"] * (one["rows"] - common["rows"])
            sent.append(
                [*head, case["owners"], f"{common['fetched'] / 1e3:,.1f}",
                 f"{common['loading_bytes'] / of_rank:.2f}",
                 f"{common['layer_bytes'] / of_rank:.2f}", f"{less / of_rank:.2f}",
                 f"{least_link(case, of_graph['row_bytes']) / 1e9:.0f}",
                 f"{common['loading_collectives']:.0f}",
                 f"{common['layer_collectives']:.0f}", f"{case['largest']:.2f}",
                 f"{100 * off(case):.1f} %"]
            )  # fmt: skip
    sizes = [
        f"{name}: {of_graph['nodes']:,} nodes, {of_graph['edges']:,} edges, "
        f"{of_graph['row_bytes'] // 4} float32 columns; means of {of_graph['steps']} steps."
        for name, of_graph in found["graphs"].items()
    ]
    worst = max(off(case) for g in found["graphs"].values() for case in g["cases"])
    return [
        "",
        *sizes,
        f"{found['batch_size']:,} random seeds of each rank in a step, fan-out "
        f"{'/'.join(map(str, FAN_OUT))}; SAGE layers that write "
        f"{'/'.join(map(str, WIDTHS))} columns.",
        "All figures are of one step. The plan, of as many steps with other seeds, is off by "
        f"{100 * worst:.1f} % at most.",
        "",
        "## What is saved",
        "",
        "Sums over the ranks, in thousands, with batches of their own and together. Rows in common",
        "are distinct rows of the own batches. Edges are sampled once, and read by each layer that",
        "needs them. GFLOP of the layers, forward and backward, are computed by the plan.",
        "",
        *result.table(
            ["graph", "ranks", "sampling", "rows in common", "rows loaded", "edges sampled",
             "edges read", "GFLOP"], saved,
        ),
        "",
        "## What is sent",
        "",
        "Owners by hash, or by linear deterministic greedy passes over the edges (`ldg`). Fetched",
        "are rows, in thousands, of all ranks, that came from others for the first layer. MB",
        "that each rank sends to load its part (ids, keys, bits, those rows), and between layers",
        "(forward and backward); MB less: of rows that it loads less than for a batch of its own.",
        f"GB/s to pay: that a rank must send for the time in which rows come at "
        f"{RATES.loading_bytes_per_s / 1e9:g} GB/s (PCIe 4.0)",
        f"and layers compute {RATES.flop_per_s / 1e12:g} TFLOP/s, waits left out: arithmetic on "
        "the counts, not measured.",
        "Collectives of a rank to load, and of the model. Largest rank: its",
        "edges over the mean. Off: the largest difference of the plan from a count of the row.",
        "",
        *result.table(
            ["graph", "ranks", "sampling", "owners", "fetched", "MB to load", "MB of layers",
             "MB less", "GB/s to pay", "to load", "of layers", "largest rank", "off"], sent,
        ),
    ]  # fmt: skip


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw what each rank sends and loads less, for the most ranks."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(found["graphs"]), figsize=(13, 3.8), squeeze=False)
    for axis, (name, of_graph) in zip(every[0], found["graphs"].items(), strict=True):
        ranks = max(case["ranks"] for case in of_graph["cases"])
        cases = [case for case in of_graph["cases"] if case["ranks"] == ranks]
        labels = [f"{case['owners']}\n{case['sampling'].replace(', ', chr(10))}" for case in cases]
        loading, layers, less = (
            np.array(values) / 1e6 / ranks
            for values in (
                [case[TOGETHER]["loading_bytes"] for case in cases],
                [case[TOGETHER]["layer_bytes"] for case in cases],
                [of_graph["row_bytes"] * (c[ALONE]["rows"] - c[TOGETHER]["rows"]) for c in cases],
            )
        )
        axis.bar(labels, loading, label="sent to load")
        axis.bar(labels, layers, bottom=loading, label="sent between layers")
        axis.plot(labels, less, "k_", ms=22, mew=2, label="rows loaded less")
        axis.set(title=f"{name}, {ranks} ranks", ylabel="MB a rank in a step")
        axis.tick_params(axis="x", labelsize=7)
    every[0][0].set_ylim(top=1.35 * every[0][0].get_ylim()[1])  # above which is the legend
    every[0][0].legend(frameon=False, loc="upper right")
    result.save_plot(figure, path)


def data_of(name: str, nodes: int, quick: bool) -> Data:
    """Return a graph, whose edges are there once each."""
    if name == "community":
        return community_graph(nodes, nodes * DEGREE, WIDTH)
    if name == "debian":
        return graph(name, None, quick)
    data = power_law_graph(nodes, nodes * DEGREE, WIDTH, 10)
    data.edge_index = coalesce(data.edge_index, num_nodes=nodes)
    return data


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="200k", help="of drawn graphs")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, help="others stay as they were")
    args = child.arguments(parser, argv, run_rank)
    if args is None:
        return
    nodes, size, names = int(args.nodes), BATCH_SIZE, GRAPHS
    if args.quick:
        nodes, size, names = 2000, 16, GRAPHS[:1]
    found = result.new_result(
        "cooperative", args.quick, batch_size=size, graphs={}, unit="a step, all ranks"
    )
    if args.graphs is not None:
        before = json.loads((args.out / "cooperative.json").read_text())
        names, found["graphs"] = tuple(args.graphs), before["graphs"]
    for name in names:
        steps = STEPS.get(name, OTHER_STEPS)
        data = data_of(name, nodes, args.quick)
        bare = Data(x=data.x, edge_index=data.edge_index)
        found["graphs"][name] = {
            "nodes": data.num_nodes, "edges": data.num_edges, "row_bytes": 4 * data.num_features,
            "steps": steps, "cases": [],
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            pyg_direct.save(bare, Path(folder) / "whole")
            for ranks in WORLD_SIZES[:1] if args.quick else WORLD_SIZES:
                batching = Batching(FAN_OUT, size)
                asked = RanksAsked(ranks, batching, {None: 4 * data.num_features})
                parts = {owners: owners_of(owners, bare, asked) for owners in OWNERS}
                ldg = torch.from_numpy(parts["ldg"][0].astype(np.int64))
                torch.save({str(ranks): ldg}, f"{folder}/{PARTS}")
                spec = {"folder": folder, "batch_size": size, "steps": steps}
                every = child.results_of_ranks("benchmarks.cooperative", spec, ranks, args.quick)
                cases = cases_of(every, planned(bare, spec, ranks, parts))
                found["graphs"][name]["cases"] += cases
                print(name, ranks, [f"{off(c):.4f}" for c in found["graphs"][name]["cases"]])
    path = result.write(found, args.out)
    plot(found, path.with_suffix(".png"))
    print(path)
    wrong = [case for g in found["graphs"].values() for case in g["cases"] if off(case) > MOST_OFF]
    if wrong and not args.quick:
        raise SystemExit(f"The plan is off by more than {MOST_OFF:.0%} in {len(wrong)} cases.")


if __name__ == "__main__":
    main()
