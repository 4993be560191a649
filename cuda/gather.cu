// Rows of a table, picked by id, from device memory or from host memory that the device can read.
#include "common.cuh"

constexpr i32 kInFlight = 4;  // reads that a lane has under way before it stores the first

// Copies the rows `index` of `table` to `out` as words V, whatever their dtype is.
//
// Over PCIe a read asks for whole lines of 128 bytes, and a line that two instructions touch is sent
// twice. So a row longer than a line is read from the line boundary to the left of its first byte:
// line boundaries of the absolute address, as tables begin anywhere (a torch CPU tensor 64 bytes
// behind a page, a NumPy array 16). Lanes that would fall before or behind the row read nothing. A
// row goes to `lanes` lanes in pieces of lanes * sizeof(V) bytes; a group of lanes has kInFlight
// pieces under way, of one row or of several.
//
// Example: rows of 400 bytes from address 64 on, V of 16 bytes, 32 lanes. Row 1 begins at 464, 80
// bytes behind a line, so lane 5 reads its first word, lane 29 its last, and the lines 384 to 863
// are asked for once each.
template <class V>
__global__ void gather_rows(
    In<u8> table,        // [N * row_bytes], at an address that sizeof(V) divides
    In<i64> index,       // [rows], each in [0, N)
    i64 rows,
    i64 row_bytes,       // a multiple of sizeof(V)
    i32 lanes,           // of a row: a power of two up to 32
    i32 line_mask,       // 127: begin at lines; 0: begin at the row, for rows of up to a line
    i64 pieces,          // of a row: enough for every phase
    Out<u8> out          // [rows * row_bytes]
) {
  const i64 groups = thread_count() / lanes, lane = threadIdx.x % lanes;
  const i64 all_pieces = rows * pieces;
  for (i64 first = thread_number() / lanes * kInFlight; first < all_pieces; first += groups * kInFlight) {
    V value[kInFlight];
    i64 source[kInFlight], column[kInFlight], target[kInFlight];
    // All ids before all rows: a row cannot be asked for before its id has come.
    i64 row = first / pieces, piece = first % pieces;
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      source[u] = first + u < all_pieces ? index[row] * row_bytes : -1;
      column[u] = (piece * lanes + lane) * static_cast<i64>(sizeof(V));
      target[u] = row * row_bytes;
      if (++piece == pieces) {
        piece = 0;
        ++row;
      }
    }
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      column[u] -= static_cast<i64>((address_of(table) + source[u]) & line_mask);
      const bool inside = source[u] >= 0 && column[u] >= 0 && column[u] < row_bytes;
      value[u] = load_if<V>(inside, table, source[u] + column[u]);
      target[u] = inside ? target[u] + column[u] : -1;
    }
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      if (target[u] >= 0) store<V>(out, target[u], value[u]);
    }
  }
}
