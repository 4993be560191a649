"""What `loader.stats()` costs: one record, and all records of a batch.

Writes `results/stats_cost.json`.

python -m benchmarks.stats_cost
"""

from __future__ import annotations

import argparse
import json
import timeit
from pathlib import Path
from typing import Any

from benchmarks.machine import environment
from benchmarks.statistics import spread
from examples.synthetic import power_law_graph
from pyg_direct import NeighborLoader
from pyg_direct.loading.recorder import Recorder

RESULT = Path(__file__).parent / "results" / "stats_cost.json"


def microseconds(function: Any, number: int, rounds: int) -> dict[str, float | int]:
    """Return the spread of the time of one call."""
    seconds = timeit.repeat(function, number=number, repeat=rounds)
    return spread([1e6 * s / number for s in seconds])


def main(argv: list[str] | None = None) -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--smoke", action="store_true", help="a few calls only")
    args = parser.parse_args(argv)
    number, rounds = (10, 2) if args.smoke else (20_000, 15)
    loader = NeighborLoader(power_law_graph(2_000, 20_000, 8, 4), [5, 5], batch_size=64)
    batch = next(iter(loader))
    recorder = Recorder()

    def consumer() -> None:
        recorder.ready(0)
        recorder.hand_over(recorder.ask(), 0)

    result = {
        "benchmark": "stats_cost",
        "unit": "microseconds",
        "smoke": args.smoke,
        **environment(),
        "add": microseconds(lambda: recorder.add("sampling", 1.0), number, rounds),
        "ready_ask_hand_over": microseconds(consumer, number, rounds),
        "count_a_batch": microseconds(lambda: recorder.count(batch), number, rounds),
    }
    for name in ("add", "ready_ask_hand_over", "count_a_batch"):
        print(f"{name}: {result[name]['median']:.2f} us (from {result[name]['min']:.2f})")
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
