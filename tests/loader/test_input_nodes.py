"""`input_nodes` and `input_id`: one body over PyG's class and ours."""

import pytest
import torch
from graphs import assert_maps_to, assert_same_epoch, example_graph
from loaders import make
from torch_geometric.data import Data, HeteroData

from pyg_direct import HGTLoader, NeighborLoader, ShaDowKHopSampler

INPUT_NODES = {
    "None": (None, list(range(12)), list(range(12))),
    "tensor": (torch.tensor([7, 2, 9]), [7, 2, 9], [0, 1, 2]),
    "column": (torch.tensor([[7], [2], [9]]), [7, 2, 9], [0, 1, 2]),  # as of `nonzero()`
    "list": ([7, 2, 9], [7, 2, 9], [0, 1, 2]),
    "range": (range(4, 7), [4, 5, 6], [0, 1, 2]),
    # A position for ids, but the node itself for a mask: PyG's contract.
    "mask": (torch.arange(12) % 5 == 2, [2, 7], [2, 7]),
    "duplicates": (torch.tensor([7, 7, 2, 7]), [7, 7, 2, 7], [0, 1, 2, 3]),
}


@pytest.mark.pyg("input_nodes", "batch.batch_size", "batch.input_id")
@pytest.mark.parametrize("kind", INPUT_NODES)
def test_input_nodes_of_every_form_give_their_seeds_and_positions(
    loader_class: type, kind: str
) -> None:
    nodes, expected, ids = INPUT_NODES[kind]
    loader = make(loader_class, input_nodes=nodes, batch_size=3)
    batches = list(loader)
    assert [v for batch in batches for v in batch.n_id[: batch.batch_size].tolist()] == expected
    assert [i for batch in batches for i in batch.input_id.tolist()] == ids
    assert all(batch.input_id.dtype == torch.int64 for batch in batches)
    assert loader.input_nodes is nodes
    assert loader.dataset == range(len(expected))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_narrow_input_nodes(dtype: torch.dtype) -> None:
    """Which torch_sparse refuses."""
    loader = make(NeighborLoader, input_nodes=torch.tensor([7, 2, 9], dtype=dtype))
    assert_same_epoch(loader, make(NeighborLoader, input_nodes=torch.tensor([7, 2, 9])))


MASKS = {
    "int64": lambda mask: mask.long(),
    "int32": lambda mask: mask.int(),
    "uint8": lambda mask: mask.to(torch.uint8),
    "array": lambda mask: mask.numpy().astype(int),
    "list": lambda mask: mask.long().tolist(),
    "all": lambda mask: torch.ones_like(mask).long(),
    "none": lambda mask: torch.zeros_like(mask).long(),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_of_integers_is_refused(kind: str) -> None:
    mask = torch.arange(12) % 5 == 2
    message = r"of 12 zeros and ones, one for each node.*input_nodes.bool\(\).*by sampler="
    with pytest.raises(ValueError, match=message):
        make(NeighborLoader, input_nodes=MASKS[kind](mask))
    with pytest.raises(ValueError, match=message):
        ShaDowKHopSampler(example_graph(), 1, 2, node_idx=MASKS[kind](mask))


def test_a_mask_of_integers_of_one_type_is_refused() -> None:
    data, mask = HeteroData(), torch.arange(6) % 2
    data["a"].x, data["b"].x = torch.rand(6, 1), torch.rand(4, 1)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 5], [1, 3]])
    for loader in (NeighborLoader, HGTLoader):
        with pytest.raises(ValueError, match="of 6 zeros and ones"):
            loader(data, [2], input_nodes=("a", mask))
        assert len(list(loader(data, [2], input_nodes=("b", mask[:3])))) == 3


@pytest.mark.parametrize("nodes", [[0, 1], [1, 0], [1, 1], [0]])
def test_ids_of_a_graph_of_two_nodes_are_ids(nodes: list[int]) -> None:
    data = Data(x=torch.rand(2, 1), edge_index=torch.tensor([[0], [1]]))
    loader = NeighborLoader(data, [1], input_nodes=torch.tensor(nodes), batch_size=9)
    assert next(iter(loader)).n_id[: len(nodes)].tolist() == nodes


def test_repeats_of_two_nodes_come_by_sampler() -> None:
    """As the error says."""
    order = [0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0]
    loader = make(NeighborLoader, input_nodes=[0, 1], sampler=order, batch_size=20)
    assert next(iter(loader)).n_id[:12].tolist() == order
    for nodes in ([0, 1] * 5, [1] * 13, [2, *[0, 1] * 5, 1]):  # of other lengths, or other ids
        make(NeighborLoader, input_nodes=nodes)


@pytest.mark.pyg("kwargs")
def test_input_id_overrides_the_positions(loader_class: type) -> None:
    loader = make(loader_class, input_nodes=[3, 1], input_id=torch.tensor([30, 10]))
    assert loader([1]).input_id.tolist() == [10]


def test_input_id_of_all_nodes() -> None:
    """PyG forgets it where `input_nodes` lists none."""
    loader = make(NeighborLoader, input_id=torch.arange(12) + 50)
    assert loader([1, 7]).input_id.tolist() == [51, 57]


@pytest.mark.pyg("shuffle")
def test_input_id_follows_the_shuffle(loader_class: type) -> None:
    nodes = torch.tensor([7, 2, 9, 4, 0])
    loader = make(loader_class, input_nodes=nodes, shuffle=True, batch_size=2)
    for batch in loader:
        assert torch.equal(nodes[batch.input_id], batch.n_id[: batch.batch_size])


@pytest.mark.pyg("batch.duplicated_seeds")
def test_duplicated_seeds_each_expand() -> None:
    loader = make(NeighborLoader, [-1], input_nodes=torch.tensor([3, 3, 1]))
    batch = loader([0, 1, 2])
    assert batch.n_id.tolist() == [3, 3, 1, 0, 2]
    assert batch.edge_index.tolist() == [[3, 3, 4, 4, 3], [0, 1, 2, 2, 2]]
    assert batch.batch_size == 3
    assert batch.num_sampled_nodes == [3, 2]
    assert_maps_to(batch, example_graph())


@pytest.mark.pyg("batch.duplicated_seeds")
def test_copies_of_a_seed_draw_on_their_own() -> None:
    data = Data(edge_index=torch.tensor([list(range(1, 41)), [0] * 40]), num_nodes=41)
    batch = NeighborLoader(data, [5], input_nodes=torch.zeros(8, dtype=torch.int64), seed=1)(
        list(range(8))
    )
    picks = {tuple(batch.e_id[batch.edge_index[1] == i].sort().values.tolist()) for i in range(8)}
    assert len(picks) == 8
