"""Numbers of kernels that are cut to 32 bits: none without a cast, and each cast says why it fits.

Tables, graphs and batches have more than 2^32 bytes, and more than 2^31 edges, so that an offset in
32 bits is wrong where no small test looks. `test_far_arrays.py` runs kernels on such offsets.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from covering import extremes
from emulator.library import HERE, translation_unit

from pyg_direct.ops.cuda.launch import BLOCK_THREADS, compile_options
from pyg_direct.ops.cuda.source import FILES, declarations, read_source, source_folder

NARROW = "i32|u32|u16|u8|int|unsigned|signed char|Sum|P|I|O"  # what a cast may cut a number to
CAST = re.compile(rf"(?:static_cast<({NARROW})>|\b({NARROW}))\(")
OPTIONS = ("-fsyntax-only", "-Wconversion", "-Wno-sign-conversion", "-Wold-style-cast")

LOCAL = "local ids and edges of a hop are below 2^31: `batch_too_large`"
SUBGRAPH = "subgraphs are seeds of a batch, and stored as int32"
DRAW = "a number of a draw, which is a fan-out at most; lists above 2^32 are drawn from otherwise"
WORD = "a part of a longer word, cut on purpose"
SMALL = "a hop, a type, a lane or a number of pieces: few"
SUM = "sums of new nodes are local ids, and those of edges are 64 bits wide"
STORED = "as it is stored"
CASTS: dict[str, dict[str, str]] = {
    "common.cuh": {"i32 threadIdx.x % kWarp": SMALL},
    "decode.cuh": {
        "u32 static_cast<u64>(value) >> (32 * i)": WORD, "u16 bits[0]": WORD,
        "u32 scale[id]": STORED, "u32 scale[column + k]": STORED, "signed char part & 0xFF": WORD,
    },
    "emit.cu": {"i32 nodes.seed_of[nodes.node_start[dst] + i]": SUBGRAPH, **dict.fromkeys(
        ["O hop.label[i]", "O hop.col[i]", "O local", "O i", "O nodes[src] + source",
         "O nodes[dst] + place"], LOCAL,
    )},
    "items.cuh": {
        "i32 hop.number": SMALL, "i32 item.local": LOCAL, "P at": "positions of the CSC are P",
    },
    "labor.cu": {
        "u32 t": WORD, "u32 static_cast<u64>(t) >> 32": WORD, "u32 layer": SMALL,
        "u32 batch.graph.relations[relation]": SMALL,
        **{f"u32 key[{i}]": "words of a key" for i in range(2, 7)},
        "P at": "positions of the CSC are P",
    },
    "philox.cuh": {
        "u32 product1 >> 32": WORD, "u32 product1": WORD, "u32 product0 >> 32": WORD,
        "u32 product0": WORD, "u32 product": WORD, "u32 product >> 32": WORD, "u32 local": LOCAL,
        "u32 hop": SMALL, "u32 relation": SMALL, "u32 key[0]": "words of a key",
        "u32 key[1]": "words of a key",
    },
    "picks.cu": {"i32 local": LOCAL},
    "relabel.cuh": {
        "I nodes.seed[first + i]": "a node of the graph",
        "i32 first + i": SUBGRAPH, "i32 nodes.seed_of[start + i]": SUBGRAPH, "u32 i": LOCAL,
        "u32 e": LOCAL, "i32 edges.group[e]": SUBGRAPH, "u32 local": LOCAL, "i32 local": LOCAL,
    },
    "rows.cuh": {
        "i32 slots[id]": STORED, "u32 pieces": SMALL,
        "i32 stride % static_cast<u32>(pieces)": SMALL,
        "i32 first % static_cast<u32>(pieces)": SMALL,
    },
    "sample.cu": {"u32 item.size": DRAW, "u32 item.degree": DRAW},
    "sample.cuh": {
        "i32 batch.nodes.seed_of[at]": SUBGRAPH, "u32 item.degree": DRAW, "u32 item.size": DRAW,
        "u32 slot": DRAW,
    },
    "scan.cuh": {"Sum carry": SUM, "Sum carry + prefix.before": SUM},
    "table.cuh": {
        "u32 window[0]": STORED, "u32 window[1]": STORED, "u32 window[2]": STORED,
        "u32 key.subgraph": SUBGRAPH,
    },
    "weighted.cu": {
        "u32 entry": WORD, "u32 slot": DRAW, "u32 j": DRAW, "P position[at - 1]": STORED,
        "P chosen": "positions of the CSC are P",
    },
}  # fmt: skip


def casts(text: str) -> Iterator[str]:
    """Yield the type and the argument of each cast to a type that may be narrow."""
    text = re.sub("//.*", "", text)
    for found in CAST.finditer(text):
        depth, end = 1, found.end()
        while depth > 0:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield f"{found[1] or found[2]} {text[found.end() : end - 1]}"


def test_each_cast_to_32_bits_says_why_the_number_fits() -> None:
    folder = source_folder()
    found = {path.name: set(casts(path.read_text())) for path in sorted(folder.glob("*.cu*"))}
    assert {file: there for file, there in found.items() if there} == {
        file: set(known) for file, known in CASTS.items()
    }


def narrowed(text: str, types: dict[str, str], folder: Path) -> list[str]:
    """Return what a C++ compiler says of numbers that lose bits in the kernels of a text."""
    path = folder / "kernels.cpp"
    path.write_text(translation_unit(text, types, declarations(text)))
    options = compile_options(text, types, BLOCK_THREADS)
    command = ["g++", *OPTIONS, "-Wno-unknown-pragmas", f"-I{HERE}", *options, str(path)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    return [line for line in done.stderr.splitlines() if re.match(r"cuda/.*warning", line)]


@pytest.mark.parametrize("file", FILES)
def test_no_number_is_narrowed_without_a_cast(file: str, tmp_path: Path) -> None:
    text = read_source(file)
    assert narrowed(text, extremes(text)[-1], tmp_path) == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("gather.cu", "const i64 source = id[u]", "const i32 source = id[u]"),
        ("gather.cu", "const i64 first = target[u] *", "const u32 first = target[u] *"),
        ("relabel.cu", "const i64 start = ", "const i32 start = "),
        ("sample.cu", "edge, place_of(", "edge, (i32)place_of("),
    ],
)
def test_narrowed_numbers_are_seen(file: str, old: str, new: str, tmp_path: Path) -> None:
    text = read_source(file)
    assert old in text
    assert narrowed(text.replace(old, new), extremes(text)[-1], tmp_path) != []
