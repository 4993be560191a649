"""Train on a graph that stays in files: generate it, open it, and train for some steps.

    python examples/large_graph.py  # 1 M nodes, 10 M edges, in a temporary directory
    python examples/large_graph.py --path big --nodes 111M --edges 1.6B --features 128

With --path the graph stays there, and the next run uses it.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import torch
import torch.nn.functional as F

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

import pyg_direct
from examples.support.common import add_device, parser
from examples.support.training import make_sage
from pyg_direct.tools import generate


def main(argv: list[str] | None = None) -> float:
    """Generate where needed, and train; return the accuracy over the last steps."""
    made = parser(__doc__, epochs=4, batch_size=1024)
    add_device(made)
    made.add_argument("--path", type=Path, help="directory of the graph; default: a temporary one")
    made.add_argument("--nodes", default="1M", help="such as 111M; default: 1M")
    made.add_argument("--edges", default="10M", help="such as 1.6B; default: 10M")
    made.add_argument("--features", default="64", help="columns; default: 64")
    made.add_argument("--steps", type=int, default=60, help="of an epoch, at most; default: 60")
    args = made.parse_args(argv)
    if args.path is not None:
        return train(args, args.path)
    with tempfile.TemporaryDirectory() as folder:
        return train(args, Path(folder, "graph"))


def train(args: Namespace, path: Path) -> float:
    """Train on the graph at `path`; return the accuracy over the last steps."""
    if not path.exists():
        size = ["--nodes", args.nodes, "--edges", args.edges, "--features", args.features]
        generate.main([str(path), *size])
    begin = time.perf_counter()
    data = pyg_direct.open(path)
    loader = pyg_direct.NeighborLoader(
        data,
        [15, 10, 5],
        data.train_mask,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        seed=args.seed,
    )
    print(
        f"{data.num_nodes:,} nodes, {data.num_edges:,} edges; open, with a loader, after "
        f"{time.perf_counter() - begin:.2f} s"
    )
    torch.manual_seed(args.seed)
    model = make_sage(data, int(data.y.max()) + 1, 64, 3).to(args.device)
    model = pyg_direct.accelerate(model, loader)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    correct: list[float] = []
    for epoch in range(1, args.epochs + 1):
        steps = min(args.steps, len(loader))
        with tqdm(total=steps, desc=f"epoch {epoch}", unit="batch", disable=None) as bar:
            for batch in itertools.islice(loader, steps):
                batch = batch.to(args.device)  # does nothing if the loader has put it there
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                y = batch.y[: batch.batch_size]
                F.cross_entropy(out, y).backward()
                optimizer.step()
                correct.append(float((out.argmax(dim=-1) == y).float().mean()))
                bar.set_postfix(accuracy=f"{correct[-1]:.2f}", refresh=False)
                bar.update()
    print(loader.stats())
    last = correct[-10:]
    print(f"accuracy on the seeds of the last {len(last)} steps {sum(last) / len(last):.3f}")
    return sum(last) / len(last)


if __name__ == "__main__":
    main()
