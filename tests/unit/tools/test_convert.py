"""What the arguments of `pyg-direct convert` ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyg_direct.files.convert.spec import ArraySource
from pyg_direct.tools import convert as command


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what is converted: the graph, and the options."""
    found: list[Any] = []

    def convert(spec: Any, out: Path, **options: Any) -> None:
        del options["progress"]
        found.extend([spec, out, options])

    monkeypatch.setattr(command, "convert", convert)
    monkeypatch.setattr(command, "made", str)
    return found


def test_edges_and_attributes(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd:name.npy").touch()
    command.main([
        "out", "--edges", "e.csv.gz:from,to", "--node", "x=odd:name.npy", "--node", "y=n.npz:label",
        "--edge", "w=w.parquet:weight", "--mask", "train=ids.csv", "--num-nodes", "1.003M",
        "--symmetrise", "--self-loops", "remove", "--feature-dtype", "int8",
        "--feature-scale", "row", "--time-attr", "y", "--weight-attr", "w", "--memory", "6G",
        "--overwrite",
    ])  # fmt: skip
    spec, out, options = asked
    assert (out, options) == (Path("out"), {"memory_bytes": 6 * 10**9, "overwrite": True})

    def source(file: str, **fields: Any) -> ArraySource:
        return ArraySource(str(tmp_path / file), **fields)

    (nodes,), (edges,) = spec.nodes, spec.edges
    assert nodes.num_nodes == 1_003_000
    assert nodes.attributes == {
        "x": source("odd:name.npy"),
        "y": source("n.npz", key="label"),
        "train": source("ids.csv", lists_ids=True),
    }
    assert edges.ends == source("e.csv.gz", columns=("from", "to"))
    assert edges.attributes == {"w": source("w.parquet", columns=("weight",))}
    assert (edges.symmetrise, edges.deduplicate, edges.self_loops) == (True, False, "remove")
    assert (spec.feature_dtype, spec.feature_scale) == ("int8", "row")
    assert (spec.time_attr, spec.weight_attr) == ("y", "w")


def test_an_ogb_data_set_is_changed_as_well(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    np.savez(tmp_path / "raw" / "data.npz", edge_index=np.zeros((2, 3), int), node_feat=np.ones(4))
    command.main([str(tmp_path / "out"), "--ogb", str(tmp_path), "--symmetrise", "--deduplicate"])
    (edges,) = asked[0].edges
    assert (edges.symmetrise, edges.deduplicate, edges.self_loops) == (True, True, "keep")
    assert asked[2] == {"memory_bytes": 4 * 10**9, "overwrite": False}
