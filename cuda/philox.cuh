// Counter-based random numbers: Philox4x32-10 and exact draws from a range.
//
// Method: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011),
// section 3.3. A draw is a pure function of a 128-bit counter and a 64-bit key. It is the twin of
// `kernels/philox.py` and gives the same words.
//
// Counter of a draw: (slot / 4, local id of the node, hop | relation << 8, purpose | attempt << 8);
// slot s takes word s mod 4.
#pragma once
#include "common.cuh"

// What a draw is for: the low byte of counter word 3.
constexpr u32 kPurposeUniform = 0, kPurposeWeighted = 1, kPurposeLabor = 2;

struct Words {
  u32 word[4];
};

__device__ inline Words philox4x32(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
  for (i32 round = 0; round < 10; ++round) {
    const u64 product0 = static_cast<u64>(0xD2511F53u) * c0;
    const u64 product1 = static_cast<u64>(0xCD9E8D57u) * c2;
    c0 = static_cast<u32>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<u32>(product1);
    c2 = static_cast<u32>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<u32>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return Words{{c0, c1, c2, c3}};
}

// The random stream of one item of one hop.
struct Stream {
  u32 local;   // local id of the destination node
  u32 stream;  // hop | relation << 8
  u32 k0, k1;  // key of the batch
};

__device__ inline Stream stream_of(i64 local, i32 hop, i64 relation, In<i64> key) {
  return Stream{static_cast<u32>(local), static_cast<u32>(hop) | static_cast<u32>(relation) << 8,
                static_cast<u32>(key[0]), static_cast<u32>(key[1])};
}

// The draw of `slot`: exactly uniform in [0, bound), 0 < bound < 2^32.
//
// Method: Lemire, "Fast Random Integer Generation in an Interval" (ACM TOMACS 29, 2019), section 4.
// A refused word is replaced by word 0 of the counter
// (slot, local, stream, purpose | attempt << 8).
//
// Example: bound 3 takes every word but 0, as 2^32 mod 3 = 1; word 2^31 gives 1.
__device__ inline u32 draw_below(const Stream &stream, u32 slot, u32 bound) {
  const Words words =
      philox4x32(slot >> 2, stream.local, stream.stream, kPurposeUniform, stream.k0, stream.k1);
  // Selected and not indexed: registers have no addresses.
  const u32 low_pair = slot & 1 ? words.word[1] : words.word[0];
  const u32 high_pair = slot & 1 ? words.word[3] : words.word[2];
  u64 product = static_cast<u64>(slot & 2 ? high_pair : low_pair) * bound;
  if (static_cast<u32>(product) < bound) {
    const u32 threshold = (0u - bound) % bound;
    for (u32 attempt = 1; static_cast<u32>(product) < threshold; ++attempt) {
      const u32 word = philox4x32(slot, stream.local, stream.stream, kPurposeUniform | attempt << 8,
                                  stream.k0, stream.k1)
                           .word[0];
      product = static_cast<u64>(word) * bound;
    }
  }
  return static_cast<u32>(product >> 32);
}

// The draw of `slot` in [0, 1) at some attempt: a multiple of 2^-53, every one equally likely. Two
// slots share a counter. Nothing is rounded, as 53 bits fit into a double.
//
// Example: words 2^31 and 0 give 2^26 * 2^26 / 2^53 = 0.5.
__device__ inline f64 draw_unit(const Stream &stream, u32 slot, u32 attempt) {
  const Words words = philox4x32(slot >> 1, stream.local, stream.stream,
                                 kPurposeWeighted | attempt << 8, stream.k0, stream.k1);
  const u32 high = slot & 1 ? words.word[2] : words.word[0];
  const u32 low = slot & 1 ? words.word[3] : words.word[1];
  const u64 bits = static_cast<u64>(high >> 5) << 26 | low >> 6;
  return static_cast<f64>(bits) * (1.0 / 9007199254740992.0);
}
