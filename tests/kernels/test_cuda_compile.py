"""What NVRTC makes of the products in weighted draws; its messages name file and line.

`test_machine_code.py` compiles all files for all architectures.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import nvrtc
import pytest
from covering import covering, extremes

from pyg_direct.ops.cuda import source
from pyg_direct.ops.cuda.launch import BLOCK_THREADS, compile_options
from pyg_direct.ops.cuda.source import (
    FILES,
    INSTANCE_VALUES,
    declarations,
    instance_names,
    instances,
    read_source,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("file", FILES)
def test_few_instances_cover_every_two_values(file: str) -> None:
    text = read_source(file)
    chosen, names = list(covering(text)), instance_names(text)
    for one, other in itertools.combinations(names, 2):
        met = {(types[one], types[other]) for types in chosen}
        assert met == set(itertools.product(INSTANCE_VALUES[one], INSTANCE_VALUES[other]))
    for name in names:
        assert {types[name] for types in chosen} == set(INSTANCE_VALUES[name])
        assert len({types[name] for types in extremes(text)}) == 2
    assert len(chosen) <= max(10, *(len(INSTANCE_VALUES[name]) for name in names), 1)


def test_a_compile_error_names_the_symbol() -> None:
    text = read_source("gather.cu").replace("from.template load<V>", "from.template no_such<V>")
    with pytest.raises(ValueError, match="no_such"):
        nvrtc.installed().cubin(
            text, 90, *compile_options(text, {"V": "u32", "kPlaced": "false"}, BLOCK_THREADS)
        )


def loose_products(text: str, types: Mapping[str, str], kernel: str) -> list[str]:
    """Return a kernel's instructions that round otherwise than a product and a sum each.

    `mul.rn` may never be merged with a sum. A bare `mul` may be, later, by the assembler; one by a
    power of two is exact, so that nothing changes.
    """
    ptx = nvrtc.installed().ptx(text, *compile_options(text, types, BLOCK_THREADS))
    body = ptx.partition(f".entry {kernel}(")[2].partition(".entry ")[0]
    assert "ret;" in body
    power_of_two = re.compile(r"mul\.f64\s+\S+, \S+, 0d[0-9A-F]{3}0{13};")
    found = re.findall(r"(?:fma|mad|mul|div|sqrt|rcp|ex2|lg2)\.[a-z.]*f64[^;]*;", body)
    return [i for i in found if not i.startswith("mul.rn.") and not power_of_two.match(i)]


DRAWN_BY_WEIGHT = [
    (file, types, kernel.name)
    for file in ("weighted.cu", "sample.cu")
    for types in instances(read_source(file))
    for kernel in declarations(read_source(file))
    if kernel.name.startswith(("weighted", "plan_items"))
]


@pytest.mark.parametrize(("file", "types", "kernel"), DRAWN_BY_WEIGHT)
def test_weighted_draws_round_every_product(
    file: str, types: Mapping[str, str], kernel: str
) -> None:
    """A product merged into a sum would round once instead of twice, and change picks."""
    assert loose_products(read_source(file), types, kernel) == []


NARROW = {"I": "i32", "P": "i32"}
PRODUCT = "__dmul_rn(draw, static_cast<f64>(item.end - item.start))"


@pytest.mark.parametrize(
    "other",
    [
        "item.low + draw * static_cast<f64>(item.end - item.start)",
        "draw * static_cast<f64>(item.end - item.start)",
        "log(draw) / static_cast<f64>(item.end - item.start)",
    ],
)
def test_other_arithmetic_is_seen(other: str) -> None:
    text = read_source("weighted.cu")
    assert PRODUCT in text
    assert loose_products(text.replace(PRODUCT, other), NARROW, "weighted_replace") != []


def test_messages_name_file_and_line() -> None:
    broken = read_source("sample.cu").replace("const u64 product0", "const nothing product0")
    line = (source.source_folder() / "philox.cuh").read_text().splitlines()
    number = 1 + next(i for i, text in enumerate(line) if "const u64 product0" in text)
    options = compile_options(broken, NARROW, BLOCK_THREADS)
    with pytest.raises(ValueError, match=rf"cuda/philox.cuh\({number}\)"):
        nvrtc.installed().cubin(broken, 90, *options)
