// Two GPUs over host memory: what the stand-ins for libcuda.so.1 and libcudart.so.12 or 13 share.
//
// All functions but `guarded` are called with the lock of the state held. A thread that holds it never
// calls Python, so no thread can wait for the interpreter's lock while another waits for this one.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace standin {

using Address = std::uintptr_t;

constexpr int kDevices = 2;
constexpr int kCudaVersion = STANDIN_CUDA_VERSION;  // of the headers, by build.py
constexpr std::size_t kDeviceBytes = std::size_t{4} << 30;
constexpr std::size_t kPageBytes = 4096;

// Errors that exist in both APIs have the same numbers there.
enum Error : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kLaunchFailed = 719,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureIsolation = 905,
  kCapturedEvent = 907,
};
const char *name_of(int error);

// ---- memory (memory.cpp) ----

enum class Kind { pageable, pinned, device };
const char *name_of(Kind kind);

// Memory that the driver knows. Of registered memory all pages that it touches belong to the range.
struct Range {
  Address first = 0, last = 0;
  Kind kind = Kind::pageable;
  int device = -1;            // of pinned memory the one that was current
  bool registered = false;    // where it lies, by cudaHostRegister
  Address given = 0;          // by the caller, to register it
  unsigned flags = 0;
};

const Range *range_of(Address address);  // null: pageable memory, of which the driver knows nothing
Address end_of(const Range &range);      // with registered memory right behind registered memory
// Whether all of it is memory of that kind, in one range or in registered ones without a gap.
bool is_within(Address address, std::size_t bytes, Kind kind);
// Where this library reaches memory that callers see at `address`.
char *reach(Address address);
int allocate_device(std::size_t bytes, Address *address);
int free_device(Address address);
int allocate_pinned(std::size_t bytes, unsigned flags, Address *address);
int free_pinned(Address address);
int register_host(Address address, std::size_t bytes, unsigned flags);
int unregister_host(Address address);

// ---- streams and events (streams.cpp) ----

struct Stream;

// A point in the work of a stream, reached when all work before it has run.
struct Moment {
  Stream *stream = nullptr;
  bool reached = false;
  double seconds = 0;
  int queries = 0;
  bool is_captured = false;  // a point in a capture, which nobody reaches
};
using MomentPointer = std::shared_ptr<Moment>;

struct Task {
  std::string name;
  std::function<int()> run;  // returns an Error; none for a task that waits or marks
  MomentPointer after;       // may not run before it is reached
  MomentPointer moment;      // is reached when this has run
};

enum class CaptureMode { global, thread_local_, relaxed };  // numbered as `cudaStreamCaptureMode`
extern thread_local CaptureMode capture_mode;                // of the calls of this thread

struct Capture {  // what a stream is given while it is captured, and does not run
  std::vector<Task> tasks;
  std::uint64_t id = 0;
  CaptureMode mode = CaptureMode::global;
  std::thread::id thread;  // that began it
  bool is_broken = false;  // by a call that a capture does not permit
};

struct Stream {
  std::unique_ptr<Capture> capture;
  int device = 0, priority = 0;
  unsigned flags = 0;
  std::uint64_t number = 0;
  std::deque<Task> tasks;
  unsigned eagerness = 0;  // of 256, in a random schedule: see streams.cpp
};

struct Event {
  int device = 0;
  unsigned flags = 0;
  MomentPointer moment;  // of the last record
};

enum class Schedule : int { eager = 0, lazy = 1, random = 2 };

Stream *stream_at(const void *handle);  // null if there is none; null and 1 are the default stream
Stream *make_stream(unsigned flags, int priority);
int destroy_stream(const void *handle);
Event *event_at(const void *handle);  // null if there is none
void submit(Stream *stream, Task task);
MomentPointer record(Stream *stream);
void finish(const MomentPointer &moment);  // the host waits
bool is_reached(const MomentPointer &moment);
bool is_idle(Stream *stream);
void finish_stream(Stream *stream);
// "It is invalid to synchronize or query the execution status of a stream which is being captured or a
// captured event"; the capture is invalidated then. Each returns the error, or kOk.
int break_capture(Stream *stream);
int break_captures(int device);
int break_capture_of(const MomentPointer &moment);
// Calls that "may be unsafe" during a capture, such as those that allocate or ask for an event, are
// prohibited by the modes of the captures and of the thread (`cudaThreadExchangeStreamCaptureMode`).
int break_captures_by_unsafe_call();
void finish_device(int device);
// Chooses when work runs from now on; what was submitted before runs now.
void set_schedule(Schedule schedule, std::uint64_t seed);

// ---- copies (copies.cpp) ----

struct Plane {  // rows of memory
  Address address;
  std::size_t pitch;
};
int copy(Plane to, Plane from, std::size_t width, std::size_t rows, Stream *stream, bool blocking);
int fill(Address to, std::uint64_t value, std::size_t width, std::size_t elements, Stream *stream,
         bool blocking);

// ---- kernels (modules.cpp, torch_kernels.cpp) ----

struct Kernel;
void *load_module();  // what `standin_module` announced in this thread
Kernel *find_kernel(void *module, const char *name);
int launch(const Kernel *kernel, const unsigned *grid, unsigned block_threads, void **arguments,
           Stream *stream);
void add_torch_kernel(const void *function, const char *name);
int launch_torch_kernel(const void *function, void **arguments, Stream *stream);

// ---- the state of the process (state.cpp) ----

// Calls of one kind that fail, for tests: those from number `first` on, `count` of them.
struct Refusal {
  long first = 0, count = 0, seen = 0;
  bool refuses() {
    const long number = seen++;
    return number >= first && number < first + count;
  }
};

struct Device {
  Address visible = 0, reached = 0;  // the same memory: PROT_NONE for callers, and for this library
  int file = -1;
  std::size_t used_bytes = 0;
  bool has_context = false;
  unsigned flags = 0;
  int sticky_error = kOk;
  Stream *default_stream = nullptr;
};

struct State {
  State();
  std::mutex lock;
  pid_t process = getpid();
  Device devices[kDevices];
  std::map<Address, Range> ranges;  // by their first address
  std::vector<std::unique_ptr<Stream>> streams;
  std::set<Event *> events;
  std::map<std::string, long> counts;
  std::string fault;  // what made the first device fail
  Refusal device_allocations, pinned_allocations, registrations;
  Schedule schedule = Schedule::eager;
  std::uint64_t random = 1;
  long calls = 0;  // in this schedule
};
State &state();
int current_device();
void set_current_device(int device);
void open_context(int device);  // as the first use of a device does
void count(const std::string &name);
void set_counting(bool counts);  // of calls in this thread
int not_supported(const char *name);  // counted, and the error
void fail_device(int device, const std::string &why, int error);
int keep_error(int error);  // for `last_error` of this thread; returns it
int last_error(bool clear);

bool is_forked();  // from a process that has used a device: this one cannot use any

// Runs the body of a call under the lock, and returns its error. Of a device that failed every call
// returns its error: then the body does not run. Calls of the runtime's API keep theirs, too.
template <class Body>
int guarded(Body body) {
  State &s = state();
  if (is_forked()) return kNotInitialized;
  std::lock_guard<std::mutex> hold(s.lock);
  const int &sticky = s.devices[current_device()].sticky_error;
  int error = sticky;
  if (error == kOk) error = body();
  if (error == kOk) error = sticky;
  return error;
}

}  // namespace standin
