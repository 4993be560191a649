"""A database behind a loader: the rows of a graph in memory, by one query a table."""

import sqlite3
from pathlib import Path

import pytest
import torch
from torch_geometric.data import TensorAttr

import pyg_direct
from examples import database


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop of #1.db"
    database.make_shop(path, 2000, seed=0)
    return path


def in_memory(path: Path, tables: database.Tables):
    """Return the graph with the whole tables as attributes, in the order of their keys."""
    data, connection = database.orders_of(tables), sqlite3.connect(path)
    for name, table in database.SHOP.items():
        for attribute, columns in table.attributes.items():
            listed = columns if isinstance(columns, str) else ", ".join(columns)
            query = f"SELECT {listed} FROM {name} ORDER BY number"
            rows = torch.tensor(connection.execute(query).fetchall())
            data[name][attribute] = rows[:, 0] if isinstance(columns, str) else rows
    connection.close()
    return data


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_have_the_rows_of_a_graph_in_memory(shop: Path, num_workers: int) -> None:
    tables = database.Tables(shop, database.SHOP)
    data, graph = in_memory(shop, tables), database.orders_of(tables)
    loader = pyg_direct.NeighborLoader(
        (tables, graph), [5, 5], "users", batch_size=60, num_workers=num_workers, seed=0
    )
    assert len(loader) == 4
    for batch in loader:
        for name, table in database.SHOP.items():
            for attribute in table.attributes:
                rows = data[name][attribute][batch[name].n_id]
                assert batch[name][attribute].dtype == rows.dtype
                assert torch.equal(batch[name][attribute], rows)
        for key in data.edge_types:
            row, col = batch[key].edge_index
            ends = torch.stack([batch[key[0]].n_id[row], batch[key[2]].n_id[col]])
            assert torch.equal(ends, data[key].edge_index[:, batch[key].e_id])


def test_keys_have_gaps_and_links_follow_them(shop: Path) -> None:
    tables = database.Tables(shop, database.SHOP)
    keys, (user, _) = tables.keys["users"], tables.rows("SELECT user, item FROM orders LIMIT 1")[0]
    assert keys[0] >= 1000
    assert keys[tables.nodes("users", torch.tensor([user]))].tolist() == [user]


def test_a_batch_asks_each_table_once(shop: Path) -> None:
    tables = database.Tables(shop, database.SHOP)
    queries: list[str] = []
    loader = pyg_direct.NeighborLoader(
        (tables, database.orders_of(tables)), [5, 5], "users", batch_size=100
    )
    tables._local.connection.set_trace_callback(queries.append)
    assert len(list(loader)) == 2
    assert len(queries) == 2 * len(database.SHOP)
    assert all("json_each" in query for query in queries)


def test_no_rows_and_all_rows(shop: Path) -> None:
    tables = database.Tables(shop, database.SHOP)
    none = torch.empty(0, dtype=torch.int64)
    assert tables.get_tensor(TensorAttr("users", "x", none)).shape == (0, 2)
    assert tables.get_tensor(TensorAttr("users", "x", None)).shape == (200, 2)


def test_a_row_that_was_deleted_since_is_told(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    database.make_shop(path, 500, seed=0)
    tables = database.Tables(path, database.SHOP)
    with sqlite3.connect(path) as shop:
        shop.execute("DELETE FROM users WHERE number = ?", [int(tables.keys["users"][3])])
    shop.close()
    loader = pyg_direct.NeighborLoader(
        (tables, database.orders_of(tables)), [2], ("users", torch.tensor([3])), batch_size=1
    )
    with pytest.raises(KeyError, match="1 rows of users are no longer there"):
        next(iter(loader))
