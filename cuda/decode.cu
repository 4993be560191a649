// Rows of narrow numbers, picked by id and decoded on the way: the table is read as it is stored.
#include "decode.cuh"
#include "rows.cuh"

using V = INSTANCE_V;  // the word of stored numbers that a lane reads at once

// How numbers are stored, or wanted: as in kernels/decode.py.
constexpr i32 kInt8ByRow = 1, kFloat16 = 2, kFloat32 = 4;

struct Decoder {
  In<u32> scale;
  i32 stored, wanted;
  Out<u8> out;

  __device__ u32 beside(i64 id) const {
    return stored == kInt8ByRow ? static_cast<u32>(scale[id]) : 0;
  }

  // Writes the numbers of a word, of kBytes bytes each; `factor` is that of the row.
  template <i32 kBytes>
  __device__ void put_numbers(i64 at, i64 column, V value, u32 factor) const {
    constexpr i32 kCount = sizeof(V) / kBytes;
    u32 bits[kCount];
#pragma unroll
    for (i32 k = 0; k < kCount; ++k) {
      const u32 part = part_of(value, k * kBytes / 4) >> (k * kBytes % 4 * 8);
      if constexpr (kBytes == 1) {
        const u32 own = stored == kInt8ByRow ? factor : static_cast<u32>(scale[column + k]);
        const i32 number = static_cast<signed char>(part & 0xFF);
        bits[k] = product_bits(static_cast<f32>(number), __uint_as_float(own));
      } else {
        bits[k] = stored == kFloat16 ? half_to_single(part & 0xFFFF) : part << 16;
      }
    }
    if (wanted == kFloat32) {
      write_singles<kCount>(out, at / kBytes * 4, bits);
      return;
    }
#pragma unroll
    for (i32 k = 0; k < kCount; ++k) {
      bits[k] = wanted == kFloat16 ? single_to_half(bits[k]) : single_to_brain(bits[k]);
    }
    write_halves<kCount>(out, at / kBytes * 2, bits);
  }

  __device__ void put(i64 at, i64 column, V value, u32 factor) const {
    if (stored <= kInt8ByRow) {
      put_numbers<1>(at, column, value, factor);
    } else if constexpr (sizeof(V) >= 2) {
      put_numbers<2>(at, column, value, factor);
    }
  }
};

// Decodes the rows `index` of `table` to `out`.
//
// Each number is one product, rounded to float32, and then to the nearest of 16 bits where that is
// wanted, so the bits are those of the CPU. Host memory is asked for the lines of the stored rows,
// as by `gather_rows`, and for one factor with each piece of a row where rows have factors.
//
// Example: table [2 -4 6 8] as int8 by column, rows of 2 bytes, scale [0.5, 0.25] and index [1]
// give [3 2].
KERNEL(2) gather_decoded(
    In<u8> table,        // [N * row_bytes], at an address that sizeof(V) divides
    In<u32> scale,       // bits of float32: [numbers of a row] or [N]; [0] if not of int8
    i32 stored,          // 0: int8 by column, 1: int8 by row, 2: float16, 3: bfloat16
    i32 wanted,          // 4: float32, 2: float16, 3: bfloat16
    In<i64> index,       // [rows], each in [0, N)
    i64 rows,
    i64 row_bytes,       // these four: see RowShape
    i32 lanes,
    i32 line_mask,
    i32 pieces,
    Out<u8> out          // [rows * numbers of a row * 4 or 2], at an address that 16 divides
) {
  for_each_word<V>(table, index, rows, RowShape{row_bytes, lanes, line_mask, pieces},
                   Decoder{scale, stored, wanted, out});
}
