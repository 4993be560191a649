"""Do models learn as well from the other mini-batch methods here as from PyG's?

One example of each method on a real graph, trained with either library in turn, with several
seeds. PyG needs torch_sparse.

    python -m benchmarks family_accuracy --root FOLDER  # holds planetoid/, amazon/
"""

# Annotations are not postponed here: torch 2.4's fx cannot write those of a model that
# `to_hetero` gets.

import json
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.loader
from scipy.stats import rankdata
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv, SAGEConv, global_mean_pool, to_hetero

import pyg_direct
from benchmarks import result as results
from benchmarks.graphs import debian_hetero
from benchmarks.machine import describe, environment
from benchmarks.statistics import compare
from examples.support.datasets import load_dataset
from examples.support.synthetic import random_split

TITLE = "Accuracy with the other mini-batch methods"
LIBRARIES: dict[str, Any] = {"pyg_direct": pyg_direct, "pyg": torch_geometric.loader}
HIDDEN = 64


class Layers(torch.nn.Module):
    """Two convolutions, followed by a linear layer."""

    def __init__(
        self, conv: Callable[..., torch.nn.Module], sizes: tuple[Any, Any], out: int
    ) -> None:
        super().__init__()
        self.first, self.second = conv(sizes[0], HIDDEN), conv(sizes[1], HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits of all nodes."""
        x = F.dropout(self.first(x, edge_index).relu(), 0.3, self.training)
        return self.out(self.second(x, edge_index).relu())


class WeightedLayers(Layers):
    """The same with a weight for each edge, after a layer that makes the messages short."""

    def __init__(self, num_features: int, out: int) -> None:
        super().__init__(GraphConv, (HIDDEN, HIDDEN), out)
        self.inputs = torch.nn.Linear(num_features, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        """Return the logits of all nodes."""
        x = self.inputs(x).relu()
        x = F.dropout(self.first(x, edge_index, weight).relu(), 0.3, self.training)
        return self.out(self.second(x, edge_index, weight).relu())


def classes(data: Any) -> int:
    return int(data.y.max()) + 1


@cache
def photo(root: Path | None) -> Data:
    data = random_split(load_dataset("amazon_photo", root), 0.5, 0.2, 0)
    data.x = F.normalize(data.x)
    return data


def fit(
    model: torch.nn.Module, epochs: int, batches: Any, loss_of: Callable[[Any], Tensor]
) -> None:
    """Train with Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            loss_of(batch).backward()
            optimizer.step()
    model.eval()


def whole_graph_accuracy(model: torch.nn.Module, data: Data, *edges: Tensor) -> float:
    with torch.no_grad():
        hit = model(data.x, data.edge_index, *edges).argmax(-1) == data.y
    return float(hit[data.test_mask].float().mean())


def shadow(library: Any, root: Path | None) -> float:
    """ShaDow on Cora: the mean over a subgraph beside its root, both for training and testing."""
    data = load_dataset("cora", root)
    model = Layers(SAGEConv, (data.num_features, HIDDEN), classes(data))

    def loader(mask: Tensor, shuffle: bool) -> Any:
        return library.ShaDowKHopSampler(data, 2, 5, mask, batch_size=64, shuffle=shuffle)

    def logits(batch: Any) -> Tensor:
        out = model(batch.x, batch.edge_index)
        return out[batch.root_n_id] + global_mean_pool(out, batch.batch)

    train = loader(data.train_mask, True)
    fit(model, 10, train, lambda batch: F.cross_entropy(logits(batch), batch.y))
    with torch.no_grad():
        hits = [logits(b).argmax(-1) == b.y for b in loader(data.test_mask, False)]
    return float(torch.cat(hits).float().mean())


def saint(library: Any, root: Path | None) -> float:
    """GraphSAINT's walks on Amazon Photo with both coefficients, as in PyG's example.

    An edge that none of the counted subgraphs holds gets a coefficient of 10,000, with which a
    model learns nothing for long after a batch that holds it, so many subgraphs are counted.
    """
    data = photo(root)
    model = WeightedLayers(data.num_features, classes(data))
    loader = library.GraphSAINTRandomWalkSampler(
        data, 500, walk_length=2, num_steps=10, sample_coverage=300, log=False
    )

    def loss_of(batch: Any) -> Tensor:
        out = model(batch.x, batch.edge_index, batch.edge_norm * degree(batch))
        loss = F.cross_entropy(out, batch.y, reduction="none") * batch.node_norm
        return loss[batch.train_mask].sum()

    data.in_degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes).float()
    fit(model, 30, loader, loss_of)
    return whole_graph_accuracy(model, data, 1 / data.in_degree[data.edge_index[1]])


def degree(batch: Any) -> Tensor:
    """Return 1 / in-degree in the whole graph of each edge's destination."""
    return 1 / batch.in_degree[batch.edge_index[1]]


def cluster(library: Any, root: Path | None) -> float:
    """Cluster-GCN on Amazon Photo; the parts are METIS's by pymetis for both."""
    data = photo(root)
    parts = pyg_direct.ClusterData(data, 40, log=False)
    model = Layers(SAGEConv, (data.num_features, HIDDEN), classes(data))

    def loss_of(batch: Any) -> Tensor:
        out = model(batch.x, batch.edge_index)
        return F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])

    fit(model, 30, library.ClusterLoader(parts, batch_size=5, shuffle=True), loss_of)
    return whole_graph_accuracy(model, data)


def hgt(library: Any, root: Path | None) -> float:
    """HGT's sampler on debian_hetero; tested on 2,000 packages, sampled in the same way."""
    data = debian_hetero()
    sage = Layers(SAGEConv, ((-1, -1), (-1, -1)), classes(data["package"]))
    model = to_hetero(sage, data.metadata())

    def loader(mask: Tensor, shuffle: bool, limit: int) -> Any:
        nodes = mask.nonzero().view(-1)
        nodes = nodes[
            torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))[:limit]
        ]
        seeds = ("package", nodes)
        return library.HGTLoader(data, [256] * 2, seeds, batch_size=128, shuffle=shuffle)

    def logits(batch: Any) -> Tensor:
        return model(batch.x_dict, batch.edge_index_dict)["package"][: batch["package"].batch_size]

    def labels(batch: Any) -> Tensor:
        return batch["package"].y[: batch["package"].batch_size]

    train = loader(data["package"].train_mask, True, 5_000)
    with torch.no_grad():
        logits(next(iter(train)))  # the sizes of lazy layers
    fit(model, 5, train, lambda batch: F.cross_entropy(logits(batch), labels(batch)))
    with torch.no_grad():
        test = loader(data["package"].test_mask, False, 2_000)
        hits = [logits(b).argmax(-1) == labels(b) for b in test]
    return float(torch.cat(hits).float().mean())


class TorchSparseNode2Vec(pyg_direct.Node2Vec):
    """The model with torch_sparse's uniform walks; PyG's own needs pyg-lib."""

    def __init__(self, edge_index: Tensor, *args: Any, **kwargs: Any) -> None:
        super().__init__(edge_index, *args, **kwargs)
        size = (self.num_nodes, self.num_nodes)
        from torch_sparse import SparseTensor  # here, as reports are written without it

        self.adj = SparseTensor(row=edge_index[0], col=edge_index[1], sparse_sizes=size)

    def _positive(self, batch: Tensor, key: Any) -> Tensor:
        start = batch.repeat(self.walks_per_node)
        return self._windows(self.adj.random_walk(start, self.walk_length))


def node2vec(library: Any, root: Path | None) -> float:
    """Node2Vec on Cora without a tenth of its links: their AUC against as many random pairs."""
    data = load_dataset("cora", root)
    generator = torch.Generator().manual_seed(0)
    links = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    links = links[:, torch.randperm(links.size(1), generator=generator)]
    held, kept = links[:, : links.size(1) // 10], links[:, links.size(1) // 10 :]
    kept = torch.cat([kept, kept.flip(0)], 1)
    # Where a node is left without links, torch_sparse would walk along those of another.
    kept = torch.cat([kept, torch.arange(data.num_nodes).repeat(2, 1)], 1)
    kind = pyg_direct.Node2Vec if library is pyg_direct else TorchSparseNode2Vec
    model = kind(
        kept, 64, walk_length=10, context_size=5, walks_per_node=5, num_nodes=data.num_nodes
    )
    fit(model, 100, model.loader(batch_size=256, shuffle=True), lambda b: model.loss(*b))
    pairs = torch.randint(data.num_nodes, held.shape, generator=generator)
    with torch.no_grad():
        z = F.normalize(model())
        score = torch.cat([(z[a] * z[b]).sum(-1) for a, b in (held, pairs)])
    ranks = rankdata(score.numpy())[: held.size(1)]
    count = held.size(1)
    return float((ranks.sum() - count * (count + 1) / 2) / (count * pairs.size(1)))


EXAMPLES = {
    "ShaDow, cora": shadow,
    "GraphSAINT walks, amazon_photo": saint,
    "Cluster, amazon_photo": cluster,
    "HGT, debian_hetero": hgt,
    "Node2Vec, cora (AUC)": node2vec,
}


def run(name: str, root: Path | None, seeds: int) -> dict[str, Any]:
    """Train with both libraries in turn, and return the row of the table."""
    start = time.perf_counter()
    scores: dict[str, list[float]] = {who: [] for who in LIBRARIES}
    for seed in range(seeds):
        for who, library in LIBRARIES.items():
            torch.manual_seed(seed)
            scores[who].append(EXAMPLES[name](library, root))
    seconds = time.perf_counter() - start
    row = {
        "name": name, "seeds": seeds, "scores": scores, "seconds": seconds,
        **compare(scores, "pyg_direct", "pyg"),
    }  # fmt: skip
    print(*cells(row), f"{seconds:.0f} s", sep=" | ", flush=True)
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    scores = [results.percent(row, who) for who in LIBRARIES]
    return [row["name"], *scores, f"{100 * row['difference']:+.2f}", f"{row['p_value']:.2f}",
            str(row["seeds"])]  # fmt: skip


def sections(result: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    return [
        "",
        "Percent of test accuracy (for Node2Vec AUC of held-out links), mean ± standard deviation",
        "over the seeds; p is that of a two-sided exact permutation test on the means. PyG draws",
        "with torch_sparse. Small models and few epochs: the table compares the samplers.",
        "",
        *results.table(
            ["", "pyg_direct", "PyG", "difference", "p", "seeds"],
            [cells(row) for row in result["rows"]],
        ),
        "",
        "Cluster uses METIS's parts by pymetis for both. PyG's `Node2Vec` needs pyg-lib, which was",
        "not at hand; the model is trained on uniform walks of torch_sparse instead.",
        *(
            f"\n{row['name']} was run apart: {describe(row)}"
            for row in result["rows"]
            if row.get("commit", result["commit"]) != result["commit"]
        ),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run all examples and write the result."""
    parser = results.parser(__doc__)
    parser.add_argument("--root", type=Path, help="holds planetoid/, amazon/")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="examples whose name has this text; other rows are kept"
    )
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    if args.quick and args.root is None:
        print("family_accuracy has no toy graphs: pass --root with planetoid/ and amazon/.")
        return
    chosen = [name for name in EXAMPLES if args.only in name]
    results.check_some(parser, "--only", chosen, EXAMPLES)
    result, here = results.new_result("family_accuracy", args.quick, rows=[]), environment()
    path = args.out / "family_accuracy.json"
    if args.only and path.exists():
        result = json.loads(path.read_text())
    for name in chosen:
        row = run(name, args.root, 2 if args.quick else args.seeds) | here
        others = {other["name"]: other for other in result["rows"]} | {name: row}
        result["rows"] = [others[known] for known in EXAMPLES if known in others]
        results.write(result, args.out)


if __name__ == "__main__":
    main()
