"""`loader.stats()`: counts, times that add up, and the verdict on constructed cases."""

import gc
import json
import pickle
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from emulator import emulated, give_to_loaders, pin
from graphs import citations, papers_and_authors, remote_stores
from torch_geometric.data import Data

import pyg_direct
from pyg_direct import NeighborLoader
from pyg_direct.core.types import Table, Traffic
from pyg_direct.core.units import seconds_text
from pyg_direct.kernels import jit
from pyg_direct.loading import recorder
from pyg_direct.loading.recorder import KEPT_EPOCHS, Recorder
from pyg_direct.loading.stats import COLOURS, LOOP, STAGES, Stats
from pyg_direct.ops import clock as ops_clock
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda.backend import CudaBackend

WITH_THREADS_THAT_STAY = {"num_workers": 1, "persistent_workers": True}


def loader_of(**options) -> NeighborLoader:
    return NeighborLoader(citations(), [4, 3], **{"batch_size": 32, "seed": 0, **options})


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(ops_clock, "instant", found)
    return found


def run(loader, clock: Clock, seconds: float = 0.0) -> Stats:
    """Go through the loader with so much work for each batch."""
    for _ in loader:
        clock.spend(seconds)
    return loader.stats()


@pytest.mark.parametrize("workers", [0, 2])
def test_counts_are_those_of_the_batches(workers) -> None:
    loader = loader_of(num_workers=workers)
    batches = list(loader)
    stats = loader.stats()
    assert stats.batches == stats.made == len(batches) == 10
    assert stats.seeds == 300
    assert stats.nodes == sum(b.num_nodes for b in batches)
    assert stats.edges == sum(b.num_edges for b in batches)
    assert stats.gathered_bytes == {
        name: sum(b[name].nbytes for b in batches)
        for name in ("x", "y", "train_mask", "val_mask", "test_mask")
    }
    assert set(stats.seconds) <= set(STAGES)


def test_types_are_counted_apart() -> None:
    loader = NeighborLoader(papers_and_authors(), [3, 2], input_nodes="paper", batch_size=50)
    batches = list(loader)
    stats = loader.stats()
    assert stats.seeds == 200
    assert stats.gathered_bytes["author.x"] == sum(b["author"].x.nbytes for b in batches)
    assert stats.nodes == sum(b[k].n_id.numel() for b in batches for k in b.node_types)
    assert stats.edges == sum(b[k].edge_index.size(1) for b in batches for k in b.edge_types)


def test_nothing_crosses_a_link_on_the_cpu() -> None:
    loader = loader_of()
    list(loader)
    assert loader.stats().pcie_requests == loader.stats().pcie_bytes == 0
    assert "link" not in repr(loader.stats())


@pytest.mark.parametrize("columns", [32, 25, 50])
def test_reads_over_the_link_are_those_of_the_kernel(columns, monkeypatch) -> None:
    """The emulator counts what the gather kernel reads of `x`, which alone is gathered."""
    torch.manual_seed(0)
    data = Data(x=torch.rand(2000, columns), edge_index=torch.randint(2000, (2, 6000)))
    with emulated() as backend:
        device = backend.library.compiler
        device.free = 0  # so that `x` stays in host memory
        gather_bytes = CudaBackend.gather_bytes

        def recorded(self, *arguments):
            device.recorded = "table"
            gather_bytes(self, *arguments)
            device.recorded = ""

        monkeypatch.setattr(CudaBackend, "gather_bytes", recorded)
        give_to_loaders(backend, monkeypatch, to_host=True)
        loader = NeighborLoader(data, [4], batch_size=300, seed=0)
        list(loader)
    stats, counted = loader.stats(), device.requests
    exact = columns == 32 and data.x.data_ptr() % 128 == 0
    assert stats.pcie_requests == pytest.approx(counted.requests, rel=0 if exact else 0.05)
    assert stats.pcie_bytes == pytest.approx(counted.payload_bytes, rel=0 if exact else 0.05)
    assert f"{stats.pcie_requests / stats.made:,.0f} reads a batch (computed)" in repr(stats)
    assert stats.as_dict()["pcie_bytes"] == stats.pcie_bytes


def test_epochs_are_told_apart() -> None:
    loader = loader_of()
    assert loader.stats().batches == 0
    assert loader.stats().verdict == "no batch was asked for yet"
    list(loader)
    next(iter(loader))
    stats = loader.stats()
    assert [epoch.batches for epoch in stats.epochs] == [10, 1]
    assert stats.batches == 11
    assert stats.nodes == sum(epoch.nodes for epoch in stats.epochs)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, WITH_THREADS_THAT_STAY])
def test_earlier_epochs_are_added_up_and_not_kept(options) -> None:
    loader = NeighborLoader(citations(), [1], batch_size=200, seed=0, **options)
    nodes, bytes_of_x = 0, 0
    for _ in range(KEPT_EPOCHS + 30):
        for batch in loader:
            nodes += batch.num_nodes
            bytes_of_x += batch.x.nbytes
    stats = loader.stats()
    assert len(stats.epochs) == KEPT_EPOCHS
    assert stats.batches == stats.made == 2 * (KEPT_EPOCHS + 30)
    assert (stats.nodes, stats.gathered_bytes["x"]) == (nodes, bytes_of_x)
    assert stats.waiting_seconds > sum(epoch.waiting_seconds for epoch in stats.epochs)
    assert len(loader._recorder._epochs) == KEPT_EPOCHS


def test_epochs_whose_events_were_asked_for_are_kept() -> None:
    loader = NeighborLoader(citations(), [1], batch_size=300, seed=0)
    loader.record_events()
    for _ in range(KEPT_EPOCHS + 5):
        list(loader)
    epochs = loader.stats().epochs
    assert len(epochs) == KEPT_EPOCHS + 1
    assert [bool(epoch.events) for epoch in epochs] == [True] + [False] * KEPT_EPOCHS


def test_a_training_of_many_epochs_keeps_no_objects() -> None:
    data = Data(x=torch.zeros(4, 1), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    loader = NeighborLoader(data, [1], batch_size=4, shuffle=True)
    counts = []
    for _ in range(3):
        for _ in range(2 * KEPT_EPOCHS):
            for _ in loader:
                pass
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[2] - counts[1] < KEPT_EPOCHS  # less than one object an epoch


def test_the_consumers_timeline_adds_up(clock) -> None:
    loader = loader_of(transform=lambda batch: clock.spend(0.25) or batch)
    start = clock.now
    stats = run(loader, clock, 2.0)
    assert stats.waiting_seconds == pytest.approx(10 * 0.25)
    assert stats.working_seconds == pytest.approx(10 * 2.0)
    assert stats.waiting_seconds + stats.working_seconds == pytest.approx(clock.now - start)
    assert stats.seconds["transform"] == pytest.approx(10 * 0.25)
    assert stats.seconds["sampling"] == stats.seconds["gathering"] == 0
    run(loader, clock)
    assert [e.working_seconds for e in loader.stats().epochs] == [pytest.approx(20), 0]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, WITH_THREADS_THAT_STAY])
def test_time_within_iter_counts_as_waiting(clock, monkeypatch, options) -> None:
    loader = loader_of(**options)
    monkeypatch.setattr(loader, "_decide_device", lambda: clock.spend(1.5))
    for epoch in range(2):
        start = clock.now
        run(loader, clock, 2.0)
        found = loader.stats().epochs[epoch]
        assert found.waiting_seconds >= 1.5
        assert found.waiting_seconds + found.working_seconds == pytest.approx(clock.now - start)


HALVES = torch.zeros(8, 16, dtype=torch.float16)
FACTORS = torch.ones(8, 1)


@pytest.mark.parametrize(
    ("table", "reads"),
    [
        (Table(HALVES), 3),
        (Table(HALVES, torch.float32), 3),
        (Table(HALVES.view(torch.int8)[:, :16].contiguous(), torch.float32, torch.ones(16)), 3),
        (Table(HALVES.view(torch.int8)[:, :16].contiguous(), torch.float32, FACTORS), 6),
    ],
)
def test_reads_of_every_kind_of_table(table, reads) -> None:
    """Rows of 16 or 32 bytes, and their factors, are a line each, or a part of two."""
    traffic = Traffic()
    with emulated() as backend:
        scale = table.scale
        if scale is not None and scale.dim() == 2:
            scale = pin(backend, scale)
        placed = Table(pin(backend, table.rows), table.dtype, scale)
        index = torch.tensor([1, 2, 3]).to(backend.device)
        backend.gather([placed, placed], index, 8, traffic)
    assert 2 * reads <= traffic.requests < 4 * reads
    assert traffic.num_bytes >= 32 * traffic.requests


def test_rows_in_device_memory_are_not_read_over_the_link() -> None:
    traffic = Traffic()
    with emulated() as backend:
        table = Table(HALVES.to(backend.device))
        backend.gather([table], torch.tensor([1, 2, 3]).to(backend.device), 8, traffic)
    assert (traffic.requests, traffic.num_bytes) == (0, 0)


def test_a_loop_that_is_broken_off_counts_what_it_did(clock) -> None:
    loader = loader_of()
    for number, _ in enumerate(loader):
        if number == 2:
            break
        clock.spend(1.0)
    clock.spend(50.0)  # not on this loader's batches
    assert run(loader, clock, 1.0).working_seconds == pytest.approx(12.0)


def test_finished_batches_wait_for_the_consumer(clock) -> None:
    loader = loader_of(num_workers=1)
    batches = iter(loader)
    next(batches)
    while len(loader._recorder._finished) < 2:  # the producer works ahead, on a clock that stands
        time.sleep(0.001)
    clock.spend(3.0)
    next(batches)
    assert loader.stats().ready_seconds == pytest.approx(3.0)
    assert "; a finished batch waited 1,500.0 ms for the loop\n" in repr(loader.stats())


def test_counts_nobody_asks_for_are_added_up(monkeypatch) -> None:
    monkeypatch.setattr(recorder, "MOST_SPANS", 10**9)  # which would add them up as well
    loader = loader_of(batch_size=2)
    assert len(loader) > 2 * recorder.MOST_MADE
    for _ in loader:
        assert len(loader._recorder._epochs[-1].made) < recorder.MOST_MADE


def test_batches_that_nobody_took_are_forgotten(clock) -> None:
    """Those of an epoch that was broken off, else their numbers wait in the next one."""
    found = Recorder()
    found.begin()
    found.ready(5)
    clock.spend(9)
    found.begin()
    found.hand_over(ops_clock.instant(), 5)
    assert found.stats().ready_seconds == 0


def test_verdict_of_a_slow_model(clock) -> None:
    loader = loader_of(transform=lambda batch: clock.spend(0.07) or batch)
    verdict = run(loader, clock, 0.93).verdict
    wanted = "training is the bottleneck: a faster loader could save at most 7 %"
    assert verdict == f"{wanted}; pyg_direct.accelerate(model, loader) makes steps faster"
    pyg_direct.accelerate(torch.nn.Linear(1, 1), loader)
    assert loader.stats().verdict == wanted


def test_compiling_is_counted_by_itself(monkeypatch) -> None:
    """A transform compiles for 5 s, and samples for 0.2: the rest of 10 s is training."""
    found = Clock()
    monkeypatch.setattr(ops_clock, "instant", found)
    monkeypatch.setattr(jit, "perf_counter", found)
    monkeypatch.setattr(ops_clock, "COMPILING", jit.Compiling())

    compiled: list[bool] = []

    def transform(batch):
        if not compiled:
            compiled.append(True)
            with ops_clock.COMPILING:
                found.spend(3)
                with ops_clock.COMPILING:  # a kernel that the first one calls
                    found.spend(2)
        found.spend(0.02)
        return batch

    loader = loader_of(transform=transform)
    loader.record_events()
    stats = run(loader, found, 0.98)
    assert stats.compiling_seconds == pytest.approx(5.0)
    assert stats.seconds["transform"] == pytest.approx(10 * 0.02)
    assert stats.waiting_seconds == pytest.approx(10 * 0.02)
    assert stats.working_seconds == pytest.approx(10 * 0.98)
    assert "could save at most 2 %" in stats.verdict
    assert "kernels took 5.0 s to compile or load, beside these" in repr(stats)
    events = stats.epochs[0].events
    assert max(e.end for e in events) - min(e.begin for e in events) == pytest.approx(10.0)
    run(loader, found, 0.98)
    compiled.clear()
    later = run(loader, found, 0.98)
    assert [e.compiling_seconds for e in later.epochs] == pytest.approx([5.0, 0.0, 5.0])


@pytest.mark.parametrize(("seconds", "is_told"), [(0.04, False), (0.06, True)])
def test_compiling_is_told_where_it_is_not_rounded_to_0(seconds: float, is_told: bool) -> None:
    loader = loader_of()
    next(iter(loader))
    stats = replace(loader.stats(), compiling_seconds=seconds)
    assert ("kernels took 0.1 s to compile or load" in repr(stats)) == is_told


def test_verdict_of_a_slow_transform(clock) -> None:
    loader = loader_of(transform=lambda batch: clock.spend(0.9) or batch)
    verdict = run(loader, clock, 0.1).verdict
    assert "the loader is the bottleneck: 90 % of the time" in verdict
    assert "100 % of its own time on transform; make the transform cheaper" in verdict


def test_verdict_of_a_slow_transform_of_the_sampled_graph(clock) -> None:
    def slow(out):
        clock.spend(0.05)
        return out

    verdict = run(loader_of(transform_sampler_output=slow), clock, 0.005).verdict
    assert "100 % of its own time on transform" in verdict


def test_verdict_of_a_slow_gather(monkeypatch, clock) -> None:
    original = CpuBackend.gather

    def slow(self, tables, *args):
        clock.spend(0.1 * len(tables))
        return original(self, tables, *args)

    monkeypatch.setattr(CpuBackend, "gather", slow)
    loader = loader_of(transform=lambda batch: clock.spend(0.1) or batch)
    stats = run(loader, clock)
    assert "the loader is the bottleneck: 100 % of the time" in stats.verdict
    assert "83 % of its own time on gathering" in stats.verdict  # five attributes
    assert stats.seconds["assembling"] == pytest.approx(0)


def test_verdict_of_a_tiny_graph(clock) -> None:
    loader = loader_of(transform=lambda batch: clock.spend(0.0002) or batch)
    stats = run(loader, clock, 0.0006)
    assert "a step takes 0.80 ms" in stats.verdict
    assert "larger batch_size" in stats.verdict


def test_forms_of_the_report() -> None:
    loader = loader_of()
    list(loader)
    stats = loader.stats()
    assert json.loads(json.dumps(stats.as_dict()))["batches"] == 10
    assert stats.verdict in repr(stats)
    assert set(stats.postfix()) == {"seeds/s", "waiting"}


def axes_of(stats: Stats):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    return stats.plot()


def test_bars_of_epochs_without_events() -> None:
    loader = loader_of()
    list(loader)
    list(loader)
    axes = axes_of(loader.stats())
    assert len(axes.patches) == 2 * (2 + len(STAGES))
    assert axes.get_title(loc="left").replace("\n", " ") == loader.stats().verdict


def test_events_are_recorded_on_request_only(clock) -> None:
    loader = loader_of(transform=lambda batch: clock.spend(0.25) or batch)
    run(loader, clock, 2.0)
    loader.record_events()
    start = clock.now
    run(loader, clock, 2.0)
    run(loader, clock, 2.0)
    plain, recorded, after = loader.stats().epochs
    assert plain.events == after.events == ()
    spent = {stage: 0.0 for stage in ("waiting", "training", "transform")}
    for event in recorded.events:
        spent[event.stage] = spent.get(event.stage, 0.0) + event.end - event.begin
    assert spent["waiting"] == pytest.approx(recorded.waiting_seconds) == pytest.approx(2.5)
    assert spent["training"] == pytest.approx(recorded.working_seconds) == pytest.approx(20)
    assert spent["transform"] == pytest.approx(2.5)
    loop = [event for event in recorded.events if event.lane == LOOP]
    assert loop[0].begin == start
    assert all(one.end == other.begin for one, other in pairwise(loop)), "without gaps"
    for stage in ("sampling", "gathering", "assembling"):
        assert spent[stage] == pytest.approx(recorded.seconds[stage])
    assert json.loads(json.dumps(recorded.as_dict()))["events"][0]["stage"] == "waiting"


@pytest.mark.parametrize(("workers", "lanes"), [(0, ["in the loop"]), (2, ["producer "] * 2)])
def test_the_timeline_has_a_lane_for_each_producer(workers, lanes) -> None:
    both = threading.Barrier(2)  # neither producer makes all batches

    def transform(batch):
        if workers and batch.input_id[0] < 64:
            both.wait(timeout=30)
        return batch

    loader = loader_of(num_workers=workers, transform=transform)
    loader.record_events(2)
    list(loader)
    axes = axes_of(loader.stats())
    titles = [label.get_text() for label in axes.get_yticklabels()]
    assert [title.rstrip("01") for title in titles] == ["training loop", *lanes]
    assert axes.yaxis_inverted(), "the first lane is on top"
    (epoch,) = loader.stats().epochs
    assert axes.get_title(loc="left").replace("\n", " ") == epoch.verdict
    legend = [text.get_text().split(",")[0] for text in axes.get_legend().get_texts()]
    assert sorted(legend) == sorted({event.stage for event in epoch.events})
    assert set(legend) <= set(COLOURS)
    assert len(epoch.events) == sum(len(c.get_paths()) for c in axes.collections)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.34, "12.3 s"), (4321.5, "4,322 s"), (0.05, "50 ms"), (4.2e-6, "4.2 µs"), (0, "0 µs")],
)
def test_times_have_a_unit_that_fits(seconds, text) -> None:
    assert seconds_text(seconds) == text


def test_copies_are_a_stage_of_their_own(monkeypatch, clock) -> None:
    loader = loader_of()
    loader.pin_memory = True
    monkeypatch.setattr(
        loader._backend.memory, "pin", lambda batch: clock.spend(0.5) or batch, raising=False
    )
    loader.record_events()
    stats = run(loader, clock)
    assert stats.seconds["copying"] == pytest.approx(5.0)
    assert "100 % of its own time on copying; raise num_workers=" in stats.verdict
    assert "copying        500.000 ms a batch" in repr(stats)
    assert "copying" in {event.stage for event in stats.epochs[0].events}


@pytest.mark.parametrize(
    ("spare", "remedy"),
    [
        (2, "; raise num_workers=, or use a smaller num_neighbors"),
        (0, "; use a smaller num_neighbors"),
        (-4, "; lower num_workers= by 4, there are no more cores; use a smaller num_neighbors"),
    ],
)
def test_workers_are_advised_by_the_cores_there_are(spare, remedy) -> None:
    stats = Stats(
        batches=9, waiting_seconds=9.0, working_seconds=1.0, seconds={"sampling": 8.0},
        spare_workers=spare,
    )  # fmt: skip
    assert stats.verdict.endswith(f"100 % of its own time on sampling{remedy}")


@pytest.mark.parametrize(
    ("workers", "most", "spare"), [(0, 9, 2), (5, 9, -3), (1, 1, 0), (3, 1, -1)]
)
def test_workers_that_can_be_added_are_known(workers, most, spare, monkeypatch) -> None:
    """By the cores, and by what the backend takes, which is few on a GPU."""
    monkeypatch.setattr(recorder, "available_cores", lambda: 2)
    loader = loader_of()
    loader.num_workers = workers
    monkeypatch.setattr(loader._backend, "most_producers", most, raising=False)
    assert loader.stats().spare_workers == spare


def test_record_events_checks_its_argument() -> None:
    with pytest.raises(ValueError, match="epochs must be an int of 0 or more, got -1"):
        loader_of().record_events(-1)


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"stats\(\).plot\(\) needs matplotlib: pip install"):
        loader_of().stats().plot()


def test_loaders_can_be_pickled() -> None:
    loader = loader_of()
    list(loader)
    again = pickle.loads(pickle.dumps(loader))
    assert again.stats().batches == 0
    list(again)
    assert again.stats().batches == 10


def test_the_consumer_may_gather() -> None:
    loader = loader_of(filter_per_worker=False, num_workers=1)
    list(loader)
    assert loader.stats().made == 10


def test_the_consumer_counts_while_batches_are_added_up() -> None:
    epoch = Recorder()._epochs[-1]
    seen_by_the_consumer = epoch.counts
    epoch.made.append((None, (1, 2, 3, 4), []))
    epoch.add_up()
    seen_by_the_consumer[0] += 1
    assert epoch.counts == [1, 1, 2, 3, 4, 0, 0, 0]


def test_records_from_several_threads_are_not_lost() -> None:
    shared = Recorder()
    threads = [
        threading.Thread(target=lambda: [shared.add("sampling", 1.0, 2.0) for _ in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared._epochs[-1].add_up()
    assert shared._epochs[-1].seconds["sampling"] == 8000


def test_the_lightning_callback_logs() -> None:
    pytest.importorskip("pytorch_lightning")
    from pyg_direct.loaders.lightning import LoaderStats

    class Module:
        logged: dict = {}  # noqa: RUF012

        def log(self, name, value):
            self.logged[name] = value

    class Trainer:
        train_dataloader = loader_of()

    list(Trainer.train_dataloader)
    LoaderStats().on_train_epoch_end(Trainer, Module())
    assert 0 <= Module.logged["loader_waiting_share"] <= 1
    assert Module.logged["loader_seeds_per_second"] > 0
    Trainer.train_dataloader = torch.utils.data.DataLoader([1])
    LoaderStats().on_train_epoch_end(Trainer, Module())


def test_seeds_are_told_of_the_batches_made() -> None:
    whole = Stats(batches=3, made=3, seeds=300, nodes=900, working_seconds=3.0)
    assert repr(whole).startswith("3 batches with 300 seeds; of each on average 300 nodes")
    ahead = replace(whole, batches=2, working_seconds=2.0)
    assert repr(ahead).startswith("2 batches received, 3 batches made with 300 seeds; of each on")
    assert whole.postfix()["seeds/s"] == ahead.postfix()["seeds/s"] == "100"


def test_a_bar_does_not_begin_with_all_the_time_spent_waiting() -> None:
    first = Stats(1, 1, 8, 20, 30, {}, {}, waiting_seconds=2.0)
    assert first.postfix() == {"seeds/s": "4"}
    assert replace(first, working_seconds=2.0).postfix()["waiting"] == "50 %"


def test_rows_of_a_store_are_gathered_not_assembled(clock: Clock, monkeypatch) -> None:
    stores = remote_stores(papers_and_authors())
    features, asked = stores[0], stores[0].multi_get_tensor

    def slow(*arguments, **options):
        clock.spend(2.0)
        return asked(*arguments, **options)

    monkeypatch.setattr(features, "multi_get_tensor", slow)
    loader = NeighborLoader(stores, [3, 2], ("paper", torch.arange(20)), batch_size=20)
    stats = run(loader, clock)
    assert stats.seconds["gathering"] >= 2.0
    assert stats.seconds["assembling"] == 0.0


def test_stages_that_did_not_run_have_no_line(clock: Clock) -> None:
    loader = loader_of()
    assert repr(loader.stats()) == "no batch was made yet: iterate the loader first"
    assert "transform" not in repr(run(loader, clock))

    def change(batch):
        clock.spend(0.5)
        return batch

    assert "transform      500.000 ms a batch" in repr(run(loader_of(transform=change), clock))
