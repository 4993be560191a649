"""What `loader.stats()` costs: one record, and all records of a batch.

Writes `results/stats_cost.json`.

    python -m benchmarks stats_cost
"""

from __future__ import annotations

import timeit
from typing import Any

from benchmarks.result import new_result, parser, write
from benchmarks.statistics import spread
from examples.support.synthetic import power_law_graph
from pyg_direct import NeighborLoader
from pyg_direct.batch.gather import Gatherer
from pyg_direct.loading.recorder import Recorder
from pyg_direct.ops import clock
from pyg_direct.ops.cpu.backend import CpuBackend


def microseconds(function: Any, number: int, rounds: int) -> dict[str, float | int]:
    """Return the spread of the time of one call."""
    seconds = timeit.repeat(function, number=number, repeat=rounds)
    return spread([1e6 * s / number for s in seconds])


def main(argv: list[str] | None = None) -> None:
    """Measure, print and write the result."""
    args = parser(__doc__).parse_args(argv)
    number, rounds = (10, 2) if args.quick else (20_000, 15)
    loader = NeighborLoader(power_law_graph(2_000, 20_000, 8, 4), [5, 5], batch_size=64)
    batch = next(iter(loader))
    recorder, gatherer = Recorder(), Gatherer(CpuBackend())

    def consumer() -> None:
        recorder.ready(0)
        recorder.hand_over(clock.instant(), 0)

    def made() -> None:
        recorder.assembled(batch, gatherer)

    result = new_result("stats_cost", args.quick, unit="microseconds")
    result |= {
        "add": microseconds(lambda: recorder.add("sampling", 0.0, 1.0), number, rounds),
        "ready_ask_hand_over": microseconds(consumer, number, rounds),
        "count_a_batch": microseconds(made, number, rounds),
    }
    for name in ("add", "ready_ask_hand_over", "count_a_batch"):
        print(f"{name}: {result[name]['median']:.2f} us (from {result[name]['min']:.2f})")
    print(write(result, args.out))


if __name__ == "__main__":
    main()
