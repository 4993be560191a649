"""Predict from the tables of a shop, with RelBench: who orders next month, and what they order.

python examples/relational.py  # needs the extra `relbench`
python examples/relational.py --task products

RelBench makes a graph of tables whose rows have times, and lists of (row, time, target) to learn
from. For customers, `pyg_direct.NeighborLoader` makes the batches. For products, RelBench's own
loader does, which builds PyG's sampler: imported within `pyg_direct.swapped()`, it builds ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

try:
    from relbench import metrics
    from relbench.base import Database, Dataset, EntityTask, RecommendationTask, Table, TaskType
    from relbench.modeling.graph import (
        get_link_train_table_input,
        get_node_train_table_input,
        make_pkey_fkey_graph,
        num_dst_nodes,
    )
    from relbench.modeling.nn import HeteroEncoder, HeteroGraphSAGE, HeteroTemporalEncoder
    from torch_frame import stype
except ImportError as error:
    raise SystemExit('This example needs RelBench: pip install ".[relbench]"') from error

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import parser, with_bar

# In nanoseconds, which RelBench takes times for, where pandas 3 would count microseconds.
BEGIN, MONTH = pd.Timestamp("2024-01-01").as_unit("ns"), pd.Timedelta(days=30).as_unit("ns")
MONTHS = 12
KINDS = 5  # of products, of which each customer likes one
FANOUT, SIZE = [16, 8], 32
COLUMNS = {
    "customers": {"age": stype.numerical},
    "products": {"price": stype.numerical, "kind": stype.categorical},
    "orders": {"amount": stype.numerical},
}


class Shop(Dataset):  # type: ignore[misc]
    """Customers who order for some months, and then no more."""

    val_timestamp, test_timestamp = BEGIN + 9 * MONTH, BEGIN + 10 * MONTH

    def __init__(self, num_orders: int, seed: int) -> None:
        self.num_orders, self.seed = num_orders, seed

    def make_db(self) -> Database:
        """Return the tables."""
        random = np.random.default_rng(self.seed)
        customers, products = max(20, self.num_orders // 20), 20 * KINDS
        likes = random.integers(KINDS, size=customers)
        customer = random.integers(customers, size=self.num_orders)
        first, months = random.uniform(0, MONTHS, customers), random.exponential(4, customers)
        at = first[customer] + random.uniform(size=self.num_orders) * months[customer]
        product = KINDS * random.integers(products // KINDS, size=self.num_orders) + likes[customer]
        orders = pd.DataFrame(
            {
                "customer": customer,
                "product": product,
                "amount": random.integers(1, 9, self.num_orders),
                "date": (BEGIN + pd.to_timedelta(at * MONTH.days, unit="D")).floor("s"),
            }
        )
        orders = orders[at < MONTHS].sort_values("date", ignore_index=True)
        ages = pd.DataFrame({"customer": range(customers), "age": random.normal(45, 9, customers)})
        prices = pd.DataFrame(
            {"product": range(products), "price": random.uniform(1, 99, products)}
        )
        prices["kind"] = (np.arange(products) % KINDS).astype(str)
        keys = {"customer": "customers", "product": "products"}
        return Database(
            {
                "customers": Table(ages, {}, "customer"),
                "products": Table(prices, {}, "product"),
                "orders": Table(orders, keys, None, "date"),
            }
        )


def orders_after(db: Database, dates: Any) -> pd.DataFrame:
    """Return the orders of the month after each date, with the date as `at`."""
    orders = db.table_dict["orders"].df
    parts = [orders[(orders.date > at) & (orders.date <= at + MONTH)].assign(at=at) for at in dates]
    return pd.concat(parts)


class Active(EntityTask):  # type: ignore[misc]
    """Whether a customer orders in the next month."""

    task_type, timedelta, metrics = TaskType.BINARY_CLASSIFICATION, MONTH, [metrics.roc_auc]
    entity_col, entity_table, time_col, target_col = "customer", "customers", "at", "active"

    def make_table(self, db: Database, timestamps: Any) -> Table:
        """Return each customer at each time, with what followed."""
        number = len(db.table_dict["customers"])
        pairs = pd.MultiIndex.from_product([timestamps, range(number)], names=["at", "customer"])
        ordered = orders_after(db, timestamps)[["at", "customer"]].drop_duplicates()
        active = pairs.isin(pd.MultiIndex.from_frame(ordered)).astype(float)
        table = pairs.to_frame(index=False).assign(active=active)
        return Table(table, {"customer": "customers"}, None, "at")


class Ordered(RecommendationTask):  # type: ignore[misc]
    """Which products a customer orders in the next month."""

    task_type, timedelta, metrics, eval_k = TaskType.RECOMMENDATION, MONTH, [metrics.map], 10
    src_entity_col, src_entity_table, time_col = "customer", "customers", "at"
    dst_entity_col, dst_entity_table = "product", "products"

    def make_table(self, db: Database, timestamps: Any) -> Table:
        """Return each customer who ordered after a time, with the products."""
        groups = orders_after(db, timestamps).groupby(["at", "customer"])["product"]
        table = groups.agg(lambda products: sorted(set(products))).reset_index()
        return Table(table, {"customer": "customers", "product": "products"}, None, "at")


class Model(torch.nn.Module):
    """Encodes the rows of the tables, and adds how long before the seed's time they were."""

    def __init__(self, data: Any, statistics: Any, outputs: int) -> None:
        super().__init__()
        names = {kind: data[kind].tf.col_names_dict for kind in data.node_types}
        timed = [kind for kind in data.node_types if "time" in data[kind]]
        options = {"channels": SIZE, "num_layers": 2}
        self.encoder = HeteroEncoder(SIZE, names, statistics, torch_frame_model_kwargs=options)
        self.ages = HeteroTemporalEncoder(timed, SIZE)
        self.gnn = HeteroGraphSAGE(data.node_types, data.edge_types, SIZE)
        self.head = torch.nn.Linear(SIZE, outputs)

    def forward(self, batch: Any, table: str) -> Tensor:
        """Return the outputs of the seeds, which are rows of `table`."""
        times = batch[table].seed_time
        x_dict = self.encoder(batch.tf_dict)
        for kind, age in self.ages(times, batch.time_dict, batch.batch_dict).items():
            x_dict[kind] = x_dict[kind] + age
        x_dict = self.gnn(x_dict, batch.edge_index_dict)
        outputs: Tensor = self.head(x_dict[table][: len(times)])
        return outputs


def who_orders(shop: Shop, args: Any) -> float:
    """Learn who orders in the next month; return the area under the ROC curve of the test month."""
    task = Active(shop)
    data, statistics = make_pkey_fkey_graph(task.get_db(), COLUMNS)

    def loader_of(split: str) -> pyg_direct.NeighborLoader:
        given = get_node_train_table_input(task.get_table(split, mask_input_cols=False), task)
        return pyg_direct.NeighborLoader(
            data,
            FANOUT,
            input_nodes=given.nodes,
            input_time=given.time,
            transform=given.transform,
            time_attr="time",
            temporal_strategy="last",
            batch_size=args.batch_size,
            shuffle=split == "train",
            num_workers=args.num_workers,
            seed=args.seed,
        )

    loader, testing = loader_of("train"), loader_of("test")
    print(pyg_direct.audit(loader, batches=2, time_attr="time"))  # no row from after the question
    model = Model(data, statistics, 1)
    model.gnn = pyg_direct.accelerate(model.gnn, loader, testing)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(args.epochs):
        model.train()
        for batch in with_bar(loader, f"epoch {epoch + 1}"):
            optimizer.zero_grad()
            found = model(batch, "customers").view(-1)
            F.binary_cross_entropy_with_logits(found, batch["customers"].y.float()).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(batch, "customers").view(-1) for batch in testing])
    area: float = task.evaluate(scores.numpy())["roc_auc"]
    print(f"AUC of who orders in the last month: {area:.3f}")
    return area


def what_is_ordered(shop: Shop, args: Any) -> float:
    """Learn which products are ordered; return the mean average precision of the test month."""
    task = Ordered(shop)
    db = task.get_db()
    data, statistics = make_pkey_fkey_graph(db, COLUMNS)
    given = get_link_train_table_input(task.get_table("train"), task, num_dst_nodes(db, task))
    with pyg_direct.swapped():  # the sampler that RelBench's module imports is ours
        from relbench.modeling.loader import LinkNeighborLoader
    options = {"time_attr": "time", "temporal_strategy": "last", "batch_size": args.batch_size}
    loader = LinkNeighborLoader(data, FANOUT, shuffle=True, **given._asdict(), **options)
    model = Model(data, statistics, SIZE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(args.epochs):
        model.train()
        for customers, right, wrong in tqdm(
            loader, f"epoch {epoch + 1}", leave=False, disable=None
        ):
            optimizer.zero_grad()
            who = model(customers, "customers")
            better, worse = ((who * model(b, "products")).sum(1) for b in (right, wrong))
            F.softplus(worse - better).mean().backward()  # Bayesian personalized ranking
            optimizer.step()
    tested = task.get_table("test", mask_input_cols=False)

    def outputs(kind: str, rows: Tensor) -> Tensor:
        at = torch.full((len(rows),), int(shop.test_timestamp.timestamp()))
        batches = pyg_direct.NeighborLoader(data, FANOUT, (kind, rows), at, **options)
        return torch.cat([model(batch, kind) for batch in batches])

    model.eval()
    with torch.no_grad():
        who = outputs("customers", torch.from_numpy(tested.df.customer.to_numpy()))
        scores = who @ outputs("products", torch.arange(num_dst_nodes(db, task))).T
    precision: float = task.evaluate(scores.topk(task.eval_k).indices.numpy())["map"]
    print(f"Mean average precision of the {task.eval_k} best products: {precision:.3f}")
    return precision


def main(argv: list[str] | None = None) -> float:
    """Make the tables up, train, and return the metric of the test month."""
    made = parser(__doc__, epochs=3, batch_size=512)
    made.add_argument("--task", choices=["customers", "products"], default="customers")
    made.add_argument("--num-orders", type=int, default=40_000, help="to make up")
    args = made.parse_args(argv)
    torch.manual_seed(args.seed)
    shop = Shop(args.num_orders, args.seed)
    return who_orders(shop, args) if args.task == "customers" else what_is_ordered(shop, args)


if __name__ == "__main__":
    main()
