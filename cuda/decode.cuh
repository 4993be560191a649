// Narrow numbers as float32, and float32 as narrow numbers, in integers but for one product.
//
// Numbers go by their bits: CuPy's -ftz=true flushes tiny floats to zero in products and sums of
// the language. The same functions are in kernels/decode.py, and give the same bits.
#pragma once
#include "common.cuh"

using f32 = float;

// The product of two numbers, rounded once, also where it is tiny. It is an instruction of its own:
// -ftz=true flushes the result of __fmul_rn, too. `.rn` says that it merges with no sum.
#ifdef CUDA_EMULATOR
inline u32 product_bits(f32 a, f32 b) {
  const f32 product = a * b;
  u32 bits;
  std::memcpy(&bits, &product, sizeof bits);
  return bits;
}
#else
__device__ inline u32 product_bits(f32 a, f32 b) {
  f32 product;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return __float_as_uint(product);
}
#endif

// The float32 of a float16.
//
// Example: 0x3C00 is 1, 0x0001 is 2^-24, 0x7C00 is infinity.
__device__ inline u32 half_to_single(u32 bits) {
  const u32 size = bits & 0x7FFF, sign = (bits & 0x8000) << 16;
  // Below 2^-14 a multiple of 2^-24. Both operands are 0 or as large as 2^-24.
  if (size < 0x0400) return product_bits(static_cast<f32>(size), 5.9604644775390625e-8f) | sign;
  // The exponent is biased by 15 in place of 127; of infinity and NaN it stays the largest.
  return ((size << 13) + (size < 0x7C00 ? 0x38000000u : 0x70000000u)) | sign;
}

// The float16 nearest to a float32, of two the even one. NaN gives a NaN.
//
// Example: 0x3F800000 (1) is 0x3C00, 0x33800000 (2^-24) is 1, 0x477FF000 (65520) is 0x7C00.
__device__ inline u32 single_to_half(u32 bits) {
  const u32 size = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000, exponent = size >> 23;
  if (size > 0x7F800000) return sign | 0x7E00;
  if (size >= 0x477FF000) return sign | 0x7C00;
  if (exponent >= 113) return sign | (((size + 0xFFF + (size >> 13 & 1)) >> 13) - 0x1C000);
  // Below 2^-14 a multiple of 2^-24; below 2^-25 all bits of the mantissa go.
  const u32 shift = exponent > 101 ? 126 - exponent : 25;
  const u32 mantissa = (size & 0x7FFFFF) | 0x800000;
  return sign | ((mantissa + ((1u << (shift - 1)) - 1) + (mantissa >> shift & 1)) >> shift);
}

// The bfloat16 nearest to a float32, of two the even one. NaN gives a NaN.
//
// Example: 0x3F800000 (1) is 0x3F80, 0x3F808000 (halfway to the next) is 0x3F80, too.
__device__ inline u32 single_to_brain(u32 bits) {
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return bits >> 16 | 0x40;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

// Part `i` of 32 bits of a word V; of a shorter word, all of it.
template <class V>
__device__ inline u32 part_of(V value, i32 i) {
  if constexpr (sizeof(V) == 16) {
    return i == 0 ? value.x : i == 1 ? value.y : i == 2 ? value.z : value.w;
  } else {
    return static_cast<u32>(static_cast<u64>(value) >> (32 * i));
  }
}

// Writes float32 numbers from byte `at` of `out` on, which 4 times kCount divides up to 16.
template <i32 kCount>
__device__ inline void write_singles(Out<u8> out, i64 at, const u32 *bits) {
#pragma unroll
  for (i32 k = 0; k < kCount; k += kCount % 4 == 0 ? 4 : 1) {
    if constexpr (kCount % 4 == 0) {
      store<uint4>(out, at + 4 * k, uint4{bits[k], bits[k + 1], bits[k + 2], bits[k + 3]});
    } else {
      store<u32>(out, at + 4 * k, bits[k]);
    }
  }
}

// Writes numbers of 16 bits from byte `at` of `out` on, which 2 times kCount divides up to 16.
template <i32 kCount>
__device__ inline void write_halves(Out<u8> out, i64 at, const u32 *bits) {
  if constexpr (kCount == 1) {
    store<u16>(out, at, static_cast<u16>(bits[0]));
  } else {
    u32 pairs[kCount / 2];
#pragma unroll
    for (i32 k = 0; k < kCount / 2; ++k) pairs[k] = bits[2 * k] | bits[2 * k + 1] << 16;
    write_singles<kCount / 2>(out, at, pairs);
  }
}

// How numbers are stored, or wanted: as in kernels/decode.py.
constexpr i32 kInt8ByRow = 1, kFloat16 = 2, kFloat32 = 4;

// A sink of `for_each_word` that decodes.
template <class V>
struct Decoder {
  In<u32> scale;
  i32 stored, wanted;
  Out<u8> out;

  __device__ u32 beside(i64 id) const {
    return stored == kInt8ByRow ? static_cast<u32>(scale[id]) : 0;
  }

  // Writes the numbers of a word, of kBytes bytes each; `factor` is that of the row.
  template <i32 kBytes>
  __device__ void put_numbers(i64 at, i64 column, V value, u32 factor) const {
    constexpr i32 kCount = sizeof(V) / kBytes;
    u32 bits[kCount];
#pragma unroll
    for (i32 k = 0; k < kCount; ++k) {
      const u32 part = part_of(value, k * kBytes / 4) >> (k * kBytes % 4 * 8);
      if constexpr (kBytes == 1) {
        const u32 own = stored == kInt8ByRow ? factor : static_cast<u32>(scale[column + k]);
        const i32 number = static_cast<signed char>(part & 0xFF);
        bits[k] = product_bits(static_cast<f32>(number), __uint_as_float(own));
      } else {
        bits[k] = stored == kFloat16 ? half_to_single(part & 0xFFFF) : part << 16;
      }
    }
    if (wanted == kFloat32) {
      write_singles<kCount>(out, at / kBytes * 4, bits);
      return;
    }
#pragma unroll
    for (i32 k = 0; k < kCount; ++k) {
      bits[k] = wanted == kFloat16 ? single_to_half(bits[k]) : single_to_brain(bits[k]);
    }
    write_halves<kCount>(out, at / kBytes * 2, bits);
  }

  __device__ void put(i64 at, i64 column, V value, u32 factor) const {
    if (stored <= kInt8ByRow) {
      put_numbers<1>(at, column, value, factor);
    } else if constexpr (sizeof(V) >= 2) {
      put_numbers<2>(at, column, value, factor);
    }
  }
};
