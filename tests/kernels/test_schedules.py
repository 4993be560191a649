"""Blocks that run at the same time, and all schedules of small launches."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance import Case, assert_same, check_case, make_csc, run, uniform_plan
from emulator import ORDERS, EmulatedDevice, EmulatorError, emulated
from emulator.schedules import Schedules

from pyg_direct.core.types import BatchKey, Csc
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import arrays as cuda_arrays
from pyg_direct.ops.cuda.launch import Kernel
from pyg_direct.ops.cuda.source import declarations, read_source

Program = list[list[tuple[int, int]]]  # of each thread: (operation, word)

# Each thread does what its program says to two words that all share, with a register of its own.
READ, WRITE, MIN, SWAP, BARRIER, PLAIN_READ, PLAIN_WRITE = range(1, 8)
INTERPRETER = (
    read_source("common.cuh")
    + """
KERNEL(1) interpret(In<i32> program, i32 steps, Out<u32> words, Out<u32> registers) {
  u32 held = static_cast<u32>(thread_number()) + 1;
  for (i64 s = thread_number() * steps; s < (thread_number() + 1) * steps; ++s) {
    const i32 operation = program[2 * s], at = program[2 * s + 1];
    if (operation == 1) held = atomic_read(&words[at]);
    if (operation == 2) atomic_write(&words[at], held);
    if (operation == 3) held = atomicMin(&words[at], held);
    if (operation == 4) held = atomicCAS(&words[at], 7u, held);
    if (operation == 5) __syncthreads();
    if (operation == 6) held = words[at];
    if (operation == 7) words[at] = held;
  }
  registers[thread_number()] = held;
}
"""
)


def ends_of(
    device: EmulatedDevice, program: Program, blocks: int = 2, **how: int
) -> tuple[int, set[tuple[int, ...]]]:
    """Return the number of schedules of a program, and what words and registers end as."""
    (declaration,) = declarations(INTERPRETER)
    prepare = device.build("interpreter.cu", INTERPRETER, {}, [declaration])["interpret"]
    kernel = Kernel(declaration, {}, prepare, device.device, device.block_threads)
    device.schedules = Schedules(["interpret"], **how)
    ends = set()
    for _ in device.schedules.runs():
        words = torch.full((2,), 7, dtype=torch.int32, device=device.device)
        registers = torch.zeros(len(program), dtype=torch.int32, device=device.device)
        code = torch.tensor(program, dtype=torch.int32, device=device.device).view(-1)
        kernel(blocks, program=code, steps=len(program[0]), words=words, registers=registers)
        ends.add((*words.tolist(), *registers.tolist()))
    return device.schedules.schedules["interpret"], ends


def test_schedules_are_counted_by_hand() -> None:
    with emulated(block_threads=2, warp_lanes=1) as backend:
        device = backend.library.compiler
        assert ends_of(device, [[(MIN, 0)]] * 4)[0] == 24, "every order of four"
        two_each = [[(MIN, 0)], [(MIN, 1)], [(MIN, 0)], [(MIN, 1)]]
        assert ends_of(device, two_each)[0] == 2 * 2
        assert ends_of(device, [[(READ, 0)]] * 4) == (1, {(7, 7, 7, 7, 7, 7)})
        # A word is what one of its two writers holds; a reader gets that or what was before.
        count, ends = ends_of(device, [[(WRITE, 0)], [(0, 0)], [(READ, 0)], [(0, 0)]])
        assert (count, ends) == (2, {(1, 7, 1, 2, 7, 4), (1, 7, 1, 2, 1, 4)})
        ordered: Program = [[(WRITE, 0), (BARRIER, 0)], [(BARRIER, 0), (READ, 0)]]
        assert ends_of(device, ordered, blocks=1) == (1, {(1, 7, 1, 1)})
        with pytest.raises(EmulatorError, match=r"not all schedules are run: .* more than 23"):
            ends_of(device, [[(MIN, 0)]] * 4, limit=23)


def test_independent_accesses_need_no_schedules_of_their_own() -> None:
    """Programs end alike whether or not schedules are left out."""
    draws, few, all_of_them = random.Random(0), 0, 0
    with emulated(block_threads=2, warp_lanes=1) as backend:
        for _ in range(25):
            program = [
                [(draws.randint(0, SWAP), draws.randint(0, 1)) for _ in range(2)] for _ in range(4)
            ]
            program[3] = [(0, 0)] * 2
            if draws.random() < 0.5:
                for thread in program[:2]:
                    thread[1:1] = [(BARRIER, 0)]
                for thread in program[2:]:
                    thread.append((0, 0))
            reduced = ends_of(backend.library.compiler, program)
            full = ends_of(backend.library.compiler, program, reduce=False)
            assert reduced[1] == full[1], program
            few, all_of_them = few + reduced[0], all_of_them + full[0]
    assert 20 * few < all_of_them


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ([[(PLAIN_WRITE, 0)], [(0, 0)], [(0, 0)], [(PLAIN_READ, 0)]], "race: threads 0 and 3"),
        ([[(PLAIN_READ, 1)], [(MIN, 1)], [(0, 0)], [(0, 0)]], "race: threads 0 and 1 .* words"),
        ([[(BARRIER, 0)], [(0, 0)], [(0, 0)], [(0, 0)]], "divergent barrier|deadlock"),
    ],
)
def test_mistakes_shown_by_every_schedule_are_caught(program: Program, message: str) -> None:
    with (
        emulated(block_threads=2, warp_lanes=1) as backend,
        pytest.raises(EmulatorError, match=message),
    ):
        ends_of(backend.library.compiler, program)


KERNELS = (
    "list_seeds", "enter_nodes", "plan_items", "scan_items", "sample_all", "enter_edges",
    "mark_first", "scan_ranks", "count_new", "label_edges", "emit_edges", "emit_nodes",
)  # fmt: skip


def case_of(
    lists: Sequence[Sequence[int]], seeds: Sequence[int], hops: int = 1, disjoint: bool = False
) -> Case:
    """Return a batch that takes all neighbours of a graph given by its neighbour lists."""
    zero = np.zeros(1, np.int64)
    indptr = np.cumsum([0, *map(len, lists)])
    csc = Csc(
        indptr.astype(np.int64), np.concatenate([*lists, []]).astype(np.int32), None,
        zero, zero, zero, indptr[[0, -1]], np.array([len(lists)]),
    )  # fmt: skip
    plan = uniform_plan(np.full((hops, 1), -1), disjoint=disjoint)
    return Case(csc, plan, [torch.tensor(seeds)], BatchKey(1, 2))


def of_several_types(disjoint: bool = False) -> Case:
    """Return a batch of two node types and three relations."""
    csc = make_csc(
        np.random.default_rng(0), [4, 3], [(0, 1, 4), (1, 0, 4), (0, 0, 3)], perm_type=None
    )
    plan = uniform_plan(np.full((2, 3), -1), disjoint=disjoint)
    return Case(csc, plan, [torch.tensor([0, 3]), torch.tensor([1])], BatchKey(1, 2))


def check_all_schedules(
    case: Case,
    block_threads: int = 2,
    warp_lanes: int = 2,
    planted: Sequence[tuple[str, str]] = (),
    kernels: Collection[str] = KERNELS,
) -> dict[str, int]:
    """Raise unless every schedule gives the CPU's batch; return how many each kernel had."""
    (expected,) = run(CpuBackend(), case)
    with (
        pytest.MonkeyPatch.context() as patch,
        emulated(block_threads, planted=planted, warp_lanes=warp_lanes) as backend,
    ):
        patch.setattr(cuda_arrays, "SCAN_ITEMS_PER_THREAD", 1)  # several blocks scan, too
        schedules = backend.library.compiler.schedules = Schedules(kernels)
        for _ in schedules.runs():
            assert_same(run(backend, case)[0], expected)
    return schedules.schedules


# Nodes 2 and 3 are found by both blocks, and node 0 is a seed.
SHARED = [[2, 3, 2], [3, 0], [1], []]


@pytest.mark.parametrize("disjoint", [False, True])
def test_all_schedules_of_a_small_batch(disjoint: bool) -> None:
    """Of two blocks of two threads, with the dense table and with the hash table."""
    one_seed = case_of([[2, 3, 2, 3], [], [1], []], [0], disjoint=True)
    schedules = check_all_schedules(one_seed if disjoint else case_of(SHARED, [0, 1, 0]))
    assert schedules["enter_edges"] > 1, "threads meet at a table entry"
    assert schedules["label_edges"] > 1
    for kernel in ("plan_items", "scan_items", "mark_first", "scan_ranks", "count_new"):
        assert schedules[kernel] == schedules["scan_items"], "no two threads meet"


Plant = tuple[str, str]
# What is right as long as no other block comes in between.
MINIMUM_IN_TWO: Plant = (
    "atomicMin(&batch.table.table[slot], window.base + x);",
    "if (window.base + x < atomic_read(&batch.table.table[slot])) {"
    "  atomic_write(&batch.table.table[slot], window.base + x);"
    "}",
)
SWAP_IN_TWO: Plant = (
    "const u32 found = atomicCAS(&table[slot], seen, window.base + x);",
    "const u32 found = seen; atomic_write(&table[slot], window.base + x);",
)
NOT_READ_AGAIN: Plant = (
    "seen = found;  // another thread was first",
    "// another thread was first",
)
IN_TWO_STEPS: Plant = (
    "        atomic_write(&table[slot], window.base + static_cast<u32>(local));",
    "        atomic_write(&table[slot], window.base);\n"
    "        atomic_write(&table[slot], window.base + static_cast<u32>(local));",
)
slow = pytest.mark.slow  # each mistake is compiled, which takes some seconds
PLANTS = [
    pytest.param(MINIMUM_IN_TWO, False, id="minimum in two steps"),
    pytest.param(SWAP_IN_TWO, True, id="swap in two steps", marks=slow),
    pytest.param(NOT_READ_AGAIN, True, id="not read again", marks=slow),
    pytest.param(IN_TWO_STEPS, False, id="entry in two steps", marks=slow),
]


@pytest.mark.parametrize(("plant", "disjoint"), PLANTS)
def test_a_mistake_between_blocks_shows_only_when_they_alternate(
    plant: Plant, disjoint: bool
) -> None:
    """The edges 64 to 71, which another block enters, lead to the nodes of the edges 0 to 7."""
    assert plant[0] in read_source("relabel.cu"), "nothing to replace"
    lists = [[*range(1, 65), *range(1, 9)], *([] for _ in range(64))]
    case = case_of(lists, [0], disjoint=disjoint)
    for order in ORDERS:
        with emulated(order=order, planted=[plant]) as backend:
            if order < 2:  # block by block
                check_case(backend, case, one_block=(False,))
            else:
                with pytest.raises(AssertionError):
                    check_case(backend, case, batches=6, one_block=(False,))


@pytest.mark.parametrize(("plant", "disjoint"), PLANTS)
def test_a_mistake_within_a_block_is_caught_by_some_schedule(plant: Plant, disjoint: bool) -> None:
    assert plant[0] in read_source("relabel.cu"), "nothing to replace"
    case = case_of([[1, 2, 1, 2], [], []], [0], disjoint=disjoint)
    with pytest.raises(AssertionError):
        check_all_schedules(case, planted=[plant])


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        ("  if (lane == kWarp - 1) warp_sum[warp] = sum;\n  __syncthreads();",
         "  if (lane == kWarp - 1) warp_sum[warp] = sum;"),
        ("  __syncthreads();  // the next call writes `warp_sum` again", ""),
        ("  __syncthreads();  // the places of the run may have been written by any", "  //"),
        ("  __syncthreads();  // `new_ptr` is complete", ""),
    ],
)  # fmt: skip
def test_a_missing_barrier(plant: Plant) -> None:
    """The scans with warps of one lane, so that two threads need the block's barriers."""
    assert plant[0] in read_source("relabel.cu"), "nothing to replace"
    with pytest.raises(EmulatorError, match=r"race|unwritten"):
        check_all_schedules(of_several_types(), warp_lanes=1, planted=[plant])


@pytest.mark.slow
@pytest.mark.parametrize("warp_lanes", [1, 2])
@pytest.mark.parametrize("disjoint", [False, True])
def test_all_schedules_of_larger_batches(warp_lanes: int, disjoint: bool) -> None:
    """Two and more blocks of four threads, two hops, duplicated seeds, several types."""
    lists = [[1, 2, 3, 1, 4], [0, 2, 5, 3], [4, 4, 5], [5, 0], [1], []]
    check_all_schedules(case_of(lists, [0, 1, 0], 1, disjoint), 4, warp_lanes)
    check_all_schedules(case_of(lists, [2, 3], 2, disjoint), 4, warp_lanes)
    check_all_schedules(of_several_types(disjoint), 4, warp_lanes)


@pytest.mark.slow
def test_all_schedules_of_hops_in_one_launch() -> None:
    """One block of 64 threads does two hops, between barriers."""
    case = replace(case_of(SHARED, [0, 1]), plan=uniform_plan(np.array([[2], [2]])))
    schedules = check_all_schedules(case, 32, 32, kernels=["sample_small"])
    assert schedules["sample_small"] > 1
