"""The CPU path of this checkout against that of an older one, in one interleaved run.

Two long-lived processes, one for each checkout, make the same batches in turn; first batches and
constructions take a new process each. An idle consumer: nothing trains in between. Needs 6 GB, and
2 GB with `--edges 20000000`::

    git worktree add --detach /somewhere/old <commit>
    python -m benchmarks before_after --before /somewhere/old
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import child, construction
from benchmarks.machine import REPOSITORY
from benchmarks.result import new_result, number, parser, quartiles, table, write
from benchmarks.statistics import spread
from examples.support.synthetic import power_law_graph

TITLE = "The CPU path before and after"
LOADED, FIRST, BUILT = "batches", "first batch", "construction"
COLD, WARM = "no compiled kernels yet", "compiled kernels"

# Runs in either checkout, so it uses nothing of this one but what every version has.
COMMON = """
import json, sys, time
import torch, torch_geometric.loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

generator = torch.Generator().manual_seed(0)

def edges(sources, destinations, count):
    skewed = torch.rand(2, count, generator=generator) ** 2
    return (skewed * torch.tensor([[sources], [destinations]])).long()

def homogeneous(nodes, count, features):
    return Data(x=torch.randn(nodes, features, generator=generator),
                y=torch.randint(8, (nodes,), generator=generator),
                train_mask=torch.rand(nodes, generator=generator) < 0.5,
                edge_index=edges(nodes, nodes, count))
"""

BATCHES = (
    COMMON
    + """
from pyg_direct import LinkNeighborLoader, NeighborLoader

def heterogeneous(nodes, count, features):
    data = HeteroData()
    for kind in "abcde":
        data[kind].x = torch.randn(nodes, features, generator=generator)
    for source in "abcde":
        for destination in "abcde":
            if source != destination:
                data[source, "to", destination].edge_index = edges(nodes, nodes, count)
    return data

def make(case):
    kind, sizes, arguments = case["kind"], case["sizes"], dict(case["arguments"], seed=1)
    if kind == "hetero":
        return NeighborLoader(heterogeneous(*sizes), input_nodes="a", **arguments)
    data = homogeneous(*sizes)
    if kind == "link":
        return LinkNeighborLoader(data, edge_label_index=data.edge_index, **arguments)
    return NeighborLoader(data, **arguments)

def endless(loader):
    while True:
        yield from loader

def sampling(loader, size):
    nodes = torch.randint(loader.data.num_nodes, (size,), generator=generator)
    asked = NodeSamplerInput(None, nodes)
    while True:
        yield loader.node_sampler.sample_from_nodes(asked)

case = json.loads(sys.argv[1])
torch.manual_seed(0)
loader = make(case)
steps = endless(loader)
if case["kind"] == "sampling":
    steps = sampling(loader, case["arguments"]["batch_size"])
for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(int(line)):
        batch = next(steps)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"ms": 1e3 * wall / int(line), "cpu_ms": 1e3 * cpu / int(line)}), flush=True)
"""
)

FIRST_BATCH = (
    COMMON
    + """
import gc
data = homogeneous(2700, 10000, 100)
gc.collect()  # what torch left: a collection takes longer than a batch, and comes at any moment
wall, cpu = time.perf_counter(), time.process_time()
from pyg_direct import NeighborLoader
next(iter(NeighborLoader(data, [10, 10], batch_size=128, shuffle=True)))
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps({"ms": 1e3 * wall, "cpu_ms": 1e3 * cpu}))
"""
)


def case(name: str, kind: str, sizes: list[int], count: int, **arguments: Any) -> dict[str, Any]:
    """Return a way to load; `count` batches are timed in a round."""
    return {"name": name, "kind": kind, "sizes": sizes, "count": count, "arguments": arguments}


SMALL: dict[str, Any] = {"num_neighbors": [10, 10], "batch_size": 128}
CASES = [
    case("2.7k nodes, 10k edges, whole batch", "node", [2_700, 10_000, 100], 220, **SMALL),
    case("2.7k nodes, 10k edges, sampling", "sampling", [2_700, 10_000, 100], 220, **SMALL),
    case(
        "200k nodes, 5M edges, whole batch", "node", [200_000, 5_000_000, 100], 8,
        num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True,
    ),
    case(
        "20 edge types, whole batch", "hetero", [40_000, 400_000, 64], 4,
        num_neighbors=[10, 10], batch_size=128, shuffle=True,
    ),
    case(
        "links with negatives, whole batch", "link", [200_000, 5_000_000, 100], 8,
        num_neighbors=[10, 5], neg_sampling="binary", batch_size=512, shuffle=True,
    ),
]  # fmt: skip
QUICK_CASES = [
    case("quick", "node", [500, 4_000, 8], 2, num_neighbors=[4, 3], batch_size=32),
]

Samples = dict[tuple[str, str, str, str], list[float]]  # (what, case, metric, checkout) -> values


def _environment(checkout: Path, variables: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout), **variables}


def _run(code: str, checkout: Path, variables: dict[str, str], quick: bool = False) -> str:
    """Run code to its end; return what it printed."""
    environment = _environment(checkout, variables)
    return child.run([*child.PYTHON, "-c", code], quick, cwd=checkout, env=environment).output


def load(
    found: dict[str, Any],
    checkouts: dict[str, Path],
    caches: Path | None,
    rounds: int,
    samples: Samples,
) -> None:
    """Time batches of one case in turn.

    `caches` are those of the kernels; None in a quick run, which uses the user's.
    """
    children: dict[str, child.Process] = {}
    started: dict[Path, child.Process] = {}  # one process if both checkouts are the same
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    command = [*child.PYTHON, "-c", BATCHES, json.dumps(found)]
    for name, path in checkouts.items():
        variables = {} if caches is None else {"NUMBA_CACHE_DIR": str(caches / name)}
        if path not in started:
            environment = _environment(path, variables)
            started[path] = child.start(command, caches is None, cwd=path, env=environment, **pipes)
        children[name] = started[path]
    names = list(children)
    for turn in range(-1, rounds):  # round -1 is thrown away: code and memory are fetched
        for name in names[turn % 2 :] + names[: turn % 2]:
            process = children[name]
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{found['count']}\n")
            process.stdin.flush()
            reply = json.loads(process.stdout.readline())
            for metric, value in reply.items() if turn >= 0 else ():
                samples[LOADED, found["name"], metric, name].append(value)
    for process in started.values():
        child.end(process)


def first_batches(checkouts: dict[str, Path], rounds: int, scratch: Path, samples: Samples) -> None:
    """Time the first batch of processes, without and with compiled kernels.

    Python's bytecode is there, as pip writes it when it installs a package.
    """
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(scratch / "bytecode")}
    for checkout in checkouts.values():
        _run("from pyg_direct import NeighborLoader", checkout, bytecode)  # as FIRST_BATCH
    for turn in range(rounds):
        for name, checkout in checkouts.items():
            for state in (COLD, WARM):
                variables = {**bytecode, "NUMBA_CACHE_DIR": str(scratch / f"{name}-{turn}")}
                output = _run(FIRST_BATCH, checkout, variables)
                keep_first(name, state, output, samples)


def keep_first(name: str, state: str, output: str, samples: Samples) -> None:
    """Keep what a first batch took, from the end of importing torch and PyG on."""
    for metric, value in json.loads(output).items():
        samples[FIRST, state, metric, name].append(value)


def constructions(
    checkouts: dict[str, Path], sizes: tuple[int, int], rounds: int, samples: Samples
) -> None:
    """Time building a loader over unsorted edges; see `benchmarks.construction`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edges.npy"
        np.save(path, power_law_graph(*sizes, 1).edge_index.numpy())
        for _ in range(rounds):
            for name, checkout in checkouts.items():
                for metric, value in construction.measure(checkout, path, sizes[0]).items():
                    samples[BUILT, f"{sizes[1]:,} edges", metric, name].append(value)


def rows_of(samples: Samples) -> list[dict[str, Any]]:
    """Return medians of both checkouts, and the ratios, round by round."""
    rows = []
    for (what, name, metric, checkout), after in samples.items():
        if checkout == "after":
            before = samples[what, name, metric, "before"]
            ratios = [old / new for old, new in zip(before, after, strict=True)]
            sides = {"before": spread(before), "after": spread(after), "ratio": spread(ratios)}
            rows.append({"what": what, "case": name, "metric": metric, **sides})
    return rows


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    head = ["", "", "metric", "before", "after", "before / after (quartiles)"]
    rows = []
    for row in result["rows"]:
        medians = [number(row[side]["median"]) for side in ("before", "after")]
        rows.append([row["what"], row["case"], row["metric"], *medians, quartiles(row["ratio"])])
    return [
        "",
        f"Before: `{result['before'][:7]}`. Medians of rounds in which both take turns; ratios are",
        "of the same round. Batches are made without workers, and nothing trains in between. CPU",
        "time counts what the process used, and depends less on what else the machine does: the",
        f"load average was {result['load_average']:.1f} at the beginning. First batches count from",
        "the end of importing torch and PyG on, whose garbage is collected before, with Python's",
        "bytecode there, as in an install.",
        "",
        *table(head, rows),
    ]


def main(argv: list[str] | None = None) -> None:
    """Measure and write the result."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, default=REPOSITORY, help="the older checkout")
    options.add_argument("--rounds", type=int, default=7, help="of batches; the rest takes fewer")
    options.add_argument(
        "--edges", type=int, default=62_000_000, help="of the graph that is built; fewer take less"
    )
    options.add_argument("--cases", type=int, nargs="*", help="numbers of the cases, from 0")
    args = options.parse_args(argv)
    rounds = 1 if args.quick else args.rounds
    fresh = min(rounds, 3)
    chosen = QUICK_CASES if args.quick else CASES
    chosen = chosen if args.cases is None else [chosen[number] for number in args.cases]
    checkouts = {"before": args.before.resolve(), "after": REPOSITORY}
    revision = ["git", "-C", str(args.before), "rev-parse", "HEAD"]
    before = subprocess.run(revision, check=True, capture_output=True, text=True).stdout.strip()
    result = new_result(
        "before_after", args.quick, before=before, load_average=os.getloadavg()[0], rows=[]
    )
    samples: Samples = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for found in chosen:
            load(found, checkouts, None if args.quick else scratch, rounds, samples)
        if args.quick:  # compiling takes long; `construction --quick` builds the same
            for name, checkout in checkouts.items():
                keep_first(name, WARM, _run(FIRST_BATCH, checkout, {}, quick=True), samples)
        else:
            first_batches(checkouts, fresh, scratch, samples)
            constructions(checkouts, (args.edges * 24 // 620, args.edges), fresh, samples)
    result["rows"] = rows_of(samples)
    print(write(result, args.out).with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
