// Modules and launches of our own kernels. Before CuPy loads the machine code of a module, Python
// announces a library that tests/support/emulator made of the same text; launches go there.
//
// Arguments are taken at the call; what lies in the memory of a descriptor, when the kernel runs.
#include <dlfcn.h>

#include <cstring>

#include "standin.h"

namespace standin {

// As in entry.h of the emulator.
struct EmulatorArgument {
  std::uint64_t value, bytes;
  unsigned char *written;
  int kind, recorded;
  const char *name;
  std::uint64_t low;
};
struct EmulatorCounts {
  std::uint64_t requests, payload_bytes, pages;
};
using EmulatorLaunch = int (*)(int, const EmulatorArgument *, int, const unsigned *, unsigned, int,
                               unsigned long long, void *, EmulatorCounts *, char *, int);

struct Parameter {
  int kind = 0;            // as the emulator's: 0 a value, 1 an array that is read, 2 one that is written
  unsigned bytes = 8;      // of a value
  bool is_signed = false;
  std::string name;
};

struct Argument {          // of a launch
  Parameter only;          // where it is no descriptor
  bool is_descriptor = false;
  std::vector<Parameter> fields;
};

struct Kernel {
  std::string name;
  int number = -1;         // in the library
  int device = 0;          // whose context holds the module: it can be launched there alone
  EmulatorLaunch run = nullptr;
  std::vector<Argument> arguments;
};

struct Module {
  std::map<std::string, Kernel> kernels;
};

static thread_local std::unique_ptr<Module> t_announced;
static thread_local void *t_library = nullptr;
static thread_local Kernel *t_kernel = nullptr;

void *load_module() {
  // Never deleted: launches of its kernels may be under way.
  Module *module = t_announced != nullptr ? t_announced.release() : new Module;
  for (auto &entry : module->kernels) entry.second.device = current_device();
  count("module: device " + std::to_string(current_device()));
  return module;
}

Kernel *find_kernel(void *module, const char *name) {
  auto &kernels = static_cast<Module *>(module)->kernels;
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : &found->second;
}

static std::uint64_t widened(const Parameter &parameter, const void *at) {
  std::uint64_t value = 0;
  std::memcpy(&value, at, parameter.bytes);
  const unsigned shift = 64 - 8 * parameter.bytes;
  if (!parameter.is_signed || shift == 0) return value;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << shift) >> shift);
}

// Bounds an array by the allocation or by the registered pages that it lies in.
static bool bound(EmulatorArgument *array, int device) {
  const Range *range = range_of(array->value);
  if (array->value == 0 || range == nullptr) return true;  // empty: any access fails by its name
  const bool ours = range->kind == Kind::device && range->device == device;
  if (!ours && (range->kind == Kind::device || array->kind == 2)) return false;
  array->bytes = end_of(*range) - array->value;
  array->value = reinterpret_cast<Address>(reach(array->value));
  return true;
}

static int run(const Kernel &kernel, const std::vector<std::uint64_t> &values, int device,
               const std::vector<unsigned> &grid, unsigned block_threads) {
  State &s = state();
  std::vector<EmulatorArgument> given;
  const auto add = [&](const Parameter &p, std::uint64_t value) {
    given.push_back({value, 0, nullptr, p.kind, 0, p.name.c_str(), 0});
    if (p.kind == 0 || bound(&given.back(), device)) return true;
    if (s.fault.empty()) s.fault = kernel.name + ": " + p.name + " is not in memory of the device";
    return false;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Argument &argument = kernel.arguments[i];
    if (!argument.is_descriptor) {
      if (!add(argument.only, values[i])) return kIllegalAddress;
      continue;
    }
    if (!is_within(values[i], 8 * argument.fields.size(), Kind::device)) return kIllegalAddress;
    const char *field = reach(values[i]);
    for (const Parameter &p : argument.fields) {
      std::uint64_t value;
      std::memcpy(&value, field, 8);
      if (!add(p, value)) return kIllegalAddress;
      field += 8;
    }
  }
  // A random schedule has the blocks of some launches interleaved: see ORDERS of the emulator.
  static unsigned long long launches = 0;
  const int order = s.schedule == Schedule::random ? static_cast<int>(launches % 3) : 0;
  char error[400] = "";
  EmulatorCounts counts;
  const int failed = kernel.run(kernel.number, given.data(), static_cast<int>(given.size()), grid.data(),
                                block_threads, order, ++launches, nullptr, &counts, error, sizeof error);
  if (failed && s.fault.empty()) s.fault = kernel.name + ": " + error;
  return failed ? kIllegalAddress : kOk;
}

int launch(const Kernel *kernel, const unsigned *grid, unsigned block_threads, void **arguments,
           Stream *stream) {
  if (stream == nullptr || stream->device != current_device()) return kInvalidHandle;
  if (kernel->device != current_device()) return kInvalidHandle;
  count("kernel: " + kernel->name);
  static const Parameter pointer{1, 8, false, ""};
  std::vector<std::uint64_t> values;
  for (std::size_t i = 0; i < kernel->arguments.size(); ++i) {
    const Argument &argument = kernel->arguments[i];
    const bool is_value = !argument.is_descriptor && argument.only.kind == 0;
    values.push_back(widened(is_value ? argument.only : pointer, arguments[i]));
  }
  const std::vector<unsigned> size(grid, grid + 3);
  submit(stream, Task{kernel->name, [=] {
    return run(*kernel, values, stream->device, size, block_threads);
  }, nullptr, nullptr});
  return kOk;
}

}  // namespace standin

// ---- what Python announces: a library, its kernels, and the parameters of each in their order ----

using namespace standin;
#define CONTROL extern "C" __attribute__((visibility("default"))) void

CONTROL standin_module(const char *library) {
  t_announced = std::make_unique<Module>();
  t_library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
}

CONTROL standin_kernel(const char *name, int number) {
  t_kernel = &t_announced->kernels[name];
  t_kernel->name = name, t_kernel->number = number;
  t_kernel->run = reinterpret_cast<EmulatorLaunch>(dlsym(t_library, "emulator_launch"));
}

CONTROL standin_descriptor() { t_kernel->arguments.push_back({{}, true, {}}); }

// kind: as the emulator's; is_field: of the last descriptor.
CONTROL standin_parameter(int kind, unsigned bytes, int is_signed, const char *name, int is_field) {
  const Parameter parameter{kind, bytes, is_signed != 0, name};
  if (is_field) {
    t_kernel->arguments.back().fields.push_back(parameter);
  } else {
    t_kernel->arguments.push_back({parameter, false, {}});
  }
}
