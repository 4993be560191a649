"""Programs of ranks that make their batches together: Lightning under DDP, and an example."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from examples import ddp
from pyg_direct import NeighborLoader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]

NODES, EPOCHS, RANKS = 800, 4, 2
GENERATOR = torch.Generator().manual_seed(0)
DATA = Data(
    x=torch.randn(NODES, 12, generator=GENERATOR),
    edge_index=torch.randint(NODES, (2, 8 * NODES), generator=GENERATOR),
)
DATA.y = (DATA.x[:, 0] > 0).long()


def loader_of(nodes: torch.Tensor, batch_size: int = 12, **options: Any) -> Any:
    return NeighborLoader(DATA, [5, 4], nodes, batch_size=batch_size, seed=3, **options)


def classifier_of(loader: Any) -> Any:
    """Return a model of Lightning, whose import takes seconds."""
    from pytorch_lightning import LightningModule

    class Classifier(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = pyg_direct.accelerate(GraphSAGE(12, 8, 2, 2), loader)
            self.losses: list[torch.Tensor] = []

        def step(self, batch: Data) -> torch.Tensor:
            out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
            return cross_entropy(out, batch.y[: batch.batch_size])

        def training_step(self, batch: Data, _: int) -> torch.Tensor:
            loss = self.step(batch)
            self.losses.append(loss.detach())
            return loss

        def validation_step(self, batch: Data, _: int) -> None:
            self.log("val", self.step(batch), batch_size=batch.batch_size, sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Classifier()


def fit(rank: int | None, folder: Path) -> tuple[list[float], float]:
    """Train, as one of some ranks or alone; return the losses of all steps and the last one."""
    split: dict[str, Any] = {"batch_size": 12 * RANKS}
    if rank is not None:
        split = {"split_by_rank": True, "cooperative": True, "timeout": 60.0}
        found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
        os.environ |= {name: str(value) for name, value in found.items()}
        # As torchrun sets them; the process group is there already.
        os.environ |= {"TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        os.environ["MASTER_PORT"] = "1"
    train = loader_of(torch.arange(600), shuffle=True, num_workers=2, **split)
    val = loader_of(torch.arange(600, 792), **split)
    from pytorch_lightning import Trainer

    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1 if rank is None else RANKS,
        strategy="auto" if rank is None else "ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        default_root_dir=folder,
    )  # fmt: skip
    module = classifier_of(train)
    trainer.fit(module, train, val)
    return [float(loss) for loss in module.losses], float(trainer.callback_metrics["val"])


def test_lightning_learns_what_one_process_learns(tmp_path: Path) -> None:
    with warnings.catch_warnings():  # the import of Lightning is not what is tested
        warnings.simplefilter("ignore")
        pytest.importorskip("pytorch_lightning")
    ranks = run_ranks(RANKS, lambda rank: fit(rank, tmp_path), tmp_path)
    losses, val = fit(None, tmp_path)
    assert len(losses) == EPOCHS * 25
    for of_rank, last in ranks:
        assert len(of_rank) == len(losses)
        assert last == pytest.approx(val, abs=1e-3)
    means = torch.tensor([of_rank for of_rank, _ in ranks]).mean(0)
    assert means.tolist() == pytest.approx(losses, abs=1e-3)


def test_the_example_trains(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-nodes", "3000", "--batch-size", "25", "--epochs", "4"]
    ddp.main([*sizes, "--cooperative"])
    out, _ = capfd.readouterr()
    assert "240 batches on 2 ranks" in out
    assert float(out.rsplit("test accuracy ", 1)[1]) > 0.7
