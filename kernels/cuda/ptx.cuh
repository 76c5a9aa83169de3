// The instructions that CUDA C++ cannot express. This is the only file with PTX. Each wrapper has two bodies that must
// agree: one for the device, and one for the CPU (REIN_HOST), which runs over the fibres of host.h.
// The names follow the PTX ISA. Warp-wide wrappers need all 32 lanes.
#pragma once
#include <stdint.h>
#ifdef REIN_HOST
#include "host.h"
#define DEVICE inline
// A static shared array `name` of `size` elements.
#define SHARED(type, name, size)  \
  static type name##_array[size]; \
  type *name = host::fresh(name##_array, sizeof name##_array)
#else
#define DEVICE __device__ __forceinline__
#define SHARED(type, name, size) __shared__ type name[size]
extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
#endif
// mbarrier and bulk copies need sm_90, wgmma sm_90a.
#if defined(REIN_HOST) || __CUDA_ARCH__ >= 900
#define HAS_BULK_COPY 1
#endif
#if defined(REIN_HOST) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#endif

constexpr unsigned ALL_LANES = 0xffffffff;

// The unit of wide copies.
struct alignas(16) Chunk16 {
  uint32_t words[4];
};

// A two-dimensional tensor map: the 128 bytes of a CUtensorMap. The host's content is made by host_tensor_map.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// ---- Kernels that begin before those before them end ----

// Until all kernels before this one in the stream have ended, and what they wrote is visible. Nothing to wait for if it
// was not launched to begin earlier.
DEVICE void wait_for_earlier_kernels() {
#ifdef REIN_HOST
  host::waited = true;
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may begin once all blocks of this one have called it or ended.
DEVICE void allow_next_kernel() {
#if !defined(REIN_HOST) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- bf16 ----

struct bf16 {
  uint16_t bits;
};

DEVICE float to_float(bf16 x) {
#ifdef REIN_HOST
  uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
#else
  return __uint_as_float(uint32_t(x.bits) << 16);
#endif
}

// Rounds to nearest, ties to even; every NaN becomes 0x7fff.
DEVICE bf16 to_bf16(float x) {
#ifdef REIN_HOST
  if (std::isnan(x)) return {0x7fff};
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#else
  bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
#endif
}

// a & b | c, as one instruction where b and c are constants too.
DEVICE uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
#ifdef REIN_HOST
  return (a & b) | c;
#else
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#endif
}

// a * b + c for the two bf16 of each word. The host's body takes operands for which it is exact.
DEVICE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
#ifdef REIN_HOST
  auto half = [&](int at) {
    auto number = [&](uint32_t x) { return to_float(bf16{uint16_t(x >> at)}); };
    return uint32_t(to_bf16(number(a) * number(b) + number(c)).bits) << at;
  };
  return half(0) | half(16);
#else
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#endif
}

// ---- Warps ----

template <class T>
DEVICE T shuffle(T value, int lane) {
#ifdef REIN_HOST
  return host::meet_warp(value, "shuffle")[lane & 31];
#else
  return __shfl_sync(ALL_LANES, value, lane);
#endif
}

template <class T>
DEVICE T shuffle_xor(T value, int mask) {
#ifdef REIN_HOST
  return host::meet_warp(value, "shuffle_xor")[(host::lane() ^ mask) & 31];
#else
  return __shfl_xor_sync(ALL_LANES, value, mask);
#endif
}

// The value of the lane `distance` above; the last `distance` lanes keep their own.
template <class T>
DEVICE T shuffle_down(T value, int distance) {
#ifdef REIN_HOST
  unsigned from = host::lane() + distance;
  return host::meet_warp(value, "shuffle_down")[from < 32 ? from : host::lane()];
#else
  return __shfl_down_sync(ALL_LANES, value, distance);
#endif
}

// Bit i is lane i's predicate.
DEVICE uint32_t warp_ballot(bool predicate) {
#ifdef REIN_HOST
  const bool *all = host::meet_warp(predicate, "ballot");
  uint32_t bits = 0;
  for (int i = 0; i < 32; i++) bits |= uint32_t(all[i]) << i;
  return bits;
#else
  return __ballot_sync(ALL_LANES, predicate);
#endif
}

DEVICE int count_bits(uint32_t bits) {
#ifdef REIN_HOST
  return __builtin_popcount(bits);
#else
  return __popc(bits);
#endif
}

// Waits for `threads` threads (whole warps) at barrier `id`, 1 to 15; 0 is that of __syncthreads.
DEVICE void named_barrier(int id, int threads) {
#ifdef REIN_HOST
  host::require(id > 0 && id < 16 && threads % 32 == 0, "named_barrier: id 1 to 15, whole warps");
  host::arrive_and_wait(host::block.named[id], threads, "named_barrier");
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// ---- Memory that other devices write ----

// What the writer did before its store_release_system is visible after the load that sees the stored value.
DEVICE uint32_t load_acquire_system(const uint32_t *from) {
#ifdef REIN_HOST
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#else
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#endif
}

DEVICE void store_release_system(uint32_t *to, uint32_t value) {
#ifdef REIN_HOST
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#else
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#endif
}

// ---- Shared memory ----

// The block's dynamic shared memory, aligned to 1024 bytes.
DEVICE unsigned char *dynamic_shared() {
#ifdef REIN_HOST
  return host::shared_start;
#else
  return dynamic_shared_memory;
#endif
}

// The address within shared memory that instructions take.
DEVICE uint32_t shared_address(const void *pointer) {
#ifdef REIN_HOST
  return uint32_t(static_cast<const unsigned char *>(pointer) - host::shared_start);
#else
  return uint32_t(__cvta_generic_to_shared(pointer));
#endif
}

// Where the 128-byte swizzle puts the byte at `offset` from a base that is aligned to 1024 bytes: the 16-byte chunks
// of each 128-byte row are permuted by the row's number within its 8 rows.
DEVICE uint32_t swizzle_128(uint32_t offset) { return offset ^ (offset >> 3 & 0x70); }

// ldmatrix: four 8 x 8 matrices of 16-bit numbers. Lane i gives the address of row i % 8 of matrix i / 8, aligned to 16
// bytes. Register m of lane i receives columns 2 * (i % 4) and the next of row i / 4 of matrix m; transposed: rows
// 2 * (i % 4) and the next of column i / 4.
template <bool TRANSPOSED = false>
DEVICE void ldmatrix_x4(uint32_t (&out)[4], const void *row) {
#ifdef REIN_HOST
  host::require(uintptr_t(row) % 16 == 0, "ldmatrix: rows must be aligned to 16 bytes");
  const void *const *rows = host::meet_warp(row, TRANSPOSED ? "ldmatrix.trans" : "ldmatrix");
  int major = host::lane() / 4, minor = host::lane() % 4 * 2;
  for (int m = 0; m < 4; m++) {
    uint16_t pair[2];
    for (int i = 0; i < 2; i++) {
      int r = TRANSPOSED ? minor + i : major, c = TRANSPOSED ? major : minor + i;
      memcpy(&pair[i], static_cast<const uint16_t *>(rows[m * 8 + r]) + c, 2);
    }
    memcpy(&out[m], pair, 4);
  }
#else
  if (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
#endif
}

// cp.async: copies 16 bytes to shared memory, of which all beyond the first `valid` are zeros. AHEAD: the 256 bytes
// around them are brought to the L2 cache.
template <bool AHEAD = false>
DEVICE void copy_async_16(void *to, const void *from, int valid = 16) {
#ifdef REIN_HOST
  host::require(uintptr_t(to) % 16 == 0 && uintptr_t(from) % 16 == 0, "cp.async: not aligned to 16 bytes");
  host::require(valid >= 0 && valid <= 16, "cp.async: 0 to 16 valid bytes");
  host::issue(host::fibres[host::current].open_copies, [=] {
    memset(to, 0, 16);
    memcpy(to, from, valid);
  });
#else
  if (AHEAD)
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid)
                 : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid)
                 : "memory");
#endif
}

// Ends this thread's group of copies.
DEVICE void copy_async_commit() {
#ifdef REIN_HOST
  host::Fibre &fibre = host::fibres[host::current];
  fibre.copies.push_back(std::move(fibre.open_copies));
  fibre.open_copies.clear();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING of this thread's groups are in flight.
template <int PENDING>
DEVICE void copy_async_wait() {
#ifdef REIN_HOST
  auto &groups = host::fibres[host::current].copies;
  while (groups.size() > PENDING) {
    for (auto &copy : groups.front()) copy();
    groups.erase(groups.begin());
  }
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// ---- Tensor cores: mma ----

// d += a * b for d [16, 8], a [16, 16] row-major, b [16, 8] column-major. With g = lane / 4 and t = lane % 4:
// a = rows g and g + 8 (registers 0, 1), columns 2t and the next; the same 8 columns further (2, 3).
// b = column g, rows 2t and the next (0); 8 rows further (1). d = row g (0, 1) and g + 8 (2, 3), columns 2t, 2t + 1.
DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef REIN_HOST
  struct Fragments {
    bf16 a[8], b[4];
  } own;
  memcpy(own.a, a, 16);
  memcpy(own.b, b, 8);
  const Fragments *all = host::meet_warp(own, "mma");
  int g = host::lane() / 4, t = host::lane() % 4;
  for (int i = 0; i < 4; i++) {
    int row = g + i / 2 * 8, column = t * 2 + i % 2;
    float sum = d[i];
    for (int k = 0; k < 16; k++) {
      bf16 left = all[row % 8 * 4 + k % 8 / 2].a[(row / 8 + k / 8 * 2) * 2 + k % 2];
      bf16 right = all[column * 4 + k % 8 / 2].b[k / 8 * 2 + k % 2];
      sum += to_float(left) * to_float(right);
    }
    d[i] = sum;
  }
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// ---- mbarrier and bulk copies ----
#if HAS_BULK_COPY

#ifdef REIN_HOST
// Of bf16 [rows, columns] with rows `stride` bytes apart, read in boxes of `box_rows` rows by 64 columns (128 bytes).
struct HostTensorMap {
  const void *data;
  uint64_t rows, columns, stride, box_rows;
  // Of the maps of fast/, which may have a third dimension. The type is the driver's number.
  uint64_t box_columns = 0, matrices = 0, matrix_stride = 0, element = 0, swizzled = 0, box_matrices = 0;
};

inline TensorMap host_tensor_map(const HostTensorMap &map) {
  TensorMap result = {};
  memcpy(&result, &map, sizeof map);
  return result;
}

namespace host {
inline Barrier &barrier(const uint64_t *address) {
  auto found = block.barriers.find(address);
  require(found != block.barriers.end(), "mbarrier: not initialized");
  return found->second;
}
}  // namespace host
#endif

// A phase ends after `arrivals` arrivals and when all announced bytes are there.
DEVICE void mbarrier_init(uint64_t *barrier, int arrivals) {
#ifdef REIN_HOST
  host::require(uintptr_t(barrier) % 8 == 0 && arrivals > 0, "mbarrier: aligned to 8 bytes, at least one arrival");
  host::Barrier &state = host::block.barriers[barrier];
  state.expected = state.pending = arrivals;
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#endif
}

// Makes initialized barriers visible to the copy engine; __syncthreads makes them visible to the other threads.
DEVICE void mbarrier_init_fence() {
#ifndef REIN_HOST
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

DEVICE void mbarrier_arrive(uint64_t *barrier) {
#ifdef REIN_HOST
  host::Barrier &state = host::barrier(barrier);
  host::require(--state.pending >= 0, "mbarrier: more arrivals than expected");
  host::complete_if_due(state);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

// Announces `bytes` of bulk copies and arrives.
DEVICE void mbarrier_arrive_expect(uint64_t *barrier, int bytes) {
#ifdef REIN_HOST
  host::Barrier &state = host::barrier(barrier);
  state.bytes += bytes;
  host::require(--state.pending >= 0, "mbarrier: more arrivals than expected");
  host::complete_if_due(state);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

// Waits for the end of the phase of this parity: 0 for the first, 1 for the second, and so on. The phase before the
// first has parity 1 and has ended.
DEVICE void mbarrier_wait(uint64_t *barrier, int parity) {
#ifdef REIN_HOST
  host::Barrier &state = host::barrier(barrier);
  if (int(state.phase & 1) == parity) host::wait_until_changed(&state.phase, state.phase, "mbarrier_wait");
#else
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

// Makes this thread's writes to shared memory visible to the copy engine and to wgmma.
DEVICE void fence_async_proxy() {
#ifndef REIN_HOST
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Copies `bytes` to shared memory; all three are multiples of 16. Counts towards the barrier's announced bytes.
DEVICE void bulk_copy(void *to, const void *from, int bytes, uint64_t *barrier) {
#ifdef REIN_HOST
  host::require(uintptr_t(to) % 16 == 0 && uintptr_t(from) % 16 == 0 && bytes % 16 == 0, "bulk_copy: not aligned");
  host::Barrier *state = &host::barrier(barrier);
  host::issue(host::block.copies, [=] {
    memcpy(to, from, bytes);
    state->bytes -= bytes;
    host::complete_if_due(*state);
  });
#else
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}

// Copies the box at (row, column) to shared memory, in rows of 128 bytes, swizzled; zeros outside of the tensor. `to`
// is aligned to 1024 bytes. The box counts towards the barrier's announced bytes, those outside of the tensor too.
DEVICE void tensor_copy(void *to, const TensorMap &map, int column, int row, uint64_t *barrier) {
#ifdef REIN_HOST
  HostTensorMap m;
  memcpy(static_cast<void *>(&m), &map, sizeof m);
  host::require(shared_address(to) % 1024 == 0, "tensor_copy: not aligned to 1024 bytes");
  host::require(uintptr_t(m.data) % 16 == 0 && m.stride % 16 == 0,
                "tensor_copy: the tensor is not aligned to 16 bytes");
  host::Barrier *state = &host::barrier(barrier);
  host::issue(host::block.copies, [=] {
    for (int r = 0; r < int(m.box_rows); r++)
      for (int c = 0; c < 64; c++) {
        bool inside = row + r >= 0 && uint64_t(row + r) < m.rows && column + c >= 0 && uint64_t(column + c) < m.columns;
        uint16_t value = 0;
        const unsigned char *from = static_cast<const unsigned char *>(m.data) + (row + r) * m.stride;
        if (inside) memcpy(&value, from + (column + c) * 2, 2);
        memcpy(static_cast<unsigned char *>(to) + swizzle_128(r * 128 + c * 2), &value, 2);
      }
    state->bytes -= m.box_rows * 128;
    host::complete_if_due(*state);
  });
#else
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
#endif
}

#endif  // HAS_BULK_COPY

// ---- Tensor cores: wgmma ----
#if HAS_WGMMA

// The matrix descriptor of bf16 rows of 64 numbers (128 bytes) in shared memory, swizzled as by tensor_copy, at
// `start`, aligned to 1024 bytes. Adding 2 moves it by 16 columns (32 bytes). Fields: address / 16 (bits 0-13), leading
// offset / 16 (unused by this layout), 1024 / 16 from one group of 8 rows to the next (32-45), 128-byte swizzle (62).
DEVICE uint64_t wgmma_descriptor(const void *start) {
  return uint64_t(shared_address(start) >> 4 & 0x3fff) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}

// Orders this warpgroup's accesses to registers and shared memory before its next wgmma.
DEVICE void wgmma_fence() {
#ifdef REIN_HOST
  host::meet_warpgroup("wgmma_fence");
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE void wgmma_commit() {
#ifdef REIN_HOST
  host::Fibre &fibre = host::fibres[host::current];
  fibre.products.push_back(std::move(fibre.open_products));
  fibre.open_products.clear();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most PENDING of the warpgroup's groups are in flight. Before that, neither the accumulators nor the
// operands in shared memory may be touched.
template <int PENDING>
DEVICE void wgmma_wait() {
#ifdef REIN_HOST
  host::meet_warpgroup("wgmma_wait");
  auto &groups = host::fibres[host::current].products;
  while (groups.size() > PENDING) {
    for (auto &product : groups.front()) product();
    groups.erase(groups.begin());
  }
  host::meet_warpgroup("wgmma_wait, done");
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

#ifdef REIN_HOST
namespace host {
// The bf16 at [row, column] of the matrix of a descriptor.
inline float described(uint64_t descriptor, int row, int column) {
  uint32_t start = (descriptor & 0x3fff) << 4, group = (descriptor >> 32 & 0x3fff) << 4;
  uint32_t address = swizzle_128(start + row / 8 * group + row % 8 * 128 + column * 2);
  bf16 value;
  memcpy(&value, shared_start + address, 2);
  return to_float(value);
}

// d [64, N] += a [64, 16] * b [N, 16] transposed: this thread's part of it, when it is waited for.
template <int N>
void issue_product(float (&d)[N / 2], uint64_t a, uint64_t b) {
  require((a >> 62) == 1 && (b >> 62) == 1, "wgmma: the descriptors must say 128-byte swizzle");
  float *out = d;
  int warp = current / 32 % 4, g = lane() / 4, t = lane() % 4;
  issue(fibres[current].open_products, [=] {
    for (int i = 0; i < N / 2; i++) {
      int row = warp * 16 + g + i % 4 / 2 * 8, column = i / 4 * 8 + t * 2 + i % 2;
      float sum = out[i];
      for (int k = 0; k < 16; k++) sum += described(a, row, k) * described(b, column, k);
      out[i] = sum;
    }
  });
}
}  // namespace host
#endif

// d [64, N] += a [64, 16] * b [N, 16] transposed, both of bf16 in shared memory. Warp w of the warpgroup has rows
// 16 * w and up; number i of lane l is row l / 4 + 8 * (i % 4 / 2), column 8 * (i / 4) + 2 * (l % 4) + i % 2.
#define ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC16(i) ACC4(i), ACC4(i + 4), ACC4(i + 8), ACC4(i + 12)
DEVICE void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b) {
#ifdef REIN_HOST
  host::issue_product<64>(d, a, b);
#else
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : ACC16(0), ACC16(16)
      : "l"(a), "l"(b));
#endif
}

DEVICE void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b) {
#ifdef REIN_HOST
  host::issue_product<128>(d, a, b);
#else
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, "
      "0, "
      "0;"
      : ACC16(0), ACC16(16), ACC16(32), ACC16(48)
      : "l"(a), "l"(b));
#endif
}
#undef ACC4
#undef ACC16

#endif  // HAS_WGMMA
