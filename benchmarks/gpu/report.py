"""The report of `benchmarks.gpu`, and what the README and the guide say, from its JSON alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import claims
from benchmarks.gpu.marks import NO_OUTCOME, Stages
from benchmarks.result import number, quartiles, table

TITLE = "On a GPU"
WORDS = {True: "pass", False: "**fail**", None: "not known"}
NO_RESULT = "**No GPU has run this yet**, and there are no figures."


def sections(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a report."""
    stages = {name: record["results"] for name, record in result["stages"].items()}
    yield from ["", f"{device(result)}. {result['seconds']:.0f} s for the last call."]
    if "note" in result and not result["dry"]:
        yield f"* {result['note']}"
    for what, use in result["missing"].items():
        yield f"* Not installed: {what} ({use})."
    yield from ["", "## Marks", "", *marks(result), "", "## What others have published", ""]
    measured = {} if result["dry"] else stages
    yield from table(["", "theirs", "ours"], claims.rows(measured))
    yield from ["", "## Stages", ""]
    yield from table(
        ["", "status", "seconds"],
        [[n, r["status"], f"{r['seconds']:.0f}"] for n, r in result["stages"].items()],
    )
    yield from ["", "## Batches against the CPU's", "", *batches(stages.get("right", {}))]
    yield from ["", "## Tables in host memory", "", *large_tables(stages)]
    yield from ["", "## Batches with training", "", *trained(stages), *launches(stages)]
    yield from link(stages.get("gather", {}))
    yield from rows(stages)


def link(gather: dict[str, Any]) -> Iterator[str]:
    """Yield what the link to host memory gives, and how many threads that takes."""
    if "link" not in gather:
        return
    found = gather["link"]
    rates = {row["threads"]: row["bytes_per_second"]["median"] for row in found["stream_kernel"]}
    best, enough = found["best_threads"], found["enough_threads"]
    yield from ["", "## The link to host memory", "", (
        f"A kernel that streams: {rates[best] / 1e9:.1f} GB/s with {best:,} threads, "
        f"{rates[enough] / 1e9:.1f} GB/s with {enough:,}; the copy engine: "
        f"{found['copy_engine']['bytes_per_second']['median'] / 1e9:.1f} GB/s."
    )]  # fmt: skip
    if "from_allocated" in gather:
        row = gather["from_allocated"]
        yield (
            f"Rows of {row['row_bytes']} bytes in random order, of memory that CUDA allocated: "
            f"{row['bytes_per_second']['median'] / 1e9:.1f} GB/s."
        )


def rows(stages: Stages) -> Iterator[str]:
    """Yield GB/s of rows in random order from a table on the host, ours and WholeGraph's."""
    ours = stages.get("gather", {}).get("by_row", [])
    if not ours:
        return
    theirs = stages.get("wholegraph", {}).get("gather", [])
    rates = {
        (row["row_bytes"], row.get("base", "WholeGraph")): number(
            row["bytes_per_second"]["median"] / 1e9
        )
        for row in [*ours, *theirs]
    }
    bases = sorted({row["base"] for row in ours})
    yield from ["", "Rows in random order from a table in host memory, GB/s:", ""]
    yield from table(
        ["bytes of a row", *(f"table at {base} modulo 128" for base in bases), "WholeGraph"],
        [
            [str(size), *(rates.get((size, column), "") for column in (*bases, "WholeGraph"))]
            for size in sorted({size for size, _ in rates})
        ],
    )


def device(result: dict[str, Any]) -> str:
    """Return the first GPU as `python -m pyg_direct.info` named it, or that none was."""
    if result["dry"]:
        return "No GPU: the emulator of the tests"
    lines = result["stages"].get("info", {}).get("results", {}).get("report", [])
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("GPU 0:")]
    return named[0] if named else "A GPU that was not named"


def marks(result: dict[str, Any]) -> list[str]:
    """Return the table of marks."""
    rows = [
        [
            f"{mark['name']}: {mark['wanted']}",
            "-" if mark["value"] is None else number(mark["value"]),
            WORDS[mark["passed"]],
            mark["why"],
        ]
        for mark in result["marks"]
    ]
    return table(["mark", "measured", "", ""], rows)


def cell(problem: str | None) -> str:
    """Return the outcome of a place of a kind of loader, in a word."""
    if not problem:
        return "" if problem is None else "equal"
    return NO_OUTCOME if problem.startswith(NO_OUTCOME) else "**differs**"


def batches(right: dict[str, Any]) -> list[str]:
    """Return the table of kinds of loaders and places, with the differences below it."""
    found: dict[str, dict[str, str]] = right.get("table", {})
    places = list(dict.fromkeys(place for row in found.values() for place in row))
    if not found:
        return ["Not compared."]
    rows = [[kind, *(cell(row.get(place)) for place in places)] for kind, row in found.items()]
    wrong = [f"* {k}, {p}: {text}" for k, row in found.items() for p, text in row.items() if text]
    return [*table(["", *places], rows), *([""] if wrong else []), *wrong]


def large_tables(stages: Stages) -> list[str]:
    """Return GB/s of rows from tables in host memory, by size, pages and order, and a graph's."""
    found = stages.get("large_tables", {}).get("tables", [])
    orders = list(dict.fromkeys(g["order"] for t in found for g in t.get("gathers", ())))
    rows = []
    for record in found:
        size = [f"{record['bytes'] / 1e9:g} GB", record["pages"]]
        if "left out" in record:
            rows.append([*size, record["left out"], *("" for _ in range(1 + len(orders)))])
            continue
        for row_bytes in dict.fromkeys(g["row_bytes"] for g in record["gathers"]):
            rates = {
                g["order"]: f"{g['bytes_per_second']['median'] / 1e9:.2f}"
                for g in record["gathers"]
                if g["row_bytes"] == row_bytes
            }
            registered = f"{record['register_seconds']:.2f}"
            cells = [rates.get(order, "") for order in orders]
            rows.append([*size, str(row_bytes), registered, *cells])
    if not rows:
        return ["Not measured."]
    head = ["table", "pages asked for", "bytes of a row", "s to register"]
    lines = table([*head, *(f"GB/s, {order}" for order in orders)], rows)
    graph = stages.get("opened", {})
    if "bytes_per_second" in graph:
        lines += ["", (
            f"A graph in files: {graph['bytes'] / 1e9:.2f} GB, of which registering copied "
            f"{graph['copied_bytes'] or 0} bytes; "
            f"{graph['bytes_per_second']['median'] / 1e9:.2f} GB/s in random order."
        )]  # fmt: skip
    return lines


def ways_of(stages: Stages) -> dict[str, tuple[Any, Any]]:
    """Return what was measured of each way to get batches: with training, and of batches alone."""
    ours = {f"ours, {name}": row for name, row in stages.get("ours", {}).items()}
    ours["ours, all in GPU memory"] = stages.get("in_memory", {}).get("loader", {})
    ways = {name: (row.get("trained"), row.get("alone")) for name, row in ours.items()}
    ways["batches made beforehand"] = stages.get("in_memory", {}).get("cached batches"), None
    rival = stages.get("conventional", {})
    ways["the conventional way"] = rival.get("trained"), _best(rival)
    for name in ("PrefetchLoader", "NeighborLoader"):
        found = stages.get("pyg", {})
        ways[f"PyG's {name}"] = found.get(name), _best(found)
    return {name: way for name, way in ways.items() if way[0] is not None}


def _best(rival: dict[str, Any]) -> Any:
    """Return the fastest measurement of batches alone, of all numbers of workers."""
    return min(rival.get("alone", ()), key=lambda record: record["ms"]["median"], default=None)


def trained(stages: Stages) -> list[str]:
    """Return milliseconds, joules and watts of a batch with training, by where it comes from."""
    rows, unread = [], {}
    for name, (record, alone) in ways_of(stages).items():
        energy = [number(sum(record[key].values())) if record[key] else "" for key in ENERGY]
        cores = f"{record['cores']:.2f}"
        by_itself = "" if alone is None else quartiles(alone["ms"])
        workers = str(record.get("workers", ""))
        rows.append([name, workers, by_itself, quartiles(record["ms"]), cores, *energy])
        unread.update(record["energy_not_readable"])
    if not rows:
        return ["Not measured."]
    head = ["", "workers", *TIMES, "cores in use", "joules a batch", "watts"]
    notes = [f"* Energy of the {name}: not readable ({why})." for name, why in unread.items()]
    return [*table(head, rows), *([""] if notes else []), *notes]


ENERGY = ("joules", "watts")
TIMES = ("ms a batch, alone (quartiles)", "ms a step with its batch (quartiles)")


def launches(stages: Stages) -> Iterator[str]:
    """Yield what launches cost, and what came of capturing them as CUDA graphs."""
    for size, record in stages.get("launches", {}).items():
        yield from [
            "",
            f"A {size} batch with its features takes {record['launches']} launches, "
            f"{record['thread_ms']:.3f} ms of its thread and {record['wall_ms']:.3f} ms in all.",
        ]
        for what, graph in record.get("graphs", {}).items():
            if graph["works"]:
                times = ", ".join(f"{n} {v:.3f}" for n, v in graph.items() if n != "works")
                yield f"* A CUDA graph of {what} works{': ' + times if times else ''}."
            else:
                at = f" at `{graph['call']}`" if graph["call"] else ""
                yield f"* A CUDA graph of {what} does not work: {graph['error']}{at}."


def summary(result: dict[str, Any] | None) -> list[str]:
    """Return what the README says of a committed result, or that there is none."""
    if result is None:
        return [NO_RESULT]
    known = [mark for mark in result["marks"] if mark["value"] is not None]
    plan, stages = result["plan"], {n: r["results"] for n, r in result["stages"].items()}
    rows = [
        [name, "" if alone is None else quartiles(alone["ms"]), quartiles(record["ms"])]
        for name, (record, alone) in ways_of(stages).items()
    ]
    fanout = "/".join(map(str, plan["fanout"]))
    measured = [
        f"{plan['num_edges']:,} edges, {plan['batch_size']:,} seeds a batch, fan-outs {fanout}, "
        f"GraphSAGE of {plan['hidden']} hidden units:",
        "",
        *table(["", *TIMES], rows),
    ]
    return [
        f"Run on {result['gpus'][0]}; `benchmarks/results/gpu.md` has all that was measured.",
        "",
        *(f"* {mark['name']}: {mark['why']}" for mark in known),
        "",
        *(measured if rows else ["No batch was measured with its training yet."]),
    ]
