"""Rows of narrow numbers, picked by id and decoded to float32, float16 or bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import as_bits, as_float, inlined, kernel, prefetch, widened

Singles = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]

PREFETCH_DISTANCE = 16  # in rows

# How numbers are stored, or wanted.
INT8_BY_COLUMN, INT8_BY_ROW, FLOAT16, BFLOAT16, FLOAT32 = 0, 1, 2, 3, 4

TINY_HALF = np.float32(2.0**-24)  # the distance of float16 numbers below 2^-14


@inlined
def half_to_single(bits: Any) -> Any:
    """Return the number whose float16 bits are given (uint16), as float32.

    No operand is a denormal float32, which a process may have told its cores to take for 0.

    Example: 0x3C00 is 1, 0x0001 is 2^-24, 0x7C00 is infinity.
    """
    size, sign = np.uint32(bits & 0x7FFF), np.uint32(bits & 0x8000) << np.uint32(16)
    # The exponent is biased by 15 in place of 127; of infinity and NaN it stays the largest.
    bias = np.uint32(0x38000000) if size < 0x7C00 else np.uint32(0x70000000)
    normal = as_float((size << np.uint32(13)) + bias | sign)
    tiny = np.float32(size) * TINY_HALF
    return normal if size >= 0x0400 else (-tiny if sign else tiny)


@inlined
def single_to_half(bits: Any) -> Any:
    """Return the bits of the float16 nearest to a float32, of two the even one (uint32 for both).

    NaN gives a NaN; what rounds to 2^16 or more gives infinity.

    Example: 0x3F800000 (1) is 0x3C00, 0x33800000 (2^-24) is 1, 0x477FF000 (65520) is 0x7C00.
    """
    size = bits & np.uint32(0x7FFFFFFF)
    # 2^-14 and more: 13 bits of the mantissa go, and the exponent is biased by 15 in place of 127.
    normal = (size + np.uint32(0xFFF) + (size >> np.uint32(13) & np.uint32(1))) >> np.uint32(13)
    normal -= np.uint32(0x1C000)
    # Less: a multiple of 2^-24; below 2^-25 all bits of the mantissa go.
    exponent = size >> np.uint32(23)
    shift = np.uint32(126) - exponent if exponent > np.uint32(101) else np.uint32(25)
    shift = shift if exponent < np.uint32(113) else np.uint32(1)
    mantissa = size & np.uint32(0x7FFFFF) | np.uint32(0x800000)
    least = mantissa >> shift
    half_below = (np.uint32(1) << (shift - np.uint32(1))) - np.uint32(1)
    tiny = (mantissa + half_below + (least & np.uint32(1))) >> shift
    half = tiny if exponent < np.uint32(113) else normal
    half = half if size < np.uint32(0x477FF000) else np.uint32(0x7C00)
    half = half if size <= np.uint32(0x7F800000) else np.uint32(0x7E00)
    return half | bits >> np.uint32(16) & np.uint32(0x8000)


@inlined
def single_to_brain(bits: Any) -> Any:
    """Return the bits of the bfloat16 nearest to a float32, of two the even one (uint32 for both).

    Example: 0x3F800000 (1) is 0x3F80, 0x3F808000 (halfway to the next) is 0x3F80, too.
    """
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return bits >> np.uint32(16) | np.uint32(0x40) if is_nan else rounded


@kernel
def gather_decoded(
    table: Any,  # [N, F]: int8, or the bits of float16 or bfloat16 as uint16
    scale: Singles,  # [F], [N] or [0]
    kind: int,  # INT8_BY_COLUMN, INT8_BY_ROW, FLOAT16 or BFLOAT16
    index: npt.NDArray[np.int64],  # [rows], each in [0, N)
    first: int,  # the range of rows to do
    last: int,
    out: Singles,  # [rows, F]
) -> int:
    """Decode the rows `index` of `table` to `out`, and return -1.

    An id out of range ends it; its place in `index` is returned. Each element is one product, with
    nothing added to it, so the bits are those of any other device.

    Example: table = [[2, -4], [6, 8]] with the scale [0.5, 0.25] by column and index = [1] give
    [[3, 2]].
    """
    width = table.shape[1]
    flat, line = table.reshape(-1), 64 // table.itemsize
    for i in range(first, last):
        if i + PREFETCH_DISTANCE < last:
            ahead = index[i + PREFETCH_DISTANCE] * width
            for at in range(0, width, line):
                prefetch(flat, ahead + at)
            if kind == INT8_BY_ROW:
                prefetch(scale, index[i + PREFETCH_DISTANCE])
        row = index[i]
        if row < 0 or row >= table.shape[0]:
            return i
        source, target = table[row], out[i]
        if kind == INT8_BY_COLUMN:
            for j in range(width):
                target[j] = np.float32(source[j]) * scale[j]
        elif kind == INT8_BY_ROW:
            factor = scale[row]
            for j in range(width):
                target[j] = np.float32(source[j]) * factor
        elif kind == FLOAT16:
            for j in range(width):
                target[j] = half_to_single(source[j])
        else:
            for j in range(width):
                target[j] = widened(source[j])
    return -1


@kernel
def gather_rounded(
    table: Any,  # as in `gather_decoded`
    scale: Singles,
    kind: int,
    index: npt.NDArray[np.int64],
    first: int,
    last: int,
    wanted: int,  # FLOAT16 or BFLOAT16
    scratch: Singles,  # [some rows, F]
    out: Halves,  # [rows, F]: bits of the wanted numbers
) -> int:
    """As `gather_decoded`, with each element rounded once more; as many rows at a time as fit."""
    step = scratch.shape[0]
    for at in range(first, last, step):
        end = min(at + step, last)
        bad = gather_decoded(table, scale, kind, index[at:end], 0, end - at, scratch)
        if bad >= 0:
            return at + bad
        for i in range(at, end):
            source, target = scratch[i - at], out[i]
            if wanted == FLOAT16:
                for j in range(table.shape[1]):
                    target[j] = single_to_half(as_bits(source[j]))
            else:
                for j in range(table.shape[1]):
                    target[j] = single_to_brain(as_bits(source[j]))
    return -1
