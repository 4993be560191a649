// What the link to host memory can do at most: a stream of reads without an index.
#include "common.cuh"

// `kInFlight` of gather.cu, so that both fill the link with the same number of threads.
constexpr i32 kReads = 4;

// Reads `source` once, from the first word to the last: the grid goes over it in steps of
// kReads * threads words of 16 bytes, and lane i of a warp reads the word behind lane i - 1's. As
// `source` begins at a line of 128 bytes, each line is asked for once, by eight lanes of one
// instruction, and is sent whole. All reads of a step are under way before the first is waited for.
// The sums are written so that no read can be left out, and to tell that all were made.
//
// Example: 2,560 bytes are 160 words. With 64 threads thread 3 reads the words 3, 67 and 131 in one
// step; its fourth one, 195, is behind the end, so it is not read.
KERNEL(2) read_stream(
    In<u8> source,  // [words * 16], at a line of 128 bytes
    i64 words,
    Out<i64> sum    // [threads] out: of the 32-bit numbers that each thread read, modulo 2^64
) {
  const i64 threads = thread_count();
  u64 total = 0;
  // The same number of steps for all threads, so that the lanes of a warp stay together.
#pragma unroll 1  // else reads of several steps are mixed, and more of them are under way
  for (i64 step = 0; step < words; step += kReads * threads) {
    uint4 value[kReads];
#pragma unroll
    for (i32 u = 0; u < kReads; ++u) {
      const i64 word = step + u * threads + thread_number();
      value[u] = load_if<uint4>(word < words, source, word * static_cast<i64>(sizeof(uint4)),
                                uint4{0, 0, 0, 0});
    }
#pragma unroll
    for (i32 u = 0; u < kReads; ++u) {
      total += static_cast<u64>(value[u].x) + value[u].y + value[u].z + value[u].w;
    }
  }
  sum[thread_number()] = static_cast<i64>(total);
}
