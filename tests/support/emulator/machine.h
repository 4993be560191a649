// The emulated multiprocessor: runs the threads of one block after another's as fibres, knows who
// waits where, and stops at the first thing that a GPU would get wrong.
#pragma once
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fibre.h"

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Set by the scheduler whenever a thread goes on.
static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

using u8 = unsigned char;
using u32 = unsigned;
using u64 = unsigned long long;

constexpr unsigned kLanes = 32, kMaxArguments = 80;

enum class State { ready, at_barrier, in_collective, exited };
enum class Kind { none, sync, shuffle_up, ballot, match_any };

struct Collective {
  Kind kind = Kind::none;
  u32 mask = 0;
  int line = 0;
  u64 value = 0;
  int delta = 0;
  u64 result = 0;
};

struct Thread {
  Fibre fibre;
  State state = State::exited;
  int line = 0;       // of the barrier it waits at
  u64 warp_epoch = 0;  // of the last warp collective it took part in
  Collective collective;
  u32 reads[kMaxArguments];  // reads of each recorded array so far
};

struct Machine {
  std::vector<Thread> threads;
  Fibre scheduler;
  void (*body)(void *) = nullptr;
  void *body_data = nullptr;
  unsigned current = 0;
  unsigned waiting = 0;     // at the barrier
  u64 block_serial = 0;      // different for every block of every launch
  u64 block_epoch = 0;       // barriers so far
  u64 warp_epochs = 0;
  int order = 0;             // 0: ascending, 1: descending, 2: shuffled, and broken off at atomics
  u64 random = 1;
  bool failed = false;
  std::string error;
  // (block, warp, array, n): addresses of the n-th read of the array by the warp's lanes
  bool recording = false;
  std::map<std::vector<u64>, std::vector<u64>> warp_reads;
};

inline Machine &machine() {
  static Machine instance;
  return instance;
}

inline Thread &self() { return machine().threads[machine().current]; }
inline unsigned lane() { return machine().current % kLanes; }
inline unsigned warp() { return machine().current / kLanes; }

inline u64 draw() {
  u64 &x = machine().random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}

inline void pause() { switch_to(self().fibre, machine().scheduler); }

// Notes what went wrong and stops the launch: the thread is never resumed.
[[noreturn]] inline void fail(const std::string &what) {
  Machine &m = machine();
  m.failed = true;
  m.error = what + " (block " + std::to_string(blockIdx.x) + "," + std::to_string(blockIdx.y) +
            ", thread " + std::to_string(m.current) + ")";
  pause();
  std::abort();
}

// Atomics are where another thread may come in between.
inline void maybe_yield() {
  if (machine().order == 2 && (draw() & 1)) pause();
}

inline void barrier(int line) {
  Machine &m = machine();
  Thread &me = self();
  me.state = State::at_barrier;
  me.line = line;
  if (++m.waiting < m.threads.size()) {
    pause();
    return;
  }
  for (Thread &thread : m.threads) {
    if (thread.line != line) {
      fail("divergent barrier: threads wait in __syncthreads of line " + std::to_string(line) +
           " and of line " + std::to_string(thread.line));
    }
    thread.state = State::ready;
  }
  m.waiting = 0;
  ++m.block_epoch;
}

inline u64 result_of(const Collective &c, unsigned me, const Thread *warp_threads) {
  u64 result = 0;
  switch (c.kind) {
    case Kind::shuffle_up: {
      const int from = static_cast<int>(me) - c.delta;
      const bool inside = from >= 0 && (c.mask >> from & 1);
      return inside ? warp_threads[from].collective.value : c.value;
    }
    case Kind::ballot:
    case Kind::match_any:
      for (unsigned other = 0; other < kLanes; ++other) {
        if (!(c.mask >> other & 1)) continue;
        const u64 value = warp_threads[other].collective.value;
        const bool set = c.kind == Kind::ballot ? value != 0 : value == c.value;
        result |= static_cast<u64>(set) << other;
      }
      return result;
    default:
      return 0;
  }
}

// Waits until all lanes of the mask make the same call.
inline u64 collective(Kind kind, u32 mask, u64 value, int delta, int line) {
  Machine &m = machine();
  Thread *lanes = &m.threads[warp() * kLanes];
  const unsigned me = lane();
  if (!(mask >> me & 1)) fail("a lane calls a collective whose mask leaves it out, line " + std::to_string(line));
  lanes[me].collective = Collective{kind, mask, line, value, delta, 0};
  lanes[me].state = State::in_collective;
  bool complete = true;
  for (unsigned other = 0; other < kLanes; ++other) {
    if (!(mask >> other & 1)) continue;
    if (lanes[other].state == State::exited) {
      fail("divergent collective: a lane of the mask has exited, line " + std::to_string(line));
    }
    const Collective &c = lanes[other].collective;
    if (lanes[other].state != State::in_collective) {
      complete = false;
    } else if (c.line != line || c.kind != kind || c.mask != mask) {
      if (c.mask >> me & 1) {
        fail("divergent collective: lanes wait for each other in line " + std::to_string(line) +
             " and in line " + std::to_string(c.line));
      }
      complete = false;
    }
  }
  if (!complete) {
    pause();
    return lanes[me].collective.result;
  }
  ++m.warp_epochs;
  for (unsigned other = 0; other < kLanes; ++other) {
    if (!(mask >> other & 1)) continue;
    lanes[other].collective.result = result_of(lanes[other].collective, other, lanes);
    lanes[other].warp_epoch = m.warp_epochs;
    lanes[other].state = State::ready;
  }
  return lanes[me].collective.result;
}

inline void thread_main() {
  Machine &m = machine();
  m.body(m.body_data);
  self().state = State::exited;
  if (m.waiting > 0) fail("divergent barrier: a thread exits while others wait in __syncthreads");
  pause();
}

inline void run_block() {
  Machine &m = machine();
  ++m.block_serial;
  m.waiting = 0;
  std::vector<unsigned> order(m.threads.size());
  for (unsigned t = 0; t < order.size(); ++t) {
    order[t] = m.order == 1 ? static_cast<unsigned>(order.size()) - 1 - t : t;
    m.threads[t].state = State::ready;
    std::memset(m.threads[t].reads, 0, sizeof m.threads[t].reads);
    m.threads[t].fibre.begin(thread_main);
  }
  for (;;) {
    bool alive = false, moved = false;
    if (m.order == 2) {
      for (unsigned i = static_cast<unsigned>(order.size()); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
    }
    for (unsigned t : order) {
      if (m.threads[t].state == State::ready) {
        moved = true;
        m.current = t;
        threadIdx.x = t;
        switch_to(m.scheduler, m.threads[t].fibre);
        if (m.failed) return;
      }
      alive = alive || m.threads[t].state != State::exited;
    }
    if (!alive) return;
    if (!moved) {
      m.failed = true;
      m.error = "deadlock: every thread waits, or a barrier or collective is not reached by all";
      return;
    }
  }
}

inline void run_grid(dim3 grid, unsigned block, int order, u64 seed, void (*body)(void *), void *data) {
  Machine &m = machine();
  m.threads.resize(block);
  m.body = body;
  m.body_data = data;
  m.order = order;
  m.random = seed * 2 + 1;
  m.failed = false;
  blockDim = dim3{block, 1, 1};
  gridDim = grid;
  const unsigned blocks = grid.x * grid.y;
  std::vector<unsigned> sequence(blocks);
  for (unsigned b = 0; b < blocks; ++b) sequence[b] = order == 1 ? blocks - 1 - b : b;
  for (unsigned i = blocks; order == 2 && i > 1; --i) std::swap(sequence[i - 1], sequence[draw() % i]);
  for (unsigned b : sequence) {
    blockIdx = dim3{b % grid.x, b / grid.x, 0};
    run_block();
    if (m.failed) return;
  }
}

}  // namespace emu
