// Attention over a latent cache whose positions are split over ranks. Tile t (64 positions) belongs to lane t % 8, and
// lane l to rank l % ranks, which so has lanes `lane_first`, lane_first + lane_step, ..., `lanes` of them. A rank has
// the queries of all heads, attends to its lanes one by one, and gives each rank the results of its heads; these are
// joined in the order of the lanes. So a row's bits do not depend on the number of ranks.
//
// The block table of a sequence has the blocks of each lane of this rank, one lane after the other, lane_stride apart.
// Position p is number p / 512 * 64 + p % 64 of its lane.
//
// Results of a lane: sums [ranks, lanes, rows, heads, width], normalized, where `heads` are those of the rank that will
//   read them, and scales [ranks, lanes, rows, heads], the base-2 logarithm of the sum of weights; -INFINITY and zeros
//   if the lane has no position that the row sees.
//
// lane_gather: queries [rows, ranks * heads, latent + rope] T, of which rank r's parts have latents [rows, heads,
//   latent], and the rotated part at `nope` of each of [rows, heads, nope + rope], whose rows are q_stride apart.
//   Grid: (rows, ranks * heads); 128 threads.
// lane_attention: attention.cu for each lane. Sums are f32. Grid: (rows, heads of all ranks, lanes); 128 threads;
//   shared memory: (width_a + width_b) floats.
// lane_merge: the results of a lane from the pieces of fast/flashinfer.cu (latent.cu), added in ascending order. Sums
//   are bf16, 512 wide. Grid: (rows, heads of these pieces, lanes); 128 threads.
// lane_join: out [rows, heads, width] T, rows first up to first + rows: the sum of the lanes of all ranks, weighted by
//   2 to the power of their scale, in ascending order of lanes. sums and scales are tables of the ranks' parts for this
//   rank. Rows that see no position get zeros. Grid: (rows, heads); 128 threads.
//   Error: f32 sums, exp2f, rounding.
#pragma once
#include "attention.cu"
#include "latent.cu"

struct LaneGatherArgs {
  const void *const *latents, *const *queries;
  void *out;
  int heads, latent, rope, nope, q_stride;
};

struct LaneAttentionArgs {
  AttentionArgs of;
  float *sums, *scales;
  int rows, heads, lanes, lane_first, lane_step, lane_stride;
};

struct LaneMergeArgs {
  const uint32_t *sequences, *positions;
  const int *tile_first, *tile_rows;
  const bf16 *partial;
  const float *partial_scale;
  bf16 *sums;
  float *scales;
  // `all`: heads of these pieces, the first of which is `head_first`.
  int rows, all, head_first, heads, lanes, lane_first, lane_step, chunk, chunks;
};

struct LaneJoinArgs {
  const void *const *sums;
  const float *const *scales;
  void *out;
  int first, rows, heads, width, ranks;
};

namespace lanes {

// Where a query's result of a lane is.
DEVICE size_t place(int head, int heads, int lanes, int lane, int rows, size_t row) {
  return ((size_t(head / heads) * lanes + lane) * rows + row) * heads + head % heads;
}

template <class T>
DEVICE void copy(const T *from, T *to, int count) {
  constexpr int N = 16 / sizeof(T);
  if (takes_several<N>(from, count) && takes_several<N>(to, count)) {
    for (int i = threadIdx.x; i < count / N; i += blockDim.x)
      reinterpret_cast<Several<T, N> *>(to)[i] = reinterpret_cast<const Several<T, N> *>(from)[i];
  } else {
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
  }
}

template <class T>
DEVICE void gather(const LaneGatherArgs &a) {
  size_t row = blockIdx.x;
  int all = gridDim.y, head = blockIdx.y, rank = head / a.heads, own = head % a.heads;
  const T *latent = static_cast<const T *>(a.latents[rank]), *query = static_cast<const T *>(a.queries[rank]);
  T *out = static_cast<T *>(a.out) + (row * all + head) * (a.latent + a.rope);
  if (!latent || !query) {
    for (int i = threadIdx.x; i < a.latent + a.rope; i += blockDim.x) out[i] = from_float<T>(0);
    return;
  }
  copy(latent + (row * a.heads + own) * a.latent, out, a.latent);
  copy(query + row * a.q_stride + size_t(own) * (a.nope + a.rope) + a.nope, out + a.latent, a.rope);
}

template <class T, class P>
DEVICE void join(const LaneJoinArgs &a) {
  int row = blockIdx.x, head = blockIdx.y;
  size_t query = size_t(row) * a.heads + head, apart = size_t(a.rows) * a.heads;
  T *out = static_cast<T *>(a.out) + (size_t(a.first + row) * a.heads + head) * a.width;
  float largest = -INFINITY, total = 0, weights[attention::LANES];
  for (int lane = 0; lane < attention::LANES; lane++) {
    const float *scales = a.scales[lane % a.ranks];
    weights[lane] = scales ? scales[lane / a.ranks * apart + query] : -INFINITY;
    largest = fmaxf(largest, weights[lane]);
  }
  for (int lane = 0; lane < attention::LANES; lane++) {
    weights[lane] = weights[lane] == -INFINITY ? 0 : exp2f(weights[lane] - largest);
    total += weights[lane];
  }
  for (int i = threadIdx.x; i < a.width; i += blockDim.x) {
    float sum = 0;
    for (int lane = 0; lane < attention::LANES; lane++) {
      if (weights[lane] == 0) continue;
      const P *part = static_cast<const P *>(a.sums[lane % a.ranks]);
      if (part) sum += weights[lane] * to_float(part[(lane / a.ranks * apart + query) * a.width + i]);
    }
    out[i] = from_float<T>(total > 0 ? sum / total : 0.0f);
  }
}

}  // namespace lanes

ENTRY(lane_gather_f32, (128), LaneGatherArgs) { lanes::gather<float>(a); }
ENTRY(lane_gather_bf16, (128), LaneGatherArgs) { lanes::gather<bf16>(a); }

ENTRY(lane_attention_f32, (128), LaneAttentionArgs) { attention::attend<float, float>(a.of, &a); }
ENTRY(lane_attention_bf16, (128), LaneAttentionArgs) { attention::attend<bf16, bf16>(a.of, &a); }
ENTRY(lane_attention_fp8_f32, (128), LaneAttentionArgs) { attention::attend<float, uint8_t>(a.of, &a); }
ENTRY(lane_attention_fp8_bf16, (128), LaneAttentionArgs) { attention::attend<bf16, uint8_t>(a.of, &a); }

ENTRY(lane_merge, (128), LaneMergeArgs) {
  int row = blockIdx.x, head = blockIdx.y, i = blockIdx.z, lane = a.lane_first + i * a.lane_step;
  bool has_work = a.sequences[row] != NONE;
  int pieces = has_work ? (latent::seen(a.positions[row], lane) + a.chunk - 1) / a.chunk : 0;
  size_t query = 0, apart = 0;
  float largest = -INFINITY, total = 0, sums[4] = {};
  if (has_work) {
    int first = a.tile_first[row], count = a.tile_rows[row];
    apart = size_t(count) * a.all;
    query = ((size_t(first) * a.lanes + size_t(i) * count) * a.chunks + row - first) * a.all + head;
  }
  for (int c = 0; c < pieces; c++) largest = fmaxf(largest, a.partial_scale[query + c * apart]);
  for (int c = 0; c < pieces; c++) {
    float weight = exp2f(a.partial_scale[query + c * apart] - largest);
    total += weight;
    const bf16 *part = a.partial + (query + c * apart) * latent::LATENT;
#pragma unroll
    for (int k = 0; k < 4; k++) sums[k] += weight * to_float(part[k * 128 + threadIdx.x]);
  }
  size_t at = lanes::place(a.head_first + head, a.heads, a.lanes, i, a.rows, row);
#pragma unroll
  for (int k = 0; k < 4; k++)
    a.sums[at * latent::LATENT + k * 128 + threadIdx.x] = to_bf16(pieces ? sums[k] / total : 0.0f);
  if (threadIdx.x == 0) a.scales[at] = pieces ? largest + log2f(total) : -INFINITY;
}

ENTRY(lane_join_f32, (128), LaneJoinArgs) { lanes::join<float, float>(a); }
ENTRY(lane_join_f32_bf16, (128), LaneJoinArgs) { lanes::join<bf16, float>(a); }
ENTRY(lane_join_bf16, (128), LaneJoinArgs) { lanes::join<bf16, bf16>(a); }
