// Rows of a table, picked by id, from device memory or from host memory that the device can read.
#include "rows.cuh"

using V = INSTANCE_V;  // the word that a lane moves at once

// Copies the rows `index` of `table` to `out` as words V, whatever their dtype is.
//
// Example: rows of 2 bytes, index [2, 0], table [a b c d e f] gives [e f a b].
//
// Without the bound of KERNEL(2) the assembler for compute capability 8.0 to 8.9 reused the
// registers of the reads, so that stores stood between them and fewer were under way.
KERNEL(2) gather_rows(
    In<u8> table,        // [N * row_bytes], at an address that sizeof(V) divides
    In<i64> index,       // [rows]; these five: see Picked
    In<i64> place,
    i64 rows,
    i64 end,
    Out<u64> wrong,
    i64 row_bytes,       // these four: see RowShape
    i32 lanes,
    i32 line_mask,
    i32 pieces,
    Out<u8> out          // [rows * row_bytes]
) {
  for_each_word<V>(OneTable<In<u8>>{table},
                   Picked<In<i64>, Out<u64>>{index, place, rows, end, wrong},
                   RowShape{row_bytes, lanes, line_mask, pieces}, Copy<V>{out});
}
