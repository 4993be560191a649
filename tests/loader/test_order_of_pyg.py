"""Where PyG's own sort determines the order of edges, full neighbourhoods have PyG's tensors.

Nothing of PyG is replaced here. Its `index_sort` is the same function of torch with pyg-lib and
without up to 32,767 elements, and stable from there on in both.
"""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch
import torch_geometric.loader
import torch_geometric.utils
from graphs import assert_same_batch
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

import pyg_direct

STABLE_FROM, FEW = 32_768, 16
KEY = ("a", "to", "b")
REVERSE = ("b", "to", "a")

needs_pygs_sampler = pytest.mark.skipif(
    not (WITH_TORCH_SPARSE or WITH_PYG_LIB), reason="PyG's own sampler needs torch_sparse"
)


@pytest.fixture(autouse=True)
def own_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give PyG back the sort that the other tests replace."""
    for module in ("torch_geometric.sampler.utils", "torch_geometric.utils._coalesce"):
        monkeypatch.setattr(f"{module}.index_sort", torch_geometric.utils.index_sort)


def graph(edges: int, is_sorted: bool = False) -> Data:
    generator = torch.Generator().manual_seed(0)
    nodes = max(4, edges // 20)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    if is_sorted:
        edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    return Data(num_nodes=nodes, edge_index=edge_index, x=torch.arange(nodes))


def typed(edges: int) -> HeteroData:
    data, pairs = HeteroData(), graph(edges)
    data["a"].x = data["b"].x = pairs.x
    data[KEY].edge_index, data[REVERSE].edge_index = pairs.edge_index, pairs.edge_index.flip(0)
    return data


def both(data: Any, seeds: Any, **arguments: Any) -> list[Any]:
    """Return the first batch of either loader."""
    given = {"num_neighbors": [-1, -1], "input_nodes": seeds, "batch_size": 8, **arguments}
    loaders = pyg_direct.NeighborLoader, torch_geometric.loader.NeighborLoader
    return [next(iter(loader(data, **given))) for loader in loaders]


DETERMINED: dict[str, tuple[Any, dict[str, Any]]] = {
    "few": (lambda: graph(FEW), {}),
    "many": (lambda: graph(STABLE_FROM), {}),
    "more": (lambda: graph(STABLE_FROM + 999), {}),
    "sorted": (lambda: graph(1000, is_sorted=True), {"is_sorted": True}),
    "few induced": (lambda: graph(FEW), {"subgraph_type": "induced"}),
    "many induced": (lambda: graph(STABLE_FROM), {"subgraph_type": "induced"}),
    "sorted disjoint": (
        lambda: graph(1000, is_sorted=True), {"is_sorted": True, "disjoint": True},
    ),
}  # fmt: skip


@needs_pygs_sampler
@pytest.mark.parametrize("case", list(DETERMINED))
def test_every_tensor_is_pygs_where_its_order_is_determined(case: str) -> None:
    make, arguments = DETERMINED[case]
    if arguments.get("disjoint") and not WITH_PYG_LIB:
        pytest.skip("PyG's own sampler needs pyg-lib for this")
    data = make()
    assert_same_batch(*both(data, torch.arange(data.num_nodes)[:8], **arguments))


@needs_pygs_sampler
@pytest.mark.parametrize("edges", [FEW, STABLE_FROM])
def test_every_tensor_of_typed_and_link_batches_is_pygs(edges: int) -> None:
    assert_same_batch(*both(typed(edges), ("a", torch.arange(3))))
    links = (pyg_direct.LinkNeighborLoader, torch_geometric.loader.LinkNeighborLoader)
    data = graph(edges)
    first = [next(iter(loader(data, [-1, -1], batch_size=4))) for loader in links]
    assert_same_batch(*first)


@needs_pygs_sampler
@pytest.mark.parametrize("edges", [FEW + 1, 1000, STABLE_FROM - 1])
def test_nodes_and_edges_are_pygs_where_its_order_is_an_accident(edges: int) -> None:
    """As the documents say; if PyG's sort becomes stable, they may promise more."""
    data = graph(edges)
    ours, theirs = both(data, torch.arange(data.num_nodes)[:8])
    for name in ("n_id", "e_id"):
        assert sorted(ours[name].tolist()) == sorted(theirs[name].tolist())
    assert ours.n_id[:8].tolist()[: data.num_nodes] == theirs.n_id[:8].tolist()[: data.num_nodes]
    assert ours.e_id.tolist() != theirs.e_id.tolist()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch sorts by FBGEMM on x86-64 alone")
@pytest.mark.parametrize("edges", [FEW, STABLE_FROM, STABLE_FROM + 1, 2 * STABLE_FROM])
def test_pygs_sort_is_stable_for_few_and_for_many_edges(edges: int) -> None:
    """What the documents say, without an extension; for those with more than a few it is not."""
    for highest in (3, 50, 10**6):
        column = torch.randint(highest, (edges,), generator=torch.Generator().manual_seed(1))
        found = torch_geometric.utils.index_sort(column)[1]
        assert torch.equal(found, column.sort(stable=True)[1])


@pytest.mark.parametrize("edges", [FEW + 1, 1000, STABLE_FROM - 1])
def test_pygs_sort_is_not_stable_in_between(edges: int) -> None:
    column = torch.arange(edges) % 3
    found = torch_geometric.utils.index_sort(column)[1]
    assert not torch.equal(found, column.sort(stable=True)[1])
