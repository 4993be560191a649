// Which part of a neighbour list lies in the past of a seed.
#pragma once
#include "common.cuh"

constexpr i64 kEdgeTime = -1, kNoTime = -2;  // in place of a first index into the times of nodes

// How many of the neighbours at [start, start + degree), which are sorted by time, are no later than
// `latest`. Reads the times of O(log degree) of them.
//
// Example: times 3, 5, 5, 9 and latest 5 give 3.
template <class I>
__device__ inline i64 count_until(i64 start, i64 degree, In<I> indices, In<i64> time, i64 time_base,
                                  i64 latest) {
  i64 first = start, last = start + degree;
  while (first < last) {
    const i64 middle = first + (last - first) / 2;
    const i64 at = time_base == kEdgeTime ? middle : time_base + static_cast<i64>(indices[middle]);
    if (time[at] <= latest) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first - start;
}
