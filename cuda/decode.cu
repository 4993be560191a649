// Rows of narrow numbers, picked by id and decoded on the way: the table is read as it is stored.
#include "decode.cuh"
#include "rows.cuh"

using V = INSTANCE_V;  // the word of stored numbers that a lane reads at once

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
    In<i64> index,       // [rows]; these five: see Picked
    In<i64> place,
    i64 rows,
    i64 end,
    Out<u64> wrong,
    i64 row_bytes,       // these four: see RowShape
    i32 lanes,
    i32 line_mask,
    i32 pieces,
    Out<u8> out          // [rows * numbers of a row * 4 or 2], at an address that 16 divides
) {
  for_each_word<V>(OneTable<In<u8>>{table},
                   Picked<In<i64>, Out<u64>>{index, place, rows, end, wrong},
                   RowShape{row_bytes, lanes, line_mask, pieces},
                   Decoder<V>{scale, stored, wanted, out});
}
