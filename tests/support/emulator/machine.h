// The emulated multiprocessor: runs the threads of some blocks as fibres, knows who waits where,
// and stops at the first thing that a GPU would get wrong.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "clocks.h"
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

#ifdef EMULATED_LANES  // of a warp, where schedules are explored
constexpr unsigned kLanes = EMULATED_LANES;
#else
constexpr unsigned kLanes = 32;
#endif
constexpr unsigned kMaxArguments = 80;
constexpr unsigned kResidentBlocks = 4;  // that run at the same time where blocks are interleaved
constexpr u64 kMostAccesses = 1 << 22;   // of a thread that comes to an end, in any test

constexpr const char *kDeadlock =
    "deadlock: every thread waits, or a barrier or collective is not reached by all";

enum class State { ready, at_access, at_barrier, in_collective, exited };
enum class Kind { none, sync, shuffle_up, ballot, match_any };

struct Collective {
  Kind kind = Kind::none;
  u32 mask = 0;
  int line = 0;
  u64 value = 0;
  int delta = 0;
  u64 result = 0;
};

// One access to memory, which a thread is about to make.
struct Access {
  u64 address = 0;
  bool writes = false, atomic = false;

  bool depends_on(const Access &other) const {
    return address == other.address && (writes || other.writes);
  }
};

struct Thread {
  Fibre fibre;
  State state = State::exited;
  int line = 0;       // of the barrier it waits at
  u64 warp_epoch = 0;  // of the last warp collective it took part in
  Collective collective;
  Access access;             // while it is at one
  u64 accesses = 0;          // to memory, so far
  u32 reads[kMaxArguments];  // reads of each recorded array so far
};

struct Block {
  std::vector<Thread> threads;
  dim3 index;
  unsigned alive = 0;      // threads that have not exited
  unsigned waiting = 0;    // at the barrier
  u64 serial = 0;          // different for every block of every launch
  u64 epoch = 0;           // barriers so far
  u64 warp_epochs = 0;
};

struct Machine {
  std::vector<Block> blocks;  // resident
  Fibre scheduler;
  void (*body)(void *) = nullptr;
  void *body_data = nullptr;
  unsigned slot = 0, current = 0;  // the block and the thread that run
  u64 serials = 0;
  // 0: block by block, ascending; 1: descending; 2: some blocks at once, threads shuffled and
  // broken off at atomics
  int order = 0;
  bool exploring = false;  // every access to memory that the launch writes is a step: see explore.h
  Clocks clocks;           // of all threads, if so
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

inline Block &block() { return machine().blocks[machine().slot]; }
inline Thread &self() { return block().threads[machine().current]; }
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

// Where another thread may come in between: before each access when schedules are explored, else
// before atomics.
inline void before_access(const Access &access) {
  Machine &m = machine();
  if (m.exploring) {
    self().access = access;
    self().state = State::at_access;
    pause();
  } else if (m.order == 2 && access.atomic && (draw() & 1)) {
    pause();
  }
}

inline void barrier(int line) {
  Machine &m = machine();
  Block &mine = block();
  Thread &me = self();
  me.state = State::at_barrier;
  me.line = line;
  if (++mine.waiting < mine.threads.size()) {
    pause();
    return;
  }
  for (Thread &thread : mine.threads) {
    if (thread.line != line) {
      fail("divergent barrier: threads wait in __syncthreads of line " + std::to_string(line) +
           " and of line " + std::to_string(thread.line));
    }
    thread.state = State::ready;
  }
  mine.waiting = 0;
  ++mine.epoch;
  if (m.exploring) m.clocks.join(m.slot * mine.threads.size(), mine.threads.size(), ~0u);
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
  Block &mine = block();
  Thread *lanes = &mine.threads[warp() * kLanes];
  const unsigned me = lane();
  if (!(mask >> me & 1)) {
    fail("a lane calls a collective whose mask leaves it out, line " + std::to_string(line));
  }
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
  ++mine.warp_epochs;
  for (unsigned other = 0; other < kLanes; ++other) {
    if (!(mask >> other & 1)) continue;
    lanes[other].collective.result = result_of(lanes[other].collective, other, lanes);
    lanes[other].warp_epoch = mine.warp_epochs;
    lanes[other].state = State::ready;
  }
  if (m.exploring) m.clocks.join(m.slot * mine.threads.size() + warp() * kLanes, kLanes, mask);
  return lanes[me].collective.result;
}

inline void thread_main() {
  Machine &m = machine();
  m.body(m.body_data);
  self().state = State::exited;
  --block().alive;
  if (block().waiting > 0) {
    fail("divergent barrier: a thread exits while others wait in __syncthreads");
  }
  pause();
}

inline void begin_block(unsigned slot, unsigned number) {
  Machine &m = machine();
  Block &block = m.blocks[slot];
  block.index = dim3{number % gridDim.x, number / gridDim.x, 0};
  block.serial = ++m.serials;
  block.waiting = 0;
  block.alive = static_cast<unsigned>(block.threads.size());
  for (Thread &thread : block.threads) {
    thread.state = State::ready;
    thread.accesses = 0;
    std::memset(thread.reads, 0, sizeof thread.reads);
    thread.fibre.begin(thread_main);
  }
}

// Lets a thread go on to where it pauses.
inline void resume(unsigned slot, unsigned thread) {
  Machine &m = machine();
  m.slot = slot;
  m.current = thread;
  threadIdx.x = thread;
  blockIdx = m.blocks[slot].index;
  switch_to(m.scheduler, m.blocks[slot].threads[thread].fibre);
}

inline void shuffle(std::vector<unsigned> &numbers) {
  for (auto i = static_cast<unsigned>(numbers.size()); i > 1; --i) {
    std::swap(numbers[i - 1], numbers[draw() % i]);
  }
}

inline void begin_grid(dim3 grid, unsigned block, unsigned resident, void (*body)(void *),
                       void *data) {
  Machine &m = machine();
  m.blocks.resize(resident);
  for (Block &each : m.blocks) each.threads.resize(block);
  m.body = body;
  m.body_data = data;
  m.failed = false;
  blockDim = dim3{block, 1, 1};
  gridDim = grid;
}

// Runs a launch in one of the orders. Of many blocks some are resident, and the next one begins
// when one of them is done.
inline void run_grid(dim3 grid, unsigned block, int order, u64 seed, void (*body)(void *),
                     void *data) {
  Machine &m = machine();
  const unsigned blocks = grid.x * grid.y;
  const unsigned resident = order == 2 && blocks > 1 ? std::min(blocks, kResidentBlocks) : 1;
  begin_grid(grid, block, resident, body, data);
  m.order = order;
  m.exploring = false;
  m.random = seed * 2 + 1;
  std::vector<unsigned> sequence(blocks), threads(resident * block);
  for (unsigned b = 0; b < blocks; ++b) sequence[b] = order == 1 ? blocks - 1 - b : b;
  for (unsigned t = 0; t < threads.size(); ++t) threads[t] = order == 1 ? block - 1 - t : t;
  if (order == 2) shuffle(sequence);
  unsigned begun = 0, left = blocks;
  for (; begun < resident; ++begun) begin_block(begun, sequence[begun]);
  while (left > 0) {
    if (order == 2) shuffle(threads);
    bool moved = false;
    for (unsigned number : threads) {
      const unsigned slot = number / block;
      if (m.blocks[slot].threads[number % block].state != State::ready) continue;
      moved = true;
      resume(slot, number % block);
      if (m.failed) return;
      if (m.blocks[slot].alive == 0) {
        --left;
        if (begun < blocks) begin_block(slot, sequence[begun++]);
      }
    }
    if (!moved && left > 0) {
      m.failed = true;
      m.error = kDeadlock;
      return;
    }
  }
}

}  // namespace emu
