"""The examples run, and learn what they claim to learn."""

import json
import re
import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torch_geometric.datasets
import torch_geometric.typing
from torch_geometric.data import Data, InMemoryDataset

from examples import train_graphsage
from examples.support import datasets
from examples.support.ogb_compat import ogb_files_readable
from examples.support.synthetic import power_law_graph

EXAMPLES = Path(train_graphsage.__file__).parent
SMALL = [
    "--num-nodes",
    "3000",
    "--num-edges",
    "40000",
    "--batch-size",
    "256",
    "--epochs",
    "4",
    "--hidden",
    "32",
]


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small gain nothing from threads, which on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(capsys, *argv):
    """Run the main example; return its rows by model, accuracies, seconds and all it printed."""
    train_graphsage.main([str(part) for part in argv])
    text, errors = capsys.readouterr()
    assert "epoch" not in errors, "a bar, though there is no terminal"
    rows = {}
    for name, *values in re.findall(r"^(plain|accelerated) +(\d+) +(\S+) +(\S+) +\S+$", text, re.M):
        rows.setdefault(name, []).append([float(value) for value in values])
    tested = {name: float(value) for name, value in re.findall(r"accuracy, (\w+): (\S+)", text)}
    assert list(tested) == list(rows)
    return rows, tested, text


def test_the_example_trains_both_models_and_ends_with_their_seconds(capsys):
    rows, tested, text = run(capsys, *SMALL)
    assert list(rows) == ["plain", "accelerated"]
    for name, found in rows.items():
        assert [row[0] for row in found] == [1, 2, 3, 4]
        assert found[-1][1] < found[0][1]
        assert tested[name] > 0.6
    last = text.splitlines()[-1]
    assert re.fullmatch(r"seconds an epoch: plain \S+, accelerated \S+ \(\S+ times as fast\)", last)


def test_features_alone_tell_little_of_the_class():
    data = train_graphsage.generated_graph(3000, 40_000, 0)
    x, y = data.x[data.train_mask], data.y[data.train_mask]
    centroids = torch.stack([x[y == number].mean(0) for number in range(8)])
    guessed = (data.x[data.test_mask] @ centroids.T).argmax(1)
    assert 1 / 8 < float((guessed == data.y[data.test_mask]).float().mean()) < 0.6


def test_workers_change_nothing_that_the_example_learns(capsys):
    first, second = (run(capsys, *SMALL, "--epochs", "2", "--num-workers", n)[0] for n in (0, 2))
    assert first == second


def test_the_example_with_pygs_loader(capsys):
    pytest.importorskip("torch_sparse")
    rows, tested, text = run(capsys, *SMALL, "--loader", "pyg", "--num-workers", 0)
    assert len(rows["plain"]) == 4
    assert tested["plain"] > 0.6
    assert "loader: pyg," in text
    assert re.fullmatch(r"seconds an epoch: plain [\d.]+", text.splitlines()[-1])


def test_pygs_loader_without_a_sampler_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr(torch_geometric.typing, "WITH_TORCH_SPARSE", False)
    monkeypatch.setattr(torch_geometric.typing, "WITH_PYG_LIB", False)
    with pytest.raises(SystemExit):
        train_graphsage.main(["--loader", "pyg"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("--loader pyg needs pyg-lib or torch-sparse; neither is installed")


def test_a_generated_graph_repeats_and_has_hubs_and_alike_neighbours():
    graph, again, other = (power_law_graph(3000, 50_000, seed=seed) for seed in (1, 1, 2))
    for key, value in graph.to_dict().items():
        assert torch.equal(value, again[key])
    assert not torch.equal(graph.edge_index, other.edge_index)
    assert int(graph.edge_index.min()) >= 0
    assert int(graph.edge_index.max()) < 3000
    masks = torch.stack([graph[f"{name}_mask"] for name in ("train", "val", "test")])
    assert (masks.sum(0) == 1).all()

    degree = torch.bincount(graph.edge_index[1], minlength=3000).float()
    assert degree.max() > 50 * degree.median()
    alike = graph.y[graph.edge_index[0]] == graph.y[graph.edge_index[1]]
    assert abs(float(alike.float().mean()) - (0.7 + 0.3 / 8)) < 0.01
    # The split must not depend on the popularity of a node: hubs would all be in one of the masks.
    by_degree = degree.argsort(descending=True)[:300]
    assert abs(float(graph.train_mask[by_degree].float().mean()) - 0.5) < 0.12


def test_generated_graph_spans_chunks(monkeypatch):
    monkeypatch.setattr("examples.support.synthetic.CHUNK", 64)
    graph = power_law_graph(50, 1000, num_features=7)
    # Each chunk has draws of its own.
    assert not torch.equal(graph.edge_index[:, :64], graph.edge_index[:, 64:128])
    assert not torch.equal(graph.x[:9], graph.x[9:18])


def test_generated_graph_needs_a_node_for_each_class():
    with pytest.raises(ValueError, match="fewer than num_classes=8"):
        power_law_graph(5, 10)


def test_the_debian_graph_has_its_published_sizes_and_splits():
    data = datasets.load_dataset("debian")
    assert (data.num_nodes, data.num_features, int(data.y.max()) + 1) == (63436, 128, 58)
    assert data.is_undirected()
    assert (data.train_mask.int() + data.val_mask.int() + data.test_mask.int() == 1).all()
    assert int(data.train_mask.sum()) == 38120


def test_an_unknown_dataset_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"No data set 'corra'.*cora"):
        datasets.load_dataset("corra")


def test_raw_files_are_left_alone(tmp_path):
    """A folder with raw files only may be read-only or shared: nothing is written there."""
    raw = tmp_path / "amazon" / "Photo" / "raw"
    raw.mkdir(parents=True)
    x, adj = np.eye(4, 3, dtype=np.float32), np.array([0, 1, 2, 3, 4])
    np.savez(
        raw / "amazon_electronics_photo.npz",
        **{"attr_data": x[x != 0], "attr_indices": [0, 1, 2], "attr_indptr": [0, 1, 2, 3, 3]},
        **{"attr_shape": [4, 3], "adj_data": np.ones(4), "adj_indices": [1, 2, 3, 0]},
        **{"adj_indptr": adj, "adj_shape": [4, 4], "labels": [0, 1, 0, 1]},
    )
    data = datasets.load_dataset("amazon_photo", tmp_path)
    assert data.num_nodes == 4
    assert data.num_edges == 8
    assert int(data.train_mask.sum()) == 2
    assert [path.name for path in raw.parent.iterdir()] == ["raw"]


def test_a_data_set_that_cannot_be_downloaded_is_told_with_its_folder(tmp_path, monkeypatch):
    def download(root, name):
        raise URLError("Name or service not known")

    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", download)
    wanted = r"PubMed is not in \S+PubMed/raw .*pass another folder \(--root"
    with pytest.raises(OSError, match=wanted):
        datasets.load_dataset("pubmed", tmp_path)


def test_ogb_without_ogb(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ogb.nodeproppred", None)
    with pytest.raises(ImportError, match=r"pip install \"ogb>=1"):
        datasets.load_dataset("ogbn-products", tmp_path)


def save_as_ogb_does(path):
    data = Data(x=torch.randn(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.ones(3, 1))
    torch.save(InMemoryDataset.collate([data]), path)
    return data


class Harmful:
    """What a harmful file holds: unpickling it calls something."""

    def __reduce__(self):
        return (Path.touch, (Path("must-not-exist"),))


def test_ogb_files_are_readable_inside_the_context_only(tmp_path):
    path = tmp_path / "geometric_data_processed.pt"
    data = save_as_ogb_does(path)
    with ogb_files_readable():
        read, _ = torch.load(path)
    assert torch.equal(read.x, data.x)
    assert torch.equal(read.edge_index, data.edge_index)
    if hasattr(torch.serialization, "safe_globals"):
        with pytest.raises(Exception, match=r"[Ww]eights.only"):
            torch.load(path)


@pytest.mark.skipif(
    not hasattr(torch.serialization, "safe_globals"), reason="torch.load trusted all files"
)
def test_other_classes_stay_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(Harmful(), tmp_path / "harmful.pt")
    with ogb_files_readable(), pytest.raises(Exception, match=r"[Ww]eights.only"):
        torch.load(tmp_path / "harmful.pt")
    assert not Path("must-not-exist").exists()


def run_notebook(name, monkeypatch):
    """Run the cells of a notebook in its folder, and return its variables."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr("sys.path", [*sys.path])
    namespace = {}
    for cell in code_cells(name):
        exec("".join(cell["source"]), namespace)
    if "plt" in namespace:
        namespace["plt"].close("all")
    return namespace


def code_cells(name):
    cells = json.loads((EXAMPLES / name).read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("*.ipynb"))])
def test_notebooks_hold_their_outputs(name):
    """Readers see what a notebook prints and draws without running it."""
    cells = code_cells(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) >= 4
    assert not any(output["output_type"] == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)


def test_the_notebook_runs(capsys, monkeypatch):
    assert run_notebook("quickstart.ipynb", monkeypatch)["accuracy"] > 0.7
    assert "batches that were left are the same" in capsys.readouterr().out


@pytest.mark.slow
def test_the_notebook_on_swapping_runs(monkeypatch):
    runs = run_notebook("swap_the_loader.ipynb", monkeypatch)["runs"]
    accuracies = [run["accuracy"] for run in runs.values()]
    assert len(runs) >= 2
    assert min(accuracies) > 0.6
    assert max(accuracies) - min(accuracies) < 0.03


@pytest.mark.slow
def test_the_notebook_on_recommendation_runs(monkeypatch):
    found = run_notebook("recommendation.ipynb", monkeypatch)
    leaking, clean = (found["curves"][exclude]["test"][-1] for exclude in (False, True))
    assert clean > leaking + 0.05
    assert found["future_auc"] > 0.7


@pytest.mark.slow
def test_the_notebook_on_the_same_batches_runs(capsys, monkeypatch):
    assert run_notebook("reproducible_batches.ipynb", monkeypatch)["same"]
    assert "num_neighbors=" in capsys.readouterr().out  # what the refused state differs in


@pytest.mark.slow
def test_the_notebook_on_inference_runs(monkeypatch):
    assert run_notebook("inference.ipynb", monkeypatch)["accuracy"] > 0.5
