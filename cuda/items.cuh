// The items of a hop and where their edges go: what all kernels that draw share.
#pragma once
#include "exclude.cuh"
#include "philox.cuh"
#include "times.cuh"

// Leaves the last k edges of a list that has at least as many.
//
// Example: k = 2 of the positions 10, 11, 12 leaves 11, 12; where 11 is excluded, 10, 12 of the
// positions 10, 12 stay, and of the excluded ones 11.
__device__ inline void keep_latest(const Batch &batch, i64 k, Span &span, Excluded &excluded) {
  const i64 rank = span.start + span.degree - k;
  span = {position_of(batch, rank, excluded), k};
  excluded.first += span.start - rank;
}

// Leaves the edges of a list from the last k of positive weight on, or all if there are fewer. Those
// of weight 0 between them stay: no draw takes them.
//
// Example: k = 2 of the weights 1, 2, 0, 3, 0 at position 10 leaves the positions 11 to 14.
__device__ inline void keep_latest_drawable(const Batch &batch, i64 k, Span &span,
                                            Excluded &excluded) {
  Span kept{span.start + span.degree + excluded.size(), 0};
  i64 out = excluded.last;
  for (i64 found = 0; found < k && kept.start > span.start;) {
    --kept.start;
    if (out > excluded.first && batch.nodes.excluded[out - 1] == kept.start) {
      --out;
    } else {
      ++kept.degree;
      found += batch.graph.weight[kept.start] > 0.0;
    }
  }
  span = kept;
  excluded.first = out;
}

// What an item is, read by all lanes that work on it.
struct Item {
  i64 relation, local;      // local: local id of the destination
  i64 start, degree;        // its list; `degree` is without the excluded edges
  i64 first, size;          // its edges
  Excluded excluded;
  i32 subgraph;             // of the destination; 0 unless disjoint
};

// Item `number`, which belongs to relation r.
__device__ inline Item item_at(const Batch &batch, const Hop &hop, i64 number, i64 r) {
  const i64 dst = batch.graph.relations[batch.graph.num_relations + r];
  Item item;
  item.relation = r;
  item.local = hop.expanded[dst] + number - hop.item_base[r];
  const i64 place = batch.nodes.node_start[dst] + item.local;
  item.start = batch.items.item_start[number];
  item.degree = batch.items.item_degree[number];
  item.first = batch.items.item_ptr[number];
  item.size = batch.items.item_ptr[number + 1] - item.first;
  item.excluded = {0, 0};
  if (batch.graph.excluding) {
    item.excluded = {batch.items.item_excluded[2 * number],
                     batch.items.item_excluded[2 * number + 1]};
  }
  item.subgraph = 0;
  if (batch.graph.disjoint) item.subgraph = batch.nodes.seed_of[place];
  if (batch.nodes.has_local) item.local = batch.nodes.local[place];
  return item;
}

__device__ inline Stream stream_of(const Batch &batch, const Hop &hop, const Item &item) {
  return stream_of(item.local, static_cast<i32>(hop.number), item.relation, batch.nodes.key);
}

// The position of the neighbour that a draw from [0, degree) takes.
__device__ inline i64 place_of(const Batch &batch, const Item &item, i64 pick) {
  return position_of(batch, item.start + pick, item.excluded);
}

// Writes edge number `edge` of the hop: the neighbour at position `at`.
__device__ inline void put_edge(const Batch &batch, const Hop &hop, const Item &item, i64 edge,
                                i64 at) {
  batch.edges.row[edge] = batch.graph.indices[at];
  hop.col[edge] = static_cast<i32>(item.local);
  hop.position[edge] = static_cast<P>(at);
  if (batch.graph.disjoint) batch.edges.group[edge] = item.subgraph;
}
