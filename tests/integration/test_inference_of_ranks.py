"""`inference` by several ranks, each of which computes a share of the rows of each layer."""

import copy
import json
import os
import random
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from models import HETEROGENEOUS, OUT, WIDTH, graph_inputs, hetero_data
from models_matrix import matrix
from rank_processes import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct import inference
from pyg_direct.models.inference import blocks, executor
from pyg_direct.models.inference.executor import SharedRows

MODELS = matrix()
SOME = ["layer-GAT-attr", "layer-GCN", "layer-PNA", "layer-Cheb", "layer-EG", "layer-GPS"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, so that each rank has several."""
    monkeypatch.setattr(executor, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(blocks, "HUB_BYTES", 4000)


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    value = vars(value) if hasattr(value, "__dataclass_fields__") else value
    entries = value.values() if isinstance(value, dict) else value
    return [t for entry in entries for t in tensors(entry)] if isinstance(
        value, (dict, list, tuple)
    ) else []  # fmt: skip


def case(name: str) -> tuple[nn.Module, Any, Any]:
    """Return a model of the matrix, its data and its inputs."""
    torch.manual_seed(0)
    if name in HETEROGENEOUS:
        return HETEROGENEOUS[name](), hetero_data(), None
    make, extra = MODELS[name]
    inputs = graph_inputs(*(e for e in extra if e != "sorted"))
    if "sorted" in extra:
        inputs["edge_index"] = inputs["edge_index"][:, inputs["edge_index"][1].argsort(stable=True)]
    given = {name: name if name != "edge_label_index" else inputs[name] for name in inputs}
    return make().eval(), Data(**inputs), given


def draws(model: nn.Module, data: Any, given: Any) -> bool:
    """Whether a forward draws random numbers."""
    states = torch.get_rng_state(), random.getstate()
    inference(copy.deepcopy(model), data, given)
    return not (torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate())


def differing(names: list[str], folder: Path, **arguments: Any) -> list[str]:
    """Return what is wrong with the results of this rank."""
    problems = []
    for i, name in enumerate(names):
        model, data, given = case(name)
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)  # PyG leaves a parameter of RGAT uninitialised
        alone = copy.deepcopy(model)
        expected = tensors(
            inference(alone, data, given, num_workers=1, dtype=arguments.get("dtype"))
        )
        out = folder / f"{i}.npy"
        found = tensors(
            inference(model, data, given, out=out, split_by_rank=True, num_workers=1, **arguments)
        )
        same = [torch.equal(a, b) for a, b in zip(found, expected, strict=True)]
        if not (all(same) or draws(model, data, given)):
            problems.append(f"{name}: {same}")
        if dist.get_rank() == 0 and list(folder.glob("*.partial")):
            problems.append(f"{name}: left files")
    return problems


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_results_have_the_bits_of_one_process(ranks: int, tmp_path: Path) -> None:
    names = [n for n in MODELS if not n.startswith("layer-")][:4] + SOME + list(HETEROGENEOUS)
    assert run_ranks(ranks, lambda rank: differing(names, tmp_path), tmp_path) == [[]] * ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "step", "arguments"), [(2, 1, {}), (3, 2, {"resume": True, "dtype": torch.bfloat16})]
)
@pytest.mark.filterwarnings("ignore")
def test_inference_of_ranks_equals_that_of_one_process_for_all_models(
    ranks: int, step: int, arguments: dict[str, Any], tmp_path: Path
) -> None:
    names = [*MODELS, *HETEROGENEOUS][::step]
    wrong = run_ranks(
        ranks, lambda rank: differing(names, tmp_path, **arguments), tmp_path, seconds=280
    )
    assert wrong == [[]] * ranks


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(400, WIDTH, generator=generator),
        edge_index=torch.randint(400, (2, 3000), generator=generator),
    )


def sage(num_layers: int = 2) -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(WIDTH, WIDTH, num_layers=num_layers, out_channels=OUT)


def together(rank: int, folder: Path) -> dict[str, bool]:
    """Return which combinations give the numbers of one process."""
    torch.manual_seed(rank)
    data, model = graph(), sage()
    expected = inference(model, data)
    ranked: dict[str, Any] = {"out": folder / "out.npy", "split_by_rank": True, "num_workers": 2}
    loader = pyg_direct.NeighborLoader(data, [3, 3], batch_size=20, split_by_rank=True)
    found = {
        "DDP": inference(DistributedDataParallel(model), data, ("x", "edge_index"), **ranked),
        "accelerate": inference(pyg_direct.accelerate(sage(), loader), data, **ranked),
        "group": inference(model, data, **{**ranked, "split_by_rank": dist.group.WORLD}),
        "limited": inference(model, data, memory_bytes=200 << 20, **ranked),
        "opened": inference(model, pyg_direct.open(folder / "saved"), **ranked),
        "shared": inference(model, pyg_direct.share(graph), **ranked),
        "progress": inference(model, data, progress=True, **ranked),
    }
    close = {name: torch.equal(value, expected) for name, value in found.items()}
    dist.barrier()
    close["file"] = np.array_equal(np.load(folder / "out.npy"), expected.numpy())
    before = torch.get_rng_state()
    draws = inference(Drawing(), data, **ranked)
    close["draws"] = len(set(draws.flatten().tolist())) == draws.numel()
    # Of a rank behind the first, the draws before and after a run are its own.
    close["own draws"] = (rank > 0) == torch.equal(before, torch.get_rng_state())
    said: list[Any] = [None, None]
    dist.all_gather_object(said, draws)
    close["equal draws"] = torch.equal(said[0], said[1])
    return close


class Drawing(nn.Module):
    """Draws a row of numbers for each node."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0 + torch.rand(x.shape)


@pytest.mark.filterwarnings("ignore")
def test_inference_of_ranks_takes_all_other_options(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pyg_direct.save(graph(), tmp_path / "saved")
    for rank, found in enumerate(run_ranks(2, lambda rank: together(rank, tmp_path), tmp_path)):
        assert found == dict.fromkeys(found, True), rank
    assert capfd.readouterr().err.count("Inference: ") > 0


class Failing(nn.Module):
    """Fails in the second of two layers, in a block of rows, on one rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.model, self.rank = sage(), rank

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(x, edge_index)
        float(found.sum())
        if dist.get_rank() == self.rank:
            raise ZeroDivisionError("planted")
        return found + 1


class Different(nn.Module):
    """Needs all rows of something on one rank only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            return x.relu().cumsum(0)
        return x.sigmoid() @ torch.ones(WIDTH, 3)


def refused(rank: int, folder: Path) -> list[str]:
    """Return the messages of what must fail, on all ranks and at once."""
    data, other = graph(), graph()
    if rank == 1:
        other.x[0, 0] += 1
    torch.manual_seed(rank)
    unequal = GraphSAGE(WIDTH, WIDTH, num_layers=1)
    ranked: dict[str, Any] = {"split_by_rank": True, "out": folder / "out.npy"}
    calls: list[Any] = [
        lambda: inference(sage(), data, split_by_rank=True),
        lambda: inference(unequal, data, **ranked),
        lambda: inference(sage(), other, **ranked),
        lambda: inference(sage(), data, num_workers=1 + rank, **ranked),
        lambda: inference(Failing(0), data, **ranked),
        lambda: inference(Failing(1), data, **ranked),
        lambda: inference(Different(), data, **ranked),
        lambda: inference(sage(), data, num_workers=1 - rank, **ranked),
        lambda: inference(sage(), data, **{**ranked, "out": folder / "theirs.npy"}),
        lambda: inference(sage(), data, **{**ranked, "split_by_rank": 2}),
    ]
    messages = []
    for call in calls:
        try:
            call()
        except (RuntimeError, ValueError, TypeError, ZeroDivisionError) as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("no error")
    return messages


def test_a_failure_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    (tmp_path / "theirs.npy.partial").mkdir()
    (tmp_path / "theirs.npy.partial" / "precious").touch()
    first, second = run_ranks(2, lambda rank: refused(rank, tmp_path), tmp_path)
    expected = [
        ("ValueError: split_by_rank= needs out=", None),
        ("ValueError: Ranks call inference() with different arguments: model of rank 1", None),
        ("ValueError: Ranks call inference() with different arguments: x of rank 1", None),
        (
            "ValueError: Ranks call inference() with different arguments: num_workers of rank 1",
            None,
        ),
        ("ZeroDivisionError: planted", "RuntimeError: Rank 0 failed: ZeroDivisionError: planted"),
        ("RuntimeError: Rank 1 failed: ZeroDivisionError: planted", "ZeroDivisionError: planted"),
        ("RuntimeError: Ranks compute different things: rank 1 is at", "RuntimeError: Ranks compu"),
        ("RuntimeError: Rank 1 failed: ValueError: num_workers", "ValueError: num_workers"),
        ("ValueError: ", "RuntimeError: Rank 0 failed: ValueError: "),
        ("TypeError: split_by_rank must be True, False or", None),
    ]
    for one, other, (here, there) in zip(first, second, expected, strict=True):
        assert one.startswith(here), one
        assert other.startswith(there or here), other
    assert (tmp_path / "theirs.npy.partial" / "precious").exists()
    assert not (tmp_path / "out.npy.partial").exists()


def resumed(rank: int, folder: Path, kill_at: int | None) -> tuple[int, bool]:
    """Return how many blocks this rank wrote, and whether the result is that of one process."""
    blocks, write = 0, SharedRows.write

    def counted(self: SharedRows, first: int, rows: torch.Tensor) -> None:
        nonlocal blocks
        blocks += 1
        if blocks == kill_at and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, first, rows)

    with patch.object(SharedRows, "write", counted):
        found = inference(
            sage(6), graph(), out=folder / "out.npy", resume=True, split_by_rank=True, num_workers=1
        )
    return blocks, torch.equal(found, inference(sage(6), graph()))


def test_inference_of_ranks_resumes_after_one_was_killed(tmp_path: Path) -> None:
    meetings = [tmp_path / name for name in ("all", "killed", "rest")]
    for meeting in meetings:
        meeting.mkdir()
    whole = run_ranks(2, lambda rank: resumed(rank, tmp_path, None), meetings[0])
    blocks = sum(count for count, _ in whole)
    with pytest.raises(
        AssertionError, match=r"rank 0: (.|\n)*RuntimeError(.|\n)*rank 1 ended with -9"
    ):
        run_ranks(2, lambda rank: resumed(rank, tmp_path, blocks // 3), meetings[1])
    journal = (tmp_path / "out.npy.partial" / "layers_of_inference").read_text()
    assert len(json.loads(journal)["steps"]) > 1
    rest = run_ranks(3, lambda rank: resumed(rank, tmp_path, None), meetings[2])
    assert 0 < sum(count for count, _ in rest) < blocks / 2
    assert all(same for _, same in [*whole, *rest])
    assert not (tmp_path / "out.npy.partial").exists()
