"""The rows that a rank owns: what it gives to those that ask, and how many it reads for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pyg_direct import quantize
from pyg_direct.batch.sampled import NodesOfType
from pyg_direct.core.lazy_tensor import OrderedTensor
from pyg_direct.exchange.rows import RowTraffic
from pyg_direct.exchange.shared_rows import RowsInCommon, _OwnRows, types_of
from pyg_direct.ops.devices import HOST, backend_for
from pyg_direct.ranks.split import Split

KINDS = ["a", "b", "c"]


def typed_data() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["a"].y = torch.arange(10.0).view(5, 2), torch.arange(5)
    data["b"].narrow, data["b"].num_nodes = quantize(torch.eye(3), scale="row"), 3
    data["b"].moved = OrderedTensor(torch.tensor([[2], [0], [1]]), torch.tensor([1, 2, 0]))
    data["c"].y = torch.arange(4)  # one number a node: all ranks have it
    data["c"].num_nodes = 4
    return data


def test_a_row_that_several_ranks_ask_for_is_read_once() -> None:
    data = typed_data()
    formats = RowsInCommon(data, Split(None, None, "pad"), None)._formats()
    assert [list(of_type) for of_type in formats] == [
        ["x"],
        ["narrow", "narrow scale", "moved"],
        [],
    ]
    traffic, ids = RowTraffic(), [np.arange(n, dtype=np.int32) for n in (5, 3, 4)]
    own = _OwnRows(data, backend_for(HOST), formats, ids, traffic)
    asked = [[np.array(a), np.array(b), np.empty(0, np.int64)] for a, b in ASKED]
    answers = own.answer([[of_rank] for of_rank in asked])
    for (a, b), ((of_a, of_b, of_c),) in zip(ASKED, answers, strict=True):
        (rows,), (narrow, scale, moved) = of_a, of_b
        assert torch.equal(rows, data["a"].x[a])
        assert torch.equal(narrow, 127 * torch.eye(3).char()[b])
        assert torch.equal(scale, torch.full((len(b), 1), 1 / 127))
        assert moved.tolist() == [[node] for node in b]
        assert of_c == []
    assert traffic.loaded_rows == 4 + 3  # of a: 4, 2, 0, 1; of b: 1, 0, 2


ASKED = [([4, 2, 0], [1]), ([0, 1, 4], [0, 2, 1])]  # of each rank, the nodes of a and of b


def test_the_part_of_a_node_is_that_of_its_type() -> None:
    owners = {"a": torch.arange(5) % 2, "b": torch.tensor([2, 0, 1]), "c": torch.zeros(4).long()}
    common = RowsInCommon(typed_data(), Split(None, None, "pad", owners=owners), None)
    assert common.part_of("b", torch.tensor([2, 0])).tolist() == [1, 2]
    assert common.part_of("a", torch.tensor([3, 3])).tolist() == [1, 1]


def nodes_of(ids: list[int]) -> NodesOfType:
    return NodesOfType(torch.tensor(ids), torch.tensor(ids))


def test_ids_out_of_range_are_refused_before_rows_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common: Any = RowsInCommon(typed_data(), Split(None, None, "pad"), None)
    asked = list[list[Any]]()
    monkeypatch.setattr(RowsInCommon, "place", object())
    monkeypatch.setattr(common, "made", lambda ids: asked.append(ids) or [{}, {}, {}])
    common.bring_rows({"b": nodes_of([2, 0])})  # none of "a" and "c"
    assert [ids if ids is None else ids.tolist() for ids in asked.pop()] == [None, [2, 0], None]
    with pytest.raises(IndexError, match=r"ids of a batch must be node ids in \[0, 3\), got 3"):
        common.bring_rows({"b": nodes_of([2, 3])})
    assert asked == []


def test_an_empty_graph_has_one_node_type_without_nodes() -> None:
    empty = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=0)
    assert types_of(empty) == [(None, 0)]
