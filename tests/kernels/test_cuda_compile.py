"""NVRTC compiles what is used, launches are checked, and errors say what is missing."""

from __future__ import annotations

import itertools
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import nvrtc
import pytest
import torch
from descriptors import filled

from pyg_direct.ops.cuda import compiler as compiling
from pyg_direct.ops.cuda import source
from pyg_direct.ops.cuda.compiler import require_cuda
from pyg_direct.ops.cuda.launch import (
    BLOCK_THREADS,
    STANDARD,
    Kernel,
    Launch,
    compile_options,
    threads_of,
    type_name,
)
from pyg_direct.ops.cuda.source import (
    FILES,
    INSTANCE_VALUES,
    Declaration,
    declarations,
    instance_names,
    instance_options,
    instances,
    read_source,
)
from pyg_direct.ops.devices import backend_for

COMMON = 80


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def covering(text: str) -> Iterator[dict[str, str]]:
    """Yield instances in which every two values of two names meet; fewest first found greedily."""

    def meetings(types: Mapping[str, str]) -> set[Any]:
        return set(itertools.combinations(sorted(types.items()), 2)) or {tuple(types.items())}

    every = list(instances(text))
    missing = set().union(*map(meetings, every))
    while missing:
        best = max(every, key=lambda types: len(meetings(types) & missing))
        missing -= meetings(best)
        yield best


def check_compiled(
    file: str, architecture: int, choice: Iterable[Mapping[str, str]], pool: ThreadPoolExecutor
) -> None:
    text, compiler = read_source(file), nvrtc.installed()
    names = {kernel.name.encode() for kernel in declarations(text)}
    options = [options_of(file, text, types) for types in choice]
    work = [pool.submit(compiler.cubin, text, architecture, *given) for given in options]
    for compiled in work:
        cubin = compiled.result()
        assert all(b".text." + name + b"\0" in cubin for name in names)


def options_of(file: str, text: str, types: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options that a file is compiled with for a GPU."""
    return compile_options(text, types, threads_of(file, BLOCK_THREADS))


@pytest.mark.parametrize("file", FILES)
def test_every_value_of_an_instance_compiles(file: str, pool: ThreadPoolExecutor) -> None:
    check_compiled(file, COMMON, covering(read_source(file)), pool)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("file", FILES)
def test_every_instance_compiles(file: str, architecture: int, pool: ThreadPoolExecutor) -> None:
    check_compiled(file, architecture, instances(read_source(file)), pool)


@pytest.mark.parametrize("file", FILES)
def test_few_instances_cover_every_two_values(file: str) -> None:
    text = read_source(file)
    chosen, names = list(covering(text)), instance_names(text)
    for one, other in itertools.combinations(names, 2):
        met = {(types[one], types[other]) for types in chosen}
        assert met == set(itertools.product(INSTANCE_VALUES[one], INSTANCE_VALUES[other]))
    assert len(chosen) <= max(10, *(len(INSTANCE_VALUES[name]) for name in names), 1)


def test_a_file_that_does_not_compile() -> None:
    text = read_source("gather.cu").replace("value[u] = load_if<V>", "value[u] = no_such<V>")
    with pytest.raises(ValueError, match="no_such"):
        nvrtc.installed().cubin(text, 90, *compile_options(text, {"V": "u32"}, BLOCK_THREADS))


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


def test_all_kernels_and_their_parameters_are_read() -> None:
    found = {d.name: d for file in FILES for d in declarations(read_source(file))}
    for file in source.source_folder().glob("*.cu*"):
        text = file.read_text()
        kernels = re.findall(r"^KERNEL.* (\w+)\(", text, re.MULTILINE)
        assert set(kernels) <= set(found)
        assert "__global__" not in text or file.name == "common.cuh"
    gather = found["gather_rows"]
    assert [(p.kind, p.type, p.name) for p in gather.parameters[:3]] == [
        ("In", "u8", "table"), ("In", "i64", "index"), ("value", "i64", "rows"),
    ]  # fmt: skip


def test_instances() -> None:
    text = read_source("relabel.cu")
    assert instance_names(text) == ("I", "P", "kHashed")
    assert len(list(instances(text))) == 8
    types = {"I": "i64", "P": "i32", "kHashed": "true"}
    assert instance_options(text, types) == (
        "-DINSTANCE_I=i64", "-DINSTANCE_P=i32", "-DINSTANCE_kHashed=true",
    )  # fmt: skip
    with pytest.raises(ValueError, match="I must be one of i32, i64, got 'u8'"):
        instance_options(text, {**types, "I": "u8"})
    with pytest.raises(ValueError, match="P must be one of i32, i64, got None"):
        instance_options(text, {"I": "i64", "kHashed": "true"})
    with pytest.raises(ValueError, match="M must be one of left out, got 'i32'"):
        instance_options(text, {**types, "M": "i32"})


def test_headers_are_part_of_the_text(tmp_path: Path) -> None:
    """CuPy's cache does not look into included files, so a changed header must change the text."""
    for file in source.source_folder().glob("*.cu*"):
        (tmp_path / file.name).write_text(file.read_text())
    before = read_source("sample.cu", tmp_path)
    assert "#include" not in before
    assert before == read_source("sample.cu")
    header = tmp_path / "philox.cuh"
    header.write_text(header.read_text() + "// changed\n")
    assert read_source("sample.cu", tmp_path) != before


def test_sources_are_found_in_a_wheel_and_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Path(source.__file__).resolve().parents[3] / "cuda"
    assert source.source_folder() == checkout
    assert not (checkout / "__init__.py").exists()  # it would hide NVIDIA's namespace `cuda`
    wheel = tmp_path / "pyg_direct"
    (wheel / "ops").mkdir(parents=True)
    monkeypatch.setattr(source, "__file__", str(wheel / "ops" / "cuda" / "source.py"))
    with pytest.raises(FileNotFoundError, match="Install pyg-direct again"):
        source.source_folder()
    (wheel / "cuda").mkdir()
    (wheel / "cuda" / FILES[0]).write_text("")
    assert source.source_folder() == wheel / "cuda"


def _kernel(launched: list[object]) -> Kernel:
    text = (
        "KERNEL(1) example(  // of the checks\n"
        "In<I> ids,  // [n], each in [0, N)\nOut<u32> table, i32 n, u32 base\n) {}"
    )
    (declaration,) = declarations(text)
    assert isinstance(declaration, Declaration)

    def prepare(block: int, arguments: Sequence[object]) -> Launch:
        return lambda grid: launched.append((grid, block, arguments))

    return Kernel(declaration, {"I": "i64"}, prepare, torch.device("cpu"), 32)


IDS, TABLE = torch.arange(3), torch.zeros(4, dtype=torch.int32)
RIGHT = {"ids": IDS, "table": TABLE, "n": 3, "base": 0}


def test_the_launcher_passes_on_what_is_right() -> None:
    launched: list = []
    kernel = _kernel(launched)
    kernel(2, ids=IDS, table=TABLE, n=3, base=0xFFFFFFFF)
    ((grid, block, arguments),) = launched
    assert (kernel.name, grid, block) == ("example", (2, 1, 1), 32)
    assert arguments[0] is IDS
    assert [type(value) for value in arguments[2:]] == [np.int32, np.uint32]


def test_a_launch_is_prepared_once() -> None:
    """Arguments are found by name, the last mapping first, and what has other names is left."""
    launched: list = []
    kernel = _kernel(launched)
    launch = kernel.bind({**RIGHT, "n": 1, "other": 2}, {"n": 5}, base=7)
    assert launched == []
    launch(kernel.grid(3))
    launch(kernel.grid((3, 2)))
    assert [grid for grid, _, _ in launched] == [(3, 1, 1), (3, 2, 1)]
    assert [values[2:] for _, _, values in launched] == [[5, 7], [5, 7]]


@pytest.mark.parametrize(
    ("grid", "wrong", "error", "message"),
    [
        (1, {"m": 3}, TypeError, "example has no parameter m"),
        (1, {"ids": IDS.int()}, TypeError, "ids must be torch.int64, got torch.int32"),
        (1, {"ids": 3}, TypeError, "ids must be a tensor, got int"),
        (1, {"n": IDS}, TypeError, "n must be an int, got Tensor"),
        (1, {"n": 1.5}, TypeError, "n must be an int, got float"),
        (
            1,
            {"n": 1 << 31},
            ValueError,
            r"n must be in \[-2147483648, 2147483647\] \(i32\), got 2147483648",
        ),
        (1, {"base": -1}, ValueError, r"base must be in \[0, 4294967295\] \(u32\), got -1"),
        (1, {"table": TABLE[::2]}, ValueError, "table must be contiguous"),
        (
            1,
            {"ids": IDS.to("meta")},
            ValueError,
            "ids must be on cpu or in pinned memory, got meta",
        ),
        (0, {}, ValueError, "grid of"),
        ((1, 65536), {}, ValueError, "grid of"),
    ],
)
def test_the_launcher_refuses_what_is_wrong(
    grid: int, wrong: dict, error: type[Exception], message: str
) -> None:
    launched: list[object] = []
    with pytest.raises(error, match=message):
        _kernel(launched)(grid, **{**RIGHT, **wrong})
    assert launched == []


def test_an_argument_that_is_missing() -> None:
    with pytest.raises(TypeError, match="example has no argument for n, base"):
        _kernel([])(1, ids=IDS, table=TABLE)


def test_ids_of_other_widths() -> None:
    with pytest.raises(TypeError, match=r"int32 and int64 ids, got torch\.int16"):
        type_name(torch.int16)


CUDA = torch.device("cuda", 0)


def _pretend(
    monkeypatch: pytest.MonkeyPatch,
    version: str | None = "12.8",
    available: bool = True,
    cupy: int | None = 12090,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    module = None
    if cupy is not None:
        module = types.ModuleType("cupy")
        module.__version__ = "13.6.0"
        runtime = types.SimpleNamespace(runtimeGetVersion=lambda: cupy)
        module.cuda = types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", module)


@pytest.mark.parametrize(
    ("pretend", "message"),
    [
        ({"version": None}, r"built without\. .*pip install 'cupy-cuda12x>=13\.\d'"),
        ({"available": False}, r"needs an NVIDIA GPU and its driver, .*nvidia-smi.* CUDA 12\.8"),
        ({"cupy": None}, r"needs CuPy.*pip install 'cupy-cuda12x>=13\.\d'"),
        ({"cupy": None, "version": "13.0"}, r"needs CuPy.*pip install 'cupy-cuda13x>=13\.\d'"),
        (
            {"cupy": 12090, "version": "13.0"},
            r"CuPy 13\.6\.0 is for CUDA 12, .* CUDA 13\.0\. .*"
            r"pip uninstall -y cupy-cuda12x && pip install 'cupy-cuda13x>=13\.\d'",
        ),
    ],
)
def test_errors_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, pretend: dict, message: str
) -> None:
    _pretend(monkeypatch, **pretend)
    with pytest.raises(RuntimeError, match=message):
        require_cuda(CUDA)


class _FakeCupy:
    """Records what CuPy is asked to do."""

    __version__ = "13.6.0"

    def __init__(self, has_from_external: bool) -> None:
        self.log: list = []
        self.current = 1  # device of the thread
        log = self.log

        class Context:
            def __init__(self, *arguments: object) -> None:
                self.arguments = arguments
                self.attributes = {"MultiProcessorCount": 132}

            def __enter__(self) -> None:
                log.append(("enter", *self.arguments))

            def __exit__(self, *error: object) -> None:
                log.append(("leave", *self.arguments))

        class RawModule:
            def __init__(self, **arguments: object) -> None:
                log.append(("module", arguments))

            def get_function(self, name: str) -> object:
                return lambda *launch, **named: log.append(("launch", name, *launch, named))

        def from_external(stream: object) -> Context:
            return Context("stream", stream.__cuda_stream__())  # type: ignore[attr-defined]

        self.RawModule = RawModule
        self.cuda = types.SimpleNamespace(
            runtime=types.SimpleNamespace(
                runtimeGetVersion=lambda: 12090, getDevice=lambda: self.current
            ),
            Device=Context,
            Stream=types.SimpleNamespace(
                **{"from_external": from_external} if has_from_external else {}
            ),
            ExternalStream=lambda handle, index: Context("old stream", handle, index),
        )


@pytest.mark.parametrize("has_from_external", [True, False])
def test_what_cupy_is_given(monkeypatch: pytest.MonkeyPatch, has_from_external: bool) -> None:
    """The whole text, all instances, pointers and scalars of the right width, torch's stream."""
    _pretend(monkeypatch)
    cupy = _FakeCupy(has_from_external)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    current = types.SimpleNamespace(cuda_stream=4711)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: current)
    compiler = compiling.CupyCompiler(CUDA)
    assert compiler.processors == 132
    library = compiling.Library(compiler)
    types_ = {"I": "i32", "P": "i64", "kHashed": "true"}
    kernels = library.load("relabel.cu", **types_)
    (module,) = (entry[1] for entry in cupy.log if entry[0] == "module")
    assert "#include" not in module["code"]
    assert module["options"] == (
        STANDARD, f"-DBLOCK_THREADS={BLOCK_THREADS}", "-DINSTANCE_I=i32", "-DINSTANCE_P=i64",
        "-DINSTANCE_kHashed=true",
    )  # fmt: skip
    assert set(module) == {"code", "options"}  # CuPy's disk cache takes no name expressions
    assert library.load("relabel.cu", **types_) is kernels

    kernel = library.load("gather.cu", V="u32")["gather_rows"]
    kernel._device = kernels["mark_first"]._device = torch.device("cpu")
    del cupy.log[:]
    ids, table = torch.zeros(1, dtype=torch.int64), torch.zeros(64, dtype=torch.uint8)
    named = {"rows": 1, "row_bytes": 32, "lanes": 8, "line_mask": 0, "pieces": 1}
    kernel(3, table=table, index=ids, out=table.clone(), **named)
    stream = ("stream", (0, 4711)) if has_from_external else ("old stream", 4711, 0)
    assert cupy.log[0] == ("enter", 0)  # the thread's device is another one
    _, name, grid, block, arguments, given = cupy.log[1]
    assert (name, grid, block) == ("gather_rows", (3, 1, 1), (BLOCK_THREADS, 1, 1))
    assert given["stream"].arguments == stream
    assert arguments[0] == table.data_ptr()
    widths = [np.uint64, np.uint64, np.int64, np.int64, np.int32, np.int32, np.int32, np.uint64]
    assert [type(value) for value in arguments] == widths
    cupy.current = 0
    del cupy.log[:]
    descriptor = filled(kernels["mark_first"].descriptor("batch"))
    launch = kernels["mark_first"].bind(batch=descriptor, hop=2)
    launch(kernel.grid(1))
    ((what, *_, arguments, _),) = cupy.log
    assert what == "launch"
    assert arguments == (descriptor.placed.data_ptr(), 2)
    assert [type(value) for value in arguments] == [np.uint64, np.int32]


def test_a_device_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch)
    assert require_cuda(CUDA) is sys.modules["cupy"]
    with pytest.raises(RuntimeError, match="'cuda:3' does not exist: there are 1"):
        require_cuda(torch.device("cuda", 3))


def test_backend_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling.library_for.cache_clear()
    _pretend(monkeypatch, version=None)
    with pytest.raises(RuntimeError, match="built without"):
        backend_for(torch.device("cuda"))
    with pytest.raises(NotImplementedError, match="use 'cpu', 'cuda' or 'cuda:0'"):
        backend_for(torch.device("meta"))
