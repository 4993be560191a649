"""`python -m pyg_direct.plan`: its counts against measured batches and counted lines."""

import re
import sys

import numpy as np
import pytest
import torch
from graphs import DATA_FOLDER, load_real_graph, papers_and_authors
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput
from torch_geometric.utils import degree

from examples.support.synthetic import power_law_graph
from pyg_direct import NeighborLoader, NeighborSampler, quantize, save
from pyg_direct.tools import plan
from pyg_direct.tools.arguments import MACHINES
from pyg_direct.tools.plan_orders import Batching, sample

FANOUT = [10, 5]


def measured(data: Data, batch_size: int) -> float:
    """Return the unique nodes of batches of a loader, on average."""
    loader = NeighborLoader(data, FANOUT, batch_size=batch_size, shuffle=True, drop_last=True)
    counts = [batch.num_nodes for _, batch in zip(range(30), loader, strict=False)]
    return float(np.mean(counts))


@pytest.mark.parametrize("name", ["cora", "debian", "bitcoin_otc", "flat", "skewed"])
def test_unique_nodes_of_known_graphs(name, tmp_path) -> None:
    if name in ("flat", "skewed"):
        data = power_law_graph(20_000, 200_000, 1, 4, skew=1 if name == "flat" else 3)
    elif DATA_FOLDER.exists():
        data = load_real_graph(name, tmp_path)
    else:
        pytest.skip("the real graphs are not here")
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    predicted = sample(data, Batching(FANOUT, 128), 30).nodes
    assert predicted == pytest.approx(measured(data, 128), rel=0.05)


def test_degrees_alone_give_a_random_graph_with_them() -> None:
    data = power_law_graph(20_000, 200_000, 1, 4)
    degrees = degree(data.edge_index[1], data.num_nodes, torch.int64)
    edge_index = plan.edges_with_degrees(degrees)
    assert torch.equal(torch.bincount(edge_index[1], minlength=20_000), degrees)
    assert torch.equal(torch.bincount(edge_index[0], minlength=20_000), degrees)


def test_types_are_predicted_as_measured() -> None:
    data = papers_and_authors()
    loader = NeighborLoader(
        data, FANOUT, input_nodes="paper", batch_size=40, shuffle=True, drop_last=True
    )
    found = [batch for _ in range(5) for batch in loader]
    batches = sample(data, Batching(FANOUT, 40, "paper"), 30)
    for kind in data.node_types:
        mean = np.mean([batch[kind].num_nodes for batch in found])
        assert sum(map(len, batches.node_ids[kind])) / 30 == pytest.approx(mean, rel=0.05)
    edges = np.mean([sum(s.edge_index.size(1) for s in batch.edge_stores) for batch in found])
    assert batches.edges == pytest.approx(edges, rel=0.05)


def test_the_plan_places_the_graph_and_features_that_fit() -> None:
    data = Data(edge_index=plan.power_law_edges(1000, 5000), num_nodes=1000)
    topology, features = 4 * 6001, 400_000
    fits = plan.GpuModel(2 * (topology + features), 1e9, "as given")
    question = plan.Question(Batching(FANOUT, 64), {None: 400}, fits, cores=4)
    text = plan.report(plan.plan_of(data, question))
    assert "all in GPU memory: nothing crosses PCIe" in text
    found = plan.plan_of(data, question)
    slow = found._replace(batches=found.batches._replace(sampling_seconds=1.0))
    sampling = "16.0 s of sampling on this machine with one core, at least 4.0 s with 4"
    assert sampling in plan.report(slow)
    small = question._replace(machine=fits._replace(gpu_bytes=2 * (topology + 44_000)))
    text = plan.report(plan.plan_of(data, small))
    assert "all in GPU memory" not in text
    assert "with cache= for 100 rows (" in text  # and 4 bytes for each of all nodes
    for spare in (0, 403):  # no room for a row, which takes 400 bytes and 4 of its place
        none = question._replace(machine=fits._replace(gpu_bytes=2 * (topology + spare)))
        assert "cache=" not in plan.report(plan.plan_of(data, none))
    assert plan.plan_of(data, question).steps == 16  # the last one with 40 seeds
    assert plan.plan_of(data, question._replace(num_seeds=65)).steps == 2
    narrower = plan.plan_of(data, small._replace(cache_share=0.25))
    assert "with cache= for 400 rows (" in plan.report(narrower)


def test_the_plan_counts_all_batches_but_the_first(monkeypatch) -> None:
    """All but the first, which compiles."""
    sizes = iter([100, 1, 2, 3, 6])

    def sampled(self, given, key):
        size = next(sizes)
        node = torch.arange(size)
        return SamplerOutput(node, node, node, node, None, [1, size - 1], [size])

    monkeypatch.setattr(NeighborSampler, "sample_from_nodes", sampled)
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=200)
    found = sample(data, Batching(FANOUT, 5), 4)
    assert (found.nodes, found.edges) == (3.0, 3.0)
    assert sum(map(len, found.node_ids[None])) == 12


def test_the_topology_takes_room_where_all_is_in_gpu_memory() -> None:
    data = Data(edge_index=plan.power_law_edges(1000, 5000), num_nodes=1000)
    machine = plan.GpuModel(2 * (4 * 6001 + 400_000) - 2, 1e9, "as given")
    text = plan.report(
        plan.plan_of(data, plan.Question(Batching(FANOUT, 64), {None: 400}, machine))
    )
    assert "all in GPU memory" not in text


def test_features_of_all_types_are_gathered() -> None:
    data, row_bytes = papers_and_authors(), {"paper": 64, "author": 160, "institution": 9}
    machine = plan.GpuModel(1 << 30, 1e9, "as given")
    found = plan.plan_of(data, plan.Question(Batching(FANOUT, 20, "paper"), row_bytes, machine))
    expected = sum(found.means[kind] * row_bytes[kind] for kind in row_bytes)
    assert found.gathered_bytes == pytest.approx(expected)
    assert expected > 1.1 * max(found.means[kind] * row_bytes[kind] for kind in row_bytes)


def test_a_plan_of_a_typed_graph(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = tmp_path / "typed.pt", papers_and_authors()
    data["paper"].x, data["author"].num_nodes = data["paper"].x.half(), len(data["author"].x)
    del data["author"].x
    torch.save(data, path)
    arguments = ["--graph", str(path), "--fanout", "5,5", "--cores", "3", "--dtype", "float64"]
    plan.main([*arguments, "--seed-type", "paper"])
    text = capsys.readouterr().out
    assert f"{2 * data['paper'].x.size(1)} bytes a paper, 800 bytes a author" in text
    assert " of author\n" in text
    with pytest.raises(SystemExit, match=r"^2$"):
        plan.main(["--graph", str(path), "--fanout", "5,5"])
    assert "--seed-type must be one of paper, author, institution." in capsys.readouterr().err


def test_the_plan_command_prints_the_batch_and_the_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = "--nodes 2000 --edges 9000 --fanout 5,5 --batch-size 64 --machine pcie3-16gb"
    plan.main(arguments.split(" "))
    text = capsys.readouterr().out
    assert "a batch of 64 seeds, fan-out 5/5" in text
    assert "15.8 GB/s (PCI Express" in text
    assert "computed, not measured" in text


def test_the_command_with_degrees_and_a_link(tmp_path, capsys) -> None:
    np.save(tmp_path / "degrees.npy", np.array([40, 60, 0, 0, 0]))
    arguments = ["--degrees", str(tmp_path / "degrees.npy"), "--fanout", "2", "--batch-size", "2"]
    plan.main([*arguments, "--link-bytes-per-s", "2000000000", "--gpu-bytes", "4000000"])
    text = capsys.readouterr().out
    assert "\n5 nodes, 100 edges: " in text
    assert (
        "with 4.0 MB of GPU memory, of which a loader takes half, and 2.0 GB/s (as given;" in text
    )


SMALL = "--nodes 2000 --edges 9000 --fanout 5,5 --batch-size 64"


@pytest.mark.parametrize(
    ("gpu_bytes", "title"),
    [
        (1 << 30, "everything fits GPU memory"),
        (400_000, "the topology fits GPU memory, the features do not"),
        (1000, "the topology does not fit GPU memory"),
    ],
)
def test_the_picture_says_what_fits(gpu_bytes, title, tmp_path, monkeypatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    path = tmp_path / "plan.svg"
    plan.main([*SMALL.split(" "), "--gpu-bytes", str(gpu_bytes), "--plot", str(path)])
    assert path.read_text().startswith("<?xml")
    memory, link = kept[0].axes
    assert (memory.get_legend(), link.get_legend()) == (None, None), "over lines and bars"
    kept[0].canvas.draw()
    (legend,) = kept[0].legends
    top = legend.get_window_extent().y1
    assert all(axes.get_tightbbox().y0 >= top for axes in kept[0].axes)
    assert "GPU memory for a loader: half of it" in [text.get_text() for text in legend.get_texts()]
    assert memory.get_title(loc="left") == title
    topology, features = (bar.get_height() for bar in memory.patches)
    assert topology == pytest.approx(4 * 11_001 / 1e6)
    assert features == pytest.approx(2000 * 400 / 1e6)
    (curve, *_) = link.lines
    assert curve.get_ydata()[-1] == 0, "a cache of everything"
    assert (np.diff(curve.get_ydata()) <= 0).all()
    has_marker = 4 * 11_001 < gpu_bytes // 2 < 4 * 11_001 + 800_000
    assert len(link.lines) == 1 + has_marker
    monkeypatch.undo()
    pyplot.close(kept[0])


def test_a_picture_without_matplotlib_is_refused_before_anything_is_sampled(
    monkeypatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"^2$"):
        plan.main([*SMALL.split(" "), "--plot", "plan.svg"])
    told = capsys.readouterr()
    assert "--plot needs matplotlib: pip install matplotlib" in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("x", "row_bytes"),
    [
        (torch.zeros(10, 8), "32 bytes a node"),
        (torch.zeros(10), "4 bytes a node"),
        (torch.zeros(10, 8, dtype=torch.float64), "64 bytes a node"),
        (quantize(torch.ones(10, 8)), "8 bytes a node"),
        (quantize(torch.ones(10, 8), scale="row"), "12 bytes a node"),
        (None, "400 bytes a node"),
    ],
)
def test_the_columns_of_a_graph_without_types_are_those_of_its_x(
    x, row_bytes, tmp_path, capsys
) -> None:
    data = Data(edge_index=torch.arange(20).view(2, 10) % 10, num_nodes=10)
    if x is not None:
        data.x = x
    torch.save(data, tmp_path / "graph.pt")
    plan.main(["--graph", str(tmp_path / "graph.pt"), "--fanout", "2"])
    assert row_bytes in capsys.readouterr().out


@pytest.mark.parametrize(("option", "value"), [("features", "16"), ("dtype", "float32")])
def test_columns_and_dtype_beside_those_of_x_are_refused(option, value, tmp_path, capsys) -> None:
    data = Data(x=torch.zeros(10, 8), edge_index=torch.arange(20).view(2, 10) % 10)
    torch.save(data, tmp_path / "graph.pt")
    with pytest.raises(SystemExit, match=r"^2$"):
        plan.main(["--graph", str(tmp_path / "graph.pt"), f"--{option}", value])
    assert f"--{option} would have no effect, as the graph has x" in capsys.readouterr().err


@pytest.mark.parametrize("degrees", [[1.5, 2.0], [3, -1], [float("nan"), 1.0]])
def test_degrees_that_are_no_counts_are_refused(degrees, tmp_path, capsys) -> None:
    np.save(tmp_path / "degrees.npy", np.array(degrees))
    with pytest.raises(SystemExit, match=r"^2$"):
        plan.main(["--degrees", str(tmp_path / "degrees.npy")])
    assert "degrees.npy must hold whole numbers of 0 or more." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--fanout", "5,x"],
            "argument --fanout: must be whole numbers between commas, as 15,10, got '5,x'",
        ),
        (
            ["--widths", "1,,2"],
            "argument --widths: must be whole numbers between commas, as 15,10, got '1,,2'",
        ),
        (["--nodes", "2.5"], "argument --nodes: '2.5' is not a whole number, as 1000, 24K"),
        (["--gpu-bytes", "16GB"], "1.6B or, of bytes, 16G are"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--cores", "0"], "--cores must be at least 1, got 0"),
        (["--plot", "plan.txt"], "--plot must end in one of .svg, .png, .pdf, got plan.txt"),
    ],
)
def test_wrong_numbers_of_the_plan_command_end_it_with_a_message(
    arguments, message, capsys
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        plan.main([*SMALL.split(" "), *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give --graph"),
        (["--nodes", "10"], "Give --graph"),
        (["--nodes", "10", "--edges", "1B"], "200,000,000 edges"),
        (["--graph", "nowhere"], "--graph nowhere cannot be read: .*No such file"),
        (["--graph", "."], r"--graph \. cannot be read: \. is not a saved graph"),
        (["--graph", __file__], "cannot be read: it was not written by torch.save"),
        (["--degrees", __file__], "--degrees .* cannot be read: "),
        (["--nodes", "10", "--edges", "20", "--seed-type", "a"], "--seed-type needs --graph"),
    ],
)
def test_wrong_arguments_of_the_plan_command_print_its_usage(arguments, message, capsys) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        plan.main(arguments)
    told = capsys.readouterr().err
    assert "usage: pyg-direct plan" in told
    assert re.search(message, told)


def test_a_type_of_seeds_of_a_graph_without_types(tmp_path, capsys) -> None:
    torch.save(Data(edge_index=torch.arange(20).view(2, 10), num_nodes=20), tmp_path / "graph.pt")
    with pytest.raises(SystemExit, match=r"^2$"):
        plan.main(["--graph", str(tmp_path / "graph.pt"), "--seed-type", "paper"])
    assert "The graph has no node types: leave --seed-type out." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu_bytes", "free", "first", "last"),
    [
        (
            1 << 30,
            1 << 40,
            "they fit it as well",
            "nothing; with that GPU all is placed",
        ),
        (400_000, 1 << 40, "fit it without the features", 'cache="auto" on a GPU'),
        (1000, 1 << 40, "they stay in the memory", "nothing; a GPU reads the memory"),
        (1000, 100_000, "does NOT fit", "a graph in files"),
    ],
)
def test_a_plan_begins_with_what_fits_how_long_and_what_to_pass(
    gpu_bytes, free, first, last, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(plan, "available_bytes", lambda: free)
    plan.main([*SMALL.split(" "), "--gpu-bytes", str(gpu_bytes)])
    lines = capsys.readouterr().out.splitlines()
    assert first in lines[0]
    assert "pcie4-24gb" in lines[0]
    assert re.match(r"a batch: [\d.]+ ms of sampling here", lines[1])
    assert lines[2].startswith(f"what to pass to the loader: {last}")
    assert lines[3] == ""
    assert not any("does not" in line for line in lines)


def test_nothing_crosses_the_link_where_all_is_on_the_gpu(capsys) -> None:
    plan.main([*SMALL.split(" "), "--gpu-bytes", str(1 << 30)])
    text = capsys.readouterr().out
    assert "  all in GPU memory: nothing crosses PCIe\n" in text
    assert "0.00 ms" not in text


def test_a_saved_graph(tmp_path, capsys) -> None:
    data = Data(edge_index=torch.arange(20).view(2, 10), num_nodes=20)
    torch.save(data, tmp_path / "graph.pt")
    save(data, tmp_path / "graph")
    for name in ("graph.pt", "graph"):
        plan.main(["--graph", str(tmp_path / name), "--fanout", "2", "--batch-size", "4"])
        assert "20 nodes, 10 edges" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--nodes 5", "--edges 7", "--skew 3", "--degrees missing.npy"])
def test_an_option_about_other_graphs_is_refused(option, capsys) -> None:
    with pytest.raises(SystemExit):
        plan.main(["--graph", "any", *option.split()])
    assert f"{option.split()[0]} would have no effect with --graph" in capsys.readouterr().err
    if "degrees" not in option:
        with pytest.raises(SystemExit):
            plan.main(["--degrees", "any.npy", *option.split()])
        assert "would have no effect with --degrees" in capsys.readouterr().err


def test_a_graph_that_the_sampling_cannot_take_is_refused(tmp_path, capsys) -> None:
    path = tmp_path / "twice.pt"
    torch.save(Data(edge_index=torch.tensor([[0, 0], [1, 1]]), num_nodes=2), path)
    with pytest.raises(SystemExit, match=r"^2$"):
        plan.main(["--graph", str(path), "--fanout", "2", "--sampling", "labor"])
    assert "labor' needs a graph without parallel edges" in capsys.readouterr().err


def test_named_machines_have_the_memory_and_the_link_that_they_are_named_after() -> None:
    """16 lanes of 8, 16 or 32 GT/s with 128b/130b encoding, rounded to quarters of 1e9 bytes."""
    for name, machine in MACHINES.items():
        revision, size = map(int, re.fullmatch(r"pcie(\d)-(\d+)gb", name).groups())
        bytes_per_s = 2**revision * 1e9 * 16 / 8 * 128 / 130
        assert machine.gpu_bytes == size << 30
        assert machine.link_bytes_per_s == round(bytes_per_s / 0.25e9) * 0.25e9
        assert f"revision {revision}.0," in machine.source
