"""What programs do that are written for PyG's loaders on several GPUs, on a gloo group of CPUs.

Each loader comes from one import, as in those programs; nothing else knows which library it is.
"""

import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.transforms import RandomLinkSplit, ToUndirected

from pyg_direct import LinkNeighborLoader, NeighborLoader

CLASSES, CHANNELS = 4, 16


def start(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meet", timedelta(seconds=60), rank=rank, world_size=world_size
    )


def chunk(index: Tensor, rank: int, world_size: int) -> Tensor:
    """Return the share of a rank. One that is left over, as `split` has it, is dropped."""
    return index.split(index.size(-1) // world_size, dim=-1)[rank].clone()


def mean_of_ranks(value: float) -> float:
    found = torch.tensor(value)
    dist.all_reduce(found)
    return float(found) / dist.get_world_size()


# --- nodes: training on chunks, accuracies of sampled batches, and of all nodes on one rank ---


class SAGE(torch.nn.Module):
    def __init__(self, channels: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(channels, hidden), SAGEConv(hidden, classes)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(self.convs[0](x, edge_index).relu_(), 0.2, training=self.training)
        found: Tensor = self.convs[1](x, edge_index)
        return found

    def inference(self, x_all: Tensor, loader: Any) -> Tensor:
        """Compute the layers of all nodes, one after another."""
        for i, conv in enumerate(self.convs):
            parts = []
            for batch in loader:
                x = conv(x_all[batch.node_id], batch.edge_index)[: batch.batch_size]
                parts.append(x.relu_() if i == 0 else x)
            x_all = torch.cat(parts)
        return x_all


def node_graph() -> Data:
    """Return a graph whose neighbours mostly have the same class, and noisy features."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (1501,), generator=generator)
    row = torch.randint(len(y), (12000,), generator=generator)
    same = y.argsort()[torch.searchsorted(y.sort().values, y[row])]  # one of the class
    other = torch.randint(len(y), row.shape, generator=generator)
    col = torch.where(torch.rand(row.shape, generator=generator) < 0.5, same, other)
    x = F.one_hot(y, CHANNELS) + torch.randn(len(y), CHANNELS, generator=generator)
    places = torch.rand(len(y), generator=generator)
    return Data(
        x=x,
        y=y,
        edge_index=torch.stack([torch.cat([row, col]), torch.cat([col, row])]),
        train_mask=places < 0.6,
        val_mask=places >= 0.6,
    )


def accuracy(loader: Any, model: Any) -> float:
    shares = []
    with torch.no_grad():
        for batch in loader:
            out = model.module(batch.x, batch.edge_index)[: batch.batch_size]
            shares.append(float((out.argmax(-1) == batch.y[: batch.batch_size]).float().mean()))
    return sum(shares) / len(shares)


def nodes(rank: int, world_size: int, data: Data, folder: Path) -> None:
    start(rank, world_size, folder)
    train = chunk(data.train_mask.nonzero().view(-1), rank, world_size)
    val = chunk(data.val_mask.nonzero().view(-1), rank, world_size)
    options: dict[str, Any] = {"batch_size": 64, "num_workers": 2, "persistent_workers": True}
    fan_out = {"num_neighbors": [10, 5], "drop_last": True}
    train_loader = NeighborLoader(data, input_nodes=train, shuffle=True, **fan_out, **options)
    val_loader = NeighborLoader(data, input_nodes=val, **fan_out, **options)
    if rank == 0:
        whole = NeighborLoader(copy.copy(data), num_neighbors=[-1], shuffle=False, **options)
        del whole.data.x, whole.data.y
        whole.data.node_id = torch.arange(data.num_nodes)
    torch.manual_seed(12345)
    model = DistributedDataParallel(SAGE(CHANNELS, 32, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
        dist.barrier()
    model.eval()
    loaders = {"train": train_loader, "val": val_loader}
    found = {name: mean_of_ranks(accuracy(loader, model)) for name, loader in loaders.items()}
    if rank == 0:
        with torch.no_grad():
            right = model.module.inference(data.x, whole).argmax(-1) == data.y
        found["all"] = float(right[data.val_mask].float().mean())
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


# --- links: users and items, lazy layers, evaluation on one rank while the others train on ---


class Links(torch.nn.Module):
    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(users, CHANNELS)
        self.items = torch.nn.Embedding(items, CHANNELS)
        self.of_users, self.of_items = SAGEConv((-1, -1), CHANNELS), SAGEConv((-1, -1), CHANNELS)
        self.decoder = torch.nn.LazyLinear(1)

    def forward(self, x_dict: Any, edge_index_dict: Any, label_index: Tensor) -> Tensor:
        user = self.users(x_dict["user"])
        item = self.items(x_dict["item"])
        users = self.of_users((item, user), edge_index_dict["item", "rev_to", "user"]).relu()
        items = self.of_items((user, item), edge_index_dict["user", "to", "item"]).relu()
        pairs = users[label_index[0]], items[label_index[1]]
        found: Tensor = self.decoder(torch.cat([*pairs, pairs[0] * pairs[1]], -1))
        return found.view(-1)


def link_graphs() -> tuple[HeteroData, HeteroData]:
    """Return graphs to train and to evaluate on: users like items of their kind."""
    torch.manual_seed(0)
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(400), torch.arange(200)
    user = torch.randint(400, (6000,))
    data["user", "to", "item"].edge_index = torch.stack(
        [user, torch.randint(50, (6000,)) * 4 + user % 4]
    )
    split = RandomLinkSplit(
        num_val=0.1,
        num_test=0.0,
        add_negative_train_samples=False,
        edge_types=[("user", "to", "item")],
        rev_edge_types=[("item", "rev_to", "user")],
    )
    train, val, _ = split(ToUndirected()(data))
    return train, val


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    ranks = scores.argsort().argsort().double() + 1
    ones = int(labels.sum())
    above = float(ranks[labels == 1].sum()) - ones * (ones + 1) / 2
    return above / (ones * (len(labels) - ones))


def links(rank: int, world_size: int, data: tuple[HeteroData, HeteroData], folder: Path) -> None:
    start(rank, world_size, folder)
    train, val = data
    kind = ("user", "to", "item")
    options: dict[str, Any] = {"num_neighbors": [8, 4], "batch_size": 256, "num_workers": 2}
    train_loader = LinkNeighborLoader(
        data=train,
        edge_label_index=(kind, chunk(train[kind].edge_label_index, rank, world_size)),
        neg_sampling="binary",
        shuffle=True,
        drop_last=True,
        **options,
    )
    val_loader = LinkNeighborLoader(
        data=val,
        edge_label_index=(kind, val[kind].edge_label_index),
        edge_label=val[kind].edge_label,
        shuffle=False,
        **options,
    )

    def predicted(model: Any, batch: Any) -> Tensor:
        index = batch["user", "item"].edge_label_index
        found: Tensor = model(batch.x_dict, batch.edge_index_dict, index)
        return found

    torch.manual_seed(0)
    plain = Links(400, 200)
    for batch in train_loader:  # lazy layers get their sizes
        predicted(plain, batch)
        break
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    areas = []
    for _ in range(8):
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            labels = batch["user", "item"].edge_label
            F.binary_cross_entropy_with_logits(predicted(model, batch), labels).backward()
            optimizer.step()
        if rank == 0:
            model.eval()
            with torch.no_grad():
                both = [
                    (predicted(model.module, b), b["user", "item"].edge_label) for b in val_loader
                ]
            areas.append(area_under_curve(*(torch.cat(part) for part in zip(*both, strict=True))))
    if rank == 0:
        torch.save({"first": areas[0], "last": areas[-1]}, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


# --- nodes of several types: half-precision features, some steps of an epoch ---


class Typed(torch.nn.Module):
    def __init__(self, edge_types: list[Any]) -> None:
        super().__init__()
        first = {kind: SAGEConv(CHANNELS, 32) for kind in edge_types}
        last = {kind: SAGEConv(32, CLASSES) for kind in edge_types if kind[2] == "paper"}
        self.convs = torch.nn.ModuleList([HeteroConv(first), HeteroConv(last)])

    def forward(self, batch: Any) -> Tensor:
        x_dict, edge_index_dict = batch.collect("x"), batch.collect("edge_index")
        x_dict = {key: x.relu() for key, x in self.convs[0](x_dict, edge_index_dict).items()}
        found: Tensor = self.convs[1](x_dict, edge_index_dict)["paper"]
        return found


def typed_graph() -> HeteroData:
    plain, data = node_graph(), HeteroData()
    data["paper"].x, data["paper"].y = plain.x.half(), plain.y
    data["paper"].train_mask, data["paper"].val_mask = plain.train_mask, plain.val_mask
    data["paper", "cites", "paper"].edge_index = plain.edge_index
    data["author"].x = torch.zeros(100, CHANNELS, dtype=torch.half)
    writes = torch.stack([torch.arange(1501) % 100, torch.arange(1501)])
    data["author", "writes", "paper"].edge_index = writes
    data["paper", "rev_writes", "author"].edge_index = writes.flip(0)
    return data


def typed(rank: int, world_size: int, data: HeteroData, folder: Path) -> None:
    start(rank, world_size, folder)
    paper = data["paper"]
    masks = paper.train_mask, paper.val_mask
    shares = [chunk(mask.nonzero().view(-1), rank, world_size) for mask in masks]
    del paper.train_mask, paper.val_mask
    train_loader, val_loader = (
        NeighborLoader(
            data,
            num_neighbors=[10, 5],
            input_nodes=("paper", share),
            batch_size=64,
            num_workers=2,
            persistent_workers=True,
            drop_last=True,
            shuffle=True,
        )
        for share in shares
    )
    torch.manual_seed(12345)
    model = DistributedDataParallel(Typed(data.edge_types))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def outputs(batch: Any, module: Any) -> tuple[Tensor, Tensor]:
        batch = batch.to("cpu", "x", "y", "edge_index")
        for store in batch.node_stores:
            store.x = store.x.to(torch.float32)
        size = batch["paper"].batch_size
        return module(batch)[:size], batch["paper"].y[:size]

    for _ in range(12):
        for step, batch in enumerate(train_loader):
            if step >= 5:  # fewer than there are
                break
            optimizer.zero_grad()
            F.cross_entropy(*outputs(batch, model)).backward()
            optimizer.step()
        dist.barrier()
    with torch.no_grad():
        both = [outputs(batch, model.module) for batch in val_loader]
    right = [float((out.argmax(-1) == y).float().mean()) for out, y in both]
    found = mean_of_ranks(sum(right) / len(right))
    if rank == 0:
        torch.save({"val": found}, folder / "found.pt")
    dist.destroy_process_group()
