// CUDA's words for a C++ compiler, so that `cuda/*.cu` run on the CPU as they are: every array is a
// checked pointer, every thread a fibre (machine.h).
//
// Reported as failures: reads and writes out of range or misaligned, reads of memory that nothing
// has written, two threads that touch the same element without a barrier, a collective or an atomic
// in between, barriers or collectives that not all threads reach, and threads that do not come to an
// end. Memory is sequentially consistent: that a GPU may show writes to another block in another order
// is not emulated.
#pragma once
#define CUDA_EMULATOR

#include <utility>

#include "machine.h"

#define KERNEL(blocks) static void
#define __device__

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace emu {

// Who touched an element last.
struct Touch {
  u64 block = 0;  // serial of the block; 0: none yet
  u64 block_epoch = 0, warp_epoch = 0;
  u32 thread = 0;
  bool atomic = false;
};

struct Shadow {
  Touch write, read;
};

// One array of a launch, or one shared array.
struct Array {
  std::string name;
  u8 *data = nullptr;
  u64 bytes = 0, low = 0;  // up to the last byte, and before the first
  u8 *written = nullptr;  // [bytes]: 0 where nothing was written yet; null: all is
  bool writable = false, recorded = false;
  unsigned number = 0;    // argument of the kernel
  std::map<u64, Shadow> shadows;  // of the elements touched, by offset
};

inline bool conflicts(const Touch &before, const Touch &now) {
  if (before.block == 0 || (before.atomic && now.atomic)) return false;
  if (before.block != now.block) return true;
  if (before.thread == now.thread || before.block_epoch != now.block_epoch) return false;
  const bool same_warp = before.thread / kLanes == now.thread / kLanes;
  return !(same_warp && now.warp_epoch > before.warp_epoch);
}

inline std::string at(const Array &array, long long offset, u64 size) {
  const long long end = offset + static_cast<long long>(size);
  return " of " + array.name + ": bytes " + std::to_string(offset) + " to " + std::to_string(end) +
         " of " + std::to_string(array.bytes);
}

inline u64 address(const Array &array, long long offset) {
  return reinterpret_cast<u64>(array.data) + static_cast<u64>(offset);
}

inline void check_range(const Array &array, long long offset, u64 size, const char *what) {
  const u64 first = static_cast<u64>(offset);
  if (offset < 0 || first < array.low || first + size > array.bytes) {
    fail(std::string("out-of-range ") + what + at(array, offset, size));
  }
  if (address(array, offset) % size != 0) {
    fail(std::string("misaligned ") + what + at(array, offset, size));
  }
  if (++self().accesses > kMostAccesses) fail("a thread does not come to an end");
}

inline void check_race(Array &array, long long offset, u64 size, bool writes, bool atomic) {
  if (machine().exploring) return;  // the explorer knows all that happened before
  const Touch now{block().serial, block().epoch, self().warp_epoch, machine().current, atomic};
  Shadow &shadow = array.shadows[static_cast<u64>(offset)];
  if (conflicts(shadow.write, now) || (writes && conflicts(shadow.read, now))) {
    fail("race: two threads touch the same element without synchronising" +
         at(array, offset, size));
  }
  (writes ? shadow.write : shadow.read) = now;
}

inline void check_read(Array &array, long long offset, u64 size, bool atomic = false) {
  check_range(array, offset, size, "read");
  if (array.written != nullptr) {
    for (u64 i = 0; i < size; ++i) {
      if (!array.written[offset + static_cast<long long>(i)]) {
        fail("read of unwritten memory" + at(array, offset, size));
      }
    }
  }
  if (array.writable) check_race(array, offset, size, false, atomic);
  if (machine().recording && array.recorded) {
    machine()
        .warp_reads[{block().serial, warp(), array.number, self().reads[array.number]}]
        .push_back(address(array, offset));
  }
  ++self().reads[array.number];
}

inline void check_write(Array &array, long long offset, u64 size, bool atomic = false) {
  check_range(array, offset, size, "write");
  if (array.written != nullptr) std::memset(array.written + offset, 1, size);
  check_race(array, offset, size, true, atomic);
}

// Of a read or write that is no part of an atomic. What no thread writes needs no order.
inline void before_plain(const Array &array, long long offset, bool writes) {
  if (array.writable) before_access(Access{address(array, offset), writes, false});
}

template <class T>
T get(const Array &array, long long offset) {
  T value;
  std::memcpy(&value, array.data + offset, sizeof(T));
  return value;
}

template <class T>
void put(Array &array, long long offset, T value) {
  std::memcpy(array.data + offset, &value, sizeof(T));
}

// The address of one element, for atomics.
template <class T>
struct Element {
  Array *array;
  long long offset;
};

// One element that can be read and assigned.
template <class T>
struct Reference {
  Array *array;
  long long offset;

  operator T() const {
    before_plain(*array, offset, false);
    check_read(*array, offset, sizeof(T));
    return get<T>(*array, offset);
  }
  const Reference &operator=(T value) const {
    before_plain(*array, offset, true);
    check_write(*array, offset, sizeof(T));
    put<T>(*array, offset, value);
    return *this;
  }
  const Reference &operator=(const Reference &other) const { return *this = static_cast<T>(other); }
  Element<T> operator&() const { return Element<T>{array, offset}; }
};

// What all threads of a block share; each resident block has its own.
template <class T, int kSize>
struct SharedArray {
  struct OfBlock {
    Array array;
    T values[kSize];
    u8 written[kSize * sizeof(T)];
    u64 serial = 0;
  };
  const char *name;
  std::map<unsigned, OfBlock> blocks;  // by the slot of the resident block

  explicit SharedArray(const char *name) : name(name) {}
  Reference<T> operator[](long long i) {
    OfBlock &mine = blocks[machine().slot];
    Array &array = mine.array;
    if (mine.serial != block().serial) {
      mine.serial = block().serial;
      std::memset(mine.written, 0, sizeof mine.written);
      array.name = name;
      array.data = reinterpret_cast<u8 *>(mine.values);
      array.bytes = sizeof mine.values;
      array.written = mine.written;
      array.writable = true;
      array.number = kMaxArguments - 1;
      array.shadows.clear();
    }
    return Reference<T>{&array, i * static_cast<long long>(sizeof(T))};
  }
};

}  // namespace emu

#define SHARED_ARRAY(type, name, size) static emu::SharedArray<type, size> name(#name)

template <class T>
struct In {
  emu::Array *array;
  long long first = 0;  // element

  T operator[](long long i) const {
    const long long offset = (first + i) * static_cast<long long>(sizeof(T));
    emu::check_read(*array, offset, sizeof(T));
    return emu::get<T>(*array, offset);
  }
  In operator+(long long elements) const { return In{array, first + elements}; }
};

template <class T>
struct Out {
  emu::Array *array;
  long long first = 0;

  emu::Reference<T> operator[](long long i) const {
    return emu::Reference<T>{array, (first + i) * static_cast<long long>(sizeof(T))};
  }
  Out operator+(long long elements) const { return Out{array, first + elements}; }
};

// A struct of the above.
template <class S>
using Descriptor = const S *;

inline emu::u64 address_of(In<emu::u8> table) { return emu::address(*table.array, 0); }

template <class V>
V all_bits() {
  V word;
  std::memset(&word, 0xFF, sizeof word);
  return word;
}

template <class V>
V load_if(bool wanted, In<emu::u8> table, long long at, V other) {
  if (wanted) {
    emu::check_read(*table.array, at, sizeof(V));
    return emu::get<V>(*table.array, at);
  }
  ++emu::self().reads[table.array->number];  // the lane takes part in the instruction all the same
  return other;
}

template <class V>
V load_either(bool wanted, bool held, In<emu::u8> copy, long long at_held, In<emu::u8> table,
              long long at, V other) {
  const V of_copy = load_if<V>(wanted && held, copy, at_held, other);
  const V of_table = load_if<V>(wanted && !held, table, at, other);
  return held ? of_copy : of_table;
}

template <class V>
void store(Out<emu::u8> out, long long at, V value) {
  emu::before_plain(*out.array, at, true);
  emu::check_write(*out.array, at, sizeof(V));
  emu::put<V>(*out.array, at, value);
}

namespace emu {

template <class T>
void before_atomic(const Element<T> &word, bool writes) {
  before_access(Access{address(*word.array, word.offset), writes, true});
}

}  // namespace emu

template <class T>
T atomic_read(emu::Element<T> word) {
  emu::before_atomic(word, false);
  emu::check_read(*word.array, word.offset, sizeof(T), true);
  return emu::get<T>(*word.array, word.offset);
}

template <class T>
void atomic_write(emu::Element<T> word, T value) {
  emu::before_atomic(word, true);
  emu::check_write(*word.array, word.offset, sizeof(T), true);
  emu::put<T>(*word.array, word.offset, value);
}

template <class T, class Change>
T atomic_change(emu::Element<T> word, Change change) {
  emu::before_atomic(word, true);
  emu::check_read(*word.array, word.offset, sizeof(T), true);
  const T old = emu::get<T>(*word.array, word.offset), changed = change(old);
  emu::check_write(*word.array, word.offset, sizeof(T), true);
  emu::put<T>(*word.array, word.offset, changed);
  return old;
}

inline unsigned atomicMin(emu::Element<unsigned> word, unsigned value) {
  return atomic_change(word, [&](unsigned old) { return old < value ? old : value; });
}

inline unsigned atomicCAS(emu::Element<unsigned> word, unsigned expected, unsigned value) {
  return atomic_change(word, [&](unsigned old) { return old == expected ? value : old; });
}

inline unsigned long long atomicExch(emu::Element<unsigned long long> word,
                                     unsigned long long value) {
  return atomic_change(word, [&](unsigned long long) { return value; });
}

inline unsigned long long atomicAdd(emu::Element<unsigned long long> word,
                                    unsigned long long value) {
  return atomic_change(word, [&](unsigned long long old) { return old + value; });
}

// The build forbids the C++ compiler to merge products and sums.
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __uint_as_float(unsigned int word) {
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

inline int __popc(unsigned word) { return __builtin_popcount(word); }

// The line of the call stands in for the place in the program.
inline void __syncthreads(int line = __builtin_LINE()) { emu::barrier(line); }
inline void __syncwarp(unsigned mask, int line = __builtin_LINE()) {
  emu::collective(emu::Kind::sync, mask, 0, 0, line);
}
inline long long __shfl_up_sync(unsigned mask, long long value, int delta,
                                int line = __builtin_LINE()) {
  return static_cast<long long>(
      emu::collective(emu::Kind::shuffle_up, mask, static_cast<emu::u64>(value), delta, line));
}
inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return static_cast<unsigned>(
      emu::collective(emu::Kind::ballot, mask, predicate != 0, 0, line));
}
inline unsigned __match_any_sync(unsigned mask, unsigned value, int line = __builtin_LINE()) {
  return static_cast<unsigned>(emu::collective(emu::Kind::match_any, mask, value, 0, line));
}
