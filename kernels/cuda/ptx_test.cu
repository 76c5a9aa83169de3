// One kernel for each wrapper of ptx.cuh: `out` gets what the wrapper gives, on the device and on the CPU alike.
// Operands are small integers, so that all sums are exact and the two must agree in every bit. One block; 128 threads;
// shared memory: 32 KiB. `in` holds 32 KiB, byte i being i * 7 + i / 251.
#include "common.cuh"

struct PtxArgs {
  TensorMap map;  // Of bf16 [100, 96] in `in`, with boxes of 64 x 64.
  const unsigned char *in;
  uint32_t *out;
};

namespace ptx_test {

DEVICE bf16 small(int i) { return to_bf16(float(i * 5 % 17 - 8)); }

// Fills [rows, 64] of bf16 with small integers, swizzled as tensor_copy does.
DEVICE void fill_swizzled(unsigned char *to, int rows, int salt) {
  for (int i = threadIdx.x; i < rows * 64; i += 128)
    *reinterpret_cast<bf16 *>(to + swizzle_128(i * 2)) = small(i + i / 64 * salt);
}

}  // namespace ptx_test

extern "C" __global__ void ptx_bf16(const __grid_constant__ PtxArgs a) {
  int i = threadIdx.x;
  union {
    uint32_t bits;
    float value;
  } x;
  // Ties, carries into the exponent, subnormals, infinities and NaN.
  x.bits = uint32_t(i) << 25 ^ uint32_t(i % 4) << 14 ^ uint32_t(i % 8) << 16 ^ uint32_t(i % 3 == 0 ? 0xffff : 0x8000);
  bf16 rounded = to_bf16(x.value);
  a.out[2 * i] = rounded.bits;
  a.out[2 * i + 1] = x.value != x.value ? 0 : float_bits(to_float(rounded));
}

extern "C" __global__ void ptx_pairs(const __grid_constant__ PtxArgs a) {
  uint32_t i = threadIdx.x;
  // Two codes of e4m3 in the place of bf16 bits, times 2^120: subnormal ones too. Then two integers.
  uint32_t codes = i << 4 | (i * 37 & 127) << 20 | (i & 1) << 15 | (i & 2) << 30;
  a.out[3 * i] = fma_bf16x2(codes, 0x7b807b80, 0x80008000);
  a.out[3 * i + 1] = fma_bf16x2(0x43004300 | (i & 15) | (i >> 3) << 16, 0x3f803f80, 0xc308c308);
  a.out[3 * i + 2] = and_or(i * 0x9e3779b9u, 0x000f000f, 0x43004300);
}

extern "C" __global__ void ptx_shuffle(const __grid_constant__ PtxArgs a) {
  int i = threadIdx.x;
  uint32_t *out = a.out + i * 6;
  out[0] = shuffle(i * 3, i * 5 % 32);
  out[1] = shuffle_xor(i * 3, 9);
  out[2] = shuffle_down(i * 3, 7);
  out[3] = warp_ballot(i % 3 == 0);
  out[4] = count_bits(out[3]);
  out[5] = uint32_t(shuffle_xor(0x0123456789abcdefull * i, 1) >> 32);
}

extern "C" __global__ void ptx_named_barrier(const __grid_constant__ PtxArgs a) {
  SHARED(uint32_t, values, 128);
  int i = threadIdx.x, pair = i / 64;
  for (int round = 0; round < 3; round++) {
    values[i] = i * 10 + round;
    named_barrier(1 + pair, 64);
    a.out[i * 3 + round] = values[pair * 64 + (i + 40) % 64];
    named_barrier(1 + pair, 64);
  }
}

extern "C" __global__ void ptx_ldmatrix(const __grid_constant__ PtxArgs a) {
  unsigned char *shared = dynamic_shared();
  uint16_t *numbers = reinterpret_cast<uint16_t *>(shared);
  for (int i = threadIdx.x; i < 4096; i += 128) numbers[i] = uint16_t(i * 3);
  __syncthreads();
  uint32_t plain[4], transposed[4];
  const uint16_t *row = numbers + threadIdx.x * 24;
  ldmatrix_x4(plain, row);
  ldmatrix_x4<true>(transposed, row);
  for (int i = 0; i < 4; i++) {
    a.out[threadIdx.x * 8 + i] = plain[i];
    a.out[threadIdx.x * 8 + 4 + i] = transposed[i];
  }
}

extern "C" __global__ void ptx_copy_async(const __grid_constant__ PtxArgs a) {
  unsigned char *shared = dynamic_shared();
  int i = threadIdx.x;
  for (int stage = 0; stage < 3; stage++) {
    unsigned char *to = shared + (stage * 128 + i) * 16;
    const unsigned char *from = a.in + (stage * 128 + i) * 16;
    if (stage == 2)
      copy_async_16<true>(to, from);
    else
      copy_async_16(to, from, stage == 1 ? i % 17 : 16);
    copy_async_commit();
  }
  copy_async_wait<1>();
  __syncthreads();
  const uint32_t *words = reinterpret_cast<const uint32_t *>(shared);
  for (int w = 0; w < 8; w++) a.out[i * 12 + w] = words[w * 128 + i];
  copy_async_wait<0>();
  __syncthreads();
  for (int w = 8; w < 12; w++) a.out[i * 12 + w] = words[w * 128 + i];
}

extern "C" __global__ void ptx_mma(const __grid_constant__ PtxArgs a) {
  int i = threadIdx.x;
  bf16 left[8], right[4];
  for (int e = 0; e < 8; e++) left[e] = ptx_test::small(i * 8 + e);
  for (int e = 0; e < 4; e++) right[e] = ptx_test::small(i * 4 + e + 3);
  uint32_t x[4], y[2];
  for (int e = 0; e < 4; e++) x[e] = left[2 * e].bits | uint32_t(left[2 * e + 1].bits) << 16;
  for (int e = 0; e < 2; e++) y[e] = right[2 * e].bits | uint32_t(right[2 * e + 1].bits) << 16;
  float d[4] = {1.0f * i, 2, 3, 4};
  mma_m16n8k16(d, x, y);
  mma_m16n8k16(d, x, y);
  for (int e = 0; e < 4; e++) a.out[i * 4 + e] = float_bits(d[e]);
}

#if HAS_BULK_COPY
extern "C" __global__ void ptx_bulk_copy(const __grid_constant__ PtxArgs a) {
  unsigned char *shared = dynamic_shared();
  SHARED(uint64_t, barriers, 2);
  int i = threadIdx.x;
  if (i == 0) {
    mbarrier_init(barriers, 1);
    mbarrier_init(barriers + 1, 127);
    mbarrier_init_fence();
  }
  __syncthreads();
  const uint32_t *words = reinterpret_cast<const uint32_t *>(shared);
  for (int round = 0; round < 3; round++) {
    if (i == 0) {
      // The others have read the round before.
      mbarrier_wait(barriers + 1, (round + 1) % 2);
      mbarrier_arrive_expect(barriers, 2048);
      bulk_copy(shared, a.in + round * 4096, 1024, barriers);
      bulk_copy(shared + 1024, a.in + round * 4096 + 2064, 1024, barriers);
    }
    mbarrier_wait(barriers, round % 2);
    for (int w = 0; w < 4; w++) a.out[(round * 4 + w) * 128 + i] = words[w * 128 + i];
    if (i > 0) mbarrier_arrive(barriers + 1);
  }
}

extern "C" __global__ void ptx_tensor_copy(const __grid_constant__ PtxArgs a) {
  unsigned char *shared = dynamic_shared();
  SHARED(uint64_t, barrier, 1);
  int i = threadIdx.x;
  if (i == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (i == 0) {
    mbarrier_arrive_expect(barrier, 2 * 8192);
    tensor_copy(shared, a.map, 16, 5, barrier);
    tensor_copy(shared + 8192, a.map, 64, 64, barrier);  // Beyond the last row and column.
  }
  mbarrier_wait(barrier, 0);
  const uint32_t *words = reinterpret_cast<const uint32_t *>(shared);
  for (int w = 0; w < 32; w++) a.out[w * 128 + i] = words[w * 128 + i];
}
#endif

#if HAS_WGMMA
template <int N>
DEVICE void ptx_wgmma(const PtxArgs &a) {
  unsigned char *shared = dynamic_shared();
  unsigned char *x = shared, *y = shared + 64 * 128;
  ptx_test::fill_swizzled(x, 64, 3);
  ptx_test::fill_swizzled(y, N, 11);
  fence_async_proxy();
  __syncthreads();
  float d[N / 2];
#pragma unroll
  for (int e = 0; e < N / 2; e++) d[e] = float(e);
  wgmma_fence();
  for (int k = 0; k < 4; k++) {
    if constexpr (N == 64) wgmma_m64n64k16(d, wgmma_descriptor(x) + 2 * k, wgmma_descriptor(y) + 2 * k);
    if constexpr (N == 128) wgmma_m64n128k16(d, wgmma_descriptor(x) + 2 * k, wgmma_descriptor(y) + 2 * k);
  }
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int e = 0; e < N / 2; e++) a.out[threadIdx.x * (N / 2) + e] = float_bits(d[e]);
}
extern "C" __global__ void __launch_bounds__(128) ptx_wgmma_64(const __grid_constant__ PtxArgs a) { ptx_wgmma<64>(a); }
extern "C" __global__ void __launch_bounds__(128) ptx_wgmma_128(const __grid_constant__ PtxArgs a) {
  ptx_wgmma<128>(a);
}
#endif
