// Runs kernels on the CPU: the threads of a block are fibres of one OS thread, and blocks run one after another.
// A fibre runs until it waits, so results do not depend on timing. `Order` changes which thread runs first and whether
// warps run ahead; a kernel that lacks a barrier gives other results in another order. Shared memory is poisoned before
// each block, a wait that can never end aborts with the place of every thread. Asynchronous copies and products are
// done as late as the rules allow, or at once in order Reverse.
//
// Not modelled: clusters, divergent warp collectives (all 32 lanes must take part), waiting for another block.
#pragma once
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t MAX_SHARED = 227 << 10;  // Of a block on sm_90.
constexpr size_t STACK = 128 << 10;
constexpr unsigned char POISON = 0xff;  // A NaN as float or bf16, -1 as an integer.

enum class Order { Forward, Reverse, Scattered };
inline Order order = Order::Forward;
// Whether copies and products are done when they are issued; otherwise when they are waited for.
inline bool eager() { return order == Order::Reverse; }
inline const char *kernel = "";  // The kernel that runs, for messages.

// What a fibre waits for: that `*watched` differs from `seen`.
struct Wait {
  const uint32_t *watched = nullptr;
  uint32_t seen = 0;
  const char *reason = "";
};

struct Fibre {
  jmp_buf context;
  ucontext_t start;
  char *stack = nullptr;
  bool started = false, done = true;
  Wait wait;
  // Copies (cp.async) and products (wgmma) that were issued: groups that were committed, and the open one.
  std::vector<std::vector<std::function<void()>>> copies, products;
  std::vector<std::function<void()>> open_copies, open_products;
};

// One meeting of the lanes of a warp, or of the threads of a warpgroup.
struct Meeting {
  uint32_t phase = 0;
  unsigned arrived = 0;
  const char *reason = nullptr;
  unsigned char slots[2][128][64];  // What each lane brought, for this phase and the one before.
};

struct Barrier {
  uint32_t phase = 0;
  int expected = 0, pending = 0;
  int64_t bytes = 0;
};

struct Block {
  unsigned threads = 0, live = 0;
  Barrier all, named[16];
  Meeting warps[MAX_THREADS / 32], warpgroups[MAX_THREADS / 128];
  std::map<const void *, Barrier> barriers;   // mbarriers, by address.
  std::map<const void *, size_t> arrays;      // Static shared arrays that this block has poisoned.
  std::vector<std::function<void()>> copies;  // Bulk copies in flight.
};

inline Block block;
inline std::vector<Fibre> fibres;
inline unsigned current;
inline jmp_buf scheduler;
inline std::function<void()> body;
inline unsigned char *shared_end;    // Dynamic shared memory ends here; the page after it is not accessible.
inline unsigned char *shared_start;  // Aligned to 1024 bytes, as the 128-byte swizzle needs.

[[noreturn]] inline void fail(const std::string &what) {
  fprintf(stderr, "%s, block (%u, %u, %u), thread %u: %s\n", kernel, blockIdx.x, blockIdx.y, blockIdx.z, current,
          what.c_str());
  fflush(stderr);
  _exit(1);
}

inline void require(bool holds, const char *what) {
  if (!holds) fail(what);
}

[[noreturn]] inline void deadlock() {
  fprintf(stderr, "%s, block (%u, %u, %u): deadlock\n", kernel, blockIdx.x, blockIdx.y, blockIdx.z);
  for (unsigned from = 0; from < block.threads;) {
    const char *reason = fibres[from].done ? "has returned" : fibres[from].wait.reason;
    unsigned to = from;
    while (to < block.threads && (fibres[to].done ? "has returned" : fibres[to].wait.reason) == reason) to++;
    fprintf(stderr, "  threads %u to %u: %s\n", from, to - 1, reason);
    from = to;
  }
  fflush(stderr);
  _exit(1);
}

inline void yield() {
  if (!_setjmp(fibres[current].context)) _longjmp(scheduler, 1);
}

// Returns when `*watched` has changed from `seen`.
inline void wait_until_changed(const uint32_t *watched, uint32_t seen, const char *reason) {
  fibres[current].wait = {watched, seen, reason};
  while (*watched == seen) yield();
  fibres[current].wait = {};
}

inline void complete_if_due(Barrier &barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.expected;
  barrier.phase++;
}

// Arrives at a barrier that `needed` threads must reach, and waits for the others.
inline void arrive_and_wait(Barrier &barrier, unsigned needed, const char *reason) {
  uint32_t phase = barrier.phase;
  if (unsigned(++barrier.pending) == needed) {
    barrier.pending = 0;
    barrier.phase++;
  } else {
    wait_until_changed(&barrier.phase, phase, reason);
  }
}

// All `size` threads meet, each with a value. Returns the values of all, valid until the next meeting but one.
template <class T>
const T *meet(Meeting &meeting, unsigned lane, unsigned size, const T &value, const char *reason) {
  static_assert(sizeof(T) <= sizeof meeting.slots[0][0]);
  if (meeting.arrived == 0) meeting.reason = reason;
  if (meeting.reason != reason) fail(std::string(reason) + ", while other threads are in " + meeting.reason);
  uint32_t phase = meeting.phase;
  // The slots of a phase are packed as an array of T.
  unsigned char *slots = meeting.slots[phase & 1][0];
  memcpy(slots + lane * sizeof(T), &value, sizeof(T));
  if (++meeting.arrived == size) {
    meeting.arrived = 0;
    meeting.phase++;
  } else {
    wait_until_changed(&meeting.phase, phase, reason);
  }
  return reinterpret_cast<const T *>(slots);
}

inline unsigned lane() { return current % 32; }

template <class T>
const T *meet_warp(const T &value, const char *reason) {
  return meet(block.warps[current / 32], current % 32, 32, value, reason);
}

inline void meet_warpgroup(const char *reason) {
  require(current / 128 * 128 + 128 <= block.threads, "a warpgroup needs 128 threads");
  meet(block.warpgroups[current / 128], current % 128, 128, 0, reason);
}

// Does an asynchronous piece of work now, or leaves it in `queue`.
inline void issue(std::vector<std::function<void()>> &queue, std::function<void()> work) {
  if (eager())
    work();
  else
    queue.push_back(std::move(work));
}

inline void thread_main() {
  for (;;) {
    body();
    Fibre &fibre = fibres[current];
    require(fibre.copies.empty() && fibre.open_copies.empty(), "returned before its cp.async copies were waited for");
    require(fibre.products.empty() && fibre.open_products.empty(), "returned before its wgmma was waited for");
    fibre.done = true;
    block.live--;
    // Threads that have returned count as arrived.
    if (block.live && unsigned(block.all.pending) == block.live) {
      block.all.pending = 0;
      block.all.phase++;
    }
    yield();
  }
}

inline void resume(unsigned thread) {
  current = thread;
  threadIdx = dim3(thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y);
  if (_setjmp(scheduler)) return;
  Fibre &fibre = fibres[thread];
  if (fibre.started) _longjmp(fibre.context, 1);
  fibre.started = true;
  setcontext(&fibre.start);
}

// Runs a thread until it waits. Whether it could run at all.
inline bool run_thread(unsigned thread) {
  const Fibre &fibre = fibres[thread];
  if (fibre.done || (fibre.wait.watched && *fibre.wait.watched == fibre.wait.seen)) return false;
  resume(thread);
  return true;
}

// Runs each thread until it waits, in order; in order Reverse, each warp as far as it gets without the others. Whether
// any thread could run.
inline bool run_threads() {
  bool progress = false;
  for (unsigned i = 0; i < block.threads; i++) {
    switch (order) {
      case Order::Forward:
        progress |= run_thread(i);
        break;
      case Order::Scattered:
        progress |= run_thread(i * 1021 % block.threads);
        break;  // A prime: each has its turn.
      case Order::Reverse:
        if (i % 32 > 0) break;
        for (bool more = true; more; progress |= more) {
          more = false;
          for (unsigned lane = 1; lane <= 32; lane++) more |= run_thread(block.threads - i - lane);
        }
    }
  }
  return progress;
}

inline void run_block() {
  block.live = block.threads;
  block.all = {};
  for (Barrier &barrier : block.named) barrier = {};
  for (Meeting &meeting : block.warps) meeting.arrived = 0;
  for (Meeting &meeting : block.warpgroups) meeting.arrived = 0;
  block.barriers.clear();
  block.arrays.clear();
  memset(shared_start, POISON, shared_end - shared_start);
  for (unsigned i = 0; i < block.threads; i++) fibres[i].done = false;
  while (block.live) {
    if (run_threads()) continue;
    if (block.copies.empty()) deadlock();
    std::vector<std::function<void()>> copies;
    copies.swap(block.copies);
    for (auto &copy : copies) copy();
  }
  current = 0;
  require(block.copies.empty(), "the block ended before its bulk copies were waited for");
}

// An access outside of buffers and shared memory reaches a page that is not accessible.
inline void on_fault(int, siginfo_t *info, void *) {
  char text[256];
  int length = snprintf(text, sizeof text, "%s, block (%u, %u, %u), thread %u: access out of bounds at %p\n", kernel,
                        blockIdx.x, blockIdx.y, blockIdx.z, current, info->si_addr);
  if (write(2, text, length) < 0) _exit(2);
  _exit(1);
}

inline void *map_pages(size_t bytes) {
  void *pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    perror("mmap");
    _exit(1);
  }
  return pages;
}

inline void set_up() {
  static bool done = false;
  if (done) return;
  done = true;
  size_t page = sysconf(_SC_PAGESIZE), room = MAX_SHARED + 1024 + page;
  room = (room + page - 1) / page * page;
  unsigned char *pages = static_cast<unsigned char *>(map_pages(room + page));
  mprotect(pages + room, page, PROT_NONE);
  shared_end = pages + room;
  fibres.resize(MAX_THREADS);
  stack_t alternative = {};
  alternative.ss_size = 64 << 10;
  alternative.ss_sp = map_pages(alternative.ss_size);
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

// Whether a kernel has waited for those before it; the driver looks at it.
inline bool waited;

// Runs `call`, a call of a kernel, for every thread of the grid.
inline void launch(const char *name, dim3 grid, dim3 threads, size_t shared, std::function<void()> call) {
  set_up();
  kernel = name;
  blockIdx = dim3(0, 0, 0);
  current = 0;
  gridDim = grid;
  blockDim = threads;
  block.threads = threads.x * threads.y * threads.z;
  require(block.threads > 0 && block.threads <= MAX_THREADS, "1 to 1024 threads a block");
  require(block.threads % 32 == 0, "blocks must be of whole warps");
  require(shared <= MAX_SHARED, "at most 227 KiB of shared memory");
  require(grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y < 65536 && grid.z < 65536, "grid out of range");
  shared_start = reinterpret_cast<unsigned char *>(uintptr_t(shared_end - shared) / 1024 * 1024);
  for (unsigned i = 0; i < block.threads; i++) {
    Fibre &fibre = fibres[i];
    if (fibre.stack) continue;
    fibre.stack = static_cast<char *>(map_pages(STACK));
    getcontext(&fibre.start);
    fibre.start.uc_stack.ss_sp = fibre.stack;
    fibre.start.uc_stack.ss_size = STACK;
    fibre.start.uc_link = nullptr;
    makecontext(&fibre.start, thread_main, 0);
  }
  body = std::move(call);
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = dim3(x, y, z);
        run_block();
      }
  kernel = "";
}

// A static shared array is poisoned when the first thread of a block reaches it.
template <class T>
T *fresh(T *array, size_t bytes) {
  if (block.arrays.emplace(array, bytes).second) memset(static_cast<void *>(array), POISON, bytes);
  return array;
}

// Device memory whose end meets a page that is not accessible; it starts at a multiple of 16 bytes.
inline void *allocate(size_t bytes) {
  set_up();
  size_t page = sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
  unsigned char *pages = static_cast<unsigned char *>(map_pages(room + 2 * page));
  mprotect(pages, page, PROT_NONE);
  mprotect(pages + page + room, page, PROT_NONE);
  memset(pages + page, POISON, room);
  return pages + page + (room - bytes) / 16 * 16;
}

inline void release(void *start, size_t bytes) {
  size_t page = sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
  munmap(static_cast<unsigned char *>(start) - (room - bytes) / 16 * 16 - page, room + 2 * page);
}

}  // namespace host

inline void __syncthreads() { host::arrive_and_wait(host::block.all, host::block.live, "__syncthreads"); }
inline void __syncwarp() { host::meet_warp(0, "__syncwarp"); }

template <class T>
T atomicAdd(T *to, T value) {
  T old = *to;
  *to = old + value;
  return old;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
