"""A loader goes on in the middle of an epoch, also in another process."""

import copy
import io
import subprocess
import sys

import pytest
import torch
from torch.utils.data import BatchSampler, WeightedRandomSampler
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.loading.order import PartOrder
from pyg_direct.loading.progress import Progress, SeedOrder
from pyg_direct.loading.steps import Steps

PROGRAM = """
import sys, torch
from torch_geometric.data import Data
from pyg_direct import NeighborLoader
generator = torch.Generator().manual_seed(0)
data = Data(num_nodes=300, edge_index=torch.randint(300, (2, 3000), generator=generator))
saved = torch.load(sys.argv[1], weights_only=True)
loader = NeighborLoader(data, [4, 3], batch_size=32, shuffle=True, seed=saved["seed"])
loader.load_state_dict(saved)
torch.save([batch.e_id for batch in loader], sys.argv[2])
"""


def graph():
    generator = torch.Generator().manual_seed(0)
    return Data(num_nodes=300, edge_index=torch.randint(300, (2, 3000), generator=generator))


def build(seed, **kwargs):
    return NeighborLoader(graph(), [4, 3], batch_size=32, seed=seed, **kwargs)


def edges(loader):
    return [batch.e_id.tolist() for batch in loader]


def interrupted(loader, batches, epochs_before=1):
    """Run some epochs and a part of the next; return the state there and what was left."""
    for _ in range(epochs_before):
        edges(loader)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state = loader.state_dict()
    return state, [batch.e_id.tolist() for batch in iterator]


def through_a_file(state):
    """States hold nothing that torch.load(weights_only=True) refuses."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


CASES = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "threads": {"shuffle": True, "num_workers": 2},
    "persistent threads": {"shuffle": True, "num_workers": 2, "persistent_workers": True},
    "filter in the consumer": {"shuffle": True, "num_workers": 2, "filter_per_worker": False},
    "drop_last": {"shuffle": True, "drop_last": True},
}


@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batches", [0, 1, 5])
def test_the_rest_of_the_epoch_is_the_same(seed, case, batches):
    state, rest = interrupted(build(seed, **CASES[case]), batches)
    assert len(rest) == (9 if case == "drop_last" else 10) - batches
    torch.manual_seed(999)  # whatever the new process did before
    loader = build(seed, **CASES[case])
    loader.load_state_dict(through_a_file(state))
    assert edges(loader) == rest


def test_resuming_leaves_torchs_generator_alone():
    state, _ = interrupted(build(None, shuffle=True), 3)
    loader = build(None, shuffle=True)
    loader.load_state_dict(state)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    edges(loader)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.pyg("sampler")
@pytest.mark.parametrize("kind", ["generator", "weighted sampler"])
def test_samplers_that_draw_are_replayed(kind):
    def loader_of():
        if kind == "generator":
            return build(None, shuffle=True, generator=torch.Generator().manual_seed(3))
        return build(None, sampler=WeightedRandomSampler(torch.ones(300), 300))

    torch.manual_seed(1)
    state, rest = interrupted(loader_of(), 4)
    torch.manual_seed(2)
    loader = loader_of()
    loader.load_state_dict(through_a_file(state))
    assert edges(loader) == rest


def test_an_order_of_parts_is_drawn_again_after_an_interruption():
    generator = torch.Generator()
    parts = PartOrder(generator, 4)
    parts.cluster = torch.arange(30) % 3
    order = SeedOrder(BatchSampler(parts, 4, drop_last=False), generator, generator)

    def steps():
        progress = Progress(seed=1)
        positions = progress.begin(order)
        return Steps(copy.copy(progress), order, positions)

    def plain(steps):
        return [(number, index.tolist(), key) for number, index, key in steps]

    one = steps()
    found = plain([next(one)])
    one._drawing = True
    assert found + plain(one) == plain(steps())


def test_later_epochs_follow_the_seed():
    uninterrupted = build(7, shuffle=True)
    epochs = [edges(uninterrupted) for _ in range(4)]
    state, rest = interrupted(build(7, shuffle=True), 4)
    loader = build(7, shuffle=True)
    loader.load_state_dict(state)
    assert rest == epochs[1][4:]
    assert [edges(loader), edges(loader), edges(loader)] == [rest, epochs[2], epochs[3]]
    assert epochs[0] != epochs[1]


def test_a_state_between_epochs_begins_the_next_one():
    loader = build(7)
    epochs = [edges(loader) for _ in range(3)]
    loader = build(7)
    edges(loader)
    state = loader.state_dict()
    other = build(7)
    other.load_state_dict(state)
    assert edges(other) == epochs[1]


@pytest.mark.slow
def test_in_a_new_process(tmp_path):
    for seed in (None, 11):
        state, rest = interrupted(build(seed, shuffle=True), 3)
        torch.save(state, tmp_path / "state.pt")
        command = [sys.executable, "-c", PROGRAM, tmp_path / "state.pt", tmp_path / "rest.pt"]
        subprocess.run(command, check=True, timeout=120)
        assert [e.tolist() for e in torch.load(tmp_path / "rest.pt")] == rest


def test_every_epoch_has_an_order_of_its_own():
    loader = build(5, shuffle=True)
    orders = [[i for batch in loader for i in batch.input_id.tolist()] for _ in range(3)]
    assert all(sorted(order) == list(range(300)) for order in orders)
    assert len(set(map(tuple, orders))) == 3
