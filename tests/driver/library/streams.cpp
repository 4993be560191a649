// Streams and events, and when the work of a stream runs.
//
// eager:  work runs when it is submitted.
// lazy:   work runs only when the host waits for something behind it.
// random: each stream has an eagerness, from "only when the host waits" to "nearly at once", and each
//         call of the API may run some work of streams that are ready. The eagerness of all streams is
//         drawn anew from time to time, so that in one epoch a consumer's stream falls behind those
//         of the loader, and they behind it.
//
// Events, waits of streams and waits of the host are the only order between streams. Streams that
// would wait for the default stream without being told (those made without cudaStreamNonBlocking,
// which neither torch nor pyg_direct makes) are refused.
#include <chrono>
#include <cstdlib>

#include "standin.h"

namespace standin {

constexpr unsigned kEagerness[] = {0, 0, 16, 100, 250};  // of 256
constexpr int kCallsOfPhase = 150;   // in which streams keep their eagerness
constexpr int kTasksOfCall = 16;     // that a call of the API may run at most
constexpr int kPatientQueries = 10000;

static std::uint64_t draw() {  // xorshift64
  std::uint64_t &x = state().random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x >> 11;
}

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Stream *stream_at(const void *handle) {
  State &s = state();
  if (reinterpret_cast<Address>(handle) <= 1) return s.devices[current_device()].default_stream;
  for (const auto &stream : s.streams) {
    if (stream.get() == handle) return stream.get();
  }
  return nullptr;
}

Stream *make_stream(unsigned flags, int priority) {
  State &s = state();
  open_context(current_device());
  auto stream = std::make_unique<Stream>();
  stream->device = current_device(), stream->flags = flags, stream->priority = priority;
  stream->number = s.streams.size();
  stream->eagerness = kEagerness[draw() % std::size(kEagerness)];
  s.streams.push_back(std::move(stream));
  count("stream: create");
  return s.streams.back().get();
}

int destroy_stream(const void *handle) {
  State &s = state();
  for (auto at = s.streams.begin(); at != s.streams.end(); ++at) {
    if (at->get() != handle) continue;
    finish_stream(at->get());
    s.streams.erase(at);
    count("stream: destroy");
    return kOk;
  }
  return kInvalidHandle;
}

Event *event_at(const void *handle) {
  auto *event = static_cast<Event *>(const_cast<void *>(handle));
  return state().events.count(event) != 0 ? event : nullptr;
}

static bool is_ready(const Stream &stream) {
  return !stream.tasks.empty() && (!stream.tasks.front().after || stream.tasks.front().after->reached);
}

static void run_first(Stream *stream) {
  const Task task = std::move(stream->tasks.front());
  stream->tasks.pop_front();
  if (task.run && state().devices[stream->device].sticky_error == kOk) {
    const int error = task.run();
    if (error != kOk) fail_device(stream->device, task.name, error);
  }
  if (task.moment) task.moment->reached = true, task.moment->seconds = now();
}

// Runs some work in a random schedule.
static void stir() {
  State &s = state();
  if (s.schedule != Schedule::random) return;
  if (s.calls++ % kCallsOfPhase == 0) {
    for (const auto &stream : s.streams) {
      stream->eagerness = kEagerness[draw() % std::size(kEagerness)];
    }
  }
  for (int i = 0; i < kTasksOfCall; ++i) {
    std::vector<Stream *> ready;
    for (const auto &stream : s.streams) {
      if (is_ready(*stream)) ready.push_back(stream.get());
    }
    if (ready.empty()) return;
    Stream *chosen = ready[draw() % ready.size()];
    if (draw() % 256 < chosen->eagerness) run_first(chosen);
  }
}

void finish(const MomentPointer &moment) {
  while (moment && !moment->reached) {
    stir();
    Stream *stream = moment->stream;
    if (moment->reached) return;
    if (stream->tasks.empty()) std::abort();
    const MomentPointer after = stream->tasks.front().after;
    if (after && !after->reached) {
      finish(after);
    } else {
      run_first(stream);
    }
  }
}

int break_capture(Stream *stream) {
  if (!stream->capture) return kOk;
  stream->capture->is_broken = true;
  return kCaptureUnsupported;
}

int break_captures(int device) {
  int error = kOk;
  for (const auto &stream : state().streams) {
    if (stream->device == device && break_capture(stream.get()) != kOk) error = kCaptureUnsupported;
  }
  return error;
}

thread_local CaptureMode capture_mode = CaptureMode::global;

int break_captures_by_unsafe_call() {
  int error = kOk;
  for (const auto &stream : state().streams) {
    if (!stream->capture || capture_mode == CaptureMode::relaxed) continue;
    const Capture &capture = *stream->capture;
    const bool is_own = capture.thread == std::this_thread::get_id();
    const bool both_global =
        capture.mode == CaptureMode::global && capture_mode == CaptureMode::global;
    if (is_own ? capture.mode != CaptureMode::relaxed : both_global) error = break_capture(stream.get());
  }
  return error;
}

int break_capture_of(const MomentPointer &moment) {
  if (!moment || !moment->is_captured) return kOk;
  break_capture(moment->stream);
  return kCapturedEvent;
}

void submit(Stream *stream, Task task) {
  if (stream->capture) {
    stream->capture->tasks.push_back(std::move(task));
    return;
  }
  open_context(stream->device);
  stream->tasks.push_back(std::move(task));
  while (state().schedule == Schedule::eager && !stream->tasks.empty()) {
    finish(stream->tasks.front().after);
    run_first(stream);
  }
  stir();
}

MomentPointer record(Stream *stream) {
  auto moment = std::make_shared<Moment>();
  moment->stream = stream;
  moment->is_captured = stream->capture != nullptr;
  submit(stream, Task{"event", nullptr, nullptr, moment});
  return moment;
}

bool is_reached(const MomentPointer &moment) {
  if (!moment) return true;
  if (!moment->reached && ++moment->queries > kPatientQueries) finish(moment);  // waited for by asking
  stir();
  return moment->reached;
}

bool is_idle(Stream *stream) {
  stir();
  return stream->tasks.empty();
}

void finish_stream(Stream *stream) {
  if (!stream->tasks.empty()) finish(record(stream));
}

void finish_device(int device) {
  State &s = state();
  std::vector<Stream *> streams;
  for (const auto &stream : s.streams) {
    if (stream->device == device) streams.push_back(stream.get());
  }
  while (!streams.empty()) {  // in any order, as each waits for what it needs of the others
    const std::size_t i = s.schedule == Schedule::random ? draw() % streams.size() : streams.size() - 1;
    finish_stream(streams[i]);
    streams.erase(streams.begin() + static_cast<long>(i));
  }
}

void set_schedule(Schedule schedule, std::uint64_t seed) {
  State &s = state();
  for (int d = 0; d < kDevices; ++d) finish_device(d);
  s.schedule = schedule;
  s.calls = 0;
  s.random = seed * 0x9E3779B97F4A7C15u + 1;
  for (int i = 0; i < 8; ++i) draw();
}

}  // namespace standin
