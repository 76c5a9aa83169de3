// Faulty kernels: the host must find each fault. Each runs in a process of its own.
#include <sys/wait.h>

#include "check.h"

namespace fault_tests {

using check::Buffer;

inline void waits_for_missing_threads() {
  host::launch("faulty", 1, 64, 0, [] {
    if (threadIdx.x < 32) named_barrier(1, 64);
  });
}

inline void waits_for_a_copy_that_nobody_makes() {
  host::launch("faulty", 1, 32, 0, [] {
    SHARED(uint64_t, barrier, 1);
    if (threadIdx.x == 0) mbarrier_init(barrier, 1);
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_arrive_expect(barrier, 16);
    mbarrier_wait(barrier, 0);
  });
}

inline void diverges() {
  host::launch("faulty", 1, 32, 0, [] {
    if (threadIdx.x == 3)
      shuffle_xor(1, 1);
    else
      shuffle(1, 0);
  });
}

inline void reads_beyond_a_buffer() {
  Buffer<float> x(64), y(1);
  host::launch("faulty", 1, 32, 0, [&] { y[0] = x[threadIdx.x + 64]; });
}

inline void writes_beyond_shared_memory() {
  host::launch("faulty", 1, 32, 1024, [] { dynamic_shared()[1024 + threadIdx.x] = 1; });
}

inline void forgets_to_wait_for_a_copy() {
  Buffer<Chunk16> x(1);
  host::launch("faulty", 1, 32, 16, [&] {
    if (threadIdx.x == 0) copy_async_16(dynamic_shared(), x.data);
  });
}

inline void misaligns() {
  host::launch("faulty", 1, 32, 1024, [] {
    uint32_t out[4];
    ldmatrix_x4(out, dynamic_shared() + 8);
  });
}

// Each thread reads what its neighbour wrote.
inline void lacks_a_barrier() {
  check::every_order("faulty", [] {
    Buffer<uint32_t> out(64);
    host::launch("faulty", 1, 64, 0, [&] {
      SHARED(uint32_t, values, 64);
      values[threadIdx.x] = threadIdx.x;
      out[threadIdx.x] = values[(threadIdx.x + 1) % 64];
    });
    return check::bytes(out);
  });
  if (check::failures) _exit(1);
}

// Reads the accumulators before the product is done.
inline void forgets_to_wait_for_a_product() {
  host::launch("faulty", 1, 128, 32 << 10, [] {
    float d[32] = {};
    wgmma_fence();
    wgmma_m64n64k16(d, wgmma_descriptor(dynamic_shared()), wgmma_descriptor(dynamic_shared()));
    wgmma_commit();
  });
}

inline void expect(void (*fault)(), const char *message) {
  int ends[2];
  if (pipe(ends)) perror("pipe"), exit(1);
  fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    fault();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) said.append(part, n);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status == 0 || said.find(message) == std::string::npos)
    check::fail(std::string("a faulty kernel: expected `") + message + "`, got `" + said + "`");
}

inline void test() {
  check::test = "host";
  expect(waits_for_missing_threads, "deadlock\n  threads 0 to 31: named_barrier\n  threads 32 to 63: has returned");
  expect(waits_for_a_copy_that_nobody_makes, "deadlock\n  threads 0 to 31: mbarrier_wait");
  expect(diverges, "while other threads are in shuffle");
  expect(reads_beyond_a_buffer, "access out of bounds");
  expect(writes_beyond_shared_memory, "access out of bounds");
  expect(forgets_to_wait_for_a_copy, "returned before its cp.async copies were waited for");
  expect(misaligns, "rows must be aligned to 16 bytes");
  expect(lacks_a_barrier, "a barrier is missing");
  expect(forgets_to_wait_for_a_product, "returned before its wgmma was waited for");
}

}  // namespace fault_tests
