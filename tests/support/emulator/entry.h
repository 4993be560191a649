// The one function that Python calls. Comes behind the kernels, with `run_kernel` generated for them.
#pragma once
#include <set>

struct EmulatorArgument {
  emu::u64 value;      // of a scalar, or an address
  emu::u64 bytes;      // of an array
  emu::u8 *written;    // [bytes] or null
  int kind;            // 0: scalar, 1: an array that is read, 2: one that is written
  int recorded;        // count its reads
  const char *name;
};

struct EmulatorCounts {
  emu::u64 requests;       // lines of 128 bytes that the warps' reads of recorded arrays touch
  emu::u64 payload_bytes;  // of the sectors of 32 bytes between the first and last one of each line
};

struct EmulatorLaunch {
  int kernel;
  const EmulatorArgument *arguments;
  std::vector<emu::Array> *arrays;
};

static void run_kernel(const EmulatorLaunch &launch);

namespace emu {

inline EmulatorCounts counts() {
  EmulatorCounts counts{0, 0};
  for (const auto &entry : machine().warp_reads) {
    std::map<u64, std::set<u64>> lines;
    for (u64 address : entry.second) lines[address / 128].insert(address / 32);
    counts.requests += lines.size();
    for (const auto &line : lines) {
      counts.payload_bytes += 32 * (*line.second.rbegin() - *line.second.begin() + 1);
    }
  }
  return counts;
}

}  // namespace emu

extern "C" __attribute__((visibility("default"))) int emulator_launch(int kernel, const EmulatorArgument *arguments, int number,
                               const unsigned *grid, unsigned block, int order, emu::u64 seed,
                               EmulatorCounts *counts, char *error, int error_bytes) {
  std::vector<emu::Array> arrays(static_cast<std::size_t>(number));
  bool recording = false;
  for (int i = 0; i < number; ++i) {
    const EmulatorArgument &a = arguments[i];
    emu::Array &array = arrays[static_cast<std::size_t>(i)];
    array.name = a.name;
    array.data = reinterpret_cast<emu::u8 *>(a.value);
    array.bytes = a.bytes;
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
  emu::run_grid(
      dim3{grid[0], grid[1], grid[2]}, block, order, seed,
      [](void *data) { run_kernel(*static_cast<const EmulatorLaunch *>(data)); }, &launch);
  *counts = emu::counts();
  if (m.failed) std::snprintf(error, static_cast<std::size_t>(error_bytes), "%s", m.error.c_str());
  return m.failed;
}
