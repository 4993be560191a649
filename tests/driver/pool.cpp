// An allocator for torch like those of RMM: a pool for each stream, of which memory that was given back
// is taken again for the same stream, whatever other streams still do with it.
#include <cstddef>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

extern "C" int cudaMalloc(void **pointer, std::size_t bytes);

static std::mutex lock;
static std::map<std::tuple<int, void *, std::size_t>, std::vector<void *>> pools;

static std::vector<void *> &pool_of(std::ptrdiff_t bytes, int device, void *stream) {
  std::size_t rounded = 512;
  while (rounded < static_cast<std::size_t>(bytes)) rounded *= 2;
  return pools[{device, stream, rounded}];
}

extern "C" void *pool_take(std::ptrdiff_t bytes, int device, void *stream) {
  std::lock_guard<std::mutex> hold(lock);
  auto &pool = pool_of(bytes, device, stream);
  void *found = nullptr;
  if (pool.empty()) {
    std::size_t rounded = 512;
    while (rounded < static_cast<std::size_t>(bytes)) rounded *= 2;
    return cudaMalloc(&found, rounded) == 0 ? found : nullptr;
  }
  found = pool.back();
  pool.pop_back();
  return found;
}

extern "C" void pool_give(void *pointer, std::ptrdiff_t bytes, int device, void *stream) {
  std::lock_guard<std::mutex> hold(lock);
  pool_of(bytes, device, stream).push_back(pointer);
}
