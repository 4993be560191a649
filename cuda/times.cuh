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

// What a seed of time `latest` may see of the list at [start, start + degree) of relation r.
//
// Example: times 3, 5, 5, 9, latest 5 and a window of 1 leave the two 5.
__device__ inline Span span_until(const Graph &graph, i64 r, i64 start, i64 degree, i64 latest) {
  Span span{start, count_until(graph, r, start, degree, latest)};
  if (graph.time_window >= 0) {
    // The latest time that is too old; the least int64 never is.
    constexpr i64 kLeast = -0x7FFFFFFFFFFFFFFFll - 1;
    const i64 reach = graph.time_window + 1;
    const i64 before = latest < kLeast + reach ? kLeast : latest - reach;
    const i64 early = count_until(graph, r, start, span.degree, before);
    span.start += early;
    span.degree -= early;
  }
  return span;
}
