// What Python asks of the stand-in: standin.py holds the other side.
#include <algorithm>
#include <cstring>

#include "standin.h"

using namespace standin;

#define CONTROL(type, name, ...) extern "C" __attribute__((visibility("default"))) type name(__VA_ARGS__)
using Hold = std::lock_guard<std::mutex>;

static int give(const std::string &text, char *place, int bytes) {
  const std::size_t size = std::min(text.size(), static_cast<std::size_t>(bytes) - 1);
  std::memcpy(place, text.data(), size);
  place[size] = 0;
  return static_cast<int>(text.size());
}

CONTROL(void, standin_schedule, int schedule, unsigned long long seed) {
  Hold hold(state().lock);
  set_schedule(static_cast<Schedule>(schedule), seed);
}

// Calls since the last reset, one "name<tab>number" a line.
CONTROL(int, standin_counts, char *text, int bytes, int reset) {
  Hold hold(state().lock);
  std::string all;
  for (const auto &entry : state().counts) {
    all += entry.first + "\t" + std::to_string(entry.second) + "\n";
  }
  if (reset) state().counts.clear();
  return give(all, text, bytes);
}

// Whether calls of this thread are counted.
CONTROL(void, standin_counting, int counts) { set_counting(counts != 0); }

// What there is now, in the same form.
CONTROL(int, standin_holdings, char *text, int bytes) {
  State &s = state();
  Hold hold(s.lock);
  long device = 0, pinned = 0, registered = 0, tasks = 0;
  for (const auto &entry : s.ranges) {
    const Range &range = entry.second;
    (range.kind == Kind::device ? device : range.registered ? registered : pinned) += 1;
  }
  for (const auto &stream : s.streams) tasks += static_cast<long>(stream->tasks.size());
  std::string all = "device\t" + std::to_string(device) + "\npinned\t" + std::to_string(pinned) +
                    "\nregistered\t" + std::to_string(registered) + "\ntasks\t" + std::to_string(tasks) +
                    "\nevents\t" + std::to_string(s.events.size()) + "\nstreams\t" +
                    std::to_string(s.streams.size()) + "\n";
  for (int d = 0; d < kDevices; ++d) {
    all += "context " + std::to_string(d) + "\t" + (s.devices[d].has_context ? "1" : "0") + "\n";
  }
  return give(all, text, bytes);
}

CONTROL(int, standin_fault, char *text, int bytes) {
  Hold hold(state().lock);
  return give(state().fault, text, bytes);
}

// kind: 0 device memory, 1 pinned memory, 2 registrations; refuses `number` calls from `first` on.
static Refusal &refusal(int kind) {
  State &s = state();
  return kind == 0 ? s.device_allocations : kind == 1 ? s.pinned_allocations : s.registrations;
}
CONTROL(void, standin_refuse, int kind, long first, long number) {
  Hold hold(state().lock);
  refusal(kind) = Refusal{first, number, 0};
}
CONTROL(long, standin_seen, int kind) {
  Hold hold(state().lock);
  return refusal(kind).seen;
}
