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

constexpr bool kPlaced = INSTANCE_kPlaced;  // rows are not read in the order of the output

// Which rows are read, in which order, and where they go.
//
// Example: index [1, 3, 5] with place [2, 0, 1] reads the rows 1, 3, 5 and gives those of the index
// [3, 5, 1]. Rows of a large table in host memory are read by ascending ids, as each page that the
// GPU has no translation of at hand costs a walk through the page tables.
template <class Ids, class Wrong>
struct Picked {
  Ids index;    // [rows]
  Ids place;    // [rows]: the row of the output for each id; [0] unless kPlaced
  i64 rows;
  i64 end;      // ids in [0, end) are rows of the table
  Wrong wrong;  // [1]: gets one of the other ids, whose rows get all bits set; [0] without such ids

  // Reads the ids of kInFlight pieces, -1 behind the last row.
  __device__ void read_ids(i32 pieces, Piece at, i64 *id) const {
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      id[u] = at.row < rows ? static_cast<i64>(index[at.row]) : -1;
      at.advance(0, 1, pieces);
    }
  }

  // Puts -1 in the place of ids that are no rows of the table, of the kInFlight pieces from `at` on.
  __device__ void check_ids(i32 pieces, Piece at, i64 *id) const {
    i64 found = 0;
    bool any = false;
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      if (static_cast<u64>(id[u]) >= static_cast<u64>(end)) {
        any = any || at.row < rows;
        found = at.row < rows ? id[u] : found;
        id[u] = -1;
      }
      at.advance(0, 1, pieces);
    }
    if (any) atomicExch(&wrong[0], static_cast<u64>(found));
  }

  // The row of the output for row `row` of the index.
  __device__ i64 target(i64 row) const {
    if constexpr (kPlaced) return place[row];
    return row;
  }
};

// Where rows are read: one table. What is found out about a row before it is read is its `Slot`.
template <class Table>
struct OneTable {
  struct Slot {};
  Table table;

  __device__ Slot slot_of(i64) const { return Slot{}; }
  __device__ u64 address(i64 source) const { return address_of(table) + source; }
  template <class V>
  __device__ V load(bool inside, Slot, i64 source, i64 column, i64) const {
    return load_if<V>(inside, table, source + column, all_bits<V>());
  }
  __device__ void count(u32, RowShape, Piece, const Slot *) {}
  __device__ void finish() const {}
};

// Where rows are read: a table of which device memory holds some rows as well.
//
// Example: slot [-1, 1, 0, -1]: row 1 is read as row 1 of `held`, row 2 as row 0 of it, and rows 0
// and 3 from the table.
template <class Table, class Slots, class Count>
struct CachedTable {
  using Slot = i32;
  Table table;
  Slots slots;  // [N]: row of `held`, or -1
  Table held;
  Count found;  // [1], to which is added how many rows were read from `held`
  u32 own = 0;  // of them, those that this thread counts

  __device__ Slot slot_of(i64 id) const { return id >= 0 ? static_cast<i32>(slots[id]) : -1; }
  __device__ u64 address(i64 source) const { return address_of(table) + source; }
  template <class V>
  __device__ V load(bool inside, Slot slot, i64 source, i64 column, i64 row_bytes) const {
    return load_either<V>(inside, slot >= 0, held, slot * row_bytes + column, table,
                          source + column, all_bits<V>());
  }
  // Counts the rows that begin with one of the pieces from `at` on and are held, in one lane each.
  __device__ void count(u32 lane, RowShape shape, Piece at, const Slot *slot) {
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      own += lane == 0 && at.number == 0 && slot[u] >= 0;
      at.advance(0, 1, shape.pieces);
    }
  }
  __device__ void finish() const {
    if (own > 0) atomicAdd(&found[0], static_cast<u64>(own));
  }
};

// A sink of `for_each_word` that copies.
template <class V>
struct Copy {
  Out<u8> out;

  __device__ u32 beside(i64) const { return 0; }
  __device__ void put(i64 at, i64, V value, u32) const { store<V>(out, at, value); }
};

// Reads the picked rows of `from` as words V, and gives each word to `sink.put(at, column, word,
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
template <class V, class Source, class Ids, class Wrong, class Sink>
__device__ inline void for_each_word(Source from, Picked<Ids, Wrong> picked, RowShape shape,
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
  picked.read_ids(pieces, at, id);
  while (at.row < picked.rows) {
    V value[kInFlight];
    u32 beside[kInFlight];
    i64 target[kInFlight], in_row[kInFlight];
    typename Source::Slot slot[kInFlight];
    Piece piece = at;
    picked.check_ids(pieces, at, id);
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) slot[u] = from.slot_of(id[u]);
    from.count(lane, shape, at, slot);
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      const i64 source = id[u] * shape.row_bytes;
      const i64 column =
          (static_cast<i64>(piece.number) * shape.lanes + lane) * static_cast<i64>(sizeof(V)) -
          static_cast<i64>(from.address(source) & shape.line_mask);
      const bool inside = piece.row < picked.rows && column >= 0 && column < shape.row_bytes;
      const bool wanted = inside && id[u] >= 0;
      value[u] = from.template load<V>(wanted, slot[u], source, column, shape.row_bytes);
      beside[u] = wanted ? sink.beside(id[u]) : 0;
      target[u] = inside ? picked.target(piece.row) : -1;
      in_row[u] = column;
      piece.advance(0, 1, pieces);
    }
    at.advance(stride_rows, stride_numbers, pieces);
    picked.read_ids(pieces, at, id);
#pragma unroll
    for (i32 u = 0; u < kInFlight; ++u) {
      const i64 first = target[u] * shape.row_bytes;
      if (target[u] >= 0) sink.put(first + in_row[u], in_row[u], value[u], beside[u]);
    }
  }
  from.finish();
}
