// A torch device whose memory is host memory: the C++ half of torch_device.py, which calls the
// functions at the end through ctypes.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
constexpr size_t kAlignment = 512;  // as torch's CUDA allocator gives

thread_local c10::DeviceIndex current_device = 0;
thread_local c10::StreamId current_stream[kDevices];  // 0 is the default stream

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "there is no device ", device);
    if (device.has_index()) current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    const auto index = device.has_index() ? device.index() : current_device;
    return c10::Stream(c10::Stream::UNSAFE, {kType, index}, current_stream[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    c10::Stream before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};

void release(void* memory) { std::free(memory); }

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes > 0 && posix_memalign(&memory, kAlignment, bytes) != 0) throw std::bad_alloc();
    return {memory, memory, &release, c10::Device(kType, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
};
Memory memory;

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
  return at::detail::empty_strided_generic(size, stride, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same memory as a CPU tensor.
at::Tensor host_view(const at::Tensor& tensor) {
  if (tensor.device().type() != kType) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

at::Tensor& copy_(at::Tensor& target, const at::Tensor& source, bool) {
  if (target.numel() > 0) host_view(target).copy_(host_view(source));
  return target;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  if (target.numel() > 0) host_view(target).copy_(host_view(source));
  return target;
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat>) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, self.dtype().itemsize(), self.storage_offset());
  const at::Storage& storage = self.storage();
  if (bytes > storage.nbytes()) {
    c10::DeviceGuard guard(self.device());
    c10::DataPtr longer = memory.allocate(bytes);
    if (storage.nbytes() > 0) std::memcpy(longer.get(), storage.data(), storage.nbytes());
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(longer));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (source.sizes() != target.sizes()) resize_(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  tensor->set_storage_offset(offset);
  stride.empty() && !size.empty() ? tensor->set_sizes_contiguous(size)
                                  : tensor->set_sizes_and_strides(size, stride);
  return self;
}

// What the allocator was told: the memory and the stream that uses it.
std::mutex record_lock;
std::vector<std::pair<void*, int64_t>> recorded;

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  std::lock_guard<std::mutex> guard(record_lock);
  recorded.emplace_back(tensor.data_ptr(), stream.id());
}

// What CUDA refuses: tensors of several devices in one operation. A tensor of dimension 0 on the CPU
// counts as a number, and a CPU index is taken for a tensor of the device, not the other way round.
struct SameDevice {
  const c10::OperatorHandle& op;
  bool indexing;
  std::optional<at::Device> device;
  bool on_host = false, host_index = false, device_index = false;

  void see(const at::Tensor& tensor, bool index) {
    if (!tensor.defined()) return;
    if (tensor.device().type() == kType) {
      TORCH_CHECK(!device || *device == tensor.device(),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  *device, " and ", tensor.device(), "! (", op.schema().name(), ")");
      device = tensor.device();
      if (index) device_index = true;
    } else if (tensor.dim() > 0 && !index) {
      on_host = true;
    }
  }
  void see(const c10::IValue& value) {
    if (value.isTensor()) {
      see(value.toTensor(), false);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) see(tensor, false);
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) see(item.toTensor(), indexing);
      }
    }
  }
  void check() const {
    TORCH_CHECK(!(on_host && device_index),
                "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
    TORCH_CHECK(!on_host,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *device, " and cpu! (", op.schema().name(), ")");
  }
};

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const size_t arguments = op.schema().arguments().size();
  SameDevice seen{op, name.find("index") != std::string::npos, std::nullopt};
  for (const c10::IValue& value : torch::jit::last(*stack, arguments)) seen.see(value);
  if (seen.device) seen.check();
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("unfold", TORCH_FN(at::native::unfold));
}

// COO tensors are made of an index and a value tensor that lie on the device.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
}

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
REGISTER_ALLOCATOR(kType, &memory);

extern "C" {
int emulated_device_count() { return kDevices; }
int emulated_current_device() { return current_device; }
void emulated_set_device(int index) { current_device = static_cast<c10::DeviceIndex>(index); }
int64_t emulated_current_stream(int device) { return current_stream[device]; }
// Whether the allocator was told of a stream that uses some memory.
int emulated_was_recorded(void* address, int64_t stream) {
  std::lock_guard<std::mutex> guard(record_lock);
  for (const auto& [memory, user] : recorded) {
    if (memory == address && user == stream) return 1;
  }
  return 0;
}
void emulated_set_stream(int device, int64_t stream) { current_stream[device] = stream; }
}
