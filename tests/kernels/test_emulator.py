"""Mistakes planted into the kernels' text are caught: the tests of the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conformance import assert_same, check_case, homogeneous, huge_list, run
from emulator import ORDERS, EmulatorError, emulated, pin
from tables import least_requests, table_at

from pyg_direct.core.types import Table
from pyg_direct.ops.cuda.source import FILES, read_source

Plant = tuple[str, str]


def batch(
    plant: Plant,
    order: int = 0,
    fanouts: tuple[int, ...] = (5, 3),
    one_block: tuple[bool, ...] = (True, False),
    **plan: object,
) -> None:
    """Run the conformance check of a batch with a planted mistake."""
    assert any(plant[0] in read_source(file) for file in FILES), "nothing to replace"
    with emulated(order=order, planted=[plant]) as backend:
        check_case(backend, homogeneous(fanouts, plan=plan), one_block=one_block)


def gather(plant: Plant, base: int = 64, row_bytes: int = 400) -> int:
    """Gather with a planted mistake, check the rows, and return requests beyond the bound."""
    assert plant[0] in read_source("gather.cu"), "nothing to replace"
    table, index = table_at(base, 9, row_bytes), torch.tensor([8, 0, 4])
    with emulated(planted=[plant]) as backend:
        backend.library.compiler.recorded = "table"
        got = backend.gather([Table(pin(backend, table))], index.to(backend.device))[0]
        backend.library.compiler.memory.assert_written(got, "out")
        assert torch.equal(got.cpu(), table[index])
        return backend.library.compiler.requests.requests - least_requests(table, index)


def caught(check: Callable[[], object], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        check()


def test_nothing_is_caught_without_a_mistake() -> None:
    assert gather(("gather_rows", "gather_rows")) == 0
    batch(("atomicMin", "atomicMin"))


RACE = (
    "atomicMin(&batch.table.table[slot], window.base + x);",
    "if (window.base + x < batch.table.table[slot]) batch.table.table[slot] = window.base + x;",
)


@pytest.mark.parametrize("order", ORDERS)
def test_two_threads_that_touch_one_element_are_caught_as_a_race(order: int) -> None:
    caught(lambda: batch(RACE, order), "race: two threads touch the same element")


FIRST_COME = (
    "atomicMin(&batch.table.table[slot], window.base + x);",
    "const u32 seen = atomic_read(&batch.table.table[slot]);"
    "if (!window.holds(seen)) atomicCAS(&batch.table.table[slot], seen, window.base + x);",
)


def test_an_order_dependent_label() -> None:
    """Whichever edge comes first gets the node: right in one order of the threads only."""
    batch(FIRST_COME, order=0, one_block=(False,))
    for order in ORDERS[1:]:
        with pytest.raises(AssertionError):
            batch(FIRST_COME, order)


def test_an_order_dependent_label_in_the_hash_table() -> None:
    plant = ("      atomicMin(&table[slot], window.base + x);\n", "")
    batch(plant, order=0, one_block=(False,), disjoint=True)
    with pytest.raises(AssertionError):
        batch(plant, order=1, disjoint=True)


def test_orders_give_different_results_where_a_kernel_depends_on_them() -> None:
    labels = []
    for order in ORDERS:
        with emulated(order=order, planted=[FIRST_COME]) as backend:
            labels.append(run(backend, homogeneous([5]))[0])
    with pytest.raises(AssertionError):
        assert_same(labels[0], labels[1])


def test_a_read_out_of_bounds() -> None:
    plant = (
        "span{list, graph.indptr[v + 1] - list};",
        "span{list, graph.indptr[v + 900] - list};",
    )
    caught(lambda: batch(plant), "out-of-range read of [a-z_]*: indptr")


def test_one_word_behind_the_table() -> None:
    plant = ("column < shape.row_bytes", "column <= shape.row_bytes")
    caught(lambda: gather(plant), "out-of-range")


def test_a_write_out_of_bounds() -> None:
    plant = ("picked.target(piece.row)", "picked.target(piece.row) + 1")
    caught(lambda: gather(plant), "out-of-range write of gather_rows: out")


def test_a_misaligned_read() -> None:
    caught(
        lambda: gather(("(sizeof(V)) -\n", "(sizeof(V)) - 4 -\n")),
        "misaligned read",
    )


def test_a_wrong_shift_gives_wrong_rows() -> None:
    with pytest.raises(AssertionError):
        gather(("(sizeof(V)) -\n", "(sizeof(V)) +\n"))


def test_a_shift_from_the_table_and_not_from_the_address_asks_twice() -> None:
    """As the circular shift does: right for tables at a line, wrong for all others."""
    plant = (
        "from.address(source) & shape.line_mask",
        "static_cast<u64>(source) & shape.line_mask",
    )
    assert gather(plant, base=0, row_bytes=1536) == 0
    assert gather(plant, base=64, row_bytes=1536) > 0


def test_an_output_left_unwritten() -> None:
    plant = ("if (target[u] >= 0) sink", "if (target[u] > 0) sink")
    caught(lambda: gather(plant), "never written")


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier(order: int) -> None:
    plant = ("  if (lane == kWarp - 1) warp_sum[warp] = sum;\n  __syncthreads();",
             "  if (lane == kWarp - 1) warp_sum[warp] = sum;")  # fmt: skip
    caught(lambda: batch(plant, order), "race|read of unwritten memory of warp_sum")


def test_a_missing_second_barrier() -> None:
    """Only the next use of the shared array goes wrong."""
    plant = ("  __syncthreads();  // the next call writes `warp_sum` again", "")
    for order in ORDERS:
        caught(lambda order=order: batch(plant, order), "race")


def test_a_barrier_not_reached_by_all_threads_is_caught() -> None:
    plant = (
        "  const i64 all = block_prefix(sum_of_thread).all;",
        "  if (threadIdx.x >= 40) return;\n  const i64 all = block_prefix(sum_of_thread).all;",
    )
    caught(lambda: batch(plant), "divergent|deadlock")


def test_a_collective_not_reached_by_all_lanes_is_caught() -> None:
    plant = ("= __match_any_sync(group_mask, drawn) >> shift;",
             "= active ? __match_any_sync(group_mask, drawn) >> shift : 0;")  # fmt: skip
    caught(lambda: batch(plant), "divergent|deadlock")


def test_a_mask_of_the_wrong_lanes() -> None:
    plant = (
        "return (kAllLanes >> (kWarp - lanes)) << first;",
        "return kAllLanes >> (kWarp - lanes);",
    )
    caught(lambda: batch(plant), "leaves it out")


def test_a_read_of_unwritten_memory_is_caught() -> None:
    plant = ("    items.item_degree[item] = span.degree;\n", "")
    caught(lambda: batch(plant), "read of unwritten memory of sample_[a-z]*: item_degree")


def test_an_array_both_read_and_written_is_caught() -> None:
    with emulated() as backend:
        kernel = backend.library.load("gather.cu", V="u8", kPlaced="false")["gather_rows"]
        memory = torch.zeros(8, dtype=torch.uint8, device=backend.device)
        index = torch.zeros(1, dtype=torch.int64, device=backend.device)
        arguments = {
            "place": index[:0], "wrong": index[:0], "rows": 1, "end": 1, "row_bytes": 1, "lanes": 1,
            "line_mask": 0, "pieces": 1,
        }  # fmt: skip
        launch = kernel.bind(arguments, table=memory, index=index, out=memory[4:])
        caught(lambda: launch(kernel.grid(1)), "table and out overlap")


def test_a_descriptor_not_uploaded_is_caught() -> None:
    with emulated() as backend:
        case = homogeneous([3])
        work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
        work.begin(case.seeds, case.key)
        work._arrays.replace("row", work._arrays["row"].clone())
        caught(lambda: work.hop(0), "row of the descriptor in device memory is")


@pytest.mark.slow
def test_a_thread_without_end() -> None:
    plant = ("    at.advance(stride_rows, stride_numbers, pieces);\n", "")
    caught(lambda: gather(plant), "a thread does not come to an end")


def test_a_launch_prepared_for_moved_memory_is_caught() -> None:
    with emulated() as backend:
        case = homogeneous([3])
        work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
        work.begin(case.seeds, case.key)
        steps = work._list_seeds(0, 0)
        work._state._move(len(work._state._all) + 1)
        caught(lambda: work._launch(steps), "list_seeds was prepared for a descriptor that has")


def check_small_fanouts(plant: Plant) -> None:
    with emulated(planted=[plant]) as backend:
        for fanout in (5, 8, 30):
            check_case(backend, homogeneous([fanout], num_edges=1500, seeds=60), batches=4)


@pytest.mark.parametrize(
    "plant",
    [
        ("slot & 2 ? high_pair : low_pair", "slot & 2 ? low_pair : high_pair"),
        ("round < 10", "round < 9"),
        ("top + 1) : 0;", "top) : 0;"),
        ("return taken ? top : drawn;", "return drawn;"),
        ("taken = taken || (may_chain && (all_taken >> asked & 1));", ""),
    ],
)
def test_a_wrong_law(plant: Plant) -> None:
    """Every line of the draws matters to some batch of the conformance suite."""
    assert plant[0] in read_source("sample.cu"), "nothing to replace"
    with pytest.raises(AssertionError):
        check_small_fanouts(plant)


@pytest.mark.slow
def test_a_missing_replacement_of_a_refused_word_is_caught(tmp_path: Path) -> None:
    plant = ("static_cast<u32>(product) < threshold", "false")
    assert plant[0] in read_source("sample.cu"), "nothing to replace"
    with pytest.raises(AssertionError), emulated(planted=[plant]) as backend:
        check_case(backend, huge_list(tmp_path, [5]))
