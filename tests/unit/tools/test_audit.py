"""`audit` finds each kind of planted fault, and nothing where there is none."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler, audit
from pyg_direct.tools import audit as audit_module
from pyg_direct.tools.audit import Audit, main

NODES, EDGES = 80, 1200
LATE = "no edge is later than its seed"
EARLY = "no edge is earlier than the window of its seed"
LINK = "no seed link is there for messages to go over"
BACK = "no edge back of a seed link is there for messages to go over"
COUNT = "counts obey the fan-outs"
TWICE = "no edge is drawn twice for a node"
WEIGHT = "edges of weight 0 are not drawn"
SAME = "edges are those of the graph"


def graph(by_edge: bool = True, typed: bool = False) -> Any:
    generator = torch.Generator().manual_seed(0)
    data = Data(
        edge_index=torch.randint(NODES, (2, EDGES), generator=generator),
        num_nodes=NODES,
        time=torch.randint(100, (EDGES if by_edge else NODES,), generator=generator),
        weight=torch.randint(3, (EDGES,), generator=generator).float(),
    )
    if not typed:
        return data
    hetero = HeteroData()
    hetero["user"].num_nodes = hetero["item"].num_nodes = NODES
    hetero["user", "buys", "item"].edge_index = data.edge_index
    hetero["item", "rev_buys", "user"].edge_index = data.edge_index.flip(0)
    for kind in hetero.edge_types if by_edge else hetero.node_types:
        hetero[kind].time = data.time
    return hetero


SEEDS = torch.arange(40)
TIMES = torch.arange(40) * 2 + 10
OF_TYPE = {False: SEEDS, True: ("item", SEEDS)}


def temporal(data: Any, by_class: Any = NeighborLoader, **options: Any) -> Any:
    seeds = OF_TYPE[isinstance(data, HeteroData)]
    options = {"time_attr": "time", "batch_size": 16, **options}
    return by_class(data, [5, 3], seeds, TIMES, **options)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("by_edge", [False, True])
@pytest.mark.parametrize("options", [
    {}, {"temporal_strategy": "last"}, {"replace": True}, {"subgraph_type": "induced"},
    {"time_window": 9}, {"input_start_time": TIMES - 20, "input_end_time": TIMES - 5},
])  # fmt: skip
def test_no_finding_in_temporal_batches(
    typed: bool, by_edge: bool, options: dict[str, Any]
) -> None:
    result = audit(temporal(graph(by_edge, typed), **options), time_attr="time")
    assert result.ok, result
    assert result.batches == 3
    assert result.checked[LATE] > 50
    assert (EARLY in result.checked) == ("time_window" in options or "input_end_time" in options)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("by_edge", [False, True])
@pytest.mark.parametrize("disjoint", [False, True])
def test_a_loader_without_times_leaks(typed: bool, by_edge: bool, disjoint: bool) -> None:
    data = graph(by_edge, typed)
    if by_edge:  # seeds need times that the audit can know
        for kind in data.node_types if typed else ():
            data[kind].time = torch.full((NODES,), 50)
    seeds = OF_TYPE[typed]
    loader = NeighborLoader(data, [5, 3], seeds, batch_size=16, disjoint=disjoint)
    if by_edge and not typed:
        return  # nothing has a time to compare with
    result = audit(loader, time_attr="time")
    assert set(result.wrong) == {LATE}
    assert 0 < result.wrong[LATE] < result.checked[LATE]


def test_windows_that_are_not_kept_are_found() -> None:
    """The seeds of one loader, the bounds of another."""
    loader = temporal(graph())
    loader.node_sampler.time_window = 5
    recorded = list(temporal(graph()))
    result = audit(loader, recorded, time_attr="time")
    assert set(result.wrong) == {EARLY}
    loader = temporal(graph(), input_end_time=TIMES - 20)
    assert set(audit(loader, recorded, time_attr="time").wrong) == {LATE}


def test_one_planted_edge_from_the_future_is_found() -> None:
    data = graph()
    late = int(data.time.argmax())

    def plant(batch: Data) -> Data:
        if 5 in batch.input_id.tolist():
            batch.n_id = torch.cat([batch.n_id, data.edge_index[:1, late]])
            edge = torch.tensor([[len(batch.n_id) - 1], [int(batch.edge_index[1, -1])]])
            batch.edge_index = torch.cat([batch.edge_index, edge], 1)
            batch.e_id = torch.cat([batch.e_id, torch.tensor([late])])
        return batch

    result = audit(temporal(data, transform=plant), time_attr="time")
    assert result.wrong[LATE] == 1
    assert result.wrong[SAME] == 1  # it leads to another node
    source, target = data.edge_index[:, late].tolist()
    assert f"leads from {source} to {target}, in the batch from" in result.examples[SAME]
    assert f"batch 0: edge {late} of the graph has time 99" in result.examples[LATE]
    assert "FAIL" in str(result)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_links_among_their_own_messages(typed: bool, disjoint: bool, negatives: str) -> None:
    data = graph(typed=typed)
    links: Any = graph().edge_index[:, :60]
    links = (("user", "buys", "item"), links) if typed else links
    options: Any = {"neg_sampling": negatives, "batch_size": 20, "disjoint": disjoint}
    loader = LinkNeighborLoader(data, [-1, 3], links, **options)
    assert set(audit(loader).wrong) == {LINK}
    loader = LinkNeighborLoader(data, [-1, 3], links, exclude_seed_edges="self", **options)
    assert audit(loader).ok
    assert audit(loader).checked[LINK] > 0
    loader = LinkNeighborLoader(data, [-1, 3], links, exclude_seed_edges="reverse", **options)
    result = audit(loader)
    assert result.ok
    assert result.checked[BACK] > 0
    forgotten = LinkNeighborLoader(data, [-1, 3], links, exclude_seed_edges="self", **options)
    found = audit(loader, list(forgotten))
    assert set(found.wrong) == ({BACK} if typed else set(found.wrong) & {BACK})


def test_links_in_time() -> None:
    """An earlier edge between the same ends is history; one at the link's time is the link."""
    data = graph()
    options: Any = {"time_attr": "time", "batch_size": 20, "neg_sampling": "binary"}
    links, times = data.edge_index[:, :60], data.time[:60]
    leaky = LinkNeighborLoader(data, [-1], links, edge_label_time=times, **options)
    assert set(audit(leaky, time_attr="time").wrong) == {LINK}
    before = LinkNeighborLoader(data, [-1], links, edge_label_time=times - 1, **options)
    assert audit(before, time_attr="time").ok
    safe = LinkNeighborLoader(
        data, [-1], links, edge_label_time=times, exclude_seed_edges=True, **options
    )
    assert audit(safe, time_attr="time").ok


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("negatives", [None, "binary", {"mode": "triplet", "amount": 2}])
@pytest.mark.parametrize("fanouts", [[5, 3], [2, 0]])
def test_no_finding_where_links_with_times_of_edges_are_left_out(
    typed: bool, negatives: Any, fanouts: list[int]
) -> None:
    """Earlier edges between the same ends are history, and stay; of triplets as well."""
    data = graph(typed=typed)
    links = torch.randint(4, (2, EDGES), generator=torch.Generator().manual_seed(1))
    if typed:  # so that there are several edges between most pairs
        data["user", "buys", "item"].edge_index = links
        data["item", "rev_buys", "user"].edge_index = links.flip(0)
    else:
        data.edge_index = links
    times = data["user", "buys", "item"].time if typed else data.time
    loader = LinkNeighborLoader(
        data, fanouts, (("user", "buys", "item"), links) if typed else links, batch_size=16,
        edge_label_time=times, time_attr="time", exclude_seed_edges="reverse",
        neg_sampling=negatives, seed=0,
    )  # fmt: skip
    result = audit(loader, 4, time_attr="time")
    assert result.ok, result
    assert result.checked[LINK] > 0
    plain = LinkNeighborLoader(
        data, [5, 3], (("user", "buys", "item"), links) if typed else links, batch_size=16,
        edge_label_time=times, time_attr="time", neg_sampling=negatives, seed=0,
    )  # fmt: skip
    assert LINK in audit(plain, 4, time_attr="time").wrong


@pytest.mark.parametrize("fanouts", [[], [0], [0, 0], [3, 0]])
@pytest.mark.parametrize("typed", [False, True])
def test_adaptive_loaders_without_edges_in_some_hops_are_audited(
    fanouts: list[int], typed: bool
) -> None:
    loader = NeighborLoader(
        graph(typed=typed), fanouts, OF_TYPE[typed], sampling="adaptive", batch_size=16
    )
    assert audit(loader).ok


def test_promises_that_cannot_be_checked_are_listed() -> None:
    windows: Any = {"input_start_time": TIMES - 20, "input_end_time": TIMES - 5}
    renamed = temporal(graph(), input_id=SEEDS + 7, **windows)
    (text,) = audit(renamed, time_attr="time").unchecked
    assert text == "the windows of the seeds, as input_id= renames their positions"
    seeds, options = OF_TYPE[True], {"batch_size": 16, "subgraph_type": "induced"}
    induced = NeighborLoader(graph(typed=True), [2, 2], seeds, sampling="adaptive", **options)
    result = audit(induced, 1)
    assert result.ok, result
    assert result.unchecked[0].startswith("fan-outs and weights, as an induced subgraph")


@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_each_link_and_its_negatives_have_the_window_of_the_link(negatives: str) -> None:
    data = graph()
    links, times = data.edge_index[:, :60], data.time[:60]
    ends = times - torch.arange(60) * 3 % 40
    options: Any = {"time_attr": "time", "batch_size": 20, "neg_sampling": negatives}
    options |= {"edge_label_time": times, "input_start_time": ends - 30, "input_end_time": ends}
    options["exclude_seed_edges"] = True
    loader = LinkNeighborLoader(data, [5, 3], links, **options)
    result = audit(loader, time_attr="time")
    assert result.ok, result
    assert min(result.checked[LATE], result.checked[EARLY]) > 50


def test_counts_repeats_and_weights() -> None:
    data = graph()
    weighted = NeighborLoader(data, [5, 3], weight_attr="weight", batch_size=16)
    assert audit(weighted, weight_attr="weight").ok
    assert audit(weighted, weight_attr="weight").checked[WEIGHT] > 100
    assert "weights" in audit(weighted).unchecked[0]
    plain = list(NeighborLoader(data, [6, 3], batch_size=16))
    assert set(audit(weighted, plain, weight_attr="weight").wrong) == {COUNT, WEIGHT}
    repeated = list(NeighborLoader(data, [5, 3], batch_size=16, replace=True))
    assert set(audit(weighted, repeated).wrong) == {TWICE}


@pytest.mark.pyg("sample_direction")
def test_the_audit_counts_neighbours_in_the_direction_of_sampling() -> None:
    sampler = NeighborSampler(graph(False), [2, 2], sample_direction="backward")
    loader = torch_geometric.loader.NodeLoader(graph(False), sampler, batch_size=16)
    result = audit(loader, 2)
    assert result.ok, result
    assert result.checked[COUNT] > 50


def test_weights_that_are_no_numbers_are_found() -> None:
    data = graph()
    data.weight[:] = float("nan")
    result = audit(NeighborLoader(data, [2], batch_size=16), 1, weight_attr="weight")
    assert result.wrong[WEIGHT] == result.checked[WEIGHT]


def chain() -> Data:
    """Return the edges 2 -> 1 -> 0 and 1 -> 3, and times of the nodes."""
    edges = torch.tensor([[1, 2, 1], [0, 1, 3]])
    return Data(edge_index=edges, time=torch.tensor([10, 5, 50, 100]), num_nodes=4)


@pytest.mark.parametrize(
    ("seeds", "batch_size", "wrong"),
    [([0], 1, 1), ([3], 1, 0), ([0, 3], 2, 1), ([3, 0], 2, 1), ([0, 3, 0], 1, 2)],
)
def test_a_message_may_reach_no_seed_that_is_earlier(
    seeds: list[int], batch_size: int, wrong: int
) -> None:
    """Over the last hop: the edge from 2, of time 50, in batches with the seed 0, of time 10."""
    loader = NeighborLoader(chain(), [1, 1], torch.tensor(seeds), batch_size=batch_size)
    result = audit(loader, time_attr="time")
    assert result.wrong.get(LATE, 0) == wrong


def test_loaders_of_pyg(pyg_loader: Any) -> None:
    loader = pyg_loader(graph(False), [5, 3], batch_size=16)
    result = audit(loader, 2)
    assert result.ok
    assert result.batches == 2
    assert set(audit(loader, 2, time_attr="time").wrong) == {LATE}


def test_the_next_epoch_stays_the_next_one() -> None:
    loader = NeighborLoader(graph(), [5, 3], batch_size=16, seed=0, shuffle=True)
    other = NeighborLoader(graph(), [5, 3], batch_size=16, seed=0, shuffle=True)
    audit(loader, 2)
    for mine, theirs in zip(loader, other, strict=True):
        assert torch.equal(mine.e_id, theirs.e_id)
    state = torch.get_rng_state()
    audit(NeighborLoader(graph(), [5], batch_size=16, shuffle=True), 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_wrong_arguments_of_audit_are_refused() -> None:
    loader = NeighborLoader(graph(), [2])
    with pytest.raises(TypeError, match="got list"):
        audit([])
    with pytest.raises(ValueError, match=r"'when' is not an attribute of the data\. Those are: "):
        audit(loader, time_attr="when")
    with pytest.raises(ValueError, match="batches"):
        audit(loader, 0)
    with pytest.raises(ValueError, match="bidirectional"):
        audit(NeighborLoader(graph(), [2], subgraph_type="bidirectional"))


@pytest.mark.parametrize("typed", [False, True])
def test_the_audit_command_exits_by_findings_and_wrong_arguments(
    tmp_path: Path, capsys: Any, typed: bool
) -> None:
    pyg_direct.save(graph(False, typed), tmp_path / "graph")
    given = [str(tmp_path / "graph"), "--fanout", "5,3", "--batches", "3", "--batch-size", "16"]
    given += ["--seed-type", "item"] if typed else []
    with pytest.raises(SystemExit) as end:
        main([*given, "--time-attr", "time", "--time-window", "30"])
    assert end.value.code == 0
    assert "3 batches: no finding" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main([*given, "--time-attr", "when"])
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--seed-type item", 2, "The graph has no node types: leave --seed-type out."),
        ("--seed-time 5", 2, "--seed-time would have no effect without --time-attr"),
        ("--strategy last", 2, "--strategy would have no effect without --time-attr"),
        ("--strategy uniform", 2, "--strategy would have no effect without --time-attr"),
        ("--fanout 0 --batches 2", 1, "batches: nothing was checked"),
    ],
)
def test_the_command_says_why_it_checked_nothing(
    tmp_path: Path, capsys: Any, options: str, code: int, message: str
) -> None:
    pyg_direct.save(graph(False), tmp_path / "graph")
    with pytest.raises(SystemExit, match=f"^{code}$"):
        main([str(tmp_path / "graph"), *options.split()])
    told = capsys.readouterr()
    assert message in (told.err if code == 2 else told.out)


def test_the_command_passes_its_arguments_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pyg_direct.save(graph(False), tmp_path / "graph")
    asked: list[Any] = []

    def audited(*arguments: Any, **options: Any) -> Audit:
        asked.extend([*arguments, options])
        return Audit(1, {WEIGHT: 9}, {WEIGHT: 2}, {WEIGHT: "edge 7"})

    monkeypatch.setattr(audit_module, "audit", audited)
    options = ["--time-attr", "time", "--time-window", "30", "--seed-time", "70", "--batches", "2"]
    more = [
        "--weight-attr",
        "weight",
        "--strategy",
        "last",
        "--batch-size",
        "16",
        "--fanout",
        "3,1",
    ]
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path / "graph"), *options, *more])
    assert end.value.code == 1
    assert f"FAIL {WEIGHT}: 2 of 9" in capsys.readouterr().out
    loader, batches, names = asked
    sampler = loader.node_sampler
    assert (batches, loader.batch_size) == (2, 16)
    assert names == {"time_attr": "time", "weight_attr": "weight"}
    assert (sampler.time_window, sampler.num_neighbors.values) == (30, [3, 1])
    assert sampler.temporal_strategy == "last"
    assert loader.input_data.time.tolist() == [70] * NODES
