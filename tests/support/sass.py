"""Machine code of NVIDIA GPUs, as the disassembler of NVIDIA's wheels shows it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

NO_BARRIER = 7  # in the 3 bits that name one of the 6 barriers of a warp
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?P<text>.*?);?\s+/\* 0x(?P<low>[0-9a-f]{16}) \*/")
_HIGH_WORD = re.compile(r"^\s+/\* 0x(?P<high>[0-9a-f]{16}) \*/")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.(?P<kernel>\w+),")
_USAGE = re.compile(r"Function (?P<kernel>\w+):\s+REG:(?P<registers>\d+) STACK:(?P<stack>\d+) "
                    r"SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)")  # fmt: skip


class Instruction(NamedTuple):
    """One instruction, with the part of its control word that orders memory accesses.

    A load names a barrier that counts it until its value is there (`sets`); a store may name one
    that counts it until its operands are read. An instruction with a barrier in `waits` stands
    until nothing is counted by it. (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via
    Microbenchmarking", 2018, section 2.1; the layout is the same from compute capability 7.0 on.)
    """

    text: str  # such as "@P0 LDG.E.128 R4, desc[UR4][R2.64]"
    sets: int | None  # barrier that counts it until its result is written
    waits: frozenset[int]

    @property
    def opcode(self) -> str:
        """Return the name and its modifiers: LDG.E.128.CONSTANT."""
        return self.text.split()[1 if self.text.startswith("@") else 0]


class Usage(NamedTuple):
    """What a kernel takes: registers of a thread, and bytes of its stack and local memory."""

    registers: int
    stack: int
    local: int


@cache
def tool(name: str) -> Path:
    """Return the path of nvdisasm or cuobjdump, from one of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        for found in sorted(Path(folder).glob(f"cu*/bin/{name}")):
            return found
    raise RuntimeError(
        f"{name} is missing: pip install nvidia-cuda-{name} (it needs no GPU and no driver)."
    )


@lru_cache(maxsize=2)  # several checks look at the same code, one after another
def disassemble(cubin: bytes) -> dict[str, list[Instruction]]:
    """Return the instructions of each kernel, in the order of their addresses."""
    kernels: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    text = ""
    for line in _run("nvdisasm", cubin, "-c", "-hex").splitlines():
        if section := _SECTION.match(line):
            current = kernels.setdefault(section["kernel"], [])
        elif first := _LINE.search(line):
            text = first["text"].strip()
        elif second := _HIGH_WORD.match(line):
            current.append(_decoded(text, int(second["high"], 16)))
    return kernels


def _decoded(text: str, high: int) -> Instruction:
    barrier, mask = high >> 46 & 7, high >> 52 & 0x3F
    waits = frozenset(i for i in range(6) if mask >> i & 1)
    return Instruction(text, None if barrier == NO_BARRIER else barrier, waits)


def usage(cubin: bytes) -> dict[str, Usage]:
    """Return what each kernel takes."""
    report = _run("cuobjdump", cubin, "-res-usage")
    return {
        m["kernel"]: Usage(int(m["registers"]), int(m["stack"]), int(m["local"]))
        for m in _USAGE.finditer(report)
    }


def _run(name: str, cubin: bytes, *options: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool(name)), *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def in_flight(instructions: Iterable[Instruction], opcode: str) -> int:
    """Return how many accesses whose opcode matches a pattern are under way at once, at most.

    The instructions are taken in the order of their addresses, without jumps: an access is under
    way from where it is issued until an instruction waits for the barrier that counts it.

    Example: `LDG R0 (barrier 0); LDG R1 (barrier 1); FADD (waits for 0); LDG R2 (barrier 0)` has 2
    loads under way at once, behind the second and again behind the third.
    """
    pattern, pending, most = re.compile(opcode), dict.fromkeys(range(6), 0), 0
    for instruction in instructions:
        for barrier in instruction.waits:
            pending[barrier] = 0
        if partly := re.match(r"DEPBAR\.LE SB(\d), 0x([0-9a-f]+)", instruction.text):
            barrier, left = int(partly[1]), int(partly[2], 16)
            pending[barrier] = min(pending[barrier], left)
        if instruction.sets is not None and pattern.fullmatch(instruction.opcode):
            pending[instruction.sets] += 1
            most = max(most, sum(pending.values()))
    return most


def opcodes(instructions: Sequence[Instruction], pattern: str) -> list[str]:
    """Return the opcodes that match a pattern, in order."""
    return [i.opcode for i in instructions if re.fullmatch(pattern, i.opcode)]
