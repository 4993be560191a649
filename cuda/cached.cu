// Rows as in gather.cu and decode.cu, of a table of which device memory holds some rows as well.
//
// One read of device memory tells where a row is: nothing is listed, sorted or read back, and the
// bits are those of the table. Rows that are held ask nothing of the link to host memory.
#include "decode.cuh"
#include "rows.cuh"

using V = INSTANCE_V;  // the word that a lane moves, or reads, at once

// Copies the rows `index` of `table`, or what is held of them, to `out`.
//
// Example: rows of 2 bytes, table [a b c d e f], slots [-1, -1, 0], held [e f] and index [2, 0]
// give [e f a b], and `found` grows by 1.
KERNEL(2) gather_cached_rows(
    In<u8> table,        // [N * row_bytes], at an address that sizeof(V) divides
    In<i32> slots,       // [N]: row of `held`, or -1
    In<u8> held,         // [C * row_bytes], at an address that sizeof(V) divides
    In<i64> index,       // [rows]; these five: see Picked
    In<i64> place,
    i64 rows,
    i64 end,
    Out<u64> wrong,
    i64 row_bytes,       // these four: see RowShape
    i32 lanes,
    i32 line_mask,
    i32 pieces,
    Out<u8> out,         // [rows * row_bytes]
    Out<u64> found       // [1]: grows by the rows that are held
) {
  using Source = CachedTable<In<u8>, In<i32>, Out<u64>>;
  for_each_word<V>(Source{table, slots, held, found},
                   Picked<In<i64>, Out<u64>>{index, place, rows, end, wrong},
                   RowShape{row_bytes, lanes, line_mask, pieces}, Copy<V>{out});
}

// Decodes the rows `index` of `table`, or what is held of them, to `out`.
//
// Example: that of `gather_decoded` in decode.cu, with slots [-1, 0] and held [6 8].
KERNEL(2) gather_cached_decoded(
    In<u8> table,        // as in `gather_cached_rows`, as are the next two
    In<i32> slots,
    In<u8> held,
    In<u32> scale,       // these three: as in `gather_decoded`
    i32 stored,
    i32 wanted,
    In<i64> index,       // [rows]; these five: see Picked
    In<i64> place,
    i64 rows,
    i64 end,
    Out<u64> wrong,
    i64 row_bytes,       // these four: see RowShape
    i32 lanes,
    i32 line_mask,
    i32 pieces,
    Out<u8> out,         // [rows * numbers of a row * 4 or 2], at an address that 16 divides
    Out<u64> found       // [1]: grows by the rows that are held
) {
  using Source = CachedTable<In<u8>, In<i32>, Out<u64>>;
  for_each_word<V>(Source{table, slots, held, found},
                   Picked<In<i64>, Out<u64>>{index, place, rows, end, wrong},
                   RowShape{row_bytes, lanes, line_mask, pieces},
                   Decoder<V>{scale, stored, wanted, out});
}
