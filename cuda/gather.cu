// Rows of a table, picked by id, from device memory or from host memory that the device can read.
#include "common.cuh"

using V = INSTANCE_V;  // the word that a lane moves at once

constexpr i32 kInFlight = 4;  // reads of rows that a lane has under way before it stores the first

// A piece of a row of the output: `lanes` words V, a word a lane.
struct Piece {
  i64 row;
  i32 number;  // in its row

  // Goes on by some rows and less than a row's pieces.
  __device__ void advance(i64 rows, i32 numbers, i32 pieces) {
    row += rows;
    number += numbers;
    if (number >= pieces) {
      number -= pieces;
      ++row;
    }
  }
};

// Reads the ids of the rows of kInFlight pieces, -1 behind the last row.
__device__ inline void read_ids(In<i64> index, i64 rows, i32 pieces, Piece at, i64 *id) {
#pragma unroll
  for (i32 u = 0; u < kInFlight; ++u) {
    id[u] = at.row < rows ? static_cast<i64>(index[at.row]) : -1;
    at.advance(0, 1, pieces);
  }
}

// Copies the rows `index` of `table` to `out` as words V, whatever their dtype is.
//
// Over PCIe a read asks for whole lines of 128 bytes, and a line that two instructions touch is
// sent twice. So a row longer than a line is read from the line boundary to the left of its first
// byte: line boundaries of the absolute address, as tables begin anywhere (a torch CPU tensor 64
// bytes behind a page, a NumPy array 16). Lanes that would fall before or behind the row read
// nothing. A row goes to `lanes` lanes in pieces of lanes * sizeof(V) bytes; a group of lanes has
// kInFlight pieces under way, of one row or of several, and the ids of the next ones are read
// meanwhile: a row cannot be asked for before its id has come.
//
// Example: rows of 400 bytes from address 64 on, V of 16 bytes, 32 lanes. Row 1 begins at 464, 80
// bytes behind a line, so lane 5 reads its first word, lane 29 its last, and the lines 384 to 863
// are asked for once each.
//
// Without the bound of KERNEL(2) the assembler for compute capability 8.0, 9.0 and 10.0 reused the
// registers of the reads, so that stores stood between them and fewer were under way.
KERNEL(2) gather_rows(
    In<u8> table,        // [N * row_bytes], at an address that sizeof(V) divides
    In<i64> index,       // [rows], each in [0, N)
    i64 rows,
    i64 row_bytes,       // a multiple of sizeof(V)
    i32 lanes,           // of a row: a power of two up to 32
    i32 line_mask,       // 127: begin at lines; 0: begin at the row, for rows of up to a line
    i32 pieces,          // of a row: enough for every phase
    Out<u8> out          // [rows * row_bytes]
) {
  // Divisions are done once and in 32 bits: a division of 64 bits takes some hundred cycles.
  const u32 groups = gridDim.x * blockDim.x / lanes, lane = threadIdx.x % lanes;
  const u32 first = (blockIdx.x * blockDim.x + threadIdx.x) / lanes * kInFlight;
  const u32 stride = groups * kInFlight;
  const i64 stride_rows = stride / static_cast<u32>(pieces);
  const i32 stride_numbers = static_cast<i32>(stride % static_cast<u32>(pieces));
  Piece at{first / static_cast<u32>(pieces), static_cast<i32>(first % static_cast<u32>(pieces))};
  i64 id[kInFlight];
  read_ids(index, rows, pieces, at, id);
  while (at.row < rows) {
    V value[kInFlight];
    i64 target[kInFlight];
    Piece piece = at;
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      const i64 source = id[u] * row_bytes;
      const i64 column =
          (static_cast<i64>(piece.number) * lanes + lane) * static_cast<i64>(sizeof(V)) -
          static_cast<i64>((address_of(table) + source) & line_mask);
      const bool inside = id[u] >= 0 && column >= 0 && column < row_bytes;
      value[u] = load_if<V>(inside, table, source + column);
      target[u] = inside ? piece.row * row_bytes + column : -1;
      piece.advance(0, 1, pieces);
    }
    at.advance(stride_rows, stride_numbers, pieces);
    read_ids(index, rows, pieces, at, id);
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      if (target[u] >= 0) store<V>(out, target[u], value[u]);
    }
  }
}
