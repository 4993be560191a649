"""Accuracy of links, edge types and times: pyg_direct's loaders against PyG's on torch_sparse.

Trains the same models with either library, some seeds each, and writes `results/tasks.json` and
`results/tasks.md`. Takes some minutes on two cores. PyG cannot sample by time without pyg-lib, so
the temporal task has no rival: there, the same model without times stands beside it.

    python -m benchmarks tasks --root FOLDER  # holds citation_full/, collegemsg/
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv
from torch_geometric.transforms import RandomLinkSplit

import pyg_direct
from benchmarks import graphs
from benchmarks.result import check_some, new_result, parser, percent, table, write
from benchmarks.statistics import compare
from examples.support.datasets import load_dataset
from examples.support.synthetic import power_law_graph

LIBRARIES = {"pyg_direct": pyg_direct, "pyg": torch_geometric.loader}
TITLE = "Links, edge types and times: scores with either library"
SPLIT_SEED = 0
NO_TIMES, ALL_TIMES = "training graph, no times", "whole graph, no times"


class Settings(NamedTuple):
    """How long to train, and how large everything is."""

    epochs: int
    batch_size: int
    fanout: list[int]
    hidden: int
    train_seeds: int  # at most
    test_seeds: int
    lr: float = 0.01


LINKS = Settings(4, 512, [10, 5], 64, 12_000, 4_000)
TYPES = Settings(4, 512, [10, 10], 64, 12_000, 6_000)
TIMES = Settings(2, 512, [10, 5], 32, 10_000, 2_000)
QUICK = Settings(1, 64, [3, 3], 8, 200, 100)


def auc(score: np.ndarray, label: np.ndarray) -> float:
    """Return the share of (positive, negative) pairs in the right order, ties as half, by ranks."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # equal scores share their mean rank
    positives = int(label.sum())
    negatives = len(label) - positives
    return float((rank[label > 0].sum() - positives * (positives + 1) / 2) / positives / negatives)


class LinkModel(torch.nn.Module):
    """Two ends are alike if the dot product of their embeddings is large."""

    def __init__(self, settings: Settings, num_features: int | None, num_nodes: int) -> None:
        super().__init__()
        # Without features, each node learns its own. With them, thousands of columns become few
        # before they are copied to every edge.
        self.own = None if num_features else torch.nn.Embedding(num_nodes, settings.hidden)
        self.project = torch.nn.Linear(num_features, settings.hidden) if num_features else None
        self.encoder = GraphSAGE(settings.hidden, settings.hidden, len(settings.fanout))

    def forward(self, batch: Data) -> Tensor:
        x = self.project(batch.x).relu() if self.project else self.own(batch.n_id)
        z = self.encoder(x, batch.edge_index)
        source, target = batch.edge_label_index
        return (z[source] * z[target]).sum(dim=1)


class HeteroSAGE(torch.nn.Module):
    """A SAGEConv for each edge type and layer, and a linear layer that names the section."""

    def __init__(self, settings: Settings, data: HeteroData, target: str) -> None:
        super().__init__()
        self.target = target
        sizes = {name: (data[name].num_features,) for name in data.node_types}
        self.layers = torch.nn.ModuleList()
        for _ in settings.fanout:
            convs = {
                (source, name, end): SAGEConv((sizes[source][0], sizes[end][0]), settings.hidden)
                for source, name, end in data.edge_types
            }
            self.layers.append(HeteroConv(convs, aggr="mean"))
            sizes = dict.fromkeys(data.node_types, (settings.hidden,))
        self.head = torch.nn.Linear(settings.hidden, int(data[target].y.max()) + 1)

    def forward(self, batch: HeteroData) -> Tensor:
        x = batch.x_dict
        for layer in self.layers:
            x = {name: value.relu() for name, value in layer(x, batch.edge_index_dict).items()}
        return self.head(x[self.target][: batch[self.target].batch_size])


def fit(
    model: torch.nn.Module,
    loader: Iterable[Any],
    settings: Settings,
    loss_of: Callable[[Tensor, Any], Tensor],
) -> None:
    """Train for all epochs."""
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    model.train()
    for _ in range(settings.epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model(batch), batch).backward()
            optimizer.step()


def link_loss(score: Tensor, batch: Data) -> Tensor:
    """Return the loss of links against the loader's negatives."""
    return F.binary_cross_entropy_with_logits(score, batch.edge_label.float())


@torch.no_grad()
def test_auc(model: torch.nn.Module, loader: Iterable[Any]) -> float:
    """Return the AUC over all links of `loader`."""
    model.eval()
    found = [(model(batch), batch.edge_label) for batch in loader]
    score, label = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
    return auc(score, label)


def some(ids: Tensor, count: int) -> Tensor:
    """Return `count` of the last dimension of `ids`, the same ones each time."""
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    return ids[..., torch.randperm(ids.size(-1), generator=generator)[:count]]


def links_task(data: Data, settings: Settings) -> dict[str, Callable[[], float]]:
    """Predict citations; half of the test links are fixed negatives, the same for both."""
    torch.manual_seed(SPLIT_SEED)
    split = RandomLinkSplit(0.05, 0.1, is_undirected=True, add_negative_train_samples=False)
    train, _, test = split(Data(x=data.x, edge_index=data.edge_index))
    train_links = some(train.edge_label_index, settings.train_seeds)
    chosen = some(torch.arange(test.edge_label.numel()), 2 * settings.test_seeds)

    def train_once(library: Any) -> float:
        common = {"num_neighbors": settings.fanout, "batch_size": settings.batch_size}
        loader = library.LinkNeighborLoader(
            train, edge_label_index=train_links, neg_sampling="binary", shuffle=True, **common
        )
        model = LinkModel(settings, data.num_features, data.num_nodes)
        fit(model, loader, settings, link_loss)
        links = {"edge_label_index": test.edge_label_index[:, chosen]}
        links["edge_label"] = test.edge_label[chosen]
        return test_auc(model, library.LinkNeighborLoader(test, **links, **common))

    return {
        name: lambda library=library: train_once(library) for name, library in LIBRARIES.items()
    }


def types_task(data: HeteroData, settings: Settings) -> dict[str, Callable[[], float]]:
    """Predict the label of a node of the first type that has labels."""
    target = next(iter(data.y_dict))
    masks = {"train": settings.train_seeds, "test": settings.test_seeds}
    seeds = {
        name: some(data[target][f"{name}_mask"].nonzero().view(-1), count)
        for name, count in masks.items()
    }

    def loss_of(logits: Tensor, batch: HeteroData) -> Tensor:
        return F.cross_entropy(logits, batch[target].y[: batch[target].batch_size])

    @torch.no_grad()
    def correct(model: torch.nn.Module, batch: HeteroData) -> int:
        y = batch[target].y[: batch[target].batch_size]
        return int((model(batch).argmax(dim=1) == y).sum())

    def train_once(library: Any) -> float:
        loaders = {
            name: library.NeighborLoader(
                data,
                settings.fanout,
                (target, nodes),
                batch_size=settings.batch_size,
                shuffle=name == "train",
            )
            for name, nodes in seeds.items()
        }
        model = HeteroSAGE(settings, data, target)
        fit(model, loaders["train"], settings, loss_of)
        model.eval()
        return sum(correct(model, batch) for batch in loaders["test"]) / len(seeds["test"])

    return {
        name: lambda library=library: train_once(library) for name, library in LIBRARIES.items()
    }


def times_task(data: Data, settings: Settings) -> dict[str, Callable[[], float]]:
    """Predict the last 15 % of all messages, having trained on the first 70 %.

    A link sees what was strictly earlier, so it asks for the time before its own. Without times
    there are two graphs to choose from: that of the training period, which is stale, or the whole
    one, which holds the very links that are asked for.
    """
    end, begin = int(0.7 * data.num_edges), int(0.85 * data.num_edges)
    early = Data(edge_index=data.edge_index[:, :end], num_nodes=data.num_nodes)
    train = some(torch.arange(end), settings.train_seeds)
    positive = begin + some(torch.arange(data.num_edges - begin), settings.test_seeds)
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    negative = torch.randint(data.num_nodes, (2, len(positive)), generator=generator)
    links = torch.cat([data.edge_index[:, positive], negative], dim=1)
    label = torch.cat([torch.ones(len(positive)), torch.zeros(len(positive))])

    def train_once(graph: Data, timed: bool) -> float:
        common: dict[str, Any] = {"num_neighbors": settings.fanout, "disjoint": True}
        common |= {"batch_size": settings.batch_size, "time_attr": "time" if timed else None}
        before = data.time - 1
        loader = pyg_direct.LinkNeighborLoader(
            graph,
            edge_label_index=data.edge_index[:, train],
            edge_label_time=before[train] if timed else None,
            neg_sampling="binary",
            shuffle=True,
            **common,
        )
        model = LinkModel(settings, None, data.num_nodes)
        fit(model, loader, settings, link_loss)
        asked = before[positive].repeat(2) if timed else None
        tested = {"edge_label_index": links, "edge_label": label, "edge_label_time": asked}
        return test_auc(model, pyg_direct.LinkNeighborLoader(graph, **tested, **common))

    return {
        "pyg_direct": lambda: train_once(data, timed=True),
        NO_TIMES: lambda: train_once(early, timed=False),
        ALL_TIMES: lambda: train_once(data, timed=False),
    }


class Task(NamedTuple):
    """A data set, what to do with it, and what to report."""

    name: str
    dataset: str
    score: str
    settings: Settings
    load: Callable[[], Any]
    contestants: Callable[[Any, Settings], dict[str, Callable[[], float]]]


def tasks(root: Path | None, quick: bool) -> list[Task]:
    """Return what there is to run."""
    if quick:
        links = ("generated", "AUC", QUICK, lambda: power_law_graph(300, 2000))
        types = ("generated", "accuracy", QUICK, lambda: graphs.many_types(500, 4000, 8))
        times = ("generated", "AUC", QUICK, lambda: graphs.messages(100, 1000))
    else:
        links = ("dblp_citation", "AUC", LINKS, lambda: load_dataset("dblp_citation", root))
        types = ("debian_hetero", "accuracy", TYPES, lambda: graphs.debian_hetero())
        times = ("collegemsg", "AUC", TIMES, lambda: graphs.collegemsg(root))
    return [
        Task("links", *links, links_task),
        Task("edge types", *types, types_task),
        Task("times", *times, times_task),
    ]


def run_task(task: Task, num_seeds: int) -> dict[str, Any]:
    """Train with all contestants in turn, and return the row of the table."""
    start = time.perf_counter()
    data = task.load()
    contestants = task.contestants(data, task.settings)
    scores: dict[str, list[float]] = {name: [] for name in contestants}
    for seed in range(num_seeds):
        for name, train_once in contestants.items():
            torch.manual_seed(seed)
            scores[name].append(train_once())
            print(f"  {task.name}, seed {seed}, {name}: {scores[name][-1]:.4f}", flush=True)
    row = {
        "task": task.name,
        "dataset": task.dataset,
        "score": task.score,
        **task.settings._asdict(),
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "num_seeds": num_seeds,
        "scores": scores,
        **compare(scores, *list(scores)[:2]),
        "seconds": time.perf_counter() - start,
    }
    print(json.dumps({key: row[key] for key in ("task", "mean", "std", "seconds")}), flush=True)
    return row


def _against_pyg(row: dict[str, Any]) -> list[str]:
    scores = [percent(row, name) for name in LIBRARIES]
    difference, p_value = f"{100 * row['difference']:+.2f}", f"{row['p_value']:.2f}"
    kind = [row["task"], row["dataset"], row["score"]]
    return [*kind, *scores, difference, p_value, str(row["num_seeds"])]


def _by_time(row: dict[str, Any]) -> Iterator[list[str]]:
    for name in row["scores"]:
        what = "whole graph, earlier only" if name == "pyg_direct" else name
        yield [row["dataset"], row["score"], what, percent(row, name), str(row["num_seeds"])]


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    against = [row for row in result["rows"] if "pyg" in row["scores"]]
    alone = [
        cells for row in result["rows"] if "pyg" not in row["scores"] for cells in _by_time(row)
    ]
    return [
        "",
        "2-layer GraphSAGE models, trained and tested on sampled neighbourhoods. Percent, mean ±",
        "standard deviation over the seeds; p is that of a two-sided permutation test. The JSON",
        "has the score of each run, and all hyper-parameters.",
        "",
        *table(
            ["task", "data set", "score", "pyg_direct", "PyG", "difference", "p", "seeds"],
            map(_against_pyg, against),
        ),
        "",
        "## By time, without a baseline",
        "",
        "PyG samples by time only with pyg-lib, which is not installed, so this compares one model",
        "with and without times, both on pyg_direct. Each test link is later than all training",
        "links; with times it sees what was strictly earlier than itself. The whole graph without",
        "times holds the very links that are asked for, so its score is no baseline.",
        "",
        *table(["data set", "score", "neighbours", "pyg_direct", "seeds"], alone),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run all tasks and write the results."""
    arguments = parser(__doc__)
    arguments.add_argument("--root", type=Path, help="of citation_full/, collegemsg/")
    arguments.add_argument("--seeds", type=int, help="3; 2 in a quick run")
    arguments.add_argument("--tasks", nargs="*", help="only these")
    args = arguments.parse_args(argv)
    known = tasks(args.root, args.quick)
    chosen = [task for task in known if not args.tasks or task.name in args.tasks]
    check_some(arguments, "--tasks", chosen, [task.name for task in known])
    result = new_result("tasks", args.quick, rows=[])
    seeds = args.seeds or (2 if args.quick else 3)
    for task in chosen:
        result["rows"].append(run_task(task, seeds))
        write(result, args.out)
