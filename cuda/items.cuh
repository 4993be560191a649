// The items of a hop and where their edges go: what all kernels that draw share.
#pragma once
#include "common.cuh"

// Where the edges of a hop go.
template <class P, class I>
struct Edges {
  In<I> indices;       // [E]
  Out<I> row;          // [edges]: global id of the source
  Out<i32> col;        // [edges]: local id of the destination
  Out<P> position;     // [edges]: position in `indices`
  Out<i32> group;      // [edges]: the destination's subgraph; [0] unless disjoint

  __device__ void put(i64 edge, i64 at, i64 local, bool disjoint, i32 subgraph) {
    row[edge] = indices[at];
    col[edge] = static_cast<i32>(local);
    position[edge] = static_cast<P>(at);
    if (disjoint) group[edge] = subgraph;
  }
};

// What an item is, read by all lanes that work on it.
struct Item {
  i64 relation, local;      // local: local id of the destination
  i64 start, degree;        // its list
  i64 first, size;          // its edges
  i32 subgraph;             // of the destination; 0 unless disjoint
};

__device__ inline Item item_at(i64 number, i64 r, i64 num_relations, In<i64> node_start, In<i64> node_ptr,
                               In<i64> relations, In<i64> item_base, In<i64> item_start,
                               In<i64> item_degree, In<i64> item_ptr, In<i32> seed_of,
                               bool disjoint) {
  const i64 dst = relations[num_relations + r];
  Item item;
  item.relation = r;
  item.local = node_ptr[dst] + number - item_base[r];
  item.start = item_start[number];
  item.degree = item_degree[number];
  item.first = item_ptr[number];
  item.size = item_ptr[number + 1] - item.first;
  item.subgraph = disjoint ? static_cast<i32>(seed_of[node_start[dst] + item.local]) : 0;
  return item;
}
