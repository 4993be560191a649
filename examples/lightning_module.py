"""Train with PyTorch Lightning: the trainer takes the loaders as they are.

python examples/lightning_module.py  # needs pytorch_lightning
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

try:
    from pytorch_lightning import LightningModule, Trainer, seed_everything
except ImportError as error:
    raise SystemExit("This example needs Lightning: pip install pytorch_lightning") from error

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import parser
from examples.support.synthetic import power_law_graph
from examples.support.training import make_sage, predict
from pyg_direct.loaders.lightning import LoaderStats


class Classifier(LightningModule):
    """A GraphSAGE that classifies the seeds of a batch."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.model = make_sage(data, int(data.y.max()) + 1, 64, 2)

    def training_step(self, batch: Any, number: int) -> Tensor:
        """Return the loss of the seeds."""
        loss = F.cross_entropy(predict(self.model, batch), batch.y[: batch.batch_size])
        self.log("loss", loss, prog_bar=True, batch_size=batch.batch_size)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        """Log the accuracy on the seeds."""
        right = predict(self.model, batch).argmax(dim=-1) == batch.y[: batch.batch_size]
        self.log("accuracy", right.float().mean(), prog_bar=True, batch_size=batch.batch_size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main(argv: list[str] | None = None) -> float:
    """Train and validate; return the accuracy."""
    made = parser(__doc__, epochs=3, batch_size=1024)
    made.add_argument("--num-nodes", type=int, default=40_000, help="size of the generated graph")
    args = made.parse_args(argv)
    seed_everything(args.seed, verbose=False)
    data = power_law_graph(args.num_nodes, 10 * args.num_nodes, seed=args.seed)

    def loader_of(mask: Tensor, shuffle: bool) -> pyg_direct.NeighborLoader:
        return pyg_direct.NeighborLoader(
            data,
            [15, 10],
            mask,
            batch_size=args.batch_size,
            shuffle=shuffle,
            num_workers=args.num_workers,
        )

    trainer = Trainer(
        max_epochs=args.epochs,
        callbacks=[LoaderStats()],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    loader = loader_of(data.train_mask, shuffle=True)
    trainer.fit(Classifier(data), loader, loader_of(data.val_mask, shuffle=False))
    accuracy = float(trainer.callback_metrics["accuracy"])
    print(loader.stats().verdict)
    print(f"validation accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
