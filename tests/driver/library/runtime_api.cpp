// libcudart.so.12 or 13: calls of the runtime's API that torch and CuPy make, as cuda_runtime_api.h and
// crt/host_runtime.h document them. All others are stubs that build.py makes.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device_facts.h"
#include "standin.h"

using namespace standin;

#define RUNTIME(name, ...) \
  extern "C" __attribute__((visibility("default"))) cudaError_t name(__VA_ARGS__)

template <class Body>
static cudaError_t call(Body body) {
  return static_cast<cudaError_t>(keep_error(guarded(body)));
}
// A call that is about a device. "Absent these calls [cudaSetDevice, cudaInitDevice], the runtime will
// implicitly use device 0 and self-initialize as needed to process other runtime API requests": so it
// opens the context of the current device, whatever device the stream or event is of.
template <class Body>
static cudaError_t call_on_device(Body body) {
  return call([&]() -> int {
    open_context(current_device());
    return body();
  });
}
template <class T>
static cudaError_t give(T *place, T value) {
  return *place = value, cudaSuccess;
}
static Address number(const void *pointer) { return reinterpret_cast<Address>(pointer); }
static bool exists(int device) { return device >= 0 && device < kDevices; }

// ---- devices ----

RUNTIME(cudaRuntimeGetVersion, int *version) { return give(version, kCudaVersion); }
RUNTIME(cudaDriverGetVersion, int *version) { return give(version, kCudaVersion); }
RUNTIME(cudaGetDeviceCount, int *devices) {
  return call([&] { return *devices = kDevices, kOk; });
}
RUNTIME(cudaGetDevice, int *device) { return give(device, current_device()); }
RUNTIME(cudaSetDevice, int device) {
  return call([&]() -> int {
    if (!exists(device)) return kInvalidDevice;
    set_current_device(device);
    open_context(device);  // since CUDA 12
    return kOk;
  });
}
RUNTIME(cudaInitDevice, int device, unsigned, unsigned) {
  return call([&] { return open_context(device), kOk; });
}
RUNTIME(cudaDeviceGetAttribute, int *value, cudaDeviceAttr attribute, int device) {
  return exists(device) ? give(value, attribute_of(attribute)) : cudaErrorInvalidDevice;
}
RUNTIME(cudaGetDeviceProperties, cudaDeviceProp *found, int device) {
  if (!exists(device)) return cudaErrorInvalidDevice;
  std::memset(found, 0, sizeof *found);
  std::snprintf(found->name, sizeof found->name, "Stand-in GPU %d", device);
  std::memset(&found->uuid, 0x40 + device, sizeof found->uuid);
  found->totalGlobalMem = kDeviceBytes, found->pciBusID = 1 + device;
  found->major = kMajor, found->minor = kMinor, found->warpSize = attribute_of(10);
  found->multiProcessorCount = kMultiprocessors, found->asyncEngineCount = attribute_of(40);
  found->maxThreadsPerBlock = attribute_of(1), found->maxThreadsPerMultiProcessor = attribute_of(39);
  found->sharedMemPerBlock = static_cast<std::size_t>(attribute_of(8));
  found->sharedMemPerBlockOptin = static_cast<std::size_t>(attribute_of(97));
  found->sharedMemPerMultiprocessor = static_cast<std::size_t>(attribute_of(81));
  found->regsPerBlock = attribute_of(12), found->regsPerMultiprocessor = attribute_of(82);
  for (int i = 0; i < 3; ++i) {
    found->maxThreadsDim[i] = attribute_of(2 + i), found->maxGridSize[i] = attribute_of(5 + i);
  }
  found->unifiedAddressing = found->canMapHostMemory = found->concurrentKernels = 1;
  found->canUseHostPointerForRegisteredMem = found->hostRegisterSupported = 1;
  found->streamPrioritiesSupported = 1;
  return cudaSuccess;
}
RUNTIME(cudaDeviceGetPCIBusId, char *text, int bytes, int device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", 1 + device);
  return cudaSuccess;
}
RUNTIME(cudaDeviceGetStreamPriorityRange, int *least, int *greatest) {
  return *least = 0, give(greatest, -5);
}
RUNTIME(cudaDeviceCanAccessPeer, int *can, int, int) { return give(can, 0); }
RUNTIME(cudaDeviceSynchronize) {
  return call_on_device([]() -> int {
    if (const int error = break_captures(current_device())) return error;
    count("wait of the host: device");
    return finish_device(current_device()), kOk;
  });
}
RUNTIME(cudaDeviceGetLimit, std::size_t *value, cudaLimit) { return give(value, std::size_t{0}); }
RUNTIME(cudaGetDeviceFlags, unsigned *flags) { return give(flags, 8u); }
RUNTIME(cudaSetDeviceFlags, unsigned) { return cudaSuccess; }

// ---- errors ----

RUNTIME(cudaGetLastError) { return static_cast<cudaError_t>(last_error(true)); }
RUNTIME(cudaPeekAtLastError) { return static_cast<cudaError_t>(last_error(false)); }
#define TEXT(name) extern "C" __attribute__((visibility("default"))) const char *name(cudaError_t error)
TEXT(cudaGetErrorName) { return name_of(error); }
TEXT(cudaGetErrorString) { return name_of(error); }

// ---- memory ----

template <class Allocate>
static cudaError_t allocated(void **pointer, Allocate allocate) {
  *pointer = nullptr;
  return call([&]() -> int {
    if (const int error = break_captures_by_unsafe_call()) return error;
    Address address = 0;
    const int error = allocate(&address);
    return *pointer = reinterpret_cast<void *>(address), error;
  });
}
RUNTIME(cudaMalloc, void **pointer, std::size_t bytes) {
  return allocated(pointer, [&](Address *address) { return allocate_device(bytes, address); });
}
RUNTIME(cudaFree, void *pointer) {
  return call_on_device([&] { return free_device(number(pointer)); });
}
RUNTIME(cudaMemGetInfo, std::size_t *free, std::size_t *total) {
  return call_on_device([&] {
    *total = kDeviceBytes, *free = kDeviceBytes - state().devices[current_device()].used_bytes;
    return kOk;
  });
}
RUNTIME(cudaHostAlloc, void **pointer, std::size_t bytes, unsigned flags) {
  return allocated(pointer, [&](Address *address) { return allocate_pinned(bytes, flags, address); });
}
RUNTIME(cudaMallocHost, void **pointer, std::size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
RUNTIME(cudaFreeHost, void *pointer) {
  return call([&] { return free_pinned(number(pointer)); });
}
RUNTIME(cudaHostRegister, void *pointer, std::size_t bytes, unsigned flags) {
  return call([&] { return register_host(number(pointer), bytes, flags); });
}
RUNTIME(cudaHostUnregister, void *pointer) {
  return call([&] { return unregister_host(number(pointer)); });
}
RUNTIME(cudaHostGetDevicePointer, void **device, void *host, unsigned) {
  return call([&]() -> int {
    return is_within(number(host), 1, Kind::pinned) ? (*device = host, kOk) : kInvalidValue;
  });
}
RUNTIME(cudaHostGetFlags, unsigned *flags, void *host) {
  return call([&]() -> int {
    const Range *range = range_of(number(host));
    if (range == nullptr || range->kind != Kind::pinned) return kInvalidValue;
    return *flags = range->flags, kOk;
  });
}
RUNTIME(cudaPointerGetAttributes, cudaPointerAttributes *found, const void *pointer) {
  return call([&] {
    std::memset(found, 0, sizeof *found);
    found->type = cudaMemoryTypeUnregistered, found->device = -2;
    const Range *range = range_of(number(pointer));
    if (range == nullptr) return kOk;
    const bool host = range->kind == Kind::pinned;
    found->type = host ? cudaMemoryTypeHost : cudaMemoryTypeDevice, found->device = range->device;
    found->devicePointer = const_cast<void *>(pointer);
    if (host) found->hostPointer = found->devicePointer;
    return kOk;
  });
}

// ---- copies and sets ----

static cudaError_t copied(void *to, const void *from, std::size_t bytes, cudaStream_t stream, bool waits) {
  return call_on_device([&] {
    return copy({number(to), bytes}, {number(from), bytes}, bytes, 1, stream_at(stream), waits);
  });
}
RUNTIME(cudaMemcpyAsync, void *to, const void *from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copied(to, from, bytes, stream, false);
}
RUNTIME(cudaMemcpy, void *to, const void *from, std::size_t bytes, cudaMemcpyKind) {
  return copied(to, from, bytes, nullptr, true);
}
RUNTIME(cudaMemcpyPeerAsync, void *to, int, const void *from, int, std::size_t bytes, cudaStream_t stream) {
  return copied(to, from, bytes, stream, false);
}
RUNTIME(cudaMemcpy2DAsync, void *to, std::size_t to_pitch, const void *from, std::size_t from_pitch,
        std::size_t width, std::size_t rows, cudaMemcpyKind, cudaStream_t stream) {
  return call_on_device([&] {
    return copy({number(to), to_pitch}, {number(from), from_pitch}, width, rows, stream_at(stream), false);
  });
}
static cudaError_t set(void *to, int value, std::size_t bytes, cudaStream_t stream, bool waits) {
  return call_on_device([&] {
    count("set");
    return fill(number(to), static_cast<unsigned char>(value), 1, bytes, stream_at(stream), waits);
  });
}
RUNTIME(cudaMemsetAsync, void *to, int value, std::size_t bytes, cudaStream_t stream) {
  return set(to, value, bytes, stream, false);
}
RUNTIME(cudaMemset, void *to, int value, std::size_t bytes) {
  return set(to, value, bytes, nullptr, true);
}

// ---- streams ----

// Calls `body` with a stream.
template <class Body>
static cudaError_t with_stream(cudaStream_t handle, Body body) {
  return call_on_device([&]() -> int {
    Stream *stream = stream_at(handle);
    return stream == nullptr ? kInvalidHandle : body(stream);
  });
}
RUNTIME(cudaStreamCreateWithPriority, cudaStream_t *stream, unsigned flags, int priority) {
  if ((flags & cudaStreamNonBlocking) == 0) {
    return static_cast<cudaError_t>(keep_error(not_supported("streams that wait for the default stream")));
  }
  return call([&] { return *stream = reinterpret_cast<cudaStream_t>(make_stream(flags, priority)), kOk; });
}
RUNTIME(cudaStreamCreateWithFlags, cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
RUNTIME(cudaStreamCreate, cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
RUNTIME(cudaStreamDestroy, cudaStream_t stream) {
  return call([&] { return destroy_stream(stream); });
}
RUNTIME(cudaStreamGetPriority, cudaStream_t handle, int *priority) {
  return with_stream(handle, [&](const Stream *s) { return *priority = s->priority, kOk; });
}
RUNTIME(cudaStreamGetFlags, cudaStream_t handle, unsigned *flags) {
  return with_stream(handle, [&](const Stream *s) { return *flags = s->flags, kOk; });
}
RUNTIME(cudaStreamGetId, cudaStream_t handle, unsigned long long *id) {
  return with_stream(handle, [&](const Stream *s) { return *id = s->number, kOk; });
}
RUNTIME(cudaStreamSynchronize, cudaStream_t handle) {
  return with_stream(handle, [](Stream *stream) -> int {
    if (const int error = break_capture(stream)) return error;
    return count("wait of the host: stream"), finish_stream(stream), kOk;
  });
}
RUNTIME(cudaStreamQuery, cudaStream_t handle) {
  return with_stream(handle, [](Stream *stream) -> int {
    if (const int error = break_capture(stream)) return error;
    return count("question of the host: stream"), is_idle(stream) ? kOk : kNotReady;
  });
}
RUNTIME(cudaStreamWaitEvent, cudaStream_t handle, cudaEvent_t event, unsigned) {
  return with_stream(handle, [&](Stream *stream) -> int {
    const Event *found = event_at(event);
    if (found == nullptr) return kInvalidHandle;
    count("wait of a stream: event");
    if (found->moment && found->moment->is_captured != (stream->capture != nullptr)) {
      return break_capture(stream), kCaptureIsolation;
    }
    if (found->moment) submit(stream, Task{"wait", nullptr, found->moment, nullptr});
    return kOk;
  });
}

// ---- events ----

template <class Body>
static cudaError_t with_event(cudaEvent_t handle, Body body) {
  return call_on_device([&]() -> int {
    Event *event = event_at(handle);
    return event == nullptr ? kInvalidHandle : body(event);
  });
}
RUNTIME(cudaEventCreateWithFlags, cudaEvent_t *event, unsigned flags) {
  return call_on_device([&] {
    count("event: create");
    auto *made = new Event;
    made->device = current_device(), made->flags = flags;
    state().events.insert(made);
    return *event = reinterpret_cast<cudaEvent_t>(made), kOk;
  });
}
RUNTIME(cudaEventCreate, cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
RUNTIME(cudaEventDestroy, cudaEvent_t handle) {
  return with_event(handle, [](Event *event) {
    count("event: destroy");
    state().events.erase(event);
    return delete event, kOk;
  });
}
RUNTIME(cudaEventRecordWithFlags, cudaEvent_t handle, cudaStream_t stream, unsigned) {
  return with_event(handle, [&](Event *event) -> int {
    Stream *found = stream_at(stream);
    if (found == nullptr || event->device != found->device) return kInvalidHandle;
    count("event: record");
    return event->moment = record(found), kOk;
  });
}
RUNTIME(cudaEventRecord, cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
RUNTIME(cudaEventQuery, cudaEvent_t handle) {
  return with_event(handle, [](Event *event) -> int {
    if (const int error = break_capture_of(event->moment)) return error;
    if (const int error = break_captures_by_unsafe_call()) return error;
    return is_reached(event->moment) ? kOk : kNotReady;
  });
}
RUNTIME(cudaEventSynchronize, cudaEvent_t handle) {
  return with_event(handle, [](Event *event) -> int {
    if (const int error = break_capture_of(event->moment)) return error;
    if (const int error = break_captures_by_unsafe_call()) return error;
    const bool asleep = (event->flags & cudaEventBlockingSync) != 0;
    count(asleep ? "wait of the host: event, asleep" : "wait of the host: event, spinning");
    return finish(event->moment), kOk;
  });
}
RUNTIME(cudaEventElapsedTime, float *milliseconds, cudaEvent_t first, cudaEvent_t last) {
  return call([&]() -> int {
    const Event *a = event_at(first), *b = event_at(last);
    if (a == nullptr || b == nullptr || !a->moment || !b->moment) return kInvalidHandle;
    if (!a->moment->reached || !b->moment->reached) return kNotReady;
    *milliseconds = static_cast<float>(1e3 * (b->moment->seconds - a->moment->seconds));
    return kOk;
  });
}

// ---- kernels of torch, which libraries register when they are loaded ----

#define REGISTER(type, name, ...) extern "C" __attribute__((visibility("default"))) type name(__VA_ARGS__)
REGISTER(void **, __cudaRegisterFatBinary, void *) {
  return static_cast<void **>(std::calloc(1, sizeof(void *)));
}
REGISTER(void, __cudaRegisterFatBinaryEnd, void **) {}
REGISTER(void, __cudaUnregisterFatBinary, void **) {}
REGISTER(void, __cudaRegisterFunction, void **, const char *host, char *, const char *name, int, uint3 *,
         uint3 *, dim3 *, dim3 *, int *) {
  add_torch_kernel(host, name);
}
REGISTER(void, __cudaRegisterVar, void **, char *, char *, const char *, int, std::size_t, int, int) {}
REGISTER(char, __cudaInitModule, void **) { return 0; }

struct Configuration {
  dim3 grid, block;
  std::size_t shared_bytes;
  void *stream;
};
static thread_local std::vector<Configuration> t_configurations;
REGISTER(unsigned, __cudaPushCallConfiguration, dim3 grid, dim3 block, std::size_t shared_bytes,
         void *stream) {
  return t_configurations.push_back({grid, block, shared_bytes, stream}), 0;
}
REGISTER(cudaError_t, __cudaPopCallConfiguration, dim3 *grid, dim3 *block, std::size_t *shared_bytes,
         void *stream) {
  const Configuration last = t_configurations.back();
  t_configurations.pop_back();
  *grid = last.grid, *block = last.block, *shared_bytes = last.shared_bytes;
  return std::memcpy(stream, &last.stream, sizeof last.stream), cudaSuccess;
}

RUNTIME(cudaLaunchKernel, const void *function, dim3, dim3, void **arguments, std::size_t,
        cudaStream_t stream) {
  return with_stream(stream, [&](Stream *s) { return launch_torch_kernel(function, arguments, s); });
}
// What a launch in angle brackets is from CUDA 13 on, as crt/device_functions.h declares it.
RUNTIME(__cudaGetKernel, cudaKernel_t *kernel, const void *function) {
  return give(kernel, static_cast<cudaKernel_t>(const_cast<void *>(function)));
}
RUNTIME(__cudaLaunchKernel, cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
        std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
RUNTIME(cudaLaunchKernelExC, const cudaLaunchConfig_t *configuration, const void *function,
        void **arguments) {
  return cudaLaunchKernel(function, {}, {}, arguments, 0, configuration->stream);
}
RUNTIME(cudaFuncGetAttributes, cudaFuncAttributes *attributes, const void *) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024, attributes->numRegs = 32, attributes->binaryVersion = 90;
  return cudaSuccess;
}
RUNTIME(cudaFuncSetAttribute, const void *, cudaFuncAttribute, int) { return cudaSuccess; }
RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor, int *blocks, const void *, int, std::size_t) {
  return give(blocks, 8);
}
RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int *blocks, const void *, int,
        std::size_t, unsigned) {
  return give(blocks, 8);
}

// ---- the driver's calls ----

void *entry_point(const char *name);  // of libcuda.so.1
RUNTIME(cudaGetDriverEntryPointByVersion, const char *name, void **function, unsigned,
        unsigned long long, cudaDriverEntryPointQueryResult *status) {
  *function = entry_point(name);
  const bool found = *function != nullptr;
  if (status != nullptr) {
    *status = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}
RUNTIME(cudaGetDriverEntryPoint, const char *name, void **function, unsigned long long flags,
        cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(name, function, kCudaVersion, flags, status);
}
RUNTIME(cudaGetExportTable, const void **table, const cudaUUID_t *) {
  *table = nullptr;
  return static_cast<cudaError_t>(keep_error(not_supported("cudaGetExportTable")));
}
