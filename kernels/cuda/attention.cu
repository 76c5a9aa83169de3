// attention: causal attention of each query row over the paged cache. Grid: (rows, heads); 128 threads; shared memory:
// (width_a + width_b) floats.
//
// score = scale * (a . key_a + b . key_b); out [rows, heads * value_width] T = the mean of the values, weighted by the
// softmax of the scores, over the positions from max(0, p - window + 1) to the row's position p (window 0: from 0).
//
// Query parts: a = qa + row * qa_stride + head * qa_head_stride, of width_a; likewise b, of width_b (0: no second
// part). Cached: key_a = cache_a + place * a_entry + head / group * a_head; likewise key_b; value = cache_value + place
// * value_entry + head / group * value_head (elements). place = tables[sequence * table_stride + position / block_size]
// * block_size + position % block_size. A row whose sequence is NONE gets zeros.
//
// GQA: a = q, key_a = k, value = v, group = heads / kv_heads. MLA: a = q through kv_b to the latent, b = the rotary
// part of q, key_a = value = the latent, key_b = the rotary key, group = heads.
//
// attention_fp8: the cache has e4m3 codes (cache.cu). scales [places, scales_of_place]: number i of an entry of key_a
// has scale i / a_sharing, of value value_first + i / value_sharing; key_b has none.
//
// sinks [heads] (may be null): for each head a score that takes a share of the softmax, with no value.
//
// value_width <= 1024; any other sizes. Positions are processed in tiles of 64 at multiples of 64 from the start of the
// sequence, so a row's bits depend on neither chunks, blocks nor other rows. Error: f32 sums, expf, rounding to T.
#pragma once
#include "cache.cu"

struct AttentionArgs {
  const void *qa, *qb, *cache_a, *cache_b, *cache_value;
  void *out;
  const uint32_t *sequences, *positions, *tables;
  size_t a_entry, b_entry, value_entry;
  int qa_stride, qa_head_stride, width_a, a_head;
  int qb_stride, qb_head_stride, width_b, b_head;
  int value_width, value_head, group, table_stride, block_size, window;
  float scale;
  const float *scales;
  int scales_of_place, a_sharing, value_sharing, value_first;
  const float *sinks;
};

namespace attention {

constexpr int TILE = 64, THREADS = 128, COLUMNS = 8;  // Columns of the value per thread.
constexpr int LANES = 8;  // lanes.cu

// All positions are one lane.
struct Unsplit {};

DEVICE int lane_of(const Unsplit *) { return 0; }
DEVICE const uint32_t *table_of(const AttentionArgs &a, const Unsplit *, uint32_t sequence) {
  return a.tables + size_t(sequence) * a.table_stride;
}
DEVICE uint32_t number_in_lane(const Unsplit *, uint32_t p) { return p; }

// One of this block's lanes.
template <class L>
DEVICE int lane_of(const L *lanes) {
  return lanes->lane_first + int(blockIdx.z) * lanes->lane_step;
}
template <class L>
DEVICE const uint32_t *table_of(const AttentionArgs &a, const L *lanes, uint32_t sequence) {
  return a.tables + size_t(sequence) * a.table_stride + size_t(blockIdx.z) * lanes->lane_stride;
}
template <class L>
DEVICE uint32_t number_in_lane(const L *, uint32_t p) {
  return p / (LANES * TILE) * TILE + p % TILE;
}

template <class L>
constexpr bool is_split = true;
template <>
constexpr bool is_split<Unsplit> = false;

template <class T>
DEVICE float scaled(const AttentionArgs &, T number, uint32_t, int, int, int) {
  return to_float(number);
}
DEVICE float scaled(const AttentionArgs &a, uint8_t code, uint32_t place, int i, int sharing, int first) {
  return cache::number(code) * a.scales[size_t(place) * a.scales_of_place + first + i / sharing];
}

// The cache has numbers C: T, or codes. `lanes`: as lanes.cu says, and what it says is written.
template <class T, class C, class L>
DEVICE void attend(const AttentionArgs &a, const L *lanes) {
  unsigned char *shared = dynamic_shared();
  SHARED(float, scores, TILE);
  SHARED(uint32_t, places, TILE);
  float *query = reinterpret_cast<float *>(shared);
  int head = blockIdx.y, heads = gridDim.y, kv_head = head / a.group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  size_t row = blockIdx.x;
  T *out = static_cast<T *>(a.out) + (row * heads + head) * a.value_width;
  float *sums_out = nullptr, *scale_out = nullptr;
  if constexpr (is_split<L>) {
    size_t at = ((size_t(head / lanes->heads) * lanes->lanes + blockIdx.z) * lanes->rows + row) * lanes->heads +
                head % lanes->heads;
    sums_out = lanes->sums + at * a.value_width, scale_out = lanes->scales + at;
  }
  uint32_t sequence = a.sequences[row];
  if (sequence == NONE) {
    for (int i = threadIdx.x; i < a.value_width; i += THREADS) {
      if constexpr (is_split<L>)
        sums_out[i] = 0;
      else
        out[i] = from_float<T>(0);
    }
    if (is_split<L> && threadIdx.x == 0) *scale_out = -INFINITY;
    return;
  }
  const T *qa = static_cast<const T *>(a.qa) + row * a.qa_stride + size_t(head) * a.qa_head_stride;
  for (int i = threadIdx.x; i < a.width_a; i += THREADS) query[i] = to_float(qa[i]);
  if (a.width_b) {
    const T *qb = static_cast<const T *>(a.qb) + row * a.qb_stride + size_t(head) * a.qb_head_stride;
    for (int i = threadIdx.x; i < a.width_b; i += THREADS) query[a.width_a + i] = to_float(qb[i]);
  }
  int position = a.positions[row], first = a.window && position >= a.window ? position - a.window + 1 : 0;
  const uint32_t *table = table_of(a, lanes, sequence);
  constexpr int STEP = is_split<L> ? LANES * TILE : TILE;
  float largest = -INFINITY, total = 0, sums[COLUMNS] = {};
  for (int from = first / TILE * TILE + lane_of(lanes) * TILE; from <= position; from += STEP) {
    // Positions of the tile that the row sees.
    int begin = first > from ? first - from : 0, end = position - from + 1 < TILE ? position - from + 1 : TILE;
    for (int j = begin + threadIdx.x; j < end; j += THREADS) {
      uint32_t p = number_in_lane(lanes, from + j);
      places[j] = table[p / a.block_size] * a.block_size + p % a.block_size;
    }
    __syncthreads();
    for (int j = begin + warp; j < end; j += THREADS / 32) {
      const C *key = static_cast<const C *>(a.cache_a) + places[j] * a.a_entry + size_t(kv_head) * a.a_head;
      float sum = 0;
      for (int i = lane; i < a.width_a; i += 32)
        sum += query[i] * scaled(a, key[i], places[j], kv_head * a.a_head + i, a.a_sharing, 0);
      if (a.width_b) {
        key = static_cast<const C *>(a.cache_b) + places[j] * a.b_entry + size_t(kv_head) * a.b_head;
        for (int i = lane; i < a.width_b; i += 32) sum += query[a.width_a + i] * cache::number(key[i]);
      }
      sum = warp_sum(sum);
      if (lane == 0) scores[j] = sum * a.scale;
    }
    __syncthreads();
    float before = largest;
    for (int j = begin; j < end; j++) largest = fmaxf(largest, scores[j]);
    __syncthreads();
    for (int j = begin + threadIdx.x; j < end; j += THREADS) scores[j] = expf(scores[j] - largest);
    __syncthreads();
    float decay = expf(before - largest);
    total *= decay;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sums[c] *= decay;
    for (int j = begin; j < end; j++) {
      const C *value =
          static_cast<const C *>(a.cache_value) + places[j] * a.value_entry + size_t(kv_head) * a.value_head;
      float weight = scores[j];
      total += weight;
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        int i = c * THREADS + threadIdx.x;
        if (i < a.value_width)
          sums[c] += weight * scaled(a, value[i], places[j], kv_head * a.value_head + i, a.value_sharing, a.value_first);
      }
    }
    __syncthreads();
  }
  if constexpr (is_split<L>) {
    if (threadIdx.x == 0) *scale_out = total > 0 ? largest * 1.44269504f + log2f(total) : -INFINITY;
  } else if (a.sinks) {
    total += expf(a.sinks[head] - largest);
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    int i = c * THREADS + threadIdx.x;
    if (i >= a.value_width) continue;
    if constexpr (is_split<L>)
      sums_out[i] = total > 0 ? sums[c] / total : 0;
    else
      out[i] = from_float<T>(sums[c] / total);
  }
}

}  // namespace attention

ENTRY(attention_f32, (128), AttentionArgs) {
  attention::attend<float, float>(a, static_cast<attention::Unsplit *>(nullptr));
}
ENTRY(attention_bf16, (128), AttentionArgs) {
  attention::attend<bf16, bf16>(a, static_cast<attention::Unsplit *>(nullptr));
}
ENTRY(attention_fp8_f32, (128), AttentionArgs) {
  attention::attend<float, uint8_t>(a, static_cast<attention::Unsplit *>(nullptr));
}
ENTRY(attention_fp8_bf16, (128), AttentionArgs) {
  attention::attend<bf16, uint8_t>(a, static_cast<attention::Unsplit *>(nullptr));
}
