"""`python -m pyg_direct.plan`: its counts against measured batches and counted lines."""

import numpy as np
import pytest
import torch
from graphs import DATA_FOLDER, load_real_graph
from torch_geometric.data import Data
from torch_geometric.utils import degree

from examples.synthetic import power_law_graph
from pyg_direct import NeighborLoader, plan

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
    predicted = plan.sample(data, FANOUT, 128, batches=30).nodes
    assert predicted == pytest.approx(measured(data, 128), rel=0.05)


def test_degrees_alone_give_a_random_graph_with_them() -> None:
    data = power_law_graph(20_000, 200_000, 1, 4)
    degrees = degree(data.edge_index[1], data.num_nodes, torch.int64)
    edge_index = plan.edges_with_degrees(degrees)
    assert torch.equal(torch.bincount(edge_index[1], minlength=20_000), degrees)
    assert torch.equal(torch.bincount(edge_index[0], minlength=20_000), degrees)


def test_hits_of_a_cache() -> None:
    ids, degrees = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 9, 5])
    assert plan.hit_share(ids, degrees, 0) == 0
    assert plan.hit_share(ids, degrees, 1) == 0.5
    assert plan.hit_share(ids, degrees, 3) == 1


def test_what_fits_where() -> None:
    data = Data(edge_index=plan.power_law_edges(1000, 5000), num_nodes=1000)
    topology, features = 4 * 6001, 400_000
    fits = plan.Machine(2 * (topology + features), 1e9, "as given")
    text = plan.report(data, FANOUT, 64, 400, fits)
    assert "all in GPU memory: features take the link at least 0.00 ms" in text
    small = fits._replace(gpu_bytes=2 * (topology + 40_000))
    text = plan.report(data, FANOUT, 64, 400, small)
    assert "all in GPU memory: does not" in text
    assert "with 100 rows of features cached" in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--nodes 2000 --edges 9000 --fanout 5,5 --batch-size 64 --machine pcie3-16gb"
    plan.main(arguments.split(" "))
    text = capsys.readouterr().out
    assert "a batch of 64 seeds, fan-out 5/5" in text
    assert "computed, not measured" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "Give --graph"), (["--nodes", "10", "--edges", "999999999"], "200,000,000 edges")],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(SystemExit, match=message):
        plan.main(arguments)
