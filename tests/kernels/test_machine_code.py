"""What the assembler made of the kernels: registers, spills, and accesses under way at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

import nvrtc
import pytest
import sass
from covering import covering, extremes
from wheels import wheel_folder

from pyg_direct.ops.cuda.backend import LOADS_IN_FLIGHT, WORDS
from pyg_direct.ops.cuda.launch import BLOCK_THREADS, compile_options, threads_of
from pyg_direct.ops.cuda.source import FILES, declarations, instances, read_source

pytestmark = pytest.mark.slow

REGISTERS = 65_536  # of a multiprocessor, on every architecture
REGISTER_UNIT = 8  # a thread gets a multiple of it
SPILLS = r"(LDL|STL)\b.*"  # accesses to local memory
# Compute capabilities for which every instance is compiled; for the others, those of `covering`.
ALL_INSTANCES = (75, 90, 120)
# Reads of a row and of an id, with what differs between architectures: the scope that Turing names.
ROW_READ = r"LDG\.E(\.LTC128B)?\.128\.CONSTANT(\.SYS)?"
ID_READ = r"LDG\.E(\.LTC128B)?\.64\.CONSTANT(\.SYS)?"
WORD_BITS = {"uint4": "128", "u64": "64", "u32": "", "u16": "U16", "u8": "U8"}
PLACED = ("false", "true")  # whether rows are read in another order than that of the output
IN_ORDER = {"kPlaced": "false"}
NEWEST, COMMON = 120, 90  # compute capabilities that the quick tests look at


def machine_code(
    file: str,
    types: Mapping[str, str],
    architecture: int,
    compiler: nvrtc.Nvrtc | None = None,
    planted: tuple[str, str] = ("", ""),
) -> bytes:
    """Compile one instance of a file as CuPy does."""
    text = read_source(file)
    assert planted[0] in text
    text = text.replace(*planted) if planted[0] else text
    threads = threads_of(file, BLOCK_THREADS)
    options = (*compile_options(text, types, threads), *nvrtc.CUPY_OPTIONS)
    return (compiler or nvrtc.installed()).cubin(text, architecture, *options)


def blocks_at_once() -> dict[str, int]:
    """Return how many blocks of each kernel shall fit a multiprocessor: its `KERNEL(blocks)`."""
    declared = re.compile(r"^KERNEL\((\d+)\)\s+(\w+)", re.MULTILINE)
    texts = (read_source(file) for file in FILES)
    return {name: int(blocks) for text in texts for blocks, name in declared.findall(text)}


def check_registers(cubin: bytes, threads: int = BLOCK_THREADS) -> None:
    """Raise unless kernels keep all they have in registers, and as many blocks fit as they say.

    What is spilled to local memory lies on the stack, so nothing has to be disassembled for it.
    """
    blocks = blocks_at_once()
    for kernel, usage in sass.usage(cubin).items():
        assert (usage.stack, usage.local) == (0, 0), f"{kernel}: {usage}"
        registers = -(-usage.registers // REGISTER_UNIT) * REGISTER_UNIT
        assert blocks[kernel] * registers * threads <= REGISTERS, f"{kernel}: {usage}"


def check_gather(cubin: bytes) -> None:
    """Raise unless a lane has four reads of rows under way, and the next ids behind them."""
    (instructions,) = sass.disassemble(cubin).values()
    # Decoding has reads of factors that look alike.
    assert sass.in_flight(instructions, ROW_READ) >= LOADS_IN_FLIGHT
    # Places of rows in the output look like ids.
    assert sass.in_flight(instructions, ID_READ) >= LOADS_IN_FLIGHT
    assert sass.in_flight(instructions, f"{ROW_READ}|{ID_READ}") > LOADS_IN_FLIGHT
    assert set(sass.opcodes(instructions, r"STG\..*")) <= {"STG.E.128", "STG.E.128.SYS"}


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("architecture", [COMMON, NEWEST])
def test_a_lane_has_four_rows_under_way(architecture: int, placed: str) -> None:
    cubin = machine_code("gather.cu", {"V": "uint4", "kPlaced": placed}, architecture)
    check_gather(cubin)
    check_registers(cubin)


def check_cached(cubin: bytes) -> None:
    """Raise unless rows are under way together, with a cache, too: at most one fewer.

    Slots of four rows are read before, in the same instructions as ids of 32 bits would be.
    """
    for name, instructions in sass.disassemble(cubin).items():
        assert sass.in_flight(instructions, ROW_READ) >= LOADS_IN_FLIGHT - 1, name
        assert sass.in_flight(instructions, ID_READ) >= LOADS_IN_FLIGHT, name


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("architecture", [COMMON, NEWEST])
def test_rows_of_a_cached_table_are_under_way_together(architecture: int, placed: str) -> None:
    check_cached(machine_code("cached.cu", {"V": "uint4", "kPlaced": placed}, architecture))


def check_products(cubin: bytes) -> None:
    """Raise unless products are rounded once, also where they are tiny, and there are no sums."""
    (instructions,) = sass.disassemble(cubin).values()
    products = set(sass.opcodes(instructions, r"(FMUL|FFMA|FADD|HFMA2|DMUL|DFMA|DADD).*"))
    # `HFMA2.MMA` with constants is how some architectures load a constant.
    assert products - {"HFMA2.MMA", "HFMA2"} == {"FMUL"}, products


@pytest.mark.parametrize(("word", "architecture"), [("u64", COMMON), ("uint4", NEWEST)])
def test_decoding_fuses_no_products(word: str, architecture: int) -> None:
    cubin = machine_code("decode.cu", IN_ORDER | {"V": word}, architecture)
    check_registers(cubin)
    check_products(cubin)
    if word == "uint4":
        check_gather(cubin)


DECODED = "bits[k] = product_bits(static_cast<f32>(number), __uint_as_float(own));"


@pytest.mark.parametrize(
    "other",
    [
        "static_cast<f32>(number) * __uint_as_float(own)",  # flushed where it is tiny
        "__fmul_rn(static_cast<f32>(number), __uint_as_float(own))",
        "__fmaf_rn(static_cast<f32>(number), __uint_as_float(own), 1.0f)",
    ],
)
def test_other_products_are_seen(other: str) -> None:
    planted = DECODED, f"bits[k] = __float_as_uint({other});"
    with pytest.raises(AssertionError, match=r"FMUL\.FTZ|FFMA"):
        check_products(machine_code("decode.cu", IN_ORDER | {"V": "u32"}, COMMON, planted=planted))


def test_the_link_is_measured_with_as_many_reads_under_way_as_a_gather_has() -> None:
    (instructions,) = sass.disassemble(machine_code("bandwidth.cu", {}, COMMON)).values()
    assert sass.in_flight(instructions, ROW_READ) == LOADS_IN_FLIGHT


BOUNDS = ("__launch_bounds__(BLOCK_THREADS, blocks)", "")


@pytest.mark.parametrize("architecture", [80, 86])
def test_missing_launch_bounds_are_seen(architecture: int) -> None:
    types = IN_ORDER | {"V": "uint4"}
    with pytest.raises(AssertionError):
        check_gather(machine_code("gather.cu", types, architecture, planted=BOUNDS))


def test_more_registers_than_the_blocks_leave_are_seen() -> None:
    *_, types = instances(read_source("sample.cu"))
    with pytest.raises(AssertionError, match="Usage"):
        check_registers(machine_code("sample.cu", types, COMMON, planted=BOUNDS))


def test_kernels_that_say_two_blocks_need_them() -> None:
    """With room for three, draws go to local memory: see `KERNEL` in common.cuh."""
    for file, kernel in (("sample.cu", "sample_replace"), ("weighted.cu", "weighted_replace")):
        *_, types = instances(read_source(file))
        cubin = machine_code(file, types, NEWEST, planted=("KERNEL(2)", "KERNEL(3)"))
        for name, instructions in sass.disassemble(cubin).items():
            spills = sass.opcodes(instructions, SPILLS) != []
            assert spills == (sass.usage(cubin)[name].stack > 0), name
        assert sass.usage(cubin)[kernel].stack > 0


@pytest.mark.parametrize("architecture", [COMMON, NEWEST])
@pytest.mark.parametrize("file", FILES)
def test_kernels_without_a_stack_use_no_local_memory(file: str, architecture: int) -> None:
    *_, types = instances(read_source(file))
    cubin = machine_code(file, types, architecture)
    check_registers(cubin, threads_of(file, BLOCK_THREADS))
    for kernel, instructions in sass.disassemble(cubin).items():
        assert sass.opcodes(instructions, SPILLS) == [], kernel


def test_local_memory_is_seen() -> None:
    plant = (
        "  while (at.row < picked.rows) {",
        "  volatile i64 spilled[40];\n  spilled[lane] = 1;\n  while (at.row < picked.rows) {",
    )
    types = IN_ORDER | {"V": "uint4"}
    with pytest.raises(AssertionError, match="gather_rows"):
        check_registers(machine_code("gather.cu", types, COMMON, planted=plant))


def test_the_model_of_accesses_under_way() -> None:
    """Loads are counted until an instruction waits for their barrier."""

    def instruction(text: str, sets: int | None = None, *waits: int) -> sass.Instruction:
        return sass.Instruction(text, sets, frozenset(waits))

    first, second = instruction("LDG.E R0, [R2]", 0), instruction("@P0 LDG.E R1, [R2]", 1)
    both, use = instruction("LDG.E R3, [R2]", 0), instruction("FADD R4, R0, R0", None, 0)
    assert second.opcode == "LDG.E"
    assert sass.in_flight([first, second], "LDG.E") == 2
    assert sass.in_flight([first, use, second], "LDG.E") == 2 - 1
    assert sass.in_flight([first, second, use, both], "LDG.E") == 2
    assert sass.in_flight([first, both, use, second], "LDG.E") == 2
    assert sass.in_flight([first, both, second], "LDG.E") == 3
    assert sass.in_flight([first, second], "LDS") == 0
    partly = instruction("DEPBAR.LE SB0, 0x1")
    assert sass.in_flight([first, both, partly, both], "LDG.E") == 2


@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("file", FILES)
def test_machine_code_of_every_instance_holds_its_registers_and_loads(
    file: str, architecture: int
) -> None:
    text = read_source(file)
    names = {kernel.name for kernel in declarations(text)}
    for types in (instances if architecture in ALL_INSTANCES else covering)(text):
        cubin = machine_code(file, types, architecture)
        assert set(sass.usage(cubin)) == names
        check_registers(cubin, threads_of(file, BLOCK_THREADS))
        if types.get("V") == "uint4":
            (check_cached if file == "cached.cu" else check_gather)(cubin)
        if file == "decode.cu":
            check_products(cubin)
        if file == "gather.cu":
            bits = WORD_BITS[types["V"]]
            (instructions,) = sass.disassemble(cubin).values()
            stores = {code.removesuffix(".SYS") for code in sass.opcodes(instructions, r"STG.*")}
            assert stores == {f"STG.E.{bits}".removesuffix(".")}, types


# The oldest and the newest that `cupy-cuda12x` and `cupy-cuda13x` work with; the tests above take
# that of the environment.
NVRTC_WHEELS = ("nvidia-cuda-nvrtc-cu12==12.0.140", "nvidia-cuda-nvrtc==13.5.37")
# Machine code that the disassembler of the environment cannot read.
UNREADABLE = {("12.0", 90)}
EVERY_TWO_VALUES = 80  # the compute capability for which they compile so many instances


@pytest.mark.parametrize("wheel", NVRTC_WHEELS)
def test_other_versions_of_nvrtc(wheel: str) -> None:
    (library,) = nvrtc.libraries([wheel_folder(wheel) / "nvidia"])
    compiler = nvrtc.Nvrtc(library)
    version = ".".join(map(str, compiler.version()))
    assert version == wheel.partition("==")[2].rpartition(".")[0]
    readable = [a for a in compiler.architectures() if (version, a) not in UNREADABLE]
    assert len(readable) >= 4
    for architecture in sorted({readable[0], EVERY_TWO_VALUES, readable[-1]}):
        for placed in PLACED:
            types = {"V": "uint4", "kPlaced": placed}
            check_gather(machine_code("gather.cu", types, architecture, compiler))
        for file in FILES:
            text = read_source(file)
            widest = extremes(text)[-1:]
            for types in covering(text) if architecture == EVERY_TWO_VALUES else widest:
                code = machine_code(file, types, architecture, compiler)
                check_registers(code, threads_of(file, BLOCK_THREADS))


def test_every_word_of_a_row_has_a_width() -> None:
    assert set(WORD_BITS) == set(WORDS.values())
