// Low-rank adapters: y row r += (x row times down transposed) times up transposed, with the adapter of the row's
// sequence. Two kernels, so that a row's x is read once for all of the adapter's rank.
//
// low_rank_down: t [rows, most] f32 = x times down transposed. A warp makes one number. Grid: (rows, ceil(most / 8)).
// low_rank_up: y [rows, n] += t times up transposed. Grid: (rows, ceil(n / 256)).
//
// Row r of y is route[r] (null: r) of the step's routes; `per_row` of them belong to a row of the batch, whose adapter
// is in slot slots[row]. Its place in the table is the slot, or slot * experts + expert[route] for those of experts; if
// `expert` is null, these are heads, whose routes go round: route % experts.
// Rows without a route, an expert, a slot or an adapter are not changed. x has a row for each row of the batch
// (`of_batch`), or one for each row of y. Sums are f32. Error: the order of sums, and rounding to Y.
#include "common.cuh"

struct LowRankEntry {
  const void *down, *up;  // [rank, k], [n, rank], both T.
  uint64_t rank;          // 0: no adapter.
};

struct LowRankArgs {
  const void *x;
  void *y;
  float *t;
  const LowRankEntry *table;
  const uint32_t *slots, *routes, *expert;
  int k, n, x_stride, y_stride, most, per_row, experts, of_batch;
};

namespace low_rank {

// The adapter of row r of y and the row of x. Null: none.
DEVICE const LowRankEntry *entry(const LowRankArgs &a, int r, int &x_row) {
  uint32_t route = a.routes ? a.routes[r] : r;
  if (route == NONE) return nullptr;
  uint32_t row = route / a.per_row, slot = a.slots[row];
  if (slot == NONE) return nullptr;
  x_row = a.of_batch ? row : r;
  if (a.experts) {
    uint32_t expert = a.expert ? a.expert[route] : route % a.experts;
    if (expert == NONE) return nullptr;
    slot = slot * a.experts + expert;
  }
  const LowRankEntry *found = a.table + slot;
  return found->rank == 0 ? nullptr : found;
}

}  // namespace low_rank

template <class T>
DEVICE void low_rank_down(const LowRankArgs &a) {
  int x_row = 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const LowRankEntry *found = low_rank::entry(a, blockIdx.x, x_row);
  int j = blockIdx.y * (blockDim.x / 32) + warp;
  if (!found || j >= int(found->rank)) return;
  const T *x = static_cast<const T *>(a.x) + size_t(x_row) * a.x_stride;
  const T *down = static_cast<const T *>(found->down) + size_t(j) * a.k;
  float sum = 0;
  for (int i = lane; i < a.k; i += 32) sum += to_float(x[i]) * to_float(down[i]);
  sum = warp_sum(sum);
  if (lane == 0) a.t[size_t(blockIdx.x) * a.most + j] = sum;
}

template <class T, class Y>
DEVICE void low_rank_up(const LowRankArgs &a) {
  int x_row = 0, column = blockIdx.y * blockDim.x + threadIdx.x;
  const LowRankEntry *found = low_rank::entry(a, blockIdx.x, x_row);
  if (!found || column >= a.n) return;
  int rank = int(found->rank);
  const T *up = static_cast<const T *>(found->up) + size_t(column) * rank;
  const float *t = a.t + size_t(blockIdx.x) * a.most;
  float sum = 0;
  for (int j = 0; j < rank; j++) sum += t[j] * to_float(up[j]);
  Y *y = static_cast<Y *>(a.y) + size_t(blockIdx.x) * a.y_stride + column;
  *y = from_float<Y>(to_float(*y) + sum);
}

ENTRY(low_rank_down_f32, (256), LowRankArgs) { low_rank_down<float>(a); }
ENTRY(low_rank_down_bf16, (256), LowRankArgs) { low_rank_down<bf16>(a); }
ENTRY(low_rank_up_f32, (256), LowRankArgs) { low_rank_up<float, float>(a); }
ENTRY(low_rank_up_bf16, (256), LowRankArgs) { low_rank_up<bf16, bf16>(a); }
ENTRY(low_rank_up_bf16_f32, (256), LowRankArgs) { low_rank_up<bf16, float>(a); }
