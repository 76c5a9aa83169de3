// linear_sm90: out [rows, n] = x [rows, k] times w [n, k] transposed, plus bias [n] f32 (may be null); x, w bf16.
// Out is bf16 (linear_sm90_bf16) or f32 (linear_sm90_f32). For Hopper: bulk tensor copies and wgmma.
//
// x_map and w_map are tensor maps of x and w with boxes of 64 rows by 64 columns, 128-byte swizzle; so k is a multiple
// of 8 and x, w are aligned to 16 bytes. Any rows and n. Grid: (ceil(n / 128), ceil(rows / 64)); 160 threads; shared
// memory: SHARED_BYTES. Each number is a sum over k in steps of 16 in ascending order. Error: as linear.
#include "common.cuh"
#if HAS_WGMMA

struct LinearSm90Args {
  TensorMap x_map, w_map;
  const float *bias;
  void *out;
  int rows, n, k, out_stride;
};

namespace linear_sm90 {

constexpr int STAGES = 4, DEPTH = 64, ROWS = 64, COLS = 128;
constexpr int X_BYTES = ROWS * DEPTH * 2, STAGE_BYTES = X_BYTES + COLS * DEPTH * 2;
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 2 * STAGES * 8;
static_assert(SHARED_BYTES <= 227 << 10);

// A warpgroup computes, a fifth warp copies. `full` ends a phase when a stage has arrived, `empty` when it was used.
template <class Out>
DEVICE void product(const LinearSm90Args &a) {
  unsigned char *shared = dynamic_shared();
  uint64_t *full = reinterpret_cast<uint64_t *>(shared + STAGES * STAGE_BYTES), *empty = full + STAGES;
  int thread = threadIdx.x, row = blockIdx.y * ROWS, col = blockIdx.x * COLS, steps = ceil_div(a.k, DEPTH);
  if (thread == 0) {
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(full + s, 1);
      mbarrier_init(empty + s, 128);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (thread >= 128) {
    if (thread > 128) return;
    for (int i = 0; i < steps; i++) {
      int s = i % STAGES;
      unsigned char *stage = shared + s * STAGE_BYTES;
      mbarrier_wait(empty + s, (i / STAGES + 1) % 2);
      mbarrier_arrive_expect(full + s, STAGE_BYTES);
      tensor_copy(stage, a.x_map, i * DEPTH, row, full + s);
      for (int c = 0; c < COLS; c += 64)
        tensor_copy(stage + X_BYTES + c * DEPTH * 2, a.w_map, i * DEPTH, col + c, full + s);
    }
    return;
  }
  float sums[COLS / 2] = {};
  for (int i = 0; i < steps; i++) {
    int s = i % STAGES;
    const unsigned char *stage = shared + s * STAGE_BYTES;
    mbarrier_wait(full + s, i / STAGES % 2);
    uint64_t x = wgmma_descriptor(stage), w = wgmma_descriptor(stage + X_BYTES);
    wgmma_fence();
    for (int d = 0; d < DEPTH / 16; d++) wgmma_m64n128k16(sums, x + 2 * d, w + 2 * d);
    wgmma_commit();
    wgmma_wait<0>();
    mbarrier_arrive(empty + s);
  }
  int lane = thread % 32;
#pragma unroll
  for (int i = 0; i < COLS / 2; i++) {
    int r = row + thread / 32 * 16 + lane / 4 + i % 4 / 2 * 8, c = col + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (r >= a.rows || c >= a.n) continue;
    static_cast<Out *>(a.out)[size_t(r) * a.out_stride + c] = from_float<Out>(sums[i] + (a.bias ? a.bias[c] : 0.0f));
  }
}

}  // namespace linear_sm90

ENTRY(linear_sm90_bf16, (160), LinearSm90Args) { linear_sm90::product<bf16>(a); }
ENTRY(linear_sm90_f32, (160), LinearSm90Args) { linear_sm90::product<float>(a); }
#endif
