// What the stand-in says of its devices; attributes have the same numbers in cuda.h and driver_types.h.
#pragma once

namespace standin {

constexpr int kMultiprocessors = 4;  // few, so that launches have few blocks
constexpr int kMajor = 9, kMinor = 0;

inline int attribute_of(int attribute) {
  switch (attribute) {
    case 1: case 2: case 3: return 1024;  // threads of a block, and its first two dimensions
    case 4: return 64;
    case 5: return 0x7FFFFFFF;            // dimensions of a grid
    case 6: case 7: return 65535;
    case 8: return 48 << 10;              // bytes of shared memory of a block
    case 9: return 64 << 10;
    case 10: return 32;                   // lanes of a warp
    case 12: return 65536;                // registers of a block
    case 13: return 1500000;              // kHz
    case 15: return 1;                    // copies beside kernels
    case 16: return kMultiprocessors;
    case 19: return 1;                    // host memory can be mapped
    case 31: return 1;                    // kernels of several streams
    case 39: return 2048;                 // threads of a multiprocessor
    case 40: return 3;                    // engines that copy
    case 41: return 1;                    // one address space
    case 75: return kMajor;
    case 76: return kMinor;
    case 78: return 1;                    // priorities of streams
    case 81: return 228 << 10;            // bytes of shared memory of a multiprocessor
    case 82: return 65536;
    case 91: return 1;                    // registered memory has the host's own address
    case 97: return 227 << 10;
    case 99: return 1;                    // host memory can be registered,
    case 113: return 1;                   // also read-only
    default: return 0;
  }
}

}  // namespace standin
