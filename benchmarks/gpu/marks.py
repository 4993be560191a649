"""The marks that a run of `benchmarks.gpu` is judged by: each number, and what it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

LONG_ROW_BYTES = 400
GATHER_SHARE = 0.9
NO_OUTCOME = "no outcome"  # begins what is said of a place that was not compared
MOST_SHARE = 1.1  # of the link: what is faster does not come over it
SANITIZER_FOUND = 9  # what compute-sanitizer ends with, where it found something
TIMES_PYG = 10.0
END_TO_END = 1.10
CORES = 1.0
GROWTH_BATCHES = 10_000
GROWTH_BYTES = 16e6  # what an allocator may move over so many batches: 1.6 KB each
GROWTH_SHARE = {"host": 0.0, "reserved": 0.01}  # torch's cache grows with the largest batch so far

Stages = dict[str, dict[str, Any]]


class NotMeasuredError(Exception):
    """The run has not what a mark needs; the text says what."""


class Mark(NamedTuple):
    """One thing that must hold."""

    name: str
    wanted: str
    value: float | None
    passed: bool | None  # None: not known
    why: str  # how the value came about, or what is missing


def evaluate(stages: Stages, dry: bool = False) -> list[Mark]:
    """Return all marks.

    Args:
        stages: what each stage measured: `results` by the stage's name.
        dry: nothing was measured on a GPU, so no mark is known.
    """
    marks = []
    for name, wanted, judge in MARKS:
        value: float | None = None
        passed: bool | None = None
        try:
            value, passed, why = judge(stages)
        except NotMeasuredError as missing:
            why = f"not measured: {missing}"
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            # Of a stage that was stopped: the rest of the run must go on.
            why = f"not measured: a part is missing ({type(error).__name__}: {error})"
        if dry:
            value, passed, why = None, None, "not run (dry)"
        marks.append(Mark(name, wanted, value, passed, why))
    return marks


def table(marks: list[Mark]) -> str:
    """Return the marks as text."""
    words = {True: "pass", False: "FAIL", None: "?"}
    return "\n".join(
        f"{words[mark.passed]:>4}  {mark.name} ({mark.wanted}): "
        f"{'-' if mark.value is None else f'{mark.value:.3g}'}; {mark.why}"
        for mark in marks
    )


def need(stages: Stages, stage: str, *keys: str) -> Any:
    """Return a result of a stage.

    Raises:
        NotMeasuredError: it is not there.
    """
    found: Any = stages.get(stage, {})
    for key in keys:
        if not isinstance(found, dict) or not found.get(key):
            raise NotMeasuredError(f"{stage} has no {'/'.join(keys)}")
        found = found[key]
    return found


Judgement = tuple[float | None, bool | None, str]


def batches_right(stages: Stages) -> Judgement:
    """Batches of all kinds of loaders in all places equal the CPU's."""
    table = need(stages, "right", "table")
    cells = [
        (kind, place, problem) for kind, row in table.items() for place, problem in row.items()
    ]
    known = [cell for cell in cells if not cell[2].startswith(NO_OUTCOME)]
    wrong = [f"{kind}, {place}: {problem}" for kind, place, problem in known if problem]
    equal, unknown = len(known) - len(wrong), len(cells) - len(known)
    why = f"{equal} of {len(cells)} places of {len(table)} kinds of loaders"
    if unknown:
        why += f", {unknown} without an outcome"
    passed = False if wrong else None if unknown else True
    return len(wrong), passed, "; ".join([why, *wrong[:3]])


def tests_pass(stages: Stages) -> Judgement:
    """All GPU tests ran and passed."""
    counts, outcome = need(stages, "tests", "counts"), need(stages, "tests", "outcome")
    bad = counts["failed"] + counts["error"] + counts["skipped"]
    why = ", ".join(f"{number} {word}" for word, number in counts.items())
    if outcome["status"] is None:
        why += ", stopped at the time limit"
    return bad, outcome["status"] == 0 and bad == 0 and counts["passed"] > 0, why


def sanitizer_clean(stages: Stages) -> Judgement:
    """No tool of compute-sanitizer found anything."""
    tools = {
        name: need(stages, "sanitizer", name)["status"]
        for name in ("memcheck", "racecheck", "initcheck", "synccheck")
    }
    words = {None: "stopped at its time limit", SANITIZER_FOUND: "found errors"}
    bad = [f"{name} {words.get(s, f'ended with {s}')}" for name, s in tools.items() if s != 0]
    return len(bad), not bad, ", ".join(bad) or "all four tools"


def link_rate(stages: Stages) -> float:
    """Return the most that the link gave to the streaming kernel or to the copy engine."""
    link = need(stages, "gather", "link")
    rates = [*link["stream_kernel"], link["copy_engine"]]
    return float(max(rate["bytes_per_second"]["median"] for rate in rates))


def gather_near_link(stages: Stages) -> Judgement:
    """The slowest gather of long rows against the link."""
    limit = link_rate(stages)
    rows = [r for r in need(stages, "gather", "by_row") if r["row_bytes"] >= LONG_ROW_BYTES]
    if not rows:
        raise NotMeasuredError("no gather of long rows")
    slowest = min(rows, key=lambda row: float(row["bytes_per_second"]["median"]))
    share = slowest["bytes_per_second"]["median"] / limit
    why = (
        f"rows of {slowest['row_bytes']} bytes at base {slowest['base']}, the slowest of "
        f"{len(rows)}: {share * limit / 1e9:.2f} of {limit / 1e9:.2f} GB/s"
    )
    return share, GATHER_SHARE <= share <= MOST_SHARE, why


def times_pyg(stages: Stages) -> Judgement:
    """Our loader alone against PyG's, each as it is best for a user."""
    theirs = min(
        (record["ms"]["median"], record["workers"]) for record in need(stages, "pyg", "alone")
    )
    ours = {
        name: record["alone"]["ms"]["median"]
        for name, record in stages.get("ours", {}).items()
        if isinstance(record, dict)
    }
    if not ours:
        raise NotMeasuredError("ours has no alone")
    slowest = max(ours, key=lambda name: float(ours[name]))
    ratio = theirs[0] / ours[slowest]
    why = (
        f"{theirs[0]:.2f} ms a batch with {theirs[1]} workers, ours {ours[slowest]:.3f} ms "
        f"({slowest}, our slowest)"
    )
    return ratio, ratio >= TIMES_PYG, why


def end_to_end(stages: Stages) -> Judgement:
    """Training from host memory against the slower of two limits."""
    ours = need(stages, "ours", "host")
    in_memory = need(stages, "in_memory", "loader")["trained"]["ms"]["median"]
    link = 1e3 * ours["useful_bytes"] / link_rate(stages)
    limit, which = max((in_memory, "all in GPU memory"), (link, "the link's limit"))
    got = ours["trained"]["ms"]["median"]
    why = (
        f"{got:.3f} ms a batch; all in GPU memory {in_memory:.3f} ms, link {link:.3f} ms: "
        f"compared with {which}"
    )
    return got / limit, got <= END_TO_END * limit, why


def few_cores(stages: Stages) -> Judgement:
    """CPU time of the whole process while it trains from host memory."""
    cores = need(stages, "ours", "host", "trained", "cores")
    return cores, cores < CORES, "CPU seconds a second, training included"


def no_growth(stages: Stages) -> Judgement:
    """Memory of the process and of the GPU over many batches."""
    grown = need(stages, "growth", "growth")
    if "reserved" not in grown["bytes"]:
        raise NotMeasuredError("growth has no GPU memory")
    kinds = {name: grown["bytes"][name] for name in GROWTH_SHARE}
    most = max(kinds.values())
    why = ", ".join(f"{name} {value / 1e6:+.1f} MB" for name, value in kinds.items())
    why += f" over {grown['batches']:,} batches"
    if any(v > GROWTH_BYTES + GROWTH_SHARE[name] * grown["of"][name] for name, v in kinds.items()):
        return most, False, why
    enough = grown["batches"] >= GROWTH_BATCHES
    return most, True if enough else None, why + ("" if enough else ": too few to tell")


Judge = Callable[[Stages], Judgement]
MARKS: tuple[tuple[str, str, Judge], ...] = (
    ("batches as on the CPU", "none differs", batches_right),
    ("GPU tests", "none fails", tests_pass),
    ("compute-sanitizer", "no finding", sanitizer_clean),
    (
        "gather over the link",
        f"rows >= {LONG_ROW_BYTES} B: >= {GATHER_SHARE:.0%} of it",
        gather_near_link,
    ),
    ("loader against PyG's best", f">= {TIMES_PYG:.0f} x", times_pyg),
    ("end to end", f"<= {END_TO_END:.2f} x the limit", end_to_end),
    ("CPU cores", f"< {CORES:.0f}", few_cores),
    ("memory growth", f"none over {GROWTH_BATCHES:,} batches", no_growth),
)
