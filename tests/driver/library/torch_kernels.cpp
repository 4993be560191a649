// Kernels of torch and of NVIDIA's libraries, which register themselves by name when they are loaded.
// Fills and casts of contiguous memory run here. All others are counted and left out: where a result
// matters, Python runs the operation on copies in host memory (torch_operations.py).
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "standin.h"

namespace standin {

static std::unordered_map<const void *, std::string> &names() {
  static auto *instance = new std::unordered_map<const void *, std::string>;
  return *instance;
}

// Called while libraries are loaded, by one thread at a time.
void add_torch_kernel(const void *function, const char *name) { names()[function] = name; }

static bool has(const std::string &name, const char *part) { return name.find(part) != std::string::npos; }

// Bytes of an element that a fill sets, by the mangled name of its functor; 0: it is no fill.
static std::size_t fill_bytes(const std::string &name) {
  constexpr char kFunctor[] = "FillFunctorI";
  const std::size_t at = name.find(kFunctor);
  if (at == std::string::npos || !has(name, "vectorized_elementwise_kernel")) return 0;
  const std::string type = name.substr(at + sizeof kFunctor - 1);
  if (type.rfind("N3c104HalfE", 0) == 0 || type.rfind("N3c108BFloat16E", 0) == 0) return 2;
  switch (type[0]) {
    case 'b': case 'h': case 'a': return 1;
    case 's': return 2;
    case 'i': case 'f': return 4;
    case 'l': case 'd': return 8;
    default: return 0;
  }
}

// torch's numbers of dtypes (c10::ScalarType).
enum Dtype : signed char {
  kUint8, kInt8, kInt16, kInt32, kInt64, kHalf, kFloat, kDouble, kBool = 11, kBfloat16 = 15,
};

struct Number {
  double real;
  long long integer;
};

template <class T>
static Number loaded(const char *at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return {static_cast<double>(value), static_cast<long long>(value)};
}

static Number from_float_bits(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return {value, static_cast<long long>(value)};
}

static Number from_half(unsigned half) {
  const unsigned sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return from_float_bits(sign | 0x7F800000u | fraction << 13);
  const int scale = exponent == 0 ? -24 : static_cast<int>(exponent) - 25;
  const double value = std::ldexp(exponent == 0 ? fraction : fraction + 1024, scale);
  return {sign != 0 ? -value : value, static_cast<long long>(sign != 0 ? -value : value)};
}

static bool load(int dtype, const char *at, Number *number) {
  std::uint16_t word = 0;
  std::memcpy(&word, at, dtype == kHalf || dtype == kBfloat16 ? 2 : 0);
  switch (dtype) {
    case kUint8: case kBool: return *number = loaded<unsigned char>(at), true;
    case kInt8: return *number = loaded<signed char>(at), true;
    case kInt16: return *number = loaded<short>(at), true;
    case kInt32: return *number = loaded<int>(at), true;
    case kInt64: return *number = loaded<long long>(at), true;
    case kFloat: return *number = loaded<float>(at), true;
    case kDouble: return *number = loaded<double>(at), true;
    case kHalf: return *number = from_half(word), true;
    case kBfloat16: return *number = from_float_bits(static_cast<unsigned>(word) << 16), true;
    default: return false;
  }
}

static bool store(int dtype, char *at, const Number &number) {
  const auto put = [at](auto value) { return std::memcpy(at, &value, sizeof value), true; };
  switch (dtype) {
    case kUint8: return put(static_cast<unsigned char>(number.integer));
    case kInt8: return put(static_cast<signed char>(number.integer));
    case kInt16: return put(static_cast<short>(number.integer));
    case kInt32: return put(static_cast<int>(number.integer));
    case kInt64: return put(number.integer);
    case kFloat: return put(static_cast<float>(number.real));
    case kDouble: return put(number.real);
    case kBool: return put(static_cast<unsigned char>(number.real != 0));
    default: return false;  // rounding to 16 bits is not needed
  }
}

// A cast is unrolled_elementwise_kernel<direct_copy..., LoadWithCast<1>, StoreWithCast<1>>, which
// torch launches with (int elements, functor, {to, from}, _, _, loader, storer); a loader is
// {dtype, bytes of an element} and begins with one byte of the dtype.
static bool is_cast(const std::string &name) {
  return has(name, "unrolled_elementwise_kernel") && has(name, "direct_copy_kernel") &&
         has(name, "LoadWithCast");
}

struct Side {
  Address address;
  int dtype;
  unsigned bytes;
};

static Side side_of(const void *address, const void *caster) {
  Side side{};
  signed char dtype;
  std::memcpy(&side.address, address, 8);
  std::memcpy(&dtype, caster, 1);
  std::memcpy(&side.bytes, static_cast<const char *>(caster) + 4, 4);
  side.dtype = dtype;
  return side;
}

static void submit_cast(void **arguments, Stream *stream) {
  const char *addresses = static_cast<const char *>(arguments[2]);
  const Side to = side_of(addresses, arguments[6]), from = side_of(addresses + 8, arguments[5]);
  const auto elements = static_cast<std::size_t>(*static_cast<int *>(arguments[0]));
  submit(stream, Task{"a cast of torch", [=]() -> int {
    const Range *source = range_of(from.address);
    if (source == nullptr || !is_within(from.address, elements * from.bytes, source->kind) ||
        !is_within(to.address, elements * to.bytes, Kind::device)) {
      return kIllegalAddress;
    }
    for (std::size_t i = 0; i < elements; ++i) {
      Number number{};
      if (!load(from.dtype, reach(from.address) + i * from.bytes, &number) ||
          !store(to.dtype, reach(to.address) + i * to.bytes, number)) {
        return kNotSupported;
      }
    }
    return kOk;
  }, nullptr, nullptr});
}

int launch_torch_kernel(const void *function, void **arguments, Stream *stream) {
  if (stream == nullptr) return kInvalidHandle;
  const auto found = names().find(function);
  const std::string name = found == names().end() ? "unknown" : found->second;
  if (const std::size_t bytes = fill_bytes(name)) {
    count("torch's kernel, run: fill");
    std::uint64_t value = 0;
    Address address;
    std::memcpy(&value, arguments[1], bytes);
    std::memcpy(&address, arguments[2], sizeof address);
    return fill(address, value, bytes, static_cast<std::size_t>(*static_cast<int *>(arguments[0])),
                stream, false);
  }
  if (is_cast(name)) {
    count("torch's kernel, run: cast");
    submit_cast(arguments, stream);
    return kOk;
  }
  count("torch's kernel, left out: " + name);
  return kOk;
}

}  // namespace standin
