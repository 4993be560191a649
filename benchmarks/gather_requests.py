"""How many reads over PCIe a gather makes: our kernel beside two others and the lower bound.

Counts, on the CPU and without a GPU, the lines of 128 bytes that the read instructions of all warps
touch. Our kernel is the one of `cuda/gather.cu` itself, run by the emulator of the tests. The other
two are the access patterns of kernels with a thread for each word of 4 bytes:

* naive: output word i is read by thread i;
* circular: inside each row, words are rotated so that reads fall into the same place of a line as
  the writes, for tables that begin at a line (PyTorch-Direct; only for rows longer than a line that
  are no multiple of it).

Counts as well how many pages of 2 MiB a gather from a large table touches, step by step of its
warps, with the ids in the order in which a batch finds them and sorted. The table is a mapping that
takes no memory, and the ids are those of a simulated batch.

    python -m benchmarks requests
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import result as results
from pyg_direct.core.types import Table
from pyg_direct.ops.cuda import tuning

# Not as `tests.emulator`: other packages bring a `tests` of their own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from emulator import emulated, pin

LINE, SECTOR, WORD, WARP = 128, 32, 4, 32
BLOCK_THREADS = 256  # as on a GPU, where the order counts in which warps read


class Large(NamedTuple):
    """A table of which a batch reads rows that are far apart."""

    table_bytes: int
    row_bytes: int
    picked: int  # rows of a batch


# As many rows as a batch of 1,024 seeds with the fan-outs 15, 10, 5 reads of ogbn-papers100M.
LARGE = Large(16_000_000_000, 512, 650_000)
LARGE_QUICK = Large(160_000_000, 512, 2_000)
TITLE = "Read requests of a gather, counted in emulation"
CASES = (  # bytes of a row, address of the table modulo 128, whose rows these are
    (100, 0, "25 floats"),
    (200, 0, "50 floats"),
    (200, 64, "50 floats"),
    (400, 0, "ogbn-products"),
    (400, 16, "ogbn-products"),
    (400, 64, "ogbn-products"),
    (512, 0, "ogbn-papers100M"),
    (512, 16, "ogbn-papers100M"),
    (512, 64, "ogbn-papers100M"),
    (1536, 0, "MAG240M"),
    (1536, 64, "MAG240M"),
    (2408, 0, "Reddit"),
    (2408, 64, "Reddit"),
)


def cost(addresses: np.ndarray) -> tuple[float, float]:
    """Return the requests and the bytes sent for reads of words, [instructions, lanes] or -1.

    Each line that an instruction touches is one request, for the sectors of 32 bytes from the first
    one to the last one that it needs there.
    """
    warp, lane = np.nonzero(addresses >= 0)
    touched = addresses[warp, lane]
    key = warp * (1 << 40) + touched // LINE
    keys, inverse = np.unique(key, return_inverse=True)
    sector = touched % LINE // SECTOR
    first, last = np.full(len(keys), 4), np.full(len(keys), -1)
    np.minimum.at(first, inverse, sector)
    np.maximum.at(last, inverse, sector)
    return float(len(keys)), float(SECTOR * (last - first + 1).sum())


def thread_per_word(rows: np.ndarray, row_bytes: int, base: int, circular: bool) -> np.ndarray:
    """Return the address that each lane of each warp reads."""
    words = row_bytes // WORD
    output = np.arange(len(rows) * words) * WORD
    row, column = output // row_bytes, output % row_bytes
    source = rows[row] * row_bytes
    if circular and row_bytes > LINE and row_bytes % LINE:
        rotation = np.fmod(row * row_bytes - source, LINE)
        column = column + rotation
        column = np.where(column < 0, column + row_bytes, column)
        column = np.where(column >= row_bytes, column - row_bytes, column)
    address = base + source + column
    padded = np.full(-(-len(address) // WARP) * WARP, -1)
    padded[: len(address)] = address
    return padded.reshape(-1, WARP)


def ours(rows: np.ndarray, row_bytes: int, base: int, num_rows: int) -> tuple[float, float]:
    """Return requests and bytes of our kernel, counted while it runs."""
    memory = torch.zeros(num_rows * row_bytes + 2 * LINE, dtype=torch.uint8)
    skip = (base - memory.data_ptr()) % LINE
    table = memory[skip : skip + num_rows * row_bytes].view(num_rows, row_bytes)
    with emulated() as backend:
        device = backend.library.compiler
        device.recorded = "table"
        backend.gather([Table(pin(backend, table))], torch.from_numpy(rows).to(backend.device))[0]
        return device.requests.requests, device.requests.payload_bytes


def bound(rows: np.ndarray, row_bytes: int, base: int) -> tuple[float, float]:
    """Return the requests and bytes when each row's lines and sectors are read once."""
    first = base + rows * row_bytes
    last = first + row_bytes - 1
    requests, sectors = ((last // size - first // size + 1).sum() for size in (LINE, SECTOR))
    return float(requests), float(SECTOR * sectors)


def measure(num_picked: int, num_rows: int) -> list[dict[str, Any]]:
    """Return one record for each case."""
    rng = np.random.default_rng(0)
    records = []
    for row_bytes, base, what in CASES:
        rows = rng.permutation(num_rows)[:num_picked]
        counted = {
            "naive": cost(thread_per_word(rows, row_bytes, base, circular=False)),
            "circular": cost(thread_per_word(rows, row_bytes, base, circular=True)),
            "ours": ours(rows, row_bytes, base, num_rows),
            "bound": bound(rows, row_bytes, base),
        }
        record: dict[str, Any] = {"row_bytes": row_bytes, "base": base, "rows_of": what}
        for name, (requests, sent) in counted.items():
            record[name] = {
                "requests_per_row": round(requests / num_picked, 4),
                "payload_bytes_per_row": round(sent / num_picked, 1),
            }
        records.append(record)
    return records


def batch_ids(num_rows: int, picked: int) -> np.ndarray:
    """Return distinct ids in the order in which a batch finds them.

    Nodes are found by their neighbours, so some are far more popular than others, and where a node
    is stored says nothing about that.
    """
    rng = np.random.default_rng(0)
    found = np.empty(0, np.int64)
    while len(found) < picked:
        rank = (num_rows * rng.random(picked) ** 2).astype(np.int64)
        found = np.concatenate([found, rank * 2_654_435_761 % num_rows])
        found = found[np.sort(np.unique(found, return_index=True)[1])]
    return found[:picked]


def large_table(size: Large) -> dict[str, Any]:
    """Return what a gather from a large table asks for, with ids as they were found and sorted."""
    num_rows = size.table_bytes // size.row_bytes
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, num_rows * size.row_bytes, flags=flags)
    table = torch.frombuffer(memory, dtype=torch.uint8).view(num_rows, size.row_bytes)
    ids = torch.from_numpy(batch_ids(num_rows, size.picked))
    record: dict[str, Any] = size._asdict()
    before = tuning.SORTED_TABLE_BYTES
    for name, least in (("as_found", size.table_bytes), ("sorted", 0)):
        with emulated(block_threads=BLOCK_THREADS) as backend:
            device = backend.library.compiler
            device.recorded = "table"
            try:
                tuning.SORTED_TABLE_BYTES = least
                backend.gather([Table(pin(backend, table))], ids.to(backend.device))
            finally:
                tuning.SORTED_TABLE_BYTES = before
            counted = device.requests
        record[name] = {"requests": counted.requests, "pages": counted.pages}
    return record


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    kernels = ("naive", "circular", "ours", "bound")
    rows = []
    for record in result["cases"]:
        cells = [
            f"{record[name]['requests_per_row']:.2f} / {record[name]['payload_bytes_per_row']:.0f}"
            for name in kernels
        ]
        rows.append([str(record["row_bytes"]), str(record["base"]), record["rows_of"], *cells])
    return [
        "",
        f"Read requests of {LINE}-byte lines / payload bytes, per row: {result['rows_gathered']:,} "
        f"random rows of a table of {result['rows_of_table']:,}.",
        "",
        *results.table(["row bytes", "base", "rows of", *kernels], rows),
        *large_section(result["large"]),
    ]


def large_section(large: dict[str, Any]) -> list[str]:
    """Return what is reported of the large table."""
    ways = {"as found": large["as_found"], "sorted": large["sorted"]}
    rows = [
        [name, f"{way['requests']:,}", f"{way['pages']:,}", f"{way['pages'] / large['picked']:.3f}"]
        for name, way in ways.items()
    ]
    return [
        "",
        f"{large['picked']:,} rows of {large['row_bytes']} bytes, of a table of "
        f"{large['table_bytes'] / 1e9:g} GB with {large['table_bytes'] >> 21:,} pages of 2 MiB, by "
        f"the order of the ids (simulated). Pages are counted step by step: those that the reads "
        f"of all warps touch at a time.",
        "",
        *results.table(["ids", "requests", "pages", "pages per row"], rows),
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw requests over the lower bound, from the records alone."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.2))
    records = result["cases"]
    at = np.arange(len(records))
    colours = {"naive": "#c8553d", "circular": "#e0a458", "ours": "#2f6690"}
    for i, (name, colour) in enumerate(colours.items()):
        ratio = [r[name]["requests_per_row"] / r["bound"]["requests_per_row"] for r in records]
        axes.bar(at + (i - 1) * 0.27, ratio, 0.27, label=name, color=colour)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(at, [f"{r['row_bytes']} B\n+{r['base']}" for r in records], fontsize=8)
    axes.set_xlabel("row length, and address of the table modulo 128")
    axes.set_ylabel("read requests / lower bound")
    axes.set_title("PCIe read requests of a gather of random rows")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    """Count, and write the results."""
    arguments = results.parser(__doc__)
    arguments.add_argument("--picked", type=int, help="rows to gather; 4,096, quickly 40")
    arguments.add_argument("--rows", type=int, help="rows of the table; 20,000, quickly 90")
    args = arguments.parse_args(argv)
    picked, rows = (40, 90) if args.quick else (4096, 20_000)
    picked, rows = args.picked or picked, args.rows or rows
    sizes = {"rows_gathered": picked, "rows_of_table": rows}
    result = results.new_result("requests", args.quick, **sizes)
    result["cases"] = measure(picked, rows)
    result["large"] = large_table(LARGE_QUICK if args.quick else LARGE)
    path = results.write(result, args.out)
    plot(result, path.with_suffix(".png"))
    print("\n".join(sections(result)))
