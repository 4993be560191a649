// All schedules of a launch, up to the order of accesses that do not depend on each other.
//
// A step is one access to memory that the launch writes, with what its thread does until the next
// one; all blocks are resident. Two accesses depend on each other if they are to the same element
// and one of them writes. Schedules that order all such pairs alike end alike, so one of each such
// set is run.
//
// Method: source sets with sleep sets (Abdulla, Aronis, Jonsson, Sagonas, "Optimal Dynamic Partial
// Order Reduction", POPL 2014, algorithm 1). Each schedule is run from the beginning.
#pragma once
#include <unordered_map>

#include "cuda_emulator.h"

namespace emu {

using Schedule = std::vector<unsigned short>;  // the thread of each step, counted over all blocks

// One step of the schedule that runs.
struct Event {
  unsigned thread = 0;
  Access access;
  Clock clock;  // of the thread behind it
};

// Where schedules branch: before a step.
struct Branch {
  unsigned thread = 0;           // that goes on
  std::vector<char> wanted;      // [threads]: whether it must go on here in some schedule
  std::vector<char> asleep;      // [threads]: every schedule in which it goes on here has been run
  std::vector<Access> access;    // [threads]: what it is about to do
};

class Explorer {
 public:
  // reduce: false: run schedules that differ in the order of independent accesses, too.
  Explorer(dim3 grid, unsigned block, std::vector<Array> &arrays, void (*body)(void *), void *data,
           bool reduce)
      : grid_(grid), block_(block), arrays_(arrays), body_(body), data_(data), reduce_(reduce) {
    machine().order = 0;
    threads_ = grid.x * grid.y * block;
    for (const Array &array : arrays) {
      if (array.writable) before_.push_back(copy_of(array));
    }
  }

  u64 schedules = 0;                // that were run to their end
  std::vector<Schedule> outcomes;   // one schedule for each different end

  // Runs all schedules. False: there are more than `limit`, or one of them fails.
  bool explore(u64 limit) {
    std::vector<Branch> branches;
    u64 begun = 0;
    do {
      bool ended = true;
      run([&](std::size_t depth) { return choose(branches, depth, ended); }, &branches);
      if (machine().failed) {
        machine().error += ", in schedule " + std::to_string(schedules);
        return false;
      }
      if (ended) note_outcome();
      if (++begun >= limit) {
        machine().failed = true;
        machine().error = "not all schedules are run: there are more than " + std::to_string(limit);
        return false;
      }
    } while (next(branches));
    follow(outcomes[0]);
    return true;
  }

  // Runs one schedule.
  void follow(const Schedule &schedule) {
    run([&](std::size_t depth) { return static_cast<int>(schedule.at(depth)); }, nullptr);
  }

 private:
  struct Copy {
    std::vector<u8> data, written;
  };

  static Copy copy_of(const Array &array) {
    Copy copy{{array.data, array.data + array.bytes}, {}};
    if (array.written != nullptr) copy.written.assign(array.written, array.written + array.bytes);
    return copy;
  }

  void restore() {
    std::size_t i = 0;
    for (const Array &array : arrays_) {
      if (!array.writable) continue;
      const Copy &copy = before_[i++];
      std::copy(copy.data.begin(), copy.data.end(), array.data);
      if (array.written == nullptr) continue;
      std::copy(copy.written.begin(), copy.written.end(), array.written);
    }
  }

  Thread &thread(unsigned number) {
    return machine().blocks[number / block_].threads[number % block_];
  }

  // Runs all threads to their next access, or to where they wait or end.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (unsigned t = 0; t < threads_; ++t) {
        if (thread(t).state != State::ready) continue;
        moved = true;
        resume(t / block_, t % block_);
        if (machine().failed) return;
      }
    }
  }

  // Runs one schedule: `choose` gives the thread of each step, or -1 to break it off.
  template <class Choose>
  void run(Choose choose, std::vector<Branch> *branches) {
    Machine &m = machine();
    restore();
    begin_grid(grid_, block_, grid_.x * grid_.y, body_, data_);
    for (unsigned slot = 0; slot < m.blocks.size(); ++slot) begin_block(slot, slot);
    m.exploring = true;
    m.clocks.begin(threads_);
    events_.clear();
    at_.clear();
    settle();
    while (!m.failed) {
      bool waits = false, alive = false;
      for (unsigned t = 0; t < threads_; ++t) {
        waits = waits || thread(t).state == State::at_access;
        alive = alive || thread(t).state != State::exited;
      }
      if (!waits) {
        if (alive) fail_launch(kDeadlock);
        break;
      }
      const int chosen = choose(events_.size());
      if (chosen < 0) break;
      step(static_cast<unsigned>(chosen), branches);
    }
    m.exploring = false;
  }

  static void fail_launch(const std::string &what) {
    machine().failed = true;
    machine().error = what;
  }

  void step(unsigned t, std::vector<Branch> *branches) {
    const Access access = thread(t).access;
    Clock &clock = machine().clocks.of[t];
    std::vector<unsigned> &earlier = at_[access.address];
    // The latest first: what happened before one of them is no race of its own.
    for (auto i = earlier.rbegin(); i != earlier.rend(); ++i) {
      const Event &event = events_[*i];
      if (!access.depends_on(event.access)) continue;
      if (event.thread != t && !precedes(event, clock)) {
        if (!access.atomic || !event.access.atomic) return fail_race(access, event.thread, t);
        if (branches != nullptr && reduce_) reverse(*branches, *i, t, clock);
      }
      merge(clock, event.clock);
    }
    ++clock[t];
    earlier.push_back(static_cast<unsigned>(events_.size()));
    events_.push_back(Event{t, access, clock});
    thread(t).state = State::ready;
    resume(t / block_, t % block_);
    if (!machine().failed) settle();
  }

  static bool precedes(const Event &event, const Clock &clock) {
    return event.clock[event.thread] <= clock[event.thread];
  }

  void fail_race(const Access &access, unsigned one, unsigned other) {
    std::string name = "shared memory";
    for (const Array &array : arrays_) {
      const u64 first = reinterpret_cast<u64>(array.data);
      const bool inside = first <= access.address && access.address < first + array.bytes;
      if (array.writable && inside) name = array.name;
    }
    fail_launch("race: threads " + std::to_string(one) + " and " + std::to_string(other) +
                " touch the same element of " + name + " without synchronising");
  }

  // Sees to it that some schedule makes the access of thread t, which comes next, before event
  // `number`: where that one was chosen, a thread must go on from which this can follow.
  void reverse(std::vector<Branch> &branches, unsigned number, unsigned t, const Clock &clock) {
    std::vector<char> seen(threads_, 0), first(threads_, 0);
    std::vector<const Event *> between;  // those that do not need event `number`
    const auto is_first = [&](const Clock &later) {
      return std::none_of(between.begin(), between.end(),
                          [&](const Event *event) { return precedes(*event, later); });
    };
    for (std::size_t i = number + 1; i < events_.size(); ++i) {
      const Event &event = events_[i];
      if (precedes(events_[number], event.clock)) continue;
      if (!seen[event.thread]) first[event.thread] = is_first(event.clock);
      seen[event.thread] = 1;
      between.push_back(&event);
    }
    if (!seen[t]) first[t] = is_first(clock);
    Branch &branch = branches[number];
    for (unsigned q = 0; q < threads_; ++q) {
      if (first[q] && branch.wanted[q]) return;
    }
    for (unsigned q = 0; q < threads_; ++q) {
      if (first[q]) {
        branch.wanted[q] = 1;
        return;
      }
    }
  }

  // The thread of the next step: as it was chosen, or behind that the first that is not asleep.
  int choose(std::vector<Branch> &branches, std::size_t depth, bool &ended) {
    if (depth < branches.size()) return static_cast<int>(branches[depth].thread);
    Branch branch;
    branch.wanted.assign(threads_, 0);
    branch.asleep.assign(threads_, 0);
    branch.access.resize(threads_);
    int chosen = -1;
    for (unsigned t = threads_; t-- > 0;) {
      if (thread(t).state != State::at_access) continue;
      branch.access[t] = thread(t).access;
      if (depth > 0 && reduce_) {
        // What slept before the last step still does unless that step changes what it would do.
        const Branch &last = branches[depth - 1];
        branch.asleep[t] = last.asleep[t] && t != last.thread &&
                           !last.access[t].depends_on(last.access[last.thread]);
      }
      if (!branch.asleep[t]) chosen = static_cast<int>(t);
      if (!reduce_) branch.wanted[t] = 1;
    }
    if (chosen < 0) {
      ended = false;
      return -1;
    }
    branch.thread = static_cast<unsigned>(chosen);
    branch.wanted[branch.thread] = 1;
    branches.push_back(std::move(branch));
    return chosen;
  }

  // Turns to the next schedule that must be run; false if there is none.
  bool next(std::vector<Branch> &branches) {
    for (; !branches.empty(); branches.pop_back()) {
      Branch &branch = branches.back();
      branch.asleep[branch.thread] = 1;
      for (unsigned t = 0; t < threads_; ++t) {
        if (!branch.wanted[t] || branch.asleep[t]) continue;
        branch.thread = t;
        return true;
      }
    }
    return false;
  }

  void note_outcome() {
    ++schedules;
    std::string end;
    for (const Array &array : arrays_) {
      if (!array.writable) continue;
      end.append(reinterpret_cast<const char *>(array.data), array.bytes);
      if (array.written == nullptr) continue;
      end.append(reinterpret_cast<const char *>(array.written), array.bytes);
    }
    if (!ends_.emplace(std::move(end), outcomes.size()).second) return;
    Schedule schedule;
    for (const Event &event : events_) {
      schedule.push_back(static_cast<unsigned short>(event.thread));
    }
    outcomes.push_back(std::move(schedule));
  }

  const dim3 grid_;
  const unsigned block_;
  std::vector<Array> &arrays_;
  void (*const body_)(void *);
  void *const data_;
  const bool reduce_;
  unsigned threads_;
  std::vector<Copy> before_;
  std::vector<Event> events_;
  std::unordered_map<u64, std::vector<unsigned>> at_;  // numbers of the events at an address
  std::unordered_map<std::string, std::size_t> ends_;
};

}  // namespace emu
