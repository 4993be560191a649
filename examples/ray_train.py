"""Train under Ray Train, which starts the workers again after a crash, in the middle of an epoch.

    python examples/ray_train.py --storage /tmp/runs  # needs the extra `ray`
    python examples/ray_train.py --storage /tmp/runs --parts parts  # that partitioned.py wrote

Ray makes the process group, so `split_by_rank=True` is all that the loader needs. The reported
checkpoint holds the state of the loader: a worker group of any size goes on with what was left.
With `--parts`, each worker reads its own parts of a graph.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_geometric.nn.models import GraphSAGE

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import parser
from examples.support.synthetic import power_law_graph


def train(config: dict[str, Any]) -> None:
    """Train as one worker, from the last reported checkpoint on if there is one."""
    from ray import train as ray_train
    from ray.train.torch import prepare_model

    torch.manual_seed(config["seed"])
    torch.set_num_threads(1)
    data: Any
    if config["parts"] is None:
        data = power_law_graph(config["num_nodes"], 10 * config["num_nodes"], seed=config["seed"])
    else:
        data = pyg_direct.open(config["parts"])
    loader = pyg_direct.NeighborLoader(
        data,
        [10, 5],
        data.train_mask,
        batch_size=config["batch_size"],
        shuffle=True,
        num_workers=config["num_workers"],
        seed=config["seed"],
        split_by_rank=True,
    )
    plain = GraphSAGE(data.num_features, 32, num_layers=2, out_channels=int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    parts: dict[str, Any] = {"model": plain, "optimizer": optimizer, "loader": loader}
    first_epoch = steps = 0
    checkpoint = ray_train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first_epoch, steps = saved["epoch"], saved["steps"]
        print(f"goes on after {steps} steps", flush=True)
    model, rank = prepare_model(plain), dist.get_rank()
    for epoch in range(first_epoch, config["epochs"]):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % config["every"] == 0:
                mean = loss.detach() / dist.get_world_size()
                dist.all_reduce(mean)
                with tempfile.TemporaryDirectory() as folder:
                    states = {name: part.state_dict() for name, part in parts.items()}
                    torch.save({**states, "epoch": epoch, "steps": steps}, f"{folder}/state.pt")
                    reported = ray_train.Checkpoint.from_directory(folder) if rank == 0 else None
                    values = {"steps": steps, "loss": mean.item()}
                    ray_train.report(values, checkpoint=reported)
            if steps == config["kill_at"] and checkpoint is None and rank > 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str] | None = None) -> None:
    """Start Ray on this machine, and train on two workers."""
    made = parser(__doc__, epochs=3, batch_size=256)
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    made.add_argument("--storage", type=Path, default=Path("runs"), help="for checkpoints")
    made.add_argument("--num-nodes", type=int, default=20_000, help="size of the generated graph")
    made.add_argument(
        "--parts", type=os.path.abspath, help="of a graph, in place of a generated one"
    )
    made.add_argument("--kill-at", type=int, default=0, help="kill a worker after so many steps")
    args = made.parse_args(argv)
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise SystemExit('This example needs Ray Train: pip install ".[ray]"') from error
    root = str(Path(__file__).resolve().parents[1])
    environment = {"env_vars": {"PYTHONPATH": root}}
    ray.init(num_cpus=args.workers, include_dashboard=False, runtime_env=environment)
    trainer = TorchTrainer(
        train,
        train_loop_config={name: v for name, v in vars(args).items() if name != "storage"},
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(
            storage_path=str(args.storage.resolve()), failure_config=FailureConfig(max_failures=3)
        ),
    )
    metrics = trainer.fit().metrics
    print(f"{metrics['steps']} steps, last loss {metrics['loss']:.9f}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
