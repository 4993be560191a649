"""Adaptive fan-outs on a task over tables, against plain ones: accuracy, edges and time.

python -m benchmarks adaptive
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

import pyg_direct
from benchmarks import result
from benchmarks.statistics import spread

TITLE = "Adaptive fan-outs on a task over tables"
KINDS, WIDTH, BATCH_SIZE, NOISE = 4, 32, 256, 3.0
FANOUTS = {"uniform": (2, 4, 8, 12), "adaptive": (2, 3, 4)}
HOPS = 3
COLD = 3  # customers of at most so many orders
Law = tuple[str, int]


def shop(customers: int, products: int) -> HeteroData:
    """Return customers, of whom each likes one kind of product, their orders, and the products.

    Nothing but the orders has attributes: a noisy sign of the product's kind, so that a kind is
    known from many orders of a product. Most customers have few orders, and some have many.
    """
    random = np.random.default_rng(0)
    likes = random.integers(KINDS, size=customers)
    count = np.minimum(200, 1 + random.pareto(1.0, customers).astype(np.int64))
    customer = np.repeat(np.arange(customers), count)
    product = KINDS * random.integers(products // KINDS, size=len(customer)) + likes[customer]
    data = HeteroData()
    sign = np.eye(KINDS)[likes[customer]] + NOISE * random.normal(size=(len(customer), KINDS))
    data["order"].x = torch.from_numpy(sign).float()
    data["customer"].x, data["product"].x = torch.ones(customers, 1), torch.ones(products, 1)
    data["customer"].y = torch.from_numpy(likes)
    data["customer"].is_cold = torch.from_numpy(count <= COLD)
    data["customer"].is_test = torch.from_numpy(random.random(customers) < 0.3)
    order = torch.arange(len(customer))
    for kind, ends in (("customer", customer), ("product", product)):
        both = torch.stack([order, torch.from_numpy(ends)])
        data["order", "of", kind].edge_index = both
        data[kind, "rev_of", "order"].edge_index = both.flip(0)
    return data


class Model(torch.nn.Module):
    """As many layers as hops, of means by edge type."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.first = torch.nn.ModuleDict(
            {kind: torch.nn.Linear(data[kind].x.shape[1], WIDTH) for kind in data.node_types}
        )
        self.layers = torch.nn.ModuleList(
            HeteroConv({kind: SAGEConv((WIDTH, WIDTH), WIDTH) for kind in data.edge_types}, "sum")
            for _ in range(HOPS)
        )
        self.head = torch.nn.Linear(WIDTH, KINDS)

    def forward(self, batch: Any) -> Tensor:
        """Return the outputs of the seeds."""
        x = {kind: self.first[kind](batch[kind].x) for kind in batch.node_types}
        for layer in self.layers:
            x = {kind: value.relu() for kind, value in layer(x, batch.edge_index_dict).items()}
        outputs: Tensor = self.head(x["customer"][: batch["customer"].batch_size])
        return outputs


def loader_of(data: HeteroData, law: Law, nodes: Tensor, seed: int, train: bool) -> Any:
    """Return a loader of disjoint subgraphs, as those of seeds with times are."""
    return pyg_direct.NeighborLoader(
        data, [law[1]] * HOPS, ("customer", nodes), batch_size=BATCH_SIZE, disjoint=True,
        shuffle=train, seed=seed, sampling=law[0], device="cpu",
    )  # fmt: skip


def learn(data: HeteroData, law: Law, seed: int, epochs: int) -> dict[str, float]:
    """Train once; return the accuracy over all test customers and over those of few orders."""
    torch.manual_seed(seed)
    model = Model(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    is_test = data["customer"].is_test
    training = loader_of(data, law, (~is_test).nonzero().view(-1), seed, train=True)
    for _ in range(epochs):
        for batch in training:
            optimizer.zero_grad()
            store = batch["customer"]
            F.cross_entropy(model(batch), store.y[: store.batch_size]).backward()
            optimizer.step()
    right, cold = [], []
    with torch.no_grad():
        for batch in loader_of(data, law, is_test.nonzero().view(-1), seed, train=False):
            store = batch["customer"]
            size = store.batch_size
            right.append(model(batch).argmax(1) == store.y[:size])
            cold.append(store.is_cold[:size])
    hits, of_few = torch.cat(right).float(), torch.cat(cold)
    return {"all": float(hits.mean()), "cold": float(hits[of_few].mean())}


def sizes(data: HeteroData, law: Law) -> dict[str, float]:
    """Return edges of a batch, how unevenly seeds share them, and milliseconds of a batch."""
    loader = loader_of(data, law, torch.arange(data["customer"].num_nodes), 0, train=True)
    by_seed, edges = [], []
    for batch in loader:
        store = batch["order"]
        by_seed.append(torch.bincount(store.batch, minlength=batch["customer"].batch_size).float())
        edges.append(batch.num_edges)
    begun = time.perf_counter()
    number = sum(1 for _ in loader)
    per_batch = (time.perf_counter() - begun) / number
    nodes = torch.cat(by_seed)
    return {
        "edges": sum(edges) / len(edges),
        "unevenness": float(nodes.std() / nodes.mean()),
        "milliseconds": 1000 * per_batch,
    }


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    rows = [
        [
            row["sampling"], str(row["fanouts"]), f"{row['edges'] / 1000:.1f}",
            f"{row['unevenness']:.2f}", f"{row['milliseconds']:.1f}",
            f"{1000 * row['milliseconds'] / row['edges']:.2f}",
            f"{100 * row['all']['median']:.1f}", f"{100 * row['cold']['median']:.1f}",
        ]
        for row in found["laws"]
    ]  # fmt: skip
    head = ["sampling", "fan-outs", "edges a batch, k", "unevenness", "ms a batch", "µs an edge",
            "accuracy, %", f"of customers of {COLD} orders or fewer, %"]  # fmt: skip
    return [
        "",
        f"Which of {KINDS} kinds of products a customer likes, from orders that tell little each:",
        f"{found['customers']:,} customers of {found['orders']:,} orders, most of one or two, and",
        f"{found['products']} products. {HOPS} hops, disjoint batches of {BATCH_SIZE}, "
        f"{found['epochs']} epochs, medians of {found['seeds']} seeds.",
        "Unevenness: standard deviation over mean of the orders that a seed reaches. Times are of",
        "making batches on the CPU, by one thread.",
        "",
        *result.table(head, rows),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    args = result.parser(__doc__).parse_args(argv)
    customers, seeds, epochs = (600, 1, 1) if args.quick else (2500, 3, 4)
    torch.set_num_threads(1)
    data = shop(customers, 80 if args.quick else 200)
    orders = data["order"].num_nodes
    found = result.new_result(
        "adaptive", args.quick, customers=customers, orders=orders,
        products=data["product"].num_nodes, seeds=seeds, epochs=epochs, laws=[],
    )  # fmt: skip
    laws = [(name, k) for name, fanouts in FANOUTS.items() for k in fanouts]
    times: dict[Law, list[dict[str, float]]] = {law: [] for law in laws}
    for _ in range(1 if args.quick else 3):  # in turn
        for law in laws:
            times[law].append(sizes(data, law))
    for law in laws:
        scores = [learn(data, law, seed, epochs) for seed in range(seeds)]
        row = times[law][0] | {
            "milliseconds": float(np.median([run["milliseconds"] for run in times[law]]))
        }
        accuracy = {name: spread([score[name] for score in scores]) for name in scores[0]}
        found["laws"].append({"sampling": law[0], "fanouts": [law[1]] * HOPS, **row, **accuracy})
        print(found["laws"][-1])
        result.write(found, args.out)


if __name__ == "__main__":
    main()
