"""Files, budgets, and going on after an interruption."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from models import HETEROGENEOUS, HOMOGENEOUS, basic, graph_inputs, hetero_data
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from pyg_direct import inference
from pyg_direct.models import engine, schedule
from pyg_direct.models import inference as module
from pyg_direct.models import store as store_module
from pyg_direct.models.store import Store, checksum_of

pytestmark = pytest.mark.filterwarnings("ignore:.*in-edges at once")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def many_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(schedule, "MIN_ROWS", 4)


def problem(**kwargs):
    torch.manual_seed(7)
    return basic(GraphSAGE, 3, **kwargs)(), Data(**graph_inputs())


class TestFiles:
    def test_one_tensor(self, tmp_path):
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
        interrupt(monkeypatch, 2)
        with pytest.raises(RuntimeError, match="interrupted"):
            inference(model, data, out=tmp_path / "emb.npy")
        assert list(tmp_path.iterdir()) == []


class TestBudget:
    def plan(self, memory_bytes, **kwargs):
        model, data = problem()
        plans = []

        class Seen(module.Plan):
            def run(self):
                plans.append(self)
                return super().run()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "Plan", Seen)
            found = inference(model, data, memory_bytes=memory_bytes, num_workers=1, **kwargs)
        assert torch.equal(found, inference(model, data))
        return plans[0].schedule

    def test_layers_in_memory(self):
        plan = self.plan(512 << 20)
        assert not any(t.in_file for t in plan.tables.values())
        two_layers = 2 * 60 * 16 * 4
        assert plan.peak(in_file=False) == two_layers
        assert plan.in_memory_bytes <= 512 << 20

    def test_layers_in_files(self, monkeypatch):
        monkeypatch.setattr(module, "MIN_BLOCK_BYTES", 1 << 11)
        for name in ("THREAD_BYTES", "RUN_BYTES"):
            monkeypatch.setattr(schedule, name, 0)
        plan = self.plan(9000)
        assert all(t.in_file for t in plan.tables.values())
        assert plan.in_memory_bytes <= 9000
        assert plan.peak(in_file=True) == 2 * 60 * 16 * 4

    def test_what_it_says(self):
        text = str(self.plan(512 << 20))
        assert "3 phases" in text
        assert "convs.2 (reduced)" in text

    def test_skips_are_kept_as_long_as_they_are_read(self):
        plan = self.plan_of("sage-jk-cat")
        layer = 60 * 16 * 4
        assert plan.peak(in_file=False) == 2 * layer + 60 * 4 * 4

    def plan_of(self, name):
        make, extra = HOMOGENEOUS[name]
        inputs = graph_inputs(*extra)
        arguments = {"x": inputs["x"], "edge_index": None}
        graph = module.graph_of(Data(**inputs))
        options = module.Options(None, None, 1, False, False)
        with torch.no_grad():
            return module.Plan(make().eval(), graph, arguments, options, None).schedule


def interrupt(monkeypatch, after):
    """Let the computation fail after some blocks."""
    computed, count = engine.computed, []

    def failing(block, phase):
        count.append(None)
        if len(count) > after:
            raise RuntimeError("interrupted")
        return computed(block, phase)

    monkeypatch.setattr(engine, "computed", failing)
    return count


class TestResume:
    @pytest.mark.parametrize("after", [0, 1, 14, 29, 43])
    def test_same_result(self, after, tmp_path, monkeypatch, many_blocks):
        model, data = problem(jk="cat")
        expected, out = inference(model, data), tmp_path / "emb.npy"
        with monkeypatch.context() as patch:
            interrupt(patch, after)
            with pytest.raises(RuntimeError, match="interrupted"):
                inference(model, data, out=out, resume=True, num_workers=1)
        assert not out.exists()
        marks = np.load(tmp_path / "emb.npy.partial" / "finished.npy")
        finished = int(marks.sum())
        assert finished <= after
        with monkeypatch.context() as patch:
            count = interrupt(patch, 10**9)
            found = inference(model, data, out=out, resume=True, num_workers=2)
        assert torch.equal(found, expected)
        assert len(count) == len(marks) - finished
        assert [p.name for p in tmp_path.iterdir()] == ["emb.npy"]

    @pytest.mark.parametrize("change", ["model", "features", "edges", "dtype"])
    def test_another_run_is_refused(self, change, tmp_path, monkeypatch, many_blocks):
        model, data = problem()
        options = {"out": tmp_path / "emb.npy", "resume": True}
        with monkeypatch.context() as patch:
            interrupt(patch, 5)
            with pytest.raises(RuntimeError, match="interrupted"):
                inference(model, data, **options)
        if change == "model":
            next(model.parameters()).data[0, 0] += 1
        elif change == "features":
            data.x[-1, -1] += 1
        elif change == "edges":
            data.edge_index[0, 3] = (data.edge_index[0, 3] + 1) % 60
        else:
            options["dtype"] = torch.bfloat16
        with pytest.raises(ValueError, match="cannot be resumed"):
            inference(model, data, **options)
        del options["resume"]
        expected = inference(model, data, dtype=options.get("dtype"))
        assert torch.equal(inference(model, data, **options), expected)

    def test_a_stale_block_would_be_noticed(self, tmp_path, monkeypatch, many_blocks):
        """A planted fault: rows of another run, marked as finished."""
        model, data = problem()
        expected, out = inference(model, data), tmp_path / "emb.npy"
        with monkeypatch.context() as patch:
            interrupt(patch, 5)
            with pytest.raises(RuntimeError, match="interrupted"):
                inference(model, data, out=out, resume=True, num_workers=1)
        marks = np.load(tmp_path / "emb.npy.partial" / "finished.npy", mmap_mode="r+")
        marks[: marks.sum() + 4] = 1
        del marks
        assert not torch.equal(inference(model, data, out=out, resume=True), expected)

    def test_stopped_when_the_results_have_moved(self, tmp_path, monkeypatch):
        """Nothing is left to be done, but for removing the folder."""
        model, data = problem()
        expected, out = inference(model, data), tmp_path / "emb.npy"
        with monkeypatch.context() as patch:
            patch.setattr(Store, "close", lambda self: None)
            inference(model, data, out=out, resume=True)
        assert (tmp_path / "emb.npy.partial").exists()
        found = inference(model, data, out=out, resume=True)
        assert torch.equal(found, expected)
        assert [p.name for p in tmp_path.iterdir()] == ["emb.npy"]

    def test_a_folder_without_state_is_begun_anew(self, tmp_path):
        model, data = problem()
        folder = tmp_path / "emb.npy.partial"
        folder.mkdir()
        (folder / "finished.npy").write_text("half a file")
        found = inference(model, data, out=tmp_path / "emb.npy", resume=True)
        assert torch.equal(found, inference(model, data))


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
    assert int(done.stdout) >= 10
    assert killed.read_bytes() == alone.read_bytes()


class TestStore:
    def test_checksum(self):
        table = torch.arange(6.0).view(2, 3)
        base = checksum_of({"a": table, "b": 1})
        assert checksum_of({"b": 1, "a": table.clone()}) == base
        assert checksum_of({"a": table.view(3, 2), "b": 1}) != base
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

    def test_stand_ins_for_edges_are_not_checked(self, tmp_path, monkeypatch):
        checked = {}
        monkeypatch.setattr(module, "checksum_of", lambda values: checked.update(values) or 0)
        data = Data(x=torch.randn(50, 4), edge_index=torch.randint(50, (2, 200)))
        inference(GraphSAGE(4, 4, 2), data, out=tmp_path / "out.npy", resume=True)
        assert {"x", "indices"} <= set(checked)
        assert "edge_index" not in checked

    def test_bfloat16_tables(self, tmp_path):
        store = Store(tmp_path / "s", 1, 3, False)
        table = store.in_file("t", (4, 2), torch.bfloat16)
        table[:] = 1.5
        assert store.in_file("t", (4, 2), torch.bfloat16).dtype == torch.bfloat16
        assert json.loads((tmp_path / "s" / "state.json").read_text())["tasks"] == 3
        store.close()
        assert not (tmp_path / "s").exists()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["GraphSAGE", "GAT"])
@pytest.mark.parametrize("memory_bytes", [None, 150_000_000])
def test_memory_is_what_was_stated(model, memory_bytes, tmp_path):
    """Anonymous memory of a process, with layers in memory and in files."""
    program = Path(__file__).parents[2] / "support" / "limited_inference.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYG_DIRECT_DEVICE": "cpu"}
    limit, folder = (str(memory_bytes), str(tmp_path)) if memory_bytes else ("", "")
    done = subprocess.run(
        [sys.executable, str(program), model, limit, folder],
        env=environment, capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert 10 << 20 < found["peak"] <= found["stated"], found
    if memory_bytes:
        assert found["stated"] <= memory_bytes
