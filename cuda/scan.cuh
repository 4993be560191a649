// Exclusive prefix sums over an array of device-known length, in two launches and a fixed order.
//
// The array is cut into one run of elements for each block. The first launch, which is the kernel
// that makes the numbers, leaves the sum of every run; the second adds the sums before a run to
// the prefix sums inside it. Both must be launched with the same grid.
#pragma once
#include "common.cuh"

struct Run {
  i64 first, last;
};

// The elements of [0, n) that the calling block owns; runs begin at multiples of the block size.
// Example: n = 10, 3 blocks of 2 threads: runs [0, 4), [4, 8), [8, 10).
__device__ inline Run run_of_block(i64 n) {
  const i64 length = ceil_div(ceil_div(n, gridDim.x), blockDim.x) * blockDim.x;
  return Run{minimum(n, blockIdx.x * length), minimum(n, (blockIdx.x + 1) * length)};
}

// The sum of `value` over the threads before this one in the block, and over all of them.
// Every thread of the block must call it.
struct Prefix {
  i64 before, all;
};

__device__ inline Prefix block_prefix(i64 value) {
  SHARED_ARRAY(i64, warp_sum, kBlockWarps);
  const i32 lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  i64 sum = value;
  for (i32 step = 1; step < kWarp; step *= 2) {
    const i64 left = __shfl_up_sync(kAllLanes, sum, step);
    sum += lane >= step ? left : 0;
  }
  if (lane == kWarp - 1) warp_sum[warp] = sum;
  __syncthreads();
  Prefix prefix{sum - value, 0};
  for (i32 w = 0; w < kBlockWarps; ++w) {
    prefix.before += w < warp ? static_cast<i64>(warp_sum[w]) : 0;
    prefix.all += warp_sum[w];
  }
  __syncthreads();  // the next call writes `warp_sum` again
  return prefix;
}

// Writes the block's sum of the numbers that its threads hold.
__device__ inline void store_run_sum(i64 sum_of_thread, Out<i64> run_sum) {
  const i64 all = block_prefix(sum_of_thread).all;
  if (threadIdx.x == 0) run_sum[blockIdx.x] = all;
}

// Turns `value` into its exclusive prefix sums, and looks them up at some positions.
//
// n: how many numbers there are; value: [n + 1], in: numbers >= 0, out: their prefix sums, the
// total last; run_sum: [blocks]; at: [places], each in [0, n]; found: [places] out, value[at[i]].
//
// Example: value [2, 0, 1, .] with n = 3 becomes [0, 2, 2, 3]; at = [0, 2, 3] gives found [0, 2,
// 3].
template <class Sum, class Places>
__device__ inline void scan_runs(i64 n, Out<Sum> value, Out<i64> run_sum, Places at, i64 places,
                                 Out<i64> found) {
  const Run run = run_of_block(n);
  const bool is_last_block = blockIdx.x == gridDim.x - 1;
  i64 mine = 0;
  for (i64 block = threadIdx.x; block < blockIdx.x; block += blockDim.x) mine += run_sum[block];
  i64 carry = block_prefix(mine).all;
  for (i64 first = run.first; first < run.last; first += blockDim.x) {
    const i64 i = first + threadIdx.x;
    const Prefix prefix = block_prefix(i < run.last ? static_cast<i64>(value[i]) : 0);
    if (i < run.last) value[i] = static_cast<Sum>(carry + prefix.before);
    carry += prefix.all;
  }
  if (is_last_block && threadIdx.x == 0) value[n] = static_cast<Sum>(carry);
  __syncthreads();  // the places of the run may have been written by any thread of the block
  for (i64 i = threadIdx.x; i < places; i += blockDim.x) {
    const bool mine_to_find = run.first <= at[i] && at[i] < run.last;
    if (mine_to_find) found[i] = static_cast<i64>(value[at[i]]);
    if (is_last_block && at[i] == n) found[i] = carry;
  }
}
