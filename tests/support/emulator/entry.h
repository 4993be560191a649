// What Python calls. Comes behind the kernels, with `run_kernel` generated for them.
#pragma once
#include <set>

#ifdef EMULATED_LANES
#include "explore.h"
#endif

struct EmulatorArgument {
  emu::u64 value;      // of a scalar, or an address
  emu::u64 bytes;      // of an array
  emu::u8 *written;    // [bytes] or null
  int kind;            // 0: scalar, 1: an array that is read, 2: one that is written
  int recorded;        // count its reads
  const char *name;
  emu::u64 low;        // bytes before the first one that is there: see `EmulatedDevice.far`
};

struct EmulatorCounts {
  emu::u64 requests;       // lines of 128 bytes that the warps' reads of recorded arrays touch
  emu::u64 payload_bytes;  // of the sectors of 32 bytes between the first and last one of each line
  // Pages of 2 MiB that each step touches, where the n-th reads of all warps are one step: how many
  // translations of addresses a GPU needs that has those of a step at hand, and no others.
  emu::u64 pages;
};

struct EmulatorExploration {
  emu::u64 limit;                // of schedules; 0: follow `schedule`
  int reduce;                    // 0: run those that differ in independent accesses only, too
  const unsigned short *schedule;
  emu::u64 steps;                // of it
  emu::u64 schedules, outcomes;  // out
};

struct EmulatorLaunch {
  int kernel;
  const EmulatorArgument *arguments;
  std::vector<emu::Array> *arrays;
};

static void run_kernel(const EmulatorLaunch &launch);

namespace emu {

inline EmulatorCounts counts() {
  EmulatorCounts counts{0, 0, 0};
  std::map<std::pair<u64, u64>, std::set<u64>> steps;  // by array and number of the read
  for (const auto &entry : machine().warp_reads) {
    std::map<u64, std::set<u64>> lines;
    std::set<u64> &pages = steps[{entry.first[2], entry.first[3]}];
    for (u64 address : entry.second) {
      lines[address / 128].insert(address / 32);
      pages.insert(address >> 21);
    }
    counts.requests += lines.size();
    for (const auto &line : lines) {
      counts.payload_bytes += 32 * (*line.second.rbegin() - *line.second.begin() + 1);
    }
  }
  for (const auto &step : steps) counts.pages += step.second.size();
  return counts;
}

}  // namespace emu

#define EXPORTED extern "C" __attribute__((visibility("default")))

static std::vector<std::vector<unsigned short>> outcomes;  // of the last launch that was explored

EXPORTED const unsigned short *emulator_outcome(emu::u64 number, emu::u64 *steps) {
  *steps = outcomes[number].size();
  return outcomes[number].data();
}

// exploration: null: in one order. Returns whether the launch failed.
EXPORTED int emulator_launch(int kernel, const EmulatorArgument *arguments, int number,
                             const unsigned *grid, unsigned block, int order, emu::u64 seed,
                             EmulatorExploration *exploration, EmulatorCounts *counts, char *error,
                             int error_bytes) {
  std::vector<emu::Array> arrays(static_cast<std::size_t>(number));
  bool recording = false;
  for (int i = 0; i < number; ++i) {
    const EmulatorArgument &a = arguments[i];
    emu::Array &array = arrays[static_cast<std::size_t>(i)];
    array.name = a.name;
    array.data = reinterpret_cast<emu::u8 *>(a.value);
    array.bytes = a.bytes;
    array.low = a.low;
    array.written = a.written;
    array.writable = a.kind == 2;
    array.recorded = a.recorded != 0;
    array.number = static_cast<unsigned>(i);
    recording = recording || array.recorded;
  }
  emu::Machine &m = emu::machine();
  m.recording = recording;
  m.warp_reads.clear();
  EmulatorLaunch launch{kernel, arguments, &arrays};
  const auto body = [](void *data) { run_kernel(*static_cast<const EmulatorLaunch *>(data)); };
  const dim3 size{grid[0], grid[1], grid[2]};
  if (exploration == nullptr) emu::run_grid(size, block, order, seed, body, &launch);
#ifdef EMULATED_LANES
  if (exploration != nullptr) {
    emu::Explorer explorer(size, block, arrays, body, &launch, exploration->reduce != 0);
    if (exploration->limit == 0) {
      const auto *first = exploration->schedule;
      explorer.follow(emu::Schedule(first, first + exploration->steps));
    } else if (explorer.explore(exploration->limit)) {
      exploration->schedules = explorer.schedules;
      exploration->outcomes = explorer.outcomes.size();
      outcomes = std::move(explorer.outcomes);
    }
  }
#endif
  *counts = emu::counts();
  if (m.failed) std::snprintf(error, static_cast<std::size_t>(error_bytes), "%s", m.error.c_str());
  return m.failed;
}
