"""`inference(resume=True)`: after an interruption, with the same run or with another one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv, SAGEConv

from pyg_direct import inference
from pyg_direct.models.inference import executor
from pyg_direct.models.inference.executor import Executor, Limits, key_of
from pyg_direct.models.inference.run import InferenceRun
from pyg_direct.ops.devices import backend_for

ROOT = Path(__file__).parents[3]
LARGE = 30  # rows; calls with fewer are trials


def scaled(h, factor):
    return h * factor


class Layers(torch.nn.Module):
    """Two layers, and between them what can differ without parameters that do."""

    def __init__(self, factor=0.7, aggr="mean", act=torch.relu, limit=0.6):
        super().__init__()
        self.first = GraphConv(6, 16, aggr=aggr)
        self.second = SAGEConv(16, 4)
        self.act, self.factor, self.limit = act, factor, limit
        self.after_first, self.after_second = Stop(), Stop()
        self.shift = Shift()

    def forward(self, x, edge_index):
        h = self.after_first(self.first(x, edge_index))
        h = scaled(self.act(h), self.factor).clamp(max=self.limit)
        h = self.shift(h)
        return self.after_second(self.second(h, edge_index))


class Shift(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = torch.full((16,), 0.5)
        self.register_buffer("kept", torch.tensor([0.0, 1.0]), persistent=False)

    def forward(self, h):
        return h + self.plain * self.kept[1]


class Stop(torch.nn.Module):
    """Fails at the first call with many rows, if that is wanted."""

    armed = False

    def forward(self, h):
        if self.armed and h.size(0) > LARGE:
            raise RuntimeError("interrupted")
        return h


def model(**options):
    torch.manual_seed(3)
    return Layers(**options)


def data():
    torch.manual_seed(4)
    return Data(x=torch.randn(300, 6), edge_index=torch.randint(300, (2, 1500)))


def interrupted(out, **options):
    """Compute the first layer."""
    found = model(**options)
    found.after_second.armed = True
    with pytest.raises(RuntimeError, match="interrupted"):
        inference(found, data(), out=out, resume=True, num_workers=1)


def assert_right(found, expected):
    with torch.no_grad():
        whole = expected.eval()(data().x, data().edge_index)
    assert torch.allclose(found, whole, atol=1e-5)


def assert_refused_or_right(other, out):
    """Go on with another model: not with the rows of the first one."""
    refused, found = None, None
    try:
        found = inference(other, data(), out=out, resume=True)
    except ValueError as error:
        refused = str(error)
    if refused is None:
        assert_right(found, other)
    else:
        assert "resume" in refused


OTHERS = {
    "aggregation": {"aggr": "max"},
    "activation": {"act": torch.nn.functional.elu},
    "constant": {"factor": 0.8},
    "rare-constant": {"limit": 1e4},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_with_the_same_parameters(tmp_path, name) -> None:
    interrupted(tmp_path / "out.npy")
    assert_refused_or_right(model(**OTHERS[name]), tmp_path / "out.npy")


@pytest.mark.parametrize("name", ["plain", "kept"])
def test_changed_tensors_outside_the_state_dict_give_no_wrong_resume(tmp_path, name) -> None:
    interrupted(tmp_path / "out.npy")
    other = model()
    getattr(other.shift, name)[1] += 1
    assert_refused_or_right(other, tmp_path / "out.npy")


def test_a_changed_function_of_the_forward_gives_no_wrong_resume(tmp_path, monkeypatch) -> None:
    interrupted(tmp_path / "out.npy")
    monkeypatch.setitem(globals(), "scaled", lambda h, factor: h * (2 * factor))
    assert_refused_or_right(model(), tmp_path / "out.npy")


ROWS = torch.linspace(0, 1, 24).view(12, 2)
LISTS = torch.arange(12) % 5, torch.arange(12) % 3


def reduced(h, index, reduce="amax", include=True):
    index = index.view(-1, 1).expand(-1, 2)
    return torch.zeros_like(h).scatter_reduce(0, index, h.sin(), reduce, include_self=include)


HOLD = [
    lambda h: h,
    lambda h: h + 1,
    lambda h: torch.aminmax(h, dim=1)[0],
    lambda h: torch.aminmax(h, dim=1)[1],
    lambda h: h[1:9],
    lambda h: h[2:10],
    lambda h: h[LISTS[0]],
    lambda h: h[LISTS[1]],
    lambda h: reduced(h, LISTS[0]),
    lambda h: reduced(h, LISTS[1]),
    lambda h: reduced(h, LISTS[0], "amin"),
    lambda h: reduced(h, LISTS[0], include=False),
]


def test_values_of_other_inputs_have_other_keys() -> None:
    names = set()
    for rows in (ROWS, ROWS + 1, ROWS.double()):
        for make in HOLD:
            run = InferenceRun(Executor(backend_for(torch.device("cpu")), Limits(1)))
            names.add(key_of(make(run.wrap(run.saved.leaf(rows, 0))).node))
    assert len(names) == 3 * len(HOLD)


def computed(out):
    """Go on, and return how many tables were computed."""
    compute, count = executor.Executor._compute, []

    def counted(self, *arguments):
        count.append(None)
        compute(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor.Executor, "_compute", counted)
        assert_right(inference(model(), data(), out=out, resume=True), model())
    return len(count)


def test_an_interrupted_inference_computes_only_the_rest(tmp_path) -> None:
    assert computed(tmp_path / "other.npy") == 3  # layers, and products before the last sums
    interrupted(tmp_path / "out.npy")
    assert computed(tmp_path / "out.npy") == 1
    assert not (tmp_path / "out.npy.partial").exists()


def test_another_process_goes_on(tmp_path) -> None:
    """What a model computes has the same name in each process."""
    program = (
        "import json, sys, test_resuming_inference as t\n"
        "print(json.dumps(t.computed(sys.argv[1])))\n"
    )
    interrupted(tmp_path / "out.npy")
    folders = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out.npy")],
        env={**os.environ, "PYTHONPATH": folders, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert json.loads(done.stdout) == 1


def tables(out):
    """Return the files of layers of an interrupted run."""
    return [p for p in Path(f"{out}.partial").glob("*.npy") if p.stat().st_size > 4 * 300 * 4]


@pytest.mark.parametrize("damage", ["deleted", "cut", "emptied", "other-shape"])
def test_a_damaged_folder(tmp_path, damage) -> None:
    out = tmp_path / "out.npy"
    interrupted(out)
    assert tables(out)
    for path in tables(out):
        if damage == "deleted":
            path.unlink()
        elif damage == "cut":
            os.truncate(path, path.stat().st_size // 2)
        elif damage == "emptied":
            os.truncate(path, 0)
        elif damage == "other-shape":
            content = path.read_bytes().replace(b"(300, ", b"(150, ", 1)
            path.write_bytes(content)
    assert_refused_or_right(model(), out)
    assert_right(inference(model(), data(), out=out), model())


def test_a_damaged_journal_is_named(tmp_path) -> None:
    out, journal = tmp_path / "out.npy", tmp_path / "out.npy.partial" / "layers_of_inference"
    interrupted(out)
    for text in (journal.read_text()[:-5], "", "[1]"):
        journal.write_text(text)
        with pytest.raises(
            ValueError, match=r"layers_of_inference is damaged .*or remove .*\.part"
        ):
            inference(model(), data(), out=out, resume=True)
    assert_right(inference(model(), data(), out=out), model())  # begins anew
    assert os.listdir(tmp_path) == ["out.npy"]


@pytest.mark.parametrize("resume", [False, True])
def test_files_of_others_in_the_folder_of_a_run_stay(tmp_path, resume) -> None:
    out, folder = tmp_path / "out.npy", tmp_path / "out.npy.partial"
    interrupted(out)
    before = {path.name for path in folder.iterdir()}
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds 'thesis.txt', which no inference wrote"):
        inference(model(), data(), out=out, resume=resume)
    assert {path.name for path in folder.iterdir()} == {*before, "thesis.txt"}
    (folder / "thesis.txt").unlink()
    net = model()

    def write(*_) -> None:
        (folder / "thesis.txt").write_text("mine")

    net.after_second.register_forward_hook(write)
    assert_right(inference(net, data(), out=out, resume=resume, certify=False), model())
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_two_processes_do_not_compute_in_one_folder(tmp_path) -> None:
    out, net, told = tmp_path / "out.npy", model(), []

    def again(*_) -> None:
        with pytest.raises(BlockingIOError, match=r"Another process is at work in .*partial"):
            inference(model(), data(), out=out, resume=True)
        told.append(True)

    net.after_second.register_forward_hook(again)
    inference(net, data(), out=out, resume=True, certify=False)
    assert told


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("kind", ["folder", "file", "link", "state-of-others"])
def test_a_folder_of_others_is_left_alone(tmp_path, kind, resume) -> None:
    theirs = tmp_path / "emb.npy.partial"
    if kind == "file":
        theirs.write_text("mine")
    else:
        folder = tmp_path / "elsewhere" if kind == "link" else theirs
        folder.mkdir()
        (folder / ("state.json" if kind == "state-of-others" else "notes")).write_text("[1]")
        if kind == "link":
            theirs.symlink_to(folder)
    before = sorted((p, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file())
    with pytest.raises(ValueError, match=r"emb\.npy\.partial is not from .*Move it"):
        inference(model(), data(), out=tmp_path / "emb.npy", resume=resume)
    assert sorted((p, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()) == before


def test_a_folder_of_an_earlier_run_is_begun_anew(tmp_path) -> None:
    interrupted(tmp_path / "out.npy")
    assert_right(inference(model(factor=2.0), data(), out=tmp_path / "out.npy"), model(factor=2.0))
    assert not (tmp_path / "out.npy.partial").exists()
    (tmp_path / "out.npy.partial").mkdir()  # empty
    assert_right(inference(model(), data(), out=tmp_path / "out.npy"), model())


def test_a_result_in_bfloat16(tmp_path) -> None:
    narrow, graph = model().bfloat16(), data()
    graph.x = graph.x.bfloat16()
    narrow.shift.plain = narrow.shift.plain.bfloat16()
    found = inference(narrow, graph, out=tmp_path / "out.npy")
    assert torch.equal(found, inference(narrow, graph))
