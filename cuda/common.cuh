// What all kernels share: integer names, pointer kinds, the index loop and a search.
//
// The text compiles with NVRTC and, for the tests, with a C++ compiler behind an emulator that
// brings checked pointers of its own.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f64 = double;

#ifndef BLOCK_THREADS  // given by the launcher, which launches blocks of this size
#define BLOCK_THREADS 256
#endif

constexpr i32 kWarp = 32;
constexpr i32 kBlockWarps = BLOCK_THREADS / kWarp;
constexpr u32 kAllLanes = 0xFFFFFFFFu;

#ifndef CUDA_EMULATOR

// A kernel says with each array whether it writes it. An `In` array is written by no thread of the
// launch, so its reads may go through the read-only cache.
template <class T>
using In = const T *__restrict__;
template <class T>
using Out = T *;

// A struct in device memory that no thread of the launch writes.
template <class S>
using Descriptor = const S *__restrict__;

// A kernel, of which at least `blocks` blocks shall fit a multiprocessor at once: that bounds its
// registers to 65,536 / (blocks * BLOCK_THREADS) a thread, 64 for four blocks of 256 threads.
// Kernels that keep a sequence of draws or rows in registers say two: with three blocks or four,
// the assembler moves some of that to local memory on compute capability 12.0, and partly on
// others.
//
// A kernel goes by its plain name, and types come from the INSTANCE_ options that a file is
// compiled with: code with C++ name expressions is not kept in the disk cache of CuPy before 14.2.
#define KERNEL(blocks) extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, blocks)

#define SHARED_ARRAY(type, name, size) __shared__ type name[size]

// The address of byte 0 of `table`.
__device__ inline u64 address_of(const u8 *table) { return reinterpret_cast<u64>(table); }

// A word with all bits set: NaN in every floating-point dtype, and -1 in signed integers.
template <class V>
__device__ inline V all_bits() {
  if constexpr (sizeof(V) == 16) {
    return V{~0u, ~0u, ~0u, ~0u};
  } else {
    return static_cast<V>(~0ull);
  }
}

// The V at byte `at`, a multiple of sizeof(V) as an address, or `other` where `wanted` is false. A
// whole warp calls it together, so that the reads of its lanes are one instruction.
template <class V>
__device__ inline V load_if(bool wanted, const u8 *table, i64 at, V other) {
  return wanted ? *reinterpret_cast<const V *>(table + at) : other;
}

// As `load_if`, at byte `at` of `table` or, where `held` is true, at byte `at_held` of `copy`: one
// instruction, too, whichever a lane reads.
template <class V>
__device__ inline V load_either(bool wanted, bool held, const u8 *copy, i64 at_held,
                                const u8 *table, i64 at, V other) {
  const u8 *place = held ? copy + at_held : table + at;
  return wanted ? __ldg(reinterpret_cast<const V *>(place)) : other;
}

template <class V>
__device__ inline void store(u8 *out, i64 at, V value) {
  *reinterpret_cast<V *>(out + at) = value;
}

// A read of a word that other threads change with atomics at the same time.
__device__ inline u32 atomic_read(const u32 *word) {
  return *const_cast<const volatile u32 *>(word);
}

// A write to a word that other threads read with `atomic_read` at the same time.
__device__ inline void atomic_write(u32 *word, u32 value) {
  *const_cast<volatile u32 *>(word) = value;
}

#endif

__device__ inline i64 thread_number() {
  return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline i64 thread_count() { return static_cast<i64>(gridDim.x) * blockDim.x; }
__device__ inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
__device__ inline i64 minimum(i64 a, i64 b) { return a < b ? a : b; }

// The last i in [first, last) with starts[i] <= x, where starts[first] <= x. Of several equal
// starts it is the last, so ranges that are empty are never found.
//
// Example: starts [0, 3, 3, 5], x = 3 gives 2.
template <class Starts>
__device__ inline i64 range_of(Starts starts, i64 first, i64 last, i64 x) {
  while (last - first > 1) {
    const i64 middle = first + (last - first) / 2;
    if (starts[middle] <= x) {
      first = middle;
    } else {
      last = middle;
    }
  }
  return first;
}

// The lanes of the sub-warp of `lanes` lanes (8, 16 or 32) to which the calling thread belongs.
__device__ inline u32 subwarp_mask(i32 lanes) {
  const i32 first = static_cast<i32>(threadIdx.x % kWarp) & ~(lanes - 1);
  return (kAllLanes >> (kWarp - lanes)) << first;
}
