"""The example of ogbn-products, over files of its layout with few nodes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from examples import ogbn_products
from pyg_direct.tools import command

CLASSES, COLUMNS = 3, 8


def stand_in(folder: Path, num_nodes: int = 240) -> None:
    """Write files of the layout of `products.zip`: gzipped CSV without headers, edges once."""
    rng = np.random.default_rng(0)
    y = np.arange(num_nodes) % CLASSES
    source = rng.integers(num_nodes, size=4 * num_nodes)
    other = rng.integers(num_nodes // CLASSES, size=len(source)) * CLASSES + y[source]
    x = np.eye(CLASSES, COLUMNS)[y] + rng.normal(size=(num_nodes, COLUMNS))
    order = rng.permutation(num_nodes)
    files = {
        "raw/edge": np.stack([source, other], 1),
        "raw/node-feat": x,
        "raw/node-label": y[:, None],
        "raw/num-node-list": np.array([[num_nodes]]),
        "raw/num-edge-list": np.array([[len(source)]]),
        "split/sales_ranking/train": order[:160, None],
        "split/sales_ranking/valid": order[160:200, None],
        "split/sales_ranking/test": order[200:, None],
    }
    for name, rows in files.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            np.savetxt(file, rows, "%.4f" if rows.dtype.kind == "f" else "%d", ",")


def test_files_of_ogbn_products_train_to_an_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(tmp_path / "products")
    graph = str(tmp_path / "graph")
    command.main(["convert", graph, "--ogb", str(tmp_path / "products"), "--symmetrise"])
    sizes = ["--batch-size", "64", "--hidden", "16", "--epochs", "8"]
    assert ogbn_products.main([graph, *sizes]) > 0.8
    assert "accuracy of validation" in capsys.readouterr().out
