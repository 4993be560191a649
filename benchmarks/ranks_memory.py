"""Memory of several ranks of one machine: each with a graph of its own, one shared, one opened.

What all ranks hold together, by the kernel's proportional set size (PSS): a page that two processes
map counts half for each. Shared memory counts as a whole, as it is allocated. Bare imports, with
the kernels of a batch loaded, are subtracted. All ranks wait for each other before each reading.

    python -m benchmarks ranks_memory
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch_geometric.data import Data

import pyg_direct
from benchmarks import child, result
from pyg_direct.core.units import count_of, size_text

TITLE = "Memory of several ranks"
WIDTH, DEGREE = 64, 20
FAN_OUT, BATCH_SIZE, BATCHES = [15, 10], 1024, 40
STAGES = ("data", "loader", "batches")
MIB = 1 << 20
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)")  # from, to, inode


def make_graph(folder: Path, nodes: int) -> None:
    """Write a graph whose edges are in no order, as arrays and as a saved graph."""
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.standard_normal((nodes, WIDTH), np.float32))
    np.save(folder / "edges.npy", rng.integers(nodes, size=(2, nodes * DEGREE)))
    pyg_direct.save(load(folder), folder / "graph")


def load(folder: Path) -> Data:
    """Read the graph into memory."""
    x, edges = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("x", "edges"))
    return Data(x=x, edge_index=edges)


WAYS: dict[str, Callable[[Path], Any]] = {
    "in memory": load,
    "shared": lambda folder: pyg_direct.share(lambda: load(folder)),
    "opened": lambda folder: pyg_direct.open(folder / "graph"),
}


def held_bytes(ranks: int) -> int:
    """Return the PSS of this process, without what it has freed.

    Memory of `share` is allocated as a whole and mapped by all ranks, but a page that no process
    has touched since is in nobody's PSS: so each rank counts its part of the whole of it.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found, shared = 0, {}
    own = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := MAPPING.match(line):
            own = "memfd:pyg_direct" in line
            if own:
                shared[mapping[3]] = int(mapping[2], 16) - int(mapping[1], 16)
        elif line.startswith("Pss:") and not own:
            found += int(line.split()[1]) << 10
    return found + sum(shared.values()) // ranks


def run_rank(spec: dict[str, Any]) -> None:
    """Be one rank; print the PSS with imports only and after each stage."""
    torch.set_num_threads(1)
    rank, ranks, folder = spec["rank"], spec["world_size"], Path(spec["folder"])
    dist.init_process_group("gloo", f"file://{spec['meeting']}", rank=rank, world_size=ranks)
    toy = Data(x=torch.rand(9, WIDTH), edge_index=torch.randint(9, (2, 30)))
    for _ in pyg_direct.NeighborLoader(toy, FAN_OUT, batch_size=3, seed=0):
        pass
    found = []

    def read() -> None:
        dist.barrier()
        found.append(held_bytes(ranks))
        dist.barrier()

    read()
    data = WAYS[spec["way"]](folder)
    read()
    loader = pyg_direct.NeighborLoader(
        data, FAN_OUT, batch_size=BATCH_SIZE, shuffle=True, seed=rank
    )
    read()
    for i, _ in enumerate(loader, 1):
        if i == spec["batches"]:
            break
    read()
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()
    os._exit(0)


def measure(way: str, ranks: int, folder: Path, batches: int, quick: bool) -> dict[str, int]:
    """Return what all ranks hold together after each stage, above what they hold before."""
    spec = {"way": way, "folder": str(folder), "batches": batches}
    read = child.results_of_ranks("benchmarks.ranks_memory", spec, ranks, quick)
    bare, *stages = (sum(readings) for readings in zip(*read, strict=True))
    return {"imports": bare, **{name: at - bare for name, at in zip(STAGES, stages, strict=True)}}


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    numbers = found["ranks"]
    rows = []
    for way, stages in found["ways"].items():
        for stage in STAGES:
            held = [stages[str(ranks)][stage] for ranks in numbers]
            further = (held[-1] - held[0]) / (numbers[-1] - numbers[0])
            cells = [f"{value / MIB:,.0f}" for value in (*held, further)]
            rows.append([way, stage, *cells])
    imports = [f"{stages['imports'] / MIB:,.0f}" for stages in found["ways"]["in memory"].values()]
    return [
        "",
        f"{found['nodes']:,} nodes with {WIDTH} float32 features "
        f"({size_text(4 * WIDTH * found['nodes'])}), {found['edges']:,} edges in no order (int64,",
        f"{size_text(16 * found['edges'])}). Fan-out {FAN_OUT}, batches of {BATCH_SIZE}, "
        f"{found['batches']} a rank, no workers.",
        "PSS in MiB of all ranks together, above bare imports with the kernels of a batch loaded",
        f"({' / '.join(imports)} for {' / '.join(map(str, numbers))} ranks). After the loader it",
        "has its seeds, and after batches those under way and buffers that the next ones use.",
        "Shared memory counts as a whole, touched or not; pages of files once they are used.",
        "",
        *result.table(
            ["graph", "after", *(f"{n} ranks" if n > 1 else "1 rank" for n in numbers),
             "each further rank"],
            rows,
        ),
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="1M")
    parser.add_argument("--folder", type=Path, help="for the files, 1.1 GB at 1M nodes")
    args = child.arguments(parser, argv, run_rank)
    if args is None:
        return
    nodes, batches = (3000, 2) if args.quick else (int(args.nodes), BATCHES)
    numbers = [1, 2] if args.quick else [1, 2, 4]
    found = result.new_result(
        "ranks_memory", args.quick, nodes=nodes, edges=nodes * DEGREE, batches=batches,
        ranks=numbers, unit="bytes of PSS, all ranks together",
    )  # fmt: skip
    found["ways"] = {way: {} for way in WAYS}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        make_graph(Path(name), nodes)
        for ranks in numbers:
            for way, stages in found["ways"].items():
                stages[str(ranks)] = measure(way, ranks, Path(name), batches, args.quick)
    print(result.write(found, args.out))


if __name__ == "__main__":
    main()
