// Capturing what a stream is given, and launching it again as a graph: "CUDA Graphs" of the CUDA C++
// Programming Guide. One stream at a time is in a capture: others cannot join it by an event.
#include <cuda_runtime_api.h>

#include "standin.h"

using namespace standin;

#define RUNTIME(name, ...) \
  extern "C" __attribute__((visibility("default"))) cudaError_t name(__VA_ARGS__)

struct CUgraph_st {
  std::vector<Task> tasks;
};
struct CUgraphExec_st {
  std::vector<Task> tasks;
};

template <class Body>
static cudaError_t call(Body body) {
  return static_cast<cudaError_t>(keep_error(guarded(body)));
}
static cudaStreamCaptureStatus status_of(const Stream &stream) {
  if (!stream.capture) return cudaStreamCaptureStatusNone;
  const bool broken = stream.capture->is_broken;
  return broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

RUNTIME(cudaStreamBeginCapture, cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call([&]() -> int {
    static std::uint64_t captures = 0;
    Stream *stream = stream_at(handle);
    if (stream == nullptr || stream->capture) return kInvalidHandle;
    // "Capture can be used on any stream except cudaStreamLegacy."
    if (stream == state().devices[stream->device].default_stream) return kCaptureUnsupported;
    stream->capture = std::make_unique<Capture>();
    stream->capture->id = ++captures;
    stream->capture->mode = static_cast<CaptureMode>(mode);
    stream->capture->thread = std::this_thread::get_id();
    return kOk;
  });
}
RUNTIME(cudaStreamEndCapture, cudaStream_t handle, cudaGraph_t *graph) {
  return call([&]() -> int {
    Stream *stream = stream_at(handle);
    *graph = nullptr;
    if (stream == nullptr || !stream->capture) return kInvalidHandle;
    const std::unique_ptr<Capture> ended = std::move(stream->capture);
    if (ended->is_broken) return kCaptureInvalidated;
    return *graph = new CUgraph_st{std::move(ended->tasks)}, kOk;
  });
}
RUNTIME(cudaStreamIsCapturing, cudaStream_t handle, cudaStreamCaptureStatus *status) {
  return call([&]() -> int {
    const Stream *stream = stream_at(handle);
    return stream == nullptr ? kInvalidHandle : (*status = status_of(*stream), kOk);
  });
}
#if CUDART_VERSION >= 13000
#define EDGES const cudaGraphEdgeData **,
#else
#define EDGES
#endif
RUNTIME(cudaStreamGetCaptureInfo, cudaStream_t handle, cudaStreamCaptureStatus *status,
        unsigned long long *id, cudaGraph_t *, const cudaGraphNode_t **, EDGES std::size_t *) {
  return call([&]() -> int {
    const Stream *stream = stream_at(handle);
    if (stream == nullptr) return kInvalidHandle;
    if (id != nullptr) *id = stream->capture ? stream->capture->id : 0;
    return *status = status_of(*stream), kOk;
  });
}
RUNTIME(cudaThreadExchangeStreamCaptureMode, cudaStreamCaptureMode *mode) {
  const CaptureMode given = static_cast<CaptureMode>(*mode);
  *mode = static_cast<cudaStreamCaptureMode>(capture_mode);
  return capture_mode = given, cudaSuccess;
}
RUNTIME(cudaGraphGetNodes, cudaGraph_t graph, cudaGraphNode_t *, std::size_t *number) {
  return *number = graph->tasks.size(), cudaSuccess;
}
RUNTIME(cudaGraphInstantiate, cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
  return *made = new CUgraphExec_st{graph->tasks}, cudaSuccess;
}
RUNTIME(cudaGraphInstantiateWithFlags, cudaGraphExec_t *made, cudaGraph_t graph,
        unsigned long long flags) {
  return cudaGraphInstantiate(made, graph, flags);
}
RUNTIME(cudaGraphLaunch, cudaGraphExec_t graph, cudaStream_t handle) {
  return call([&]() -> int {
    Stream *stream = stream_at(handle);
    if (stream == nullptr) return kInvalidHandle;
    count("graph: launch");
    for (const Task &task : graph->tasks) submit(stream, Task{task.name, task.run, nullptr, nullptr});
    return kOk;
  });
}
RUNTIME(cudaGraphDestroy, cudaGraph_t graph) { return delete graph, cudaSuccess; }
RUNTIME(cudaGraphExecDestroy, cudaGraphExec_t graph) { return delete graph, cudaSuccess; }
