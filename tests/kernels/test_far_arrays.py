"""Offsets that may need more than 32 bits do: arrays begin 6 G elements before what is there.

Kernels get an address so far below an array that the indices of its elements need 33 bits, and
whatever is not an element is out of range (`EmulatedDevice.far`). The tables that say where lists,
hops and relations begin are moved by as much, so results stay what they are. That costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conformance import (
    PALETTES,
    Case,
    assert_same,
    homogeneous,
    make_csc,
    make_seeds,
    replace_plan,
    run,
    uniform_plan,
    with_excluded_edges,
    with_seed_times,
    with_times,
    with_weights,
    with_windows,
)
from emulator import emulated, pin
from tables import table_at

from pyg_direct.core.types import BatchKey, Table
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import tuning
from pyg_direct.ops.cuda.backend import CudaBackend, as_bytes
from pyg_direct.ops.cuda.drawing import CudaDrawing

FAR = 3 << 31  # elements; as an int32 it is negative, as 32 bits without a sign too small
OF_GRAPH = ("indptr", "indices", "perm", "time", "weight", "cumulative", "alias")
OF_BATCH = ("node", "seed_of", "local", "col", "label", "position", "table", "excluded")


@contextmanager
def far(planted: Sequence[tuple[str, str]] = ()) -> Iterator[CudaBackend]:
    """Give a backend for graphs of `far_csc`, whose lists and hops begin far behind, too."""
    make_room, next_window = CudaDrawing._make_room, CudaDrawing._next_window

    def make_far_room(self: CudaDrawing, *arguments: Any) -> bool:
        renewed = make_room(self, *arguments)
        self._state.tables["node_start"] += FAR
        self._state.tables["hop_start"][: len(self._hop_start)] += FAR
        return renewed

    def next_far_window(self: CudaDrawing) -> None:
        next_window(self)
        self._state.tables["slot_base"] += FAR

    with emulated(planted=planted) as backend, pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaDrawing, "_make_room", make_far_room)
        patch.setattr(CudaDrawing, "_next_window", next_far_window)
        backend.library.compiler.far = dict.fromkeys([*OF_GRAPH, *OF_BATCH], FAR)
        yield backend


def far_case(case: Case) -> Case:
    """Return a case whose graph has its first edge, pointer and time at number FAR."""
    csc, excluded = case.csc, case.excluded
    times = csc.times
    if times is not None:
        times = times._replace(base=np.where(times.base >= 0, times.base + FAR, times.base))
    moved = replace(
        csc, indptr=csc.indptr.astype(np.int64) + FAR, indptr_base=csc.indptr_base + FAR,
        edge_base=csc.edge_base + FAR, times=times,
    )  # fmt: skip
    if excluded is not None:
        excluded = type(excluded)(excluded.position + FAR, excluded.bounds + FAR)
    return replace(case, csc=moved, excluded=excluded)


def check(case: Case, **options: Any) -> None:
    """Raise unless a case gives the same batches far behind, on either kind of hop and place."""
    expected = run(CpuBackend(), case, 2)
    moved = far_case(case)
    for rounds in (0, tuning.ONE_BLOCK_ROUNDS):
        for place in ("device", "host"):
            with far(**options) as backend, pytest.MonkeyPatch.context() as patch:
                patch.setattr(tuning, "ONE_BLOCK_ROUNDS", rounds)
                patch.setattr(backend.memory, "place_graph", placed(backend, place))
                for got, want in zip(run(backend, moved, 2), expected, strict=True):
                    assert_same(got, want)


def placed(backend: CudaBackend, place: str) -> Any:
    """Return a `place_graph` that puts graphs on the host, or on the device."""
    whole = backend.memory.place_graph
    return lambda csc: whole(csc, place)


def two_types(**plan: Any) -> Case:
    rng = np.random.default_rng(3)
    csc = make_csc(rng, [40, 30], [(0, 0, 300), (1, 0, 200), (0, 1, 200)], hub=True)
    law = replace_plan(uniform_plan(np.array([[3, 2, 40], [2, -1, 1]])), **plan)
    return Case(csc, law, make_seeds(rng, csc, [6, 4]), BatchKey(5, 6))


def timed(by_edge: bool, **plan: Any) -> Case:
    rng, case = np.random.default_rng(1), two_types(**plan)
    return with_seed_times(rng, case, with_times(rng, case.csc, by_edge))


def weighted(case: Case, palette: int = 1) -> Case:
    return replace(case, csc=with_weights(np.random.default_rng(2), case.csc, PALETTES[palette]))


RNG = np.random.default_rng(4)
CASES = {
    "uniform": two_types(), "with replacement": two_types(replace=True),
    "disjoint": two_types(disjoint=True), "labor": two_types(labor=True),
    "induced": replace(two_types(), induced=True),
    "induced, disjoint": replace(two_types(disjoint=True), induced=True),
    "excluded": with_excluded_edges(RNG, two_types()),
    "excluded, disjoint": with_excluded_edges(RNG, two_types(disjoint=True)),
    "excluded, labor": with_excluded_edges(RNG, two_types(labor=True)),
    "times of edges": timed(True), "times of nodes": timed(False),
    "latest": timed(True, recent=True), "windows": with_windows(RNG, timed(False)),
    "times, induced": replace(timed(False), induced=True),
    "weights": weighted(two_types()), "weights with replacement": weighted(two_types(replace=True)),
    "weights far apart": weighted(two_types(), 3), "weights and times": weighted(timed(True)),
    "weights, latest": weighted(timed(True, recent=True)),
    "weights, excluded": with_excluded_edges(RNG, weighted(two_types())),
    "no ids of edges": replace(
        two_types(), csc=make_csc(RNG, [40, 30], [(0, 0, 300), (1, 0, 200), (0, 1, 200)],
                                  perm_type=None)
    ),
    "wide ids": homogeneous([4, 3], id_type=np.int64),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_batches_of_a_graph_far_behind_are_the_same(name: str) -> None:
    check(CASES[name])


def test_draws_and_picks_far_behind_are_the_same() -> None:
    case = two_types()
    expected = run(CpuBackend(), case)[0]
    with far() as backend:
        moved = far_case(case)
        csc = backend.memory.place_graph(moved.csc)
        work, other = backend.workspace(csc, moved.plan), backend.workspace(csc, moved.plan)
        assert work.begin(moved.seeds, moved.key)
        for hop in range(2):
            work.enter(hop, other.draw(hop, work.frontier(hop), moved.key))
        assert_same(work.finish(), expected)


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("kind", ["copied", "cached", "int8 by column", "int8 by row", "float16"])
def test_rows_far_behind_are_the_same(kind: str, by_id: bool) -> None:
    ids = torch.tensor([5, 0, 39, 39, 7, 21, 3])
    for row_bytes in (2, 24, 100, 400, 2408):
        check_rows(kind, by_id, row_bytes, ids)


def check_rows(kind: str, by_id: bool, row_bytes: int, ids: torch.Tensor) -> None:
    table = table_at(64, 40, row_bytes).clone()
    scale, dtype = None, None
    if kind.startswith("int8"):
        table, dtype = table.view(torch.int8), torch.float32
        scale = torch.rand(40, 1) if "row" in kind else torch.rand(row_bytes)
    elif kind == "float16":
        table, dtype = torch.rand(40, row_bytes // 2).half(), torch.bfloat16
    (expected,) = CpuBackend().gather([Table(table, dtype, scale)], ids)
    with emulated() as backend:
        device = backend.library.compiler
        here = pin(backend, table)
        place = torch.tensor([3, 0, 6, 2, 1, 5, 4])
        device.far = {"table": FAR * row_bytes, "slots": FAR}
        reading: dict[str, torch.Tensor] = {}
        if by_id:
            reading["place"] = (place + FAR).to(backend.device)
            device.far["out"] = FAR * (expected.nbytes // 7)
        if kind == "cached":
            slots = torch.full((40,), -1, dtype=torch.int32)
            slots[39] = 0
            reading |= {
                "slots": slots.to(backend.device), "held": table[39].clone().to(backend.device),
                "found": torch.zeros(1, dtype=torch.int64).to(backend.device),
            }  # fmt: skip
        index = ((ids[place] if by_id else ids) + FAR).to(backend.device)
        out = torch.zeros_like(expected).to(backend.device)
        if dtype is None:
            backend.gather_bytes(as_bytes(here), index, as_bytes(out), 7, **reading)
        else:
            if scale is not None and scale.dim() == 2:
                device.far["scale"] = FAR
                scale = scale.to(backend.device)
            backend._decode(here, scale, index, out, reading)
    assert torch.equal(as_bytes(out.cpu()), as_bytes(expected))
