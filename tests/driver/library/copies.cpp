// Copies and sets. A pageable source is taken at the call, a pinned one when the copy runs; a pageable
// target has its values when the call returns.
#include <cstring>

#include "standin.h"

namespace standin {

static std::size_t span(std::size_t pitch, std::size_t width, std::size_t rows) {
  return pitch * (rows - 1) + width;
}

static Kind kind_at(Address address) {
  const Range *range = range_of(address);
  return range == nullptr ? Kind::pageable : range->kind;
}

int copy(Plane to, Plane from, std::size_t width, std::size_t rows, Stream *stream, bool blocking) {
  if (stream == nullptr) return kInvalidHandle;
  if (width == 0 || rows == 0) return kOk;
  const std::size_t to_bytes = span(to.pitch, width, rows), from_bytes = span(from.pitch, width, rows);
  const Kind to_kind = kind_at(to.address), from_kind = kind_at(from.address);
  // "Memory regions requested must be either entirely registered with CUDA, or in the case of host
  // pageable transfers, not registered at all" (CUDA Driver API, API synchronization behavior).
  if (!is_within(to.address, to_bytes, to_kind) || !is_within(from.address, from_bytes, from_kind)) {
    return kInvalidValue;
  }
  // A copy of pageable memory waits for what is before it.
  const bool waits = blocking || to_kind == Kind::pageable || from_kind == Kind::pageable;
  if (waits && stream->capture) return break_capture(stream);
  count(std::string(blocking ? "copy, blocking: " : "copy: ") + name_of(from_kind) + " to " +
        name_of(to_kind));
  std::shared_ptr<std::vector<char>> taken;
  if (from_kind == Kind::pageable) {
    const char *bytes = reinterpret_cast<const char *>(from.address);
    taken = std::make_shared<std::vector<char>>(bytes, bytes + from_bytes);
  }
  submit(stream, Task{"copy", [=]() -> int {
    // Memory that was freed or unregistered in the meantime.
    if (!is_within(to.address, to_bytes, to_kind)) return kIllegalAddress;
    if (!taken && !is_within(from.address, from_bytes, from_kind)) return kIllegalAddress;
    char *target = reach(to.address);
    const char *source = taken ? taken->data() : reach(from.address);
    for (std::size_t row = 0; row < rows; ++row) {
      std::memmove(target + row * to.pitch, source + row * from.pitch, width);
    }
    return kOk;
  }, nullptr, nullptr});
  if (blocking || to_kind == Kind::pageable) finish_stream(stream);
  return kOk;
}

int fill(Address to, std::uint64_t value, std::size_t width, std::size_t elements, Stream *stream,
         bool blocking) {
  if (stream == nullptr) return kInvalidHandle;
  if (elements == 0) return kOk;
  if (!is_within(to, width * elements, Kind::device)) return kInvalidValue;
  submit(stream, Task{"set", [=]() -> int {
    if (!is_within(to, width * elements, Kind::device)) return kIllegalAddress;
    char *target = reach(to);
    for (std::size_t i = 0; i < elements; ++i) std::memcpy(target + i * width, &value, width);
    return kOk;
  }, nullptr, nullptr});
  if (blocking) finish_stream(stream);
  return kOk;
}

}  // namespace standin
