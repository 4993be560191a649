"""Four ranks that train on a graph in parts, each in 30 % of the memory that the graph needs.

Each rank is moved to a control group of its own after its imports and a toy epoch, so what it may
use is what comes on top of these, pages of files included. Beside it four ranks without a limit
train on the whole graph, with the same batches.

    python -m benchmarks parts_memory
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data

import pyg_direct
from benchmarks import child, result
from benchmarks.labor.graphs import community_graph
from benchmarks.memory_group import limited
from examples.support.training import evaluate, make_sage, train_epoch
from pyg_direct.core.units import count_of, size_text

TITLE = "A graph in parts in a part of its memory"
RANKS, WIDTH, DEGREE, SHARE = 4, 128, 10, 0.3
FANOUTS, BATCH_SIZE, BATCHES = [10, 5], 128, 25
CPU = torch.device("cpu")


def run_rank(spec: dict[str, Any]) -> None:
    """Be one rank; print that it is ready, wait for a line, and print what training gave."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = spec["rank"]
    dist.init_process_group("gloo", f"file://{spec['meeting']}", rank=rank, world_size=RANKS)
    toy = Data(x=torch.rand(9, WIDTH), edge_index=torch.randint(9, (2, 30)))
    list(pyg_direct.NeighborLoader(toy, FANOUTS, batch_size=3, seed=0))
    print("ready", flush=True)
    input()
    data: Any = pyg_direct.open(spec["folder"])
    random = torch.Generator().manual_seed(0)
    count = RANKS * spec["batches"] * BATCH_SIZE

    def loader_of(mask: torch.Tensor, **options: Any) -> pyg_direct.NeighborLoader:
        nodes = mask.nonzero().view(-1)
        chosen = nodes[torch.randperm(len(nodes), generator=random)[:count]]
        return pyg_direct.NeighborLoader(
            data, FANOUTS, chosen, batch_size=BATCH_SIZE, seed=0, split_by_rank=True, **options
        )

    loader, testing = loader_of(data.train_mask, shuffle=True), loader_of(data.test_mask)
    plain = make_sage(data, int(data.y.max()) + 1, 64, 2)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.003)
    train_epoch(DistributedDataParallel(plain), loader, optimizer, CPU)
    accuracy = torch.tensor(evaluate(plain, testing, CPU))
    dist.all_reduce(accuracy)
    print(json.dumps({"accuracy": float(accuracy) / RANKS}), flush=True)
    input()
    os._exit(0)


def measure(folder: Path, batches: int, limit_bytes: int, quick: bool) -> dict[str, Any]:
    """Train in several processes; return the accuracy, and what each used at most, where limited.

    Args:
        folder: of the graph.
        batches: of a rank.
        limit_bytes: of each rank; 0 for none.
        quick: see `child.start`.
    """
    for path in folder.rglob("*"):  # so that each rank pays for the pages that it reads
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    spec = {"folder": str(folder), "batches": batches}
    with contextlib.ExitStack() as stack:
        limits = [
            stack.enter_context(limited(limit_bytes, f"-{rank}"))
            for rank in range(RANKS if limit_bytes else 0)
        ]
        processes = stack.enter_context(
            child.ranks("benchmarks.parts_memory", spec, RANKS, quick, stdin=subprocess.PIPE)
        )
        _told(processes)
        for process, limit in zip(processes, limits, strict=False):
            limit.enter(process.pid)
        _go(processes)
        told = _told(processes)
        found = {"accuracy": json.loads(told[0])["accuracy"]}
        if limits:
            found |= {"how": limits[0].how, "peak_bytes": [limit.peak() for limit in limits]}
        _go(processes)
    return found


def _told(processes: Sequence[child.Process]) -> list[str]:
    lines = [process.stdout.readline() for process in processes if process.stdout is not None]
    if not all(lines):
        raise RuntimeError(child.why_failed(lines.index(""), processes))
    return lines


def _go(processes: Sequence[child.Process]) -> None:
    for process in processes:
        if process.stdin is not None:
            process.stdin.write("\n")
            process.stdin.flush()


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    parts, whole = found["parts"], found["whole"]
    peaks = [size_text(peak) for peak in parts["peak_bytes"] if peak]
    return [
        "",
        f"{found['nodes']:,} nodes, {found['edges']:,} edges, {WIDTH} float32 features: "
        f"{size_text(found['graph_bytes'])} in",
        f"files. {RANKS} ranks of DistributedDataParallel, a GraphSAGE of two layers, "
        f"{found['batches']} batches",
        f"of {BATCH_SIZE} a rank, fan-out {FANOUTS}. A rank over parts may use "
        f"{size_text(found['limit_bytes'])} ({found['limit_bytes'] / found['graph_bytes']:.0%})",
        f"beside its imports, by {parts['how']}, and used at most {', '.join(peaks)}.",
        "",
        *result.table(
            ["graph", "memory of a rank", "test accuracy"],
            [["whole, in files", "no limit", f"{whole['accuracy']:.4f}"],
             ["in parts", size_text(found["limit_bytes"]), f"{parts['accuracy']:.4f}"]],
        ),
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="1.5M")
    parser.add_argument("--folder", type=Path, help="for the files, 2 GB at 1.5M nodes")
    args = child.arguments(parser, argv, run_rank)
    if args is None:
        return
    nodes, batches = (3000, 2) if args.quick else (int(args.nodes), BATCHES)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        data = community_graph(nodes, nodes * DEGREE, WIDTH)
        edges = data.num_edges
        pyg_direct.save(data, folder / "whole")
        del data
        pyg_direct.partition(folder / "whole", folder / "parts", RANKS, "ldg")
        graph_bytes = sum(path.stat().st_size for path in (folder / "whole").rglob("*"))
        # Toys need more than they are.
        limit_bytes = max(int(SHARE * graph_bytes), 1 << 26)
        found = result.new_result(
            "parts_memory", args.quick, nodes=nodes, edges=edges, batches=batches,
            graph_bytes=graph_bytes, limit_bytes=limit_bytes,
        )  # fmt: skip
        found["parts"] = measure(folder / "parts", batches, limit_bytes, args.quick)
        found["whole"] = measure(folder / "whole", batches, 0, args.quick)
    print(result.write(found, args.out))


if __name__ == "__main__":
    main()
