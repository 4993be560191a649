// Stackful fibres: one for each CUDA thread of a block.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace emu {

constexpr std::size_t kStackBytes = 64 << 10;

#if defined(__x86_64__)

// Saves the callee-saved registers on the stack, leaves the stack pointer in *save, and goes on
// with the stack `load`. Some nanoseconds, where swapcontext makes two system calls.
extern "C" void emu_switch(void **save, void *load);
asm(R"(
.text
.hidden emu_switch
.globl emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, .-emu_switch
)");

struct Fibre {
  void *pointer = nullptr;
  void *stack = nullptr;

  void begin(void (*entry)()) {
    if (stack == nullptr) stack = std::malloc(kStackBytes);
    const auto top = (reinterpret_cast<std::uintptr_t>(stack) + kStackBytes) & ~std::uintptr_t{15};
    void **at = reinterpret_cast<void **>(top);
    *--at = nullptr;  // the return address that `entry` never uses; it also aligns the stack
    *--at = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; ++i) *--at = nullptr;
    pointer = at;
  }
};

inline void switch_to(Fibre &from, Fibre &to) { emu_switch(&from.pointer, to.pointer); }

#else
}  // namespace emu
#include <ucontext.h>
namespace emu {

struct Fibre {
  ucontext_t context;
  void *stack = nullptr;

  void begin(void (*entry)()) {
    if (stack == nullptr) stack = std::malloc(kStackBytes);
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
};

inline void switch_to(Fibre &from, Fibre &to) { swapcontext(&from.context, &to.context); }

#endif

}  // namespace emu
