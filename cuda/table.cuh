// The table from global node ids to local ids, which keeps its memory from batch to batch.
//
// A batch owns a window of `width` numbers from `base` on, and windows only move down, so an entry
// outside the window is left over from an earlier batch (or is the initial 2^32 - 1) and means "not
// seen". Inside it, entry - base is
//     x <  locals   local id x of a node that is known, or
//     x >= locals   edge x - locals of this hop is, so far, the first that leads to a new node.
// Of several numbers for the same node the smallest is right: a known node stays what it is, and
// among edges the first one wins, in whatever order the threads come.
//
// A dense table has an entry for every node of the graph. A hash table (linear probing, at most
// half full) holds no keys: an entry tells where the node stands, in the list of its type or at an
// edge, and that is where keys are compared. It serves large graphs and disjoint subgraphs, where
// the same node counts once for each subgraph.
#pragma once
#include "batch.cuh"

constexpr bool kHashed = INSTANCE_kHashed;  // a hash table, or a dense one

struct Window {
  u32 base, width, locals;

  __device__ bool holds(u32 entry) const { return entry - base < width; }
};

// The window that the host put into device memory: base, width and locals.
__device__ inline Window window_of(In<i64> window) {
  return Window{static_cast<u32>(window[0]), static_cast<u32>(window[1]),
                static_cast<u32>(window[2])};
}

// The key of a hash table's entry: a node and its subgraph (0 unless disjoint).
struct Key {
  i64 node;
  i32 subgraph;
};

// Whether the entry x stands for `key`, a node of a type whose list begins at `start`.
__device__ inline bool has_key(const Batch &batch, i64 start, u32 x, u32 locals, const Key &key) {
  const Nodes &nodes = batch.nodes;
  const Edges &edges = batch.edges;
  const bool disjoint = batch.graph.disjoint;
  if (x < locals) {
    return nodes.node[start + x] == key.node &&
           (!disjoint || nodes.seed_of[start + x] == key.subgraph);
  }
  const u32 edge = x - locals;
  return edges.row[edge] == key.node && (!disjoint || edges.group[edge] == key.subgraph);
}

__device__ inline u64 first_slot(const Key &key, i64 slots) {
  const u64 subgraph = static_cast<u32>(key.subgraph);
  const u64 mixed = (static_cast<u64>(key.node) ^ subgraph << 32) * 0x9E3779B97F4A7C15ull;
  return (mixed ^ mixed >> 32) & static_cast<u64>(slots - 1);
}

// Puts x for `key` of a type into the hash table, whose part for the type has a power of two of
// slots, unless a smaller x is there, and returns the slot.
__device__ inline i64 enter_hashed(const Batch &batch, i64 type, const Key &key, u32 x,
                                   const Window &window) {
  const Out<u32> table = batch.table.table;
  const i64 first = batch.table.slot_base[type], slots = batch.table.slot_base[type + 1] - first;
  const i64 start = batch.nodes.node_start[type];
  for (u64 at = first_slot(key, slots);; at = (at + 1) & static_cast<u64>(slots - 1)) {
    const i64 slot = first + static_cast<i64>(at);
    u32 seen = atomic_read(&table[slot]);
    if (!window.holds(seen)) {
      const u32 found = atomicCAS(&table[slot], seen, window.base + x);
      if (found == seen) return slot;
      seen = found;  // another thread was first, so the slot has a key now, for good
    }
    if (has_key(batch, start, seen - window.base, window.locals, key)) {
      atomicMin(&table[slot], window.base + x);
      return slot;
    }
  }
}

// The local id of `key` of a type, or -1 if it is not in the table. Every entry must be a local id
// by now.
__device__ inline i64 find_hashed(const Batch &batch, i64 type, const Key &key,
                                  const Window &window) {
  const i64 first = batch.table.slot_base[type], slots = batch.table.slot_base[type + 1] - first;
  const i64 start = batch.nodes.node_start[type];
  for (u64 at = first_slot(key, slots);; at = (at + 1) & static_cast<u64>(slots - 1)) {
    const u32 seen = batch.table.table[first + static_cast<i64>(at)];
    if (!window.holds(seen)) return -1;
    if (has_key(batch, start, seen - window.base, window.locals, key)) return seen - window.base;
  }
}
