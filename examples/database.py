"""Train on the tables of an SQLite database, which stay there: a batch asks for the rows it needs.

python examples/database.py
python examples/database.py --num-orders 200000 --num-workers 2

`Tables` is a `FeatureStore` of PyG. It numbers the rows of each table by their keys, and selects
the rows of a batch with one query for each table. The orders become the edges of a graph in memory,
which is the `GraphStore`. Another database needs another `connect` and another way to pass a list
of keys (DuckDB: `SELECT ... FROM unnest(?) WITH ORDINALITY`).
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import FeatureStore, HeteroData, TensorAttr
from torch_geometric.nn import to_hetero

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import SageEncoder, add_device, parser, with_bar

TASTES = 5  # of users, each of whom mostly orders items of one kind


class Columns(NamedTuple):
    """What of a table becomes attributes of its nodes."""

    key: str  # integers, each once
    attributes: dict[str, str | list[str]]  # a column: [n]; a list of columns: float32 [n, columns]


SHOP = {
    "users": Columns("number", {"x": ["age_in_decades", "since"], "y": "taste"}),
    "items": Columns("number", {"x": ["price", "sweet", "salty", "sour", "bitter", "hot"]}),
}


class Tables(FeatureStore):  # type: ignore[misc]
    """Tables of an SQLite database. Node i of a table is the row with its i-th smallest key.

    Args:
        path: of the database, which is only read.
        tables: names of tables, and their columns.
    """

    def __init__(self, path: Path, tables: dict[str, Columns]) -> None:
        super().__init__()
        self.path, self.tables = path, tables
        self._local = threading.local()  # a connection belongs to the thread that opened it
        self.keys = {
            name: torch.tensor(self.rows(f"SELECT {c.key} FROM {name} ORDER BY 1"))[:, 0]
            for name, c in tables.items()
        }

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Return the rows that a query finds."""
        if not hasattr(self._local, "connection"):
            self._local.connection = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)
        return self._local.connection.execute(query, values).fetchall()  # type: ignore[no-any-return]

    def nodes(self, table: str, keys: Tensor) -> Tensor:
        """Return the numbers of the nodes with some keys, int64 [n]."""
        return torch.searchsorted(self.keys[table], keys)

    def multi_get_tensor(self, attrs: list[TensorAttr], convert_type: bool = False) -> list[Any]:
        """Return the rows `index` of some attributes, by one query for each table and index."""
        queries: dict[Any, list[TensorAttr]] = {}
        for attr in attrs:
            queries.setdefault((attr.group_name, id(attr.index)), []).append(attr)
        found = {}
        for together in queries.values():
            for attr, rows in zip(together, self._select(together), strict=True):
                found[id(attr)] = rows
        return [found[id(attr)] for attr in attrs]

    def _select(self, attrs: list[TensorAttr]) -> list[Tensor]:
        name, index = attrs[0].group_name, attrs[0].index
        table = self.tables[name]
        keys = self.keys[name] if index is None else self.keys[name][index]
        wanted = [table.attributes[attr.attr_name] for attr in attrs]
        columns = [c for part in wanted for c in ([part] if isinstance(part, str) else part)]
        rows = self.rows(
            f"SELECT {', '.join(columns)} FROM json_each(?) AS wanted "
            f"JOIN {name} ON {name}.{table.key} = wanted.value ORDER BY wanted.key",
            json.dumps(keys.tolist()),
        )
        if len(rows) != len(keys):
            raise KeyError(f"{len(keys) - len(rows)} rows of {name} are no longer there.")
        by_column = dict(zip(columns, zip(*rows, strict=True), strict=True)) if rows else {}
        return [
            torch.tensor(by_column.get(part, ()))
            if isinstance(part, str)
            else torch.tensor([by_column.get(c, ()) for c in part], dtype=torch.float32).T
            for part in wanted
        ]

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        return self._select([attr])[0]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        part = self.tables[attr.group_name].attributes[attr.attr_name]
        return (len(self.keys[attr.group_name]), *(() if isinstance(part, str) else (len(part),)))

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the attributes of all tables."""
        return [
            TensorAttr(name, attribute)
            for name, columns in self.tables.items()
            for attribute in columns.attributes
        ]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError("The database is only read.")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError("The database is only read.")


def make_shop(path: Path, num_orders: int, seed: int) -> None:
    """Make a database up: users, items and orders, whose keys have gaps."""
    random = np.random.default_rng(seed)
    users, items = max(20, num_orders // 10), 40 * TASTES
    user_keys = 1000 + np.cumsum(random.integers(1, 5, users))
    item_keys = 7 + np.cumsum(random.integers(1, 9, items))
    taste, kind = random.integers(TASTES, size=users), np.arange(items) % TASTES
    user = random.integers(users, size=num_orders)
    other = random.integers(TASTES, size=num_orders)
    wanted = np.where(random.random(num_orders) < 0.6, taste[user], other)
    item = TASTES * random.integers(items // TASTES, size=num_orders) + wanted
    flavours = np.eye(TASTES)[kind] + random.normal(0, 0.5, (items, TASTES))
    about = np.stack([random.normal(4.5, 1, users), random.random(users)], axis=1)
    shop = sqlite3.connect(path)
    shop.executescript(
        "CREATE TABLE users (number INTEGER PRIMARY KEY, age_in_decades REAL, since REAL,"
        " taste INTEGER);"
        "CREATE TABLE items (number INTEGER PRIMARY KEY, price REAL, sweet REAL, salty REAL,"
        " sour REAL, bitter REAL, hot REAL);"
        "CREATE TABLE orders (user INTEGER REFERENCES users, item INTEGER REFERENCES items);"
    )
    for table, columns in (
        ("users", (user_keys, *about.T, taste)),
        ("items", (item_keys, random.uniform(1, 9, items), *flavours.T)),
        ("orders", (user_keys[user], item_keys[item])),
    ):
        marks = ", ".join("?" * len(columns))
        rows = zip(*(column.tolist() for column in columns), strict=True)
        shop.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    shop.commit()
    shop.close()


def orders_of(tables: Tables) -> HeteroData:
    """Return the graph of the orders, in both directions, without features."""
    user, item = torch.tensor(tables.rows("SELECT user, item FROM orders")).T.contiguous()
    ends = torch.stack([tables.nodes("users", user), tables.nodes("items", item)])
    graph = HeteroData()
    for name, keys in tables.keys.items():
        graph[name].num_nodes = len(keys)
    graph["users", "ordered", "items"].edge_index = ends
    graph["items", "ordered_by", "users"].edge_index = ends.flip(0)
    return graph


def main(argv: list[str] | None = None) -> float:
    """Make the database up, train and test; return the accuracy."""
    made = parser(__doc__, epochs=4, batch_size=256)
    add_device(made)
    made.add_argument("--num-orders", type=int, default=40_000, help="to make up")
    args = made.parse_args(argv)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        make_shop(Path(folder) / "shop.db", args.num_orders, args.seed)
        accuracy = train(Tables(Path(folder) / "shop.db", SHOP), args)
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


def train(tables: Tables, args: Any) -> float:
    """Learn the tastes of most users; return the share of right ones of the others."""
    data = (tables, orders_of(tables))
    order = torch.randperm(len(tables.keys["users"]))
    test, training = order.tensor_split([len(order) // 4])

    def loader_of(users: Tensor, shuffle: bool) -> pyg_direct.NeighborLoader:
        return pyg_direct.NeighborLoader(
            data,
            [10, 5],
            ("users", users),
            batch_size=args.batch_size,
            shuffle=shuffle,
            num_workers=args.num_workers,
            seed=args.seed,
        )

    loader, testing = loader_of(training, shuffle=True), loader_of(test, shuffle=False)
    model = to_hetero(SageEncoder(32, TASTES), data[1].metadata()).to(args.device)
    with torch.no_grad():  # lazy layers learn their sizes
        first = next(iter(loader)).to(args.device)
        model(first.x_dict, first.edge_index_dict)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def outputs(batch: Any) -> tuple[Tensor, Tensor]:
        batch = batch.to(args.device)  # does nothing if the loader has put it there
        seeds = batch["users"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)["users"]
        return out[:seeds], batch["users"].y[:seeds]

    for epoch in range(1, args.epochs + 1):
        for batch in with_bar(loader, f"epoch {epoch}"):
            optimizer.zero_grad()
            F.cross_entropy(*outputs(batch)).backward()
            optimizer.step()
    print(loader.stats())
    correct = 0
    with torch.no_grad():
        for batch in with_bar(testing, "test"):
            out, taste = outputs(batch)
            correct += int((out.argmax(dim=-1) == taste).sum())
    return correct / len(test)


if __name__ == "__main__":
    main()
