// libcuda.so.1: the calls of the driver's API that torch and CuPy make, as cuda.h documents them. All
// others are stubs that build.py makes.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>

#include "device_facts.h"
#include "standin.h"
#include "versioned_names.h"  // made by build.py of cuda.h: {"cuMemAlloc", "cuMemAlloc_v2"}, ...

using namespace standin;

#define DRIVER(name, ...) extern "C" __attribute__((visibility("default"))) CUresult name(__VA_ARGS__)

static CUresult result(int error) { return static_cast<CUresult>(error); }
template <class Body>
static CUresult call(Body body) {
  return result(guarded(body));
}
template <class T>
static CUresult give(T *place, T value) {
  return *place = value, CUDA_SUCCESS;
}

// ---- devices and contexts: each device has its primary one ----

constexpr Address kFirstContext = 0x1000;
static CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(kFirstContext + static_cast<Address>(device));
}
static bool exists(int device) { return device >= 0 && device < kDevices; }
static thread_local std::vector<int> t_devices;  // below the current one

DRIVER(cuInit, unsigned) { return result(is_forked() ? kNotInitialized : kOk); }
DRIVER(cuDriverGetVersion, int *version) { return give(version, kCudaVersion); }
DRIVER(cuDeviceGetCount, int *devices) { return give(devices, kDevices); }
DRIVER(cuDeviceGet, CUdevice *device, int number) {
  return exists(number) ? give(device, number) : CUDA_ERROR_INVALID_DEVICE;
}
DRIVER(cuDeviceGetName, char *name, int bytes, CUdevice device) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Stand-in GPU %d", device);
  return CUDA_SUCCESS;
}
DRIVER(cuDeviceTotalMem, std::size_t *bytes, CUdevice) { return give(bytes, kDeviceBytes); }
DRIVER(cuDeviceGetAttribute, int *value, CUdevice_attribute attribute, CUdevice device) {
  return exists(device) ? give(value, attribute_of(attribute)) : CUDA_ERROR_INVALID_DEVICE;
}
DRIVER(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device) {
  return call([&] { return open_context(device), *context = context_of(device), kOk; });
}
DRIVER(cuDevicePrimaryCtxRelease, CUdevice) { return CUDA_SUCCESS; }
DRIVER(cuDevicePrimaryCtxGetState, CUdevice device, unsigned *flags, int *active) {
  const Device &found = state().devices[device];
  return *flags = found.flags, give(active, found.has_context ? 1 : 0);
}
DRIVER(cuDevicePrimaryCtxSetFlags, CUdevice device, unsigned flags) {
  return give(&state().devices[device].flags, flags);
}
DRIVER(cuCtxGetCurrent, CUcontext *context) {
  const int device = current_device();
  return give(context, state().devices[device].has_context ? context_of(device) : nullptr);
}
DRIVER(cuCtxSetCurrent, CUcontext context) {
  if (context != nullptr) {
    set_current_device(static_cast<int>(reinterpret_cast<Address>(context) - kFirstContext));
  }
  return CUDA_SUCCESS;
}
DRIVER(cuCtxPushCurrent, CUcontext context) {
  t_devices.push_back(current_device());
  return cuCtxSetCurrent(context);
}
DRIVER(cuCtxPopCurrent, CUcontext *context) {
  if (context != nullptr) *context = context_of(current_device());
  if (!t_devices.empty()) set_current_device(t_devices.back()), t_devices.pop_back();
  return CUDA_SUCCESS;
}
DRIVER(cuCtxGetDevice, CUdevice *device) { return give(device, current_device()); }
DRIVER(cuCtxSynchronize) {
  return call([] { return count("wait of the host: device"), finish_device(current_device()), kOk; });
}
DRIVER(cuStreamGetCtx, CUstream stream, CUcontext *context) {
  return call([&]() -> int {
    const Stream *found = stream_at(stream);
    return found == nullptr ? kInvalidHandle : (*context = context_of(found->device), kOk);
  });
}

// ---- memory ----

DRIVER(cuMemGetInfo, std::size_t *free, std::size_t *total) {
  *total = kDeviceBytes;
  return give(free, kDeviceBytes - state().devices[current_device()].used_bytes);
}
DRIVER(cuMemAlloc, CUdeviceptr *address, std::size_t bytes) {
  return call([&] {
    Address found = 0;
    const int error = allocate_device(bytes, &found);
    return *address = found, error;
  });
}
DRIVER(cuMemFree, CUdeviceptr address) {
  return call([&] { return free_device(address); });
}
DRIVER(cuPointerGetAttribute, void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  return call([&]() -> int {
    const Range *range = range_of(address);
    if (range == nullptr) return kInvalidValue;
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned *>(value) =
            range->kind == Kind::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return kOk;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return *static_cast<int *>(value) = range->device, kOk;
      case CU_POINTER_ATTRIBUTE_CONTEXT:
        return *static_cast<CUcontext *>(value) = context_of(range->device), kOk;
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return *static_cast<CUdeviceptr *>(value) = address, kOk;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED: return *static_cast<unsigned *>(value) = 0, kOk;
      default: return count("not supported: another attribute of a pointer"), kNotSupported;
    }
  });
}

// ---- modules and launches ----

DRIVER(cuModuleLoadData, CUmodule *module, const void *) {
  return call([&] {
    open_context(current_device());
    return *module = static_cast<CUmodule>(load_module()), kOk;
  });
}
DRIVER(cuModuleLoadDataEx, CUmodule *module, const void *image, unsigned, CUjit_option *, void **) {
  return cuModuleLoadData(module, image);
}
DRIVER(cuModuleUnload, CUmodule) { return CUDA_SUCCESS; }
DRIVER(cuModuleGetFunction, CUfunction *function, CUmodule module, const char *name) {
  return call([&]() -> int {
    Kernel *kernel = find_kernel(module, name);
    *function = reinterpret_cast<CUfunction>(kernel);
    return kernel != nullptr ? kOk : kNotFound;
  });
}
DRIVER(cuFuncGetAttribute, int *value, CUfunction_attribute attribute, CUfunction) {
  return give(value, attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0);
}
DRIVER(cuFuncSetAttribute, CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
DRIVER(cuLaunchKernel, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
       unsigned block_x, unsigned, unsigned, unsigned, CUstream stream, void **arguments, void **) {
  const unsigned grid[3] = {grid_x, grid_y, grid_z};
  return call([&] {
    return launch(reinterpret_cast<Kernel *>(function), grid, block_x, arguments, stream_at(stream));
  });
}

// ---- errors, and addresses of the calls themselves ----

DRIVER(cuGetErrorName, CUresult error, const char **text) { return give(text, name_of(error)); }
DRIVER(cuGetErrorString, CUresult error, const char **text) { return give(text, name_of(error)); }

// NVIDIA documents no export table, so there is none.
DRIVER(cuGetExportTable, const void **table, const CUuuid *) {
  *table = nullptr;
  return result(not_supported("cuGetExportTable"));
}

void *entry_point(const char *name) {
  const auto versioned = kVersionedNames.find(name);
  Dl_info self;
  dladdr(reinterpret_cast<void *>(&cuInit), &self);
  void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  return dlsym(library, versioned == kVersionedNames.end() ? name : versioned->second.c_str());
}

#undef cuGetProcAddress
DRIVER(cuGetProcAddress_v2, const char *name, void **function, int, cuuint64_t,
       CUdriverProcAddressQueryResult *status) {
  *function = entry_point(name);
  const bool found = *function != nullptr;
  if (status != nullptr) {
    *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
DRIVER(cuGetProcAddress, const char *name, void **function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
