// Vector clocks: what happened before what in one schedule of a launch.
#pragma once
#include <algorithm>
#include <vector>

namespace emu {

// Component i of a thread's clock counts the accesses of thread i that happened before.
using Clock = std::vector<unsigned>;

inline void merge(Clock &into, const Clock &other) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

struct Clocks {
  std::vector<Clock> of;  // [threads]

  void begin(std::size_t threads) { of.assign(threads, Clock(threads, 0)); }

  // The threads [first, first + count) wait for each other, as far as they are in the mask; threads
  // from 32 on always are.
  void join(std::size_t first, std::size_t count, unsigned mask) {
    Clock all(of.size(), 0);
    const auto takes_part = [&](std::size_t i) { return i >= 32 || (mask >> i & 1); };
    for (std::size_t i = 0; i < count; ++i) {
      if (takes_part(i)) merge(all, of[first + i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (takes_part(i)) of[first + i] = all;
    }
  }
};

}  // namespace emu
