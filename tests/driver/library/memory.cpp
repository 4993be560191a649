// Device memory, pinned memory, and host memory that is registered where it lies.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "standin.h"

namespace standin {

constexpr unsigned kReadOnlyFlag = 8;             // cudaHostRegisterReadOnly
constexpr int kNewMemory = 0xCB;                  // nobody may count on zeros
constexpr std::size_t kAllocationBytes = 512;     // addresses of allocations are multiples of it

static std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

const char *name_of(Kind kind) {
  return kind == Kind::device ? "device" : kind == Kind::pinned ? "pinned" : "pageable";
}

const Range *range_of(Address address) {
  const State &s = state();
  auto at = s.ranges.upper_bound(address);
  if (at == s.ranges.begin()) return nullptr;
  --at;
  return address < at->second.last ? &at->second : nullptr;
}

Address end_of(const Range &range) {
  const Range *last = &range;
  while (last->registered && range_of(last->last) != nullptr && range_of(last->last)->registered) {
    last = range_of(last->last);
  }
  return last->last;
}

bool is_within(Address address, std::size_t bytes, Kind kind) {
  const Range *range = range_of(address);
  if (kind != Kind::pageable) {
    return range != nullptr && range->kind == kind && address + bytes <= end_of(*range);
  }
  const auto next = state().ranges.upper_bound(address);
  return range == nullptr && (next == state().ranges.end() || next->first >= address + bytes);
}

char *reach(Address address) {
  for (const Device &device : state().devices) {
    if (address >= device.visible && address < device.visible + kDeviceBytes) {
      return reinterpret_cast<char *>(address - device.visible + device.reached);
    }
  }
  return reinterpret_cast<char *>(address);
}

static void add(Address first, std::size_t bytes, Kind kind, unsigned flags) {
  Range range;
  range.first = range.given = first, range.last = first + bytes;
  range.kind = kind, range.device = current_device(), range.flags = flags;
  state().ranges[first] = range;
}

int allocate_device(std::size_t bytes, Address *address) {
  State &s = state();
  const int number = current_device();
  Device &device = s.devices[number];
  *address = 0;
  open_context(number);
  if (bytes == 0) return kOk;
  count("device memory: allocate");
  if (s.device_allocations.refuses()) return kOutOfMemory;
  // First fit, with a gap of a page before every allocation: what runs out of one faults.
  const std::size_t size = rounded(bytes, kAllocationBytes);
  Address at = device.visible + kPageBytes;
  for (const auto &entry : s.ranges) {
    const Range &range = entry.second;
    if (range.kind != Kind::device || range.device != number) continue;
    if (range.first >= at + size + kPageBytes) break;
    at = rounded(range.last, kPageBytes) + kPageBytes;
  }
  if (at + size > device.visible + kDeviceBytes) return kOutOfMemory;
  add(at, bytes, Kind::device, 0);
  device.used_bytes += size;
  std::memset(reach(at), kNewMemory, size);
  *address = at;
  return kOk;
}

int free_device(Address address) {
  State &s = state();
  if (address == 0) return kOk;
  const auto found = s.ranges.find(address);
  if (found == s.ranges.end() || found->second.kind != Kind::device) return kInvalidValue;
  const Range range = found->second;
  finish_device(range.device);  // as cudaFree does
  count("device memory: free");
  Device &device = s.devices[range.device];
  const std::size_t size = rounded(range.last - range.first, kAllocationBytes);
  fallocate(device.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(address - device.visible), static_cast<off_t>(size));
  device.used_bytes -= size;
  s.ranges.erase(address);
  return kOk;
}

int allocate_pinned(std::size_t bytes, unsigned flags, Address *address) {
  State &s = state();
  *address = 0;
  open_context(current_device());
  if (bytes == 0) return kOk;
  count("pinned memory: allocate");
  if (s.pinned_allocations.refuses()) return kOutOfMemory;
  void *memory = mmap(nullptr, rounded(bytes, kPageBytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<Address>(memory);
  std::memset(memory, kNewMemory, bytes < (64u << 20) ? bytes : 0);
  add(*address, bytes, Kind::pinned, flags);
  return kOk;
}

int free_pinned(Address address) {
  State &s = state();
  if (address == 0) return kOk;
  const auto found = s.ranges.find(address);
  if (found == s.ranges.end() || found->second.kind != Kind::pinned || found->second.registered) {
    return kInvalidValue;
  }
  const Range range = found->second;
  count("pinned memory: free");
  s.ranges.erase(address);  // nothing says that this waits: work that still reads it fails the device
  munmap(reinterpret_cast<void *>(address), rounded(range.last - range.first, kPageBytes));
  return kOk;
}

// Whether all pages from `first` to `last` are mapped, and the process may write to them.
struct Pages {
  bool mapped, writable;
};
static Pages pages_of(Address first, Address last) {
  Pages pages{false, true};
  Address mapped = first;
  std::FILE *maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return pages;
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long from = 0, to = 0;
    char rights[8] = "";
    if (std::sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3) continue;
    if (from < last && first < to && rights[1] != 'w') pages.writable = false;
    if (from <= mapped && mapped < to) mapped = to;
  }
  std::fclose(maps);
  pages.mapped = mapped >= last;
  return pages;
}

constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // MADV_POPULATE_..., from Linux 5.14 on

int register_host(Address address, std::size_t bytes, unsigned flags) {
  State &s = state();
  if (address == 0 || bytes == 0) return kInvalidValue;
  open_context(current_device());
  if (s.registrations.refuses()) return kOutOfMemory;
  const Address first = address / kPageBytes * kPageBytes, last = rounded(address + bytes, kPageBytes);
  const auto next = s.ranges.lower_bound(first);
  if (range_of(first) != nullptr || (next != s.ranges.end() && next->first < last)) {
    return kAlreadyRegistered;
  }
  const Pages pages = pages_of(first, last);
  const bool reads = (flags & kReadOnlyFlag) != 0;
  if (!pages.mapped || (!pages.writable && !reads)) return kInvalidValue;
  // As locked pages are there, and are the process's own where they lie in a private mapping.
  madvise(reinterpret_cast<void *>(first), last - first, reads ? kPopulateRead : kPopulateWrite);
  count("host memory: register");
  add(first, last - first, Kind::pinned, flags);
  s.ranges[first].registered = true, s.ranges[first].given = address;
  return kOk;
}

int unregister_host(Address address) {
  State &s = state();
  const auto found = s.ranges.find(address / kPageBytes * kPageBytes);
  if (found == s.ranges.end() || !found->second.registered || found->second.given != address) {
    return kNotRegistered;
  }
  count("host memory: unregister");
  s.ranges.erase(found);  // work that still reads it fails the device
  return kOk;
}

}  // namespace standin
