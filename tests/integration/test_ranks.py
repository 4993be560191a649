"""Ranks in processes of their own, over gloo: what they agree on, and the batches they share."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader, accelerate


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(300, 8, generator=generator),
        y=torch.randint(3, (300,), generator=generator),
        edge_index=torch.randint(300, (2, 3000), generator=generator),
    )


DATA = graph()


def nodes(**arguments: Any) -> NeighborLoader:
    return NeighborLoader(DATA, [4, 3], **{"batch_size": 32, "shuffle": True, **arguments})


def links(**arguments: Any) -> LinkNeighborLoader:
    seeds = DATA.edge_index[:, :310]
    options = {"batch_size": 32, "shuffle": True, "neg_sampling": "binary", **arguments}
    return LinkNeighborLoader(DATA, [3, 2], seeds, **options)


def contents(loader: Any) -> list[Any]:
    """Return the batches of an epoch, so that equal ones are equal bit for bit."""
    names = ("n_id", "e_id", "input_id", "edge_index", "x")
    return [[batch[name].tolist() for name in names if name in batch] for batch in loader]


def message_of(function: Any) -> str:
    try:
        function()
    except ValueError as error:
        return str(error)
    return "no error"


def what_two_ranks_agree_on(rank: int) -> dict[str, Any]:
    torch.manual_seed(100 + rank)  # no seed=: the first rank's generator decides
    loader = nodes(split_by_rank=True, num_workers=rank)
    epochs = [contents(loader), contents(loader)]
    stats = loader.stats()
    resumed = nodes(split_by_rank=True)
    iterator = iter(resumed)
    next(iterator)
    state = resumed.state_dict()
    rest = [contents(iterator), contents(resumed)]
    torch.manual_seed(7 + rank)
    loader_again = nodes(split_by_rank=dist.group.WORLD)
    loader_again.load_state_dict(state)
    refused = {
        "seed": nodes(split_by_rank=True, seed=5 + rank),
        "seeds": nodes(split_by_rank=True, input_nodes=torch.arange(250 + rank)),
        "batch size": nodes(split_by_rank=True, batch_size=32 + rank),
        "rule": nodes(split_by_rank=True, tail=("pad", "drop")[rank]),
        "sampler": nodes(split_by_rank=True, sampler=[*range(rank, 300)], shuffle=False),
        "state": nodes(split_by_rank=True, seed=1),
    }
    if rank == 1:
        begun = nodes(seed=1)
        next(iter(begun))
        refused["state"].load_state_dict(begun.state_dict())
    messages = {name: message_of(bad.__iter__) for name, bad in refused.items()}
    return {
        "epochs": epochs,
        "steps": len(loader),
        "stats": stats.batches,
        "all stats": loader.stats(all_ranks=True).as_dict(),
        "rest": rest,
        "rest again": [contents(loader_again), contents(loader_again)],
        "state": state,
        "refused": messages,
    }


def test_two_ranks_share_an_epoch_and_resume_it_in_step(tmp_path: Path) -> None:
    first, second = run_ranks(2, what_two_ranks_agree_on, tmp_path)
    for one, other in zip(first["epochs"], second["epochs"], strict=True):
        assert len(one) == len(other) == first["steps"] == 5
        seeds = [seed for batch in one + other for seed in batch[2]]
        assert sorted(seeds) == list(range(300))
    assert first["epochs"][0] != first["epochs"][1]
    assert first["rest again"] == first["rest"]
    assert second["rest again"] == second["rest"]
    assert first["state"]["batch"] == second["state"]["batch"] == 2
    assert first["state"]["base_seed"] == second["state"]["base_seed"]

    # A single process goes on with what was left.
    alone = nodes()
    alone.load_state_dict(first["state"])
    left = [
        batch for step in zip(first["rest"][0], second["rest"][0], strict=True) for batch in step
    ]
    assert contents(alone) == left

    assert (first["stats"], second["stats"]) == (10, 10)
    for values in (first, second):
        assert values["all stats"]["batches"] == 20
        assert values["all stats"]["seeds"] == 600
        assert [epoch["batches"] for epoch in values["all stats"]["epochs"]] == [10, 10]

    expected = {
        "seed": ("rank 1 has a loader with seed=6 (here 5)", "rank 0 has a loader with seed=5"),
        "seeds": ("num_seeds=251 (here 250); other seeds", "num_seeds=250 (here 251)"),
        "batch size": ("batch_size=33 (here 32)", "batch_size=32 (here 33)"),
        "rule": ("tail='drop' (here 'pad')", "tail='pad' (here 'drop')"),
        "sampler": ("another order of the seeds (sampler=", "another order of the seeds"),
        "state": ("epoch=0 (here -1)", "epoch=-1 (here 0)"),
    }
    for name, messages in expected.items():
        for values, message in zip((first, second), messages, strict=True):
            assert message in values["refused"][name], name


class Training:
    """A small model, its loss and its optimizer, the same in every process."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model: Any = GraphSAGE(8, 8, num_layers=2, out_channels=3)

    def loss(self, batch: Any, model: Any = None) -> Tensor:
        out = (model or self.model)(batch.x, batch.edge_index)[: batch.batch_size]
        loss: Tensor = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
        return loss

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


def losses_of_ranks(loader: Any, fast: bool) -> list[float]:
    training = Training()
    model = accelerate(training.model, loader) if fast else training.model
    wrapped, optimizer = DistributedDataParallel(model), training.optimizer()
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = training.loss(batch, wrapped)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_of_one_process(batches: list[Any], world_size: int) -> list[list[float]]:
    """Average the gradients over the batches of each step; return the losses of each rank."""
    training = Training()
    optimizer = training.optimizer()
    losses: list[list[float]] = [[] for _ in range(world_size)]
    for first in range(0, len(batches), world_size):
        optimizer.zero_grad()
        for rank, batch in enumerate(batches[first : first + world_size]):
            loss = training.loss(batch)
            (loss / world_size).backward()
            losses[rank].append(loss.item())
        optimizer.step()
    return losses


# (batch size, tail, workers): 300 nodes and 310 links, which 30 and 31 divide, and 32 does not.
SETTINGS = [(32, "pad", 0), (32, "drop", 2), (32, "uneven", 1), (30, "pad", 2), (31, "uneven", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_batch_is_that_of_a_single_process(world_size: int, tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[Any]:
        made = []
        for size, tail, workers in SETTINGS:
            options = {"split_by_rank": True, "tail": tail, "num_workers": workers}
            for build in (nodes, links):
                loader = build(batch_size=size, seed=4, **options)
                made.append((len(loader), contents(loader), contents(loader)))
        return made

    every = run_ranks(world_size, on_rank, tmp_path)
    case = 0
    for size, tail, _ in SETTINGS:
        for build in (nodes, links):
            single = build(batch_size=size, seed=4)
            for epoch in (1, 2):
                batches = contents(single)
                lacking = -len(batches) % world_size
                if tail == "pad":
                    batches += batches[:lacking]
                elif tail == "drop" and lacking:
                    batches = batches[: lacking - world_size]
                for rank, made in enumerate(every):
                    assert made[case][epoch] == batches[rank::world_size]
                    assert made[case][0] == len(made[case][epoch])
            case += 1


@pytest.mark.slow
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
def test_losses_are_those_of_averaged_gradients(
    world_size: int, fast: bool, tmp_path: Path
) -> None:
    def on_rank(rank: int) -> list[float]:
        return losses_of_ranks(nodes(split_by_rank=True, seed=4, num_workers=2), fast)

    losses = run_ranks(world_size, on_rank, tmp_path)
    batches = list(nodes(seed=4))
    batches += batches[: -len(batches) % world_size]
    expected = losses_of_one_process(batches, world_size)
    assert torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_uneven_shares_train_under_join(tmp_path: Path) -> None:
    from torch.distributed.algorithms.join import Join

    def on_rank(rank: int) -> tuple[int, Any]:
        loader = nodes(split_by_rank=True, seed=4, tail="uneven")
        training = Training()
        model = DistributedDataParallel(training.model)
        optimizer, steps = training.optimizer(), 0
        with Join([model]):
            for batch in loader:
                optimizer.zero_grad()
                training.loss(batch, model).backward()
                optimizer.step()
                steps += 1
        return steps, [p.tolist() for p in training.model.parameters()]

    outcomes = run_ranks(3, on_rank, tmp_path)  # 10 batches
    assert [steps for steps, _ in outcomes] == [4, 3, 3]
    assert outcomes[0][1] == outcomes[1][1] == outcomes[2][1]


def test_states_are_the_same_on_all_ranks() -> None:
    """But for the random state of the process, which no batch of a split loader depends on."""
    states = []
    for rank in range(2):
        torch.manual_seed(rank)
        loader = nodes(seed=2, rank=rank, world_size=2)
        next(iter(loader))
        states.append(loader.state_dict())
    one, other = copy.deepcopy(states)
    assert torch.equal(one.pop("default_state"), other.pop("default_state"))
    assert one == other


def test_graphs_that_differ_in_one_edge_or_in_all_rows_are_refused(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[str]:
        torch.manual_seed(0)
        edges, x = torch.randint(5000, (2, 50_000)), torch.randn(5000, 4)
        other = edges.clone()
        other[0, 12_345] = (other[0, 12_345] + rank) % 5000
        graphs = [
            Data(x=x, edge_index=other),
            Data(x=x + rank, edge_index=edges),
            Data(x=x, edge_index=edges),
        ]
        for number in range(2):
            path = tmp_path / f"saved {number} of {rank}"
            pyg_direct.save(graphs[2 * number], path)
            graphs.append(pyg_direct.open(path))
        texts = []
        for data in graphs:
            loader = NeighborLoader(data, [3], seed=1, batch_size=1000, split_by_rank=True)
            try:
                next(iter(loader))
                texts.append("")
            except ValueError as error:
                texts.append(str(error))
        return texts

    for edges, rows, same, saved, same_saved in run_ranks(2, on_rank, tmp_path):
        assert "another graph (some edges, or what time_attr= or weight_attr= names)" in edges
        assert "other attributes of nodes or edges" in rows
        assert "another graph (some edges" in saved
        assert (same, same_saved) == ("", "")
