"""The training loop of the examples, which also says where the time went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE


@dataclass
class EpochResult:
    """What one pass over the training seeds gave and cost."""

    loss: float = 0.0  # mean over the seeds
    accuracy: float = 0.0
    num_seeds: int = 0
    waiting_seconds: float = 0.0  # for the loader
    training_seconds: float = 0.0  # copy to the device, forward, backward, optimiser

    @property
    def seeds_per_second(self) -> float:
        """Throughput of the whole loop."""
        return self.num_seeds / (self.waiting_seconds + self.training_seconds)


def make_sage(data: Data, num_classes: int, hidden: int, num_layers: int) -> GraphSAGE:
    """Return a GraphSAGE with mean aggregation."""
    return GraphSAGE(data.num_features, hidden, num_layers, num_classes, dropout=0.3)


def predict(model: torch.nn.Module, batch: Data) -> Tensor:
    """Return the logits of the seeds of a batch, [batch_size, classes].

    Seeds are a batch's first nodes. The numbers of nodes and edges per hop let the model leave out,
    layer by layer, what no seed depends on any more. PyG's loader on torch_sparse does not tell
    them; the logits are the same without.
    """
    logits = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.get("num_sampled_nodes"),
        num_sampled_edges_per_hop=batch.get("num_sampled_edges"),
    )
    return logits[: batch.batch_size]


def train_epoch(
    model: torch.nn.Module,
    loader: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    progress: Any = None,
) -> EpochResult:
    """Train on every batch of `loader` once.

    Args:
        model: takes what `predict` passes.
        loader: pyg_direct's or PyG's.
        optimizer: of the model's parameters.
        device: of the model.
        progress: a tqdm bar that counts batches, or None.
    """
    model.train()
    result = EpochResult()
    loss_sum = torch.zeros((), device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    batches, before = iter(loader), perf_counter()
    while (batch := next(batches, None)) is not None:
        ready = perf_counter()
        batch = batch.to(device)  # does nothing if the loader has put it there
        y = batch.y[: batch.batch_size]
        optimizer.zero_grad()
        logits = predict(model, batch)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        # Sums stay on the device: reading them here would make the host wait for every batch.
        loss_sum += loss.detach() * len(y)
        correct += (logits.argmax(dim=1) == y).sum()
        result.num_seeds += len(y)
        if progress is not None:
            progress.update()
        result.waiting_seconds += ready - before
        before = perf_counter()
        result.training_seconds += before - ready
    result.loss = float(loss_sum) / result.num_seeds
    result.accuracy = int(correct) / result.num_seeds
    # Waiting for a GPU to finish, and for a loader to end, is part of the epoch, too.
    result.training_seconds += perf_counter() - before
    return result


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: Iterable[Any], device: torch.device) -> float:
    """Return the accuracy on the seeds of `loader`."""
    model.eval()
    correct = total = 0
    for batch in loader:
        batch = batch.to(device)
        y = batch.y[: batch.batch_size]
        correct += int((predict(model, batch).argmax(dim=1) == y).sum())
        total += len(y)
    return correct / total
