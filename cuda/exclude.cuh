// Sampling from neighbour lists without some of their edges: the twin of `kernels/exclude.py`.
//
// The edges that a batch does without are a few positions of the CSC, ascending for each subgraph.
// Those of one neighbour list lie together there, so two bisections find them. Draws are made from
// as many ranks as a list has edges left, and `position_of` turns each rank into a position.
#pragma once
#include "batch.cuh"

// The first place in [first, last) whose value is at least x, or `last`.
//
// Example: values 3, 5, 5, 9 and x = 5 give 1.
__device__ inline i64 first_not_below(In<i64> values, i64 first, i64 last, i64 x) {
  while (first < last) {
    const i64 middle = first + (last - first) / 2;
    if (values[middle] < x) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

// The excluded edges of one list: places in `excluded`.
struct Excluded {
  i64 first, last;

  __device__ i64 size() const { return last - first; }
};

// The excluded edges of the list at [start, start + degree), in a subgraph; 0 unless disjoint.
//
// Example: a list of 5 edges from position 10 on and excluded = [3, 11, 14, 20]: those from 1 to 3.
__device__ inline Excluded excluded_of(const Batch &batch, i64 subgraph, i64 start, i64 degree) {
  const In<i64> bounds = batch.nodes.excluded_bounds;
  const i64 begin = bounds[2 * subgraph], end = bounds[2 * subgraph + 1];
  const i64 first = first_not_below(batch.nodes.excluded, begin, end, start);
  if (first == end || batch.nodes.excluded[first] >= start + degree) return {first, first};
  return {first, first_not_below(batch.nodes.excluded, first, end, start + degree)};
}

// The position of what would be at `rank`, were the excluded edges not in the list.
//
// Example: with 11 and 14 excluded, the ranks 10, 11, 12, 13 are the positions 10, 12, 13, 15.
__device__ inline i64 position_of(const Batch &batch, i64 rank, const Excluded &excluded) {
  i64 low = excluded.first, high = excluded.last;
  while (low < high) {
    const i64 middle = low + (high - low) / 2;
    if (batch.nodes.excluded[middle] - (middle - excluded.first) > rank) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return rank + low - excluded.first;
}

// Whether a position of a list is one of its excluded edges.
__device__ inline bool is_excluded(const Batch &batch, i64 position, const Excluded &excluded) {
  const i64 at = first_not_below(batch.nodes.excluded, excluded.first, excluded.last, position);
  return at < excluded.last && batch.nodes.excluded[at] == position;
}
