// The state of the process: devices, contexts, errors, and what was counted.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/mman.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "standin.h"

namespace standin {

static thread_local int t_device = 0;
static thread_local int t_error = kOk;
static thread_local bool t_counts = true;

State::State() {
  for (int d = 0; d < kDevices; ++d) {
    Device &device = devices[d];
    device.file = memfd_create("standin-device", MFD_CLOEXEC);
    if (ftruncate(device.file, static_cast<off_t>(kDeviceBytes)) != 0) std::abort();
    const int flags = MAP_SHARED | MAP_NORESERVE;
    void *visible = mmap(nullptr, kDeviceBytes, PROT_NONE, flags, device.file, 0);
    void *reached = mmap(nullptr, kDeviceBytes, PROT_READ | PROT_WRITE, flags, device.file, 0);
    if (visible == MAP_FAILED || reached == MAP_FAILED) std::abort();
    device.visible = reinterpret_cast<Address>(visible);
    device.reached = reinterpret_cast<Address>(reached);
    auto stream = std::make_unique<Stream>();
    stream->device = d;
    device.default_stream = stream.get();
    streams.push_back(std::move(stream));
  }
}

State &state() {
  static State *instance = new State;  // outlives all static objects of torch
  return *instance;
}

bool is_forked() {
  State &s = state();
  if (s.process == getpid()) return false;
  for (const Device &device : s.devices) {
    if (device.has_context) return true;
  }
  s.process = getpid();
  return false;
}

int current_device() { return t_device; }
void set_current_device(int device) { t_device = device; }

void open_context(int device) {
  Device &opened = state().devices[device];
  if (opened.has_context) return;
  opened.has_context = true;
  // Python prints the stack of who opened a context: faulthandler.register(signal.SIGUSR1).
  const char *traced = std::getenv("STANDIN_TRACE_CONTEXT");
  if (traced != nullptr && std::atoi(traced) == device) raise(SIGUSR1);
}

void count(const std::string &name) {
  if (t_counts) ++state().counts[name];
}
void set_counting(bool counts) { t_counts = counts; }

int not_supported(const char *name) {
  return guarded([&] {
    count(std::string("not supported: ") + name);
    return kNotSupported;
  });
}

void fail_device(int device, const std::string &why, int error) {
  State &s = state();
  if (s.devices[device].sticky_error == kOk) s.devices[device].sticky_error = error;
  if (s.fault.empty()) s.fault = "device " + std::to_string(device) + ": " + why;
  std::fprintf(stderr, "stand-in: device %d fails with %s: %s\n", device, name_of(error), why.c_str());
}

int keep_error(int error) {
  if (error != kOk && error != kNotReady) t_error = error;
  return error;
}

int last_error(bool clear) {
  const int sticky = state().devices[t_device].sticky_error;
  const int error = sticky != kOk ? sticky : t_error;
  if (clear) t_error = kOk;
  return error;
}

const char *name_of(int error) {
  switch (error) {
    case kOk: return "cudaSuccess";
    case kInvalidValue: return "cudaErrorInvalidValue";
    case kOutOfMemory: return "cudaErrorMemoryAllocation";
    case kNotInitialized: return "cudaErrorInitializationError";
    case kInvalidDevice: return "cudaErrorInvalidDevice";
    case kInvalidHandle: return "cudaErrorInvalidResourceHandle";
    case kNotFound: return "cudaErrorSymbolNotFound";
    case kNotReady: return "cudaErrorNotReady";
    case kIllegalAddress: return "cudaErrorIllegalAddress";
    case kAlreadyRegistered: return "cudaErrorHostMemoryAlreadyRegistered";
    case kNotRegistered: return "cudaErrorHostMemoryNotRegistered";
    case kLaunchFailed: return "cudaErrorLaunchFailure";
    case kNotSupported: return "cudaErrorNotSupported";
    case kCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case kCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case kCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case kCapturedEvent: return "cudaErrorCapturedEvent";
    default: return "cudaErrorUnknown";
  }
}

}  // namespace standin
