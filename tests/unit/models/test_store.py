"""Files, budgets, and going on after an interruption."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import HETEROGENEOUS, basic, graph_inputs, hetero_data
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GraphSAGE

from pyg_direct import inference
from pyg_direct.models.inference import executor
from pyg_direct.models.inference import executor as store_module
from pyg_direct.models.inference import inference as inference_module
from pyg_direct.models.inference.executor import checksum_of

ROOT = Path(__file__).parents[3]


def problem(**kwargs):
    torch.manual_seed(7)
    return basic(GraphSAGE, 3, **kwargs)(), Data(**graph_inputs())


class TestFiles:
    def test_an_output_of_one_tensor_is_written_as_one_file(self, tmp_path):
        model, data = problem()
        found = inference(model, data, out=tmp_path / "emb.npy")
        assert torch.equal(found, inference(model, data))
        assert np.array_equal(np.load(tmp_path / "emb.npy"), found.numpy())
        assert sorted(p.name for p in tmp_path.iterdir()) == ["emb.npy"]

    def test_an_older_result_is_replaced(self, tmp_path):
        model, data = problem()
        (tmp_path / "emb.npy").write_text("something else")
        inference(model, data, out=str(tmp_path / "emb.npy"))
        assert np.load(tmp_path / "emb.npy").shape == (60, 4)

    def test_a_dict_goes_to_several_files(self, tmp_path):
        model = HETEROGENEOUS["hgt"]()
        found = inference(model, hetero_data(), out=tmp_path / "emb.npy")
        assert [p.name for p in tmp_path.iterdir()] == ["emb.paper.npy"]
        assert torch.equal(torch.from_numpy(np.load(tmp_path / "emb.paper.npy")), found["paper"])

    def test_a_failed_run_leaves_nothing(self, tmp_path, monkeypatch):
        model, data = problem()
        interrupt(monkeypatch, 1)
        with pytest.raises(RuntimeError, match="interrupted"):
            inference(model, data, out=tmp_path / "emb.npy")
        assert list(tmp_path.iterdir()) == []


@pytest.fixture
def made(monkeypatch):
    """Collect the tables that are made: (shape, dtype, whether they lie in a file)."""
    found, new = [], executor.Executor._new

    def noted(self, shape, dtype, path):
        held = self.budget.held
        table = new(self, shape, dtype, path)
        found.append((tuple(shape), dtype, self.budget.held == held))
        return table

    monkeypatch.setattr(executor.Executor, "_new", noted)
    return found


def test_ranks_are_told_of_an_error_before_their_folder_is_removed(tmp_path):
    """Else a rank that reads there fails by a file that is gone, and names no cause."""
    folder, at = tmp_path / "emb.npy.partial", []

    @contextmanager
    def telling():
        try:
            yield
        except ZeroDivisionError:
            at.append(folder.exists())
            raise

    ranks = SimpleNamespace(rank=0, from_first=lambda step, make: make(), telling=telling)
    with pytest.raises(ZeroDivisionError), inference_module._open(ranks, folder, False):
        raise ZeroDivisionError
    assert at == [True]
    assert not folder.exists()


class TestBudget:
    def test_layers_in_memory(self, made):
        model, data = problem()
        inference(model, data, memory_bytes=512 << 20, num_workers=1)
        assert [shape for shape, _, _ in made] == [(60, 16), (60, 16), (60, 4), (60, 4)]
        assert not any(in_file for _, _, in_file in made)

    def test_layers_in_files(self, monkeypatch, made):
        monkeypatch.setattr(executor, "MIN_BLOCK_BYTES", 1 << 8)
        monkeypatch.setattr(executor, "RUN_BYTES", 0)
        model, data = problem()
        found = inference(model, data, memory_bytes=9000, num_workers=1)
        assert any(in_file for _, _, in_file in made)
        torch.testing.assert_close(found, inference(model, data), rtol=1e-5, atol=1e-6)

    def test_weights_of_edges_are_counted(self, monkeypatch):
        monkeypatch.setattr(executor, "RUN_BYTES", 0)
        monkeypatch.setattr(executor, "MIN_BLOCK_BYTES", 1 << 8)
        edge_index = torch.zeros(2, 300_000, dtype=torch.long)
        data = Data(x=torch.randn(60, 4), edge_index=edge_index, edge_weight=torch.rand(300_000))
        options = {"inputs": ("x", "edge_index", "edge_weight"), "certify": False}
        with pytest.raises(ValueError, match="a tensor with an entry for each edge"):
            inference(GCN(4, 4, 1), data, memory_bytes=1 << 20, num_workers=1, **options)

    def test_an_operation_that_needs_all_rows_is_named(self, monkeypatch):
        monkeypatch.setattr(executor, "RUN_BYTES", 0)
        data = Data(**graph_inputs())
        data.x = torch.randn(60, 12_000)
        with pytest.raises(ValueError, match=r"aten.sort.default, which needs all rows at a time"):
            inference(Sorted(), data, memory_bytes=7 << 20, num_workers=1)

    def test_sums_in_place_take_no_memory_for_all_messages(self, monkeypatch):
        monkeypatch.setattr(executor, "RUN_BYTES", 0)
        data = Data(**graph_inputs())
        data.x = torch.randn(60, 12_000)
        messages_bytes = data.num_edges * data.x.nbytes // 60
        found = inference(SummedInPlace(), data, memory_bytes=messages_bytes, num_workers=1)
        torch.testing.assert_close(found, SummedInPlace()(data.x, data.edge_index))

    def test_narrow_layers_are_stored_narrow_but_for_the_last(self, made):
        model, data = problem()
        inference(model, data, dtype=torch.bfloat16, certify=False)
        kinds = [dtype for _, dtype, _ in made]
        assert kinds == [torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32]


class Sorted(torch.nn.Module):
    def forward(self, x, edge_index):
        return (x + 1).sort(dim=0).values


class SummedInPlace(torch.nn.Module):
    def forward(self, x, edge_index):
        source, target = edge_index
        return torch.zeros(60, 12_000).index_add_(0, target, (x + 1)[source])  # a plain tensor


def interrupt(monkeypatch, after):
    """Let the computation fail after some tables."""
    complete, count = executor.Executor._compute, []

    def failing(self, *arguments):
        if len(count) >= after:
            raise RuntimeError("interrupted")
        complete(self, *arguments)
        count.append(None)

    monkeypatch.setattr(executor.Executor, "_compute", failing)
    return count


class TestResume:
    @pytest.mark.parametrize("after", [0, 1, 2])
    def test_an_interrupted_inference_resumes_to_the_same_result(
        self, after, tmp_path, monkeypatch
    ):
        model, data = problem(jk="cat")
        expected, out = inference(model, data), tmp_path / "emb.npy"
        options = {"out": out, "resume": True, "num_workers": 1}
        with monkeypatch.context() as patch:
            interrupt(patch, after)
            with pytest.raises(RuntimeError, match="interrupted"):
                inference(model, data, **options)
        assert not out.exists()
        with monkeypatch.context() as patch:
            count = interrupt(patch, 10**9)
            found = inference(model, data, **options)
        assert torch.equal(found, expected)
        with monkeypatch.context() as patch:
            whole = interrupt(patch, 10**9)
            inference(model, data, **options)
        assert len(count) == len(whole) - after
        assert [p.name for p in tmp_path.iterdir()] == ["emb.npy"]

    @pytest.mark.parametrize(
        "change", ["last layer", "first layer", "features", "edges", "dtype", "code", "attribute"]
    )
    def test_a_changed_model_or_input_is_computed_again(self, change, tmp_path, monkeypatch):
        """Tables are known by their operations and inputs, not by what the model is called."""
        model, data = problem()
        options = {"out": tmp_path / "emb.npy", "resume": True, "certify": False}
        with monkeypatch.context() as patch:
            interrupt(patch, 2)
            with pytest.raises(RuntimeError, match="interrupted"):
                inference(model, data, **options)
        if change == "last layer":
            model.convs[-1].lin_l.weight.data[0, 0] += 1
        elif change == "first layer":
            next(model.parameters()).data[0, 0] += 1
        elif change == "features":
            data.x[-1, -1] += 1
        elif change == "edges":
            data.edge_index[0, 3] = (data.edge_index[0, 3] + 1) % 60
        elif change == "code":
            model.act = torch.nn.Tanh()
        elif change == "attribute":
            model.convs[0].normalize = True
        else:
            options["dtype"] = torch.bfloat16
        expected = inference(model, data, dtype=options.get("dtype"))
        with monkeypatch.context() as patch:
            count = interrupt(patch, 10**9)
            assert torch.equal(inference(model, data, **options), expected)
        # Of the last layer, products before the sums and the result.
        assert len(count) == (2 if change == "last layer" else 4)

    def test_a_stale_table_would_be_noticed(self, tmp_path, monkeypatch):
        """A planted fault: a file that holds something else."""
        model, data = problem()
        expected, out = inference(model, data), tmp_path / "emb.npy"
        with monkeypatch.context() as patch:
            interrupt(patch, 2)
            with pytest.raises(RuntimeError, match="interrupted"):
                inference(model, data, out=out, resume=True)
        for path in (tmp_path / "emb.npy.partial").glob("*.npy"):
            np.load(path, mmap_mode="r+")[:] = 3
        with pytest.raises(RuntimeError, match="its outputs differ"):
            inference(model, data, out=out, resume=True)
        found = inference(model, data, out=out, resume=True, certify=False)
        assert not torch.equal(found, expected)

    def test_a_damaged_file_is_made_again(self, tmp_path, monkeypatch):
        model, data = problem()
        expected, out = inference(model, data), tmp_path / "emb.npy"
        with monkeypatch.context() as patch:
            interrupt(patch, 2)
            with pytest.raises(RuntimeError, match="interrupted"):
                inference(model, data, out=out, resume=True)
        for path in (tmp_path / "emb.npy.partial").glob("*.npy"):
            path.write_bytes(path.read_bytes()[:50])
        assert torch.equal(inference(model, data, out=out, resume=True), expected)


@pytest.mark.slow
def test_sigkill_at_any_moment(tmp_path):
    """A process that is killed again and again ends with the file of one that was left alone."""
    program = Path(__file__).parents[2] / "support" / "killed_inference.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYG_DIRECT_DEVICE": "cpu"}
    alone, killed = tmp_path / "alone.npy", tmp_path / "killed.npy"
    done = subprocess.run(
        [sys.executable, str(program), str(alone), str(killed)],
        env=environment, capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    assert int(done.stdout) >= 4
    assert killed.read_bytes() == alone.read_bytes()


class TestStore:
    def test_the_checksum_depends_on_values_shapes_dtypes_and_names(self):
        table = torch.arange(6.0).view(2, 3)
        base = checksum_of({"a": table, "b": 1})
        assert checksum_of({"b": 1, "a": table.clone()}) == base
        assert checksum_of({"a": table.view(3, 2), "b": 1}) != base
        assert checksum_of({"a": table.view(torch.int32), "b": 1}) != base
        assert checksum_of({"a": table, "b": 2}) != base
        assert checksum_of({"a": table.double(), "b": 1}) != base
        assert checksum_of({"a": np.arange(3), "e": torch.empty(0)}) > 0

    @pytest.mark.parametrize("step_bytes", [1, 24, 1 << 24])
    def test_checksum_in_pieces(self, monkeypatch, step_bytes):
        monkeypatch.setattr(store_module, "STEP_BYTES", step_bytes)
        whole = torch.arange(60.0).view(5, 3, 4)
        for table in (whole, whole[:, :, ::2], whole.transpose(0, 2), whole[1:, 0, 1], whole[0, 0]):
            pieces = list(store_module.pieces_of(table))
            assert all(piece.nbytes <= max(step_bytes, 4) for piece in pieces)
            assert b"".join(map(bytes, pieces)) == table.numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "memory_bytes", "degree"),
    [
        ("GraphSAGE", None, 15),
        ("GAT", None, 15),
        ("GraphSAGE", 150_000_000, 15),
        ("GAT", 150_000_000, 15),
        ("GraphSAGE", 200_000_000, 100),  # GAT makes a list of its own, with loops
    ],
)
def test_memory_is_what_was_stated(model, memory_bytes, degree, tmp_path):
    """Anonymous memory of a process, with layers in memory and in files; many edges in a file."""
    program = Path(__file__).parents[2] / "support" / "limited_inference.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYG_DIRECT_DEVICE": "cpu"}
    limit, folder = (str(memory_bytes), str(tmp_path)) if memory_bytes else ("", "")
    done = subprocess.run(
        [sys.executable, str(program), model, limit, folder, str(degree)],
        env=environment, capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert 10 << 20 < found["peak"] <= (memory_bytes or 300_000_000), found
