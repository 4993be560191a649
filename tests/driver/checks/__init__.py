"""What batches of one loader do not show. Each check yields what it tried, and a problem or ""."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import devices, graphs, memory, ordering, processes, programs, unified

Check = Callable[[str], Iterator[tuple[str, str]]]
"""Called with the schedule, which is set already."""

CHECKS: dict[str, Check] = {
    check.__name__: check
    for module in (ordering, memory, graphs, devices, unified, processes, programs)
    for check in module.CHECKS
}

SCHEDULES = {  # of checks that do not depend on them, or take long
    "a_thousand_batches": "2",
    "a_hundred_loaders": "2",
    "out_of_memory": "eager",
    "out_of_memory_at_construction": "eager",
    "unified_on_the_second_device": "2",
    "not_in_a_capture": "eager",
    "replayed_batches": "2",
    "replayed_steps": "eager,2",
    "info": "eager",
    "benchmarks_run_dry": "lazy",
    "right_first": "lazy",
    "stages_for_a_gpu": "eager",
    "tests_for_a_gpu": "lazy",
    "conformance_on_a_gpu": "lazy",
}
