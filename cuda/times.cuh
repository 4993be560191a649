// Which part of a neighbour list lies in the past of a seed.
#pragma once
#include "batch.cuh"

constexpr i64 kEdgeTime = -1, kNoTime = -2;  // in place of a first index into the times of nodes

// How many of the neighbours at [start, start + degree) of relation r, which are sorted by time,
// are no later than `latest`. Reads the times of O(log degree) of them.
//
// Example: times 3, 5, 5, 9 and latest 5 give 3.
__device__ inline i64 count_until(const Graph &graph, i64 r, i64 start, i64 degree, i64 latest) {
  const i64 base = graph.time_base[r];
  i64 first = start, last = start + degree;
  while (first < last) {
    const i64 middle = first + (last - first) / 2;
    const i64 at = base == kEdgeTime ? middle : base + static_cast<i64>(graph.indices[middle]);
    if (graph.time[at] <= latest) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first - start;
}

// The part of a neighbour list that may be drawn.
struct Span {
  i64 start, degree;
};

// What subgraph `subgraph` may see of the list at [start, start + degree) of relation r.
//
// Example: times 3, 5, 5, 9 and a seed of time 5 leave 3, 5, 5; with a start of 4, the two 5.
__device__ inline Span span_of(const Batch &batch, i64 r, i64 start, i64 degree, i64 subgraph) {
  const Graph &graph = batch.graph;
  Span span{start, count_until(graph, r, start, degree, batch.nodes.seed_time[subgraph])};
  constexpr i64 kLeast = -0x7FFFFFFFFFFFFFFFll - 1;
  if (batch.nodes.has_since && batch.nodes.seed_since[subgraph] > kLeast) {
    const i64 before = batch.nodes.seed_since[subgraph] - 1;
    const i64 early = count_until(graph, r, start, span.degree, before);
    span.start += early;
    span.degree -= early;
  }
  return span;
}
