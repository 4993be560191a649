// The walk over rows of a table that are picked by id, which copying and decoding them share.
#pragma once
#include "common.cuh"

constexpr i32 kInFlight = 4;  // reads of rows that a lane has under way before it stores the first

// How rows are cut; see `row_shape` in ops/cuda/backend.py.
struct RowShape {
  i64 row_bytes;  // a multiple of the word's bytes
  i32 lanes;      // of a row: a power of two up to 32
  i32 line_mask;  // 127: begin at lines; 0: begin at the row, for rows of up to a line
  i32 pieces;     // of a row: enough for every phase
};

// A piece of a row of the output: `lanes` words, a word a lane.
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
template <class Index>
__device__ inline void read_ids(Index index, i64 rows, i32 pieces, Piece at, i64 *id) {
#pragma unroll
  for (i32 u = 0; u < kInFlight; ++u) {
    id[u] = at.row < rows ? static_cast<i64>(index[at.row]) : -1;
    at.advance(0, 1, pieces);
  }
}

// Reads the rows `index` of `table` as words V, and gives each word to `sink.put(at, column, word,
// beside)`: its byte in a table of the picked rows, its byte in the row, and what `sink.beside(id)`
// read for the row, under way together with the word.
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
// The arrays come as template types: as `In`, restricted once more, those of a kernel for compute
// capability 12.0 were read past the read-only cache.
template <class V, class Table, class Index, class Sink>
__device__ inline void for_each_word(Table table, Index index, i64 rows, RowShape shape,
                                     Sink sink) {
  // Divisions are done once and in 32 bits: a division of 64 bits takes some hundred cycles.
  const i32 pieces = shape.pieces;
  const u32 groups = gridDim.x * blockDim.x / shape.lanes, lane = threadIdx.x % shape.lanes;
  const u32 first = (blockIdx.x * blockDim.x + threadIdx.x) / shape.lanes * kInFlight;
  const u32 stride = groups * kInFlight;
  const i64 stride_rows = stride / static_cast<u32>(pieces);
  const i32 stride_numbers = static_cast<i32>(stride % static_cast<u32>(pieces));
  Piece at{first / static_cast<u32>(pieces), static_cast<i32>(first % static_cast<u32>(pieces))};
  i64 id[kInFlight];
  read_ids(index, rows, pieces, at, id);
  while (at.row < rows) {
    V value[kInFlight];
    u32 beside[kInFlight];
    i64 target[kInFlight], in_row[kInFlight];
    Piece piece = at;
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      const i64 source = id[u] * shape.row_bytes;
      const i64 column =
          (static_cast<i64>(piece.number) * shape.lanes + lane) * static_cast<i64>(sizeof(V)) -
          static_cast<i64>((address_of(table) + source) & shape.line_mask);
      const bool inside = id[u] >= 0 && column >= 0 && column < shape.row_bytes;
      value[u] = load_if<V>(inside, table, source + column);
      beside[u] = inside ? sink.beside(id[u]) : 0;
      target[u] = inside ? piece.row * shape.row_bytes + column : -1;
      in_row[u] = column;
      piece.advance(0, 1, pieces);
    }
    at.advance(stride_rows, stride_numbers, pieces);
    read_ids(index, rows, pieces, at, id);
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      if (target[u] >= 0) sink.put(target[u], in_row[u], value[u], beside[u]);
    }
  }
}
