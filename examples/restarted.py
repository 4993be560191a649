"""Train on several ranks that torchrun starts again after a crash, in the middle of an epoch.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/restarted.py

The checkpoint holds the model, the optimizer and the state of the loader, which names neither a
rank nor their number: on another number of ranks, too, the run goes on with the batches that were
left. The model has no dropout, whose random state each rank would have to save as well.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn.models import GraphSAGE

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import parser
from examples.support.synthetic import power_law_graph

GROUP_SECONDS = 60  # how long the ranks wait for one that is stopped


def start_group() -> None:
    """Start the default group with keys of this attempt only.

    torchrun may give all attempts one store, where a rank that is started again would find the
    address of a rank that is gone, and fail to connect.
    """
    store, rank, world_size = next(iter(dist.rendezvous("env://")))
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=GROUP_SECONDS),
    )


def save(path: Path, contents: dict[str, Any]) -> None:
    """Replace the checkpoint as a whole, so that a crash leaves the old one or the new one."""
    written = path.with_suffix(".part")
    torch.save(contents, written)
    os.replace(written, path)


def main(argv: list[str] | None = None) -> None:
    """Train as one rank, from the checkpoint on if there is one."""
    made = parser(__doc__, epochs=3, batch_size=256)
    made.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    made.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    made.add_argument("--num-nodes", type=int, default=20_000, help="size of the generated graph")
    args = made.parse_args(argv)
    if not dist.is_torchelastic_launched():
        made.error("start it by torchrun: " + __doc__.splitlines()[2].strip())
    start_group()
    torch.manual_seed(args.seed)
    data = power_law_graph(args.num_nodes, 10 * args.num_nodes, seed=args.seed)
    loader = pyg_direct.NeighborLoader(
        data,
        [10, 5],
        data.train_mask,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        seed=args.seed,
        split_by_rank=True,
    )
    plain = GraphSAGE(data.num_features, 32, num_layers=2, out_channels=int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    first_epoch = steps = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        plain.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first_epoch, steps = saved["epoch"], saved["steps"]
        print(f"rank {dist.get_rank()} goes on after {steps} steps", flush=True)
    model = DistributedDataParallel(plain)
    loss = torch.tensor(0.0)
    for epoch in range(first_epoch, args.epochs):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % args.every == 0 and dist.get_rank() == 0:
                parts = {"model": plain, "optimizer": optimizer, "loader": loader}
                states = {name: part.state_dict() for name, part in parts.items()}
                save(args.checkpoint, {**states, "epoch": epoch, "steps": steps})
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"{steps} steps, last loss {loss.item() / dist.get_world_size():.9f}", flush=True)
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
