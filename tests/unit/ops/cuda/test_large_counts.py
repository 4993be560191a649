"""Counts of a batch above 2^31, on a device without memory: sizes, starts and views stay whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conformance import make_csc, uniform_plan
from torch import Tensor

from pyg_direct.core.types import IntTable
from pyg_direct.ops.cuda import tuning
from pyg_direct.ops.cuda.arrays import Grids, prefix_sums
from pyg_direct.ops.cuda.backend import row_shape
from pyg_direct.ops.cuda.emit import Outputs
from pyg_direct.ops.cuda.table import NodeLists, NodeTable

META = torch.device("meta")
LARGE = (1 << 31) - 9  # a count of its own fits into 32 bits, and two of them do not


class NoArrays(dict[str, Tensor]):
    """Arrays of a workspace, of the device without memory."""

    device = META

    def replace(self, name: str, array: Tensor) -> None:
        self[name] = array


class Kernels(dict[str, Any]):
    """Kernels that write down what they are launched with."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, Any, dict[str, Any]]] = []

    def __getitem__(self, name: str) -> Any:
        kernels = self

        class Kernel:
            def bind(self, *_: Any, **named: Any) -> Any:
                return lambda grid: kernels.launched.append((name, grid, named))

            def grid(self, blocks: Any) -> Any:
                return blocks

        return Kernel()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_prefix_sums_above_32_bits(dtype: type[np.signedinteger]) -> None:
    found = prefix_sums(np.array([LARGE, LARGE, 7], dtype))
    assert found.dtype == np.int64
    assert found.tolist() == [0, LARGE, 2 * LARGE, 2 * LARGE + 7]


def test_lists_of_types_with_more_nodes_than_32_bits_count() -> None:
    arrays = NoArrays(node=torch.empty(0, dtype=torch.int32, device=META))
    lists = NodeLists(3, arrays, disjoint=False)
    lists.make_room(np.array([LARGE, LARGE, 5]), np.zeros(3, np.int64))
    room = [LARGE + LARGE // 2 + 1] * 2
    assert lists.start.tolist() == [0, room[0], room[0] + room[1]]
    assert len(arrays["node"]) == sum(room) + 5 + 2 + 1
    lists.make_room(np.array([9, 2 * LARGE, 5]), np.array([3, LARGE, 5]))
    assert lists.start.tolist() == [0, room[0], room[0] + 2 * LARGE + LARGE + 1]


def test_hash_tables_of_more_entries_than_32_bits_count() -> None:
    arrays = NoArrays()
    table = NodeTable(np.array([LARGE, LARGE]), arrays, disjoint=True)
    assert table.make_room(np.array([LARGE, 3]))
    assert table.slots.tolist() == [1 << 33, 16]
    assert len(arrays["table"]) == (1 << 33) + 16
    assert prefix_sums(table.slots).tolist() == [0, 1 << 33, (1 << 33) + 16]


@pytest.fixture
def outputs() -> tuple[Outputs, Kernels]:
    rng = np.random.default_rng(0)
    csc = make_csc(rng, [4, 4], [(0, 0, 5), (1, 0, 5)], perm_type=None)
    csc = replace(csc, indices=torch.from_numpy(csc.indices))
    kernels = Kernels()
    plan = uniform_plan(np.array([[1, 1], [1, 1]]))
    descriptor: Any = type("Descriptor", (), {"device": META})()
    grids = Grids(256, tuning.MAX_BLOCKS)
    return Outputs(csc, plan, kernels, descriptor, grids), kernels


def test_edges_of_a_batch_above_32_bits(outputs: tuple[Outputs, Kernels]) -> None:
    counts: IntTable = np.array([[LARGE, LARGE], [LARGE, 3]])
    edges = outputs[0].by_hop(counts)
    assert [tuple(index.shape) for index, _ in edges] == [(2, 2 * LARGE), (2, LARGE + 3)]
    assert edges[1][0].storage_offset() == 4 * LARGE
    assert edges[1][1].storage_offset() == 2 * LARGE
    ((name, grid, named),) = outputs[1].launched
    assert (name, grid) == ("emit_edges", (tuning.MAX_BLOCKS, 2))
    assert len(named["edge_index"]) == 2 * len(named["edge"]) == 6 * LARGE + 6


def test_nodes_of_a_batch_above_32_bits(outputs: tuple[Outputs, Kernels]) -> None:
    nodes, _ = outputs[0].nodes(np.array([LARGE, LARGE]))
    assert [(len(part), part.storage_offset()) for part in nodes] == [(LARGE, 0), (LARGE, LARGE)]


def test_grids_of_more_threads_than_32_bits_count() -> None:
    grids = Grids(256, 1 << 30)
    assert grids.loop(1 << 34) == 1 << 26
    assert grids.scan(1 << 34) == tuning.MAX_SCAN_BLOCKS


def test_shapes_of_rows_at_any_address() -> None:
    for address in (64, (1 << 32) + 64, (1 << 47) - 64):
        assert row_shape(address, 400, 16) == row_shape(64, 400, 16)
