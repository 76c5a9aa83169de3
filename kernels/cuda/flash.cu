// Causal attention of grouped heads over the paged cache, on tensor cores (FlashAttention-2, Dao 2023, arXiv
// 2307.08691). It computes what attention.cu says of GQA, for bf16 and heads of at most 128 numbers, a multiple of 8.
//
// The queries of a tile are `tile_rows` rows times `group` heads, which share a KV head. The positions of a sequence
// are cut into chunks of 256 from its start, and tiles of 64. Of each chunk a query gets the largest score, the sum of
// weights, and the weighted sum of values; a query's chunks are joined in ascending order. So its bits depend on
// neither chunks of the prompt, blocks, nor other rows, and both ways to compute them give the same:
//
// flash_bf16_N        one block joins all chunks. Grid: (tiles of rows, KV heads); 256 threads; tile_rows * group is
//                     at most 128.
// flash_split_bf16_N  one block for each chunk of a row; tile_rows is 1. A row's only chunk goes to out, others to
//                     partial [rows, heads, chunks, N + 4] f32: the sum of values, the largest score, the sum of
//                     weights. Grid: (rows, KV heads, chunks); 128 threads; group <= 64.
// flash_merge         joins the chunks of rows with several. Grid: (rows, heads); 128 threads.
//
// flash_fp8_N, flash_split_fp8_N: the same over e4m3 codes (cache.cu). `sharing` numbers of a head share a scale: those
// of keys are the first of a place, those of values begin at value_first. They become bf16 on their way, which is
// exact.
//
// sinks [heads] (may be null): for each head a score that takes a share of the softmax, with no value.
//
// N (64, 128) is the width of a head, filled up with zeros. Shared memory: (queries of a tile + 256) * N * 2 bytes, of
// 128 or 64 queries. Rows first up to first + rows; rows whose sequence is NONE get zeros. Pointers and strides of q
// are multiples of 16 bytes. Error: f32 sums, exp2f, weights rounded to bf16, rounding to bf16.
#pragma once
#include "cache.cu"

struct FlashArgs {
  const bf16 *q;
  const void *k, *v;
  bf16 *out;
  float *partial;
  const uint32_t *sequences, *positions, *tables;
  size_t entry;  // Numbers of a cached position.
  int first, rows, q_stride, head_dim, group, tile_rows, table_stride, block_size, window, chunks, partial_stride;
  float scale;
  const float *scales;
  int scales_of_place, sharing, value_first;
  const float *sinks;
};

namespace flash {

constexpr int TILE = 64, CHUNK = 256;
constexpr float LOG2_E = 1.44269504f;

DEVICE int first_seen(const FlashArgs &a, int position) {
  return a.window && position >= a.window ? position - a.window + 1 : 0;
}

// All that a query's values are divided by. `largest`: of the scores, times log2(e).
DEVICE float divisor(const FlashArgs &a, int head, float largest, float weights) {
  return a.sinks ? add(weights, exp2f(multiply(a.sinks[head], LOG2_E) - largest)) : weights;
}

DEVICE uint32_t pack(float low, float high) {
  return uint32_t(to_bf16(low).bits) | uint32_t(to_bf16(high).bits) << 16;
}

// Factors of two sums whose weights are relative to 2^a and 2^b, for one that is relative to the larger.
struct Joined {
  float largest, of_a, of_b;
  DEVICE Joined(float a, float b) {
    largest = fmaxf(a, b);
    of_a = a == -INFINITY ? 0 : exp2f(a - largest);
    of_b = b == -INFINITY ? 0 : exp2f(b - largest);
  }
  DEVICE float sum(float a, float b) const { return add(multiply(a, of_a), multiply(b, of_b)); }
};

// The sums of a warp's 16 queries over positions. A thread has those of queries lane / 4 and lane / 4 + 8: numbers 8 j
// + lane % 4 * 2 and the next are values[j][0, 1], and [2, 3].
template <int N>
struct Sums {
  float values[N / 8][4], largest[2], weights[2];
  DEVICE void clear() {
    for (int i = 0; i < 2; i++) largest[i] = -INFINITY, weights[i] = 0;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) values[j][e] = 0;
  }
  // Sums over the four threads of a query.
  DEVICE void gather_weights() {
    for (int i = 0; i < 2; i++) {
      weights[i] += shuffle_xor(weights[i], 1);
      weights[i] += shuffle_xor(weights[i], 2);
    }
  }
  DEVICE void join(const Sums &chunk) {
    for (int i = 0; i < 2; i++) {
      Joined joined(largest[i], chunk.largest[i]);
      largest[i] = joined.largest;
      weights[i] = joined.sum(weights[i], chunk.weights[i]);
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; e++) values[j][e] = joined.sum(values[j][e], chunk.values[j][e]);
    }
  }
};

// A matrix in shared memory, of rows of N numbers in chunks of 8, which are permuted so that the rows of a matrix of
// ldmatrix are in different banks.
template <int N>
DEVICE bf16 *place(bf16 *matrix, int row, int chunk) {
  return matrix + row * N + (chunk ^ (row & 7)) * 8;
}

// A block's work over a cache of C: bf16, or codes.
template <int N, int WARPS, class C>
struct Block {
  static constexpr int QUERIES = 16 * WARPS, THREADS = 32 * WARPS, WIDTH = N / 8;
  const FlashArgs &a;
  int kv_head, heads, first_row, end_row, warp, lane;
  bf16 *queries, *keys, *values;
  // Of the thread's two queries: what they see, and whether they have a sequence in this pass.
  int low[2], high[2];

  DEVICE Block(const FlashArgs &a, int tile) : a(a) {
    kv_head = blockIdx.y, heads = gridDim.y * a.group;
    first_row = a.first + tile * a.tile_rows;
    end_row = first_row + a.tile_rows < a.first + a.rows ? first_row + a.tile_rows : a.first + a.rows;
    warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    queries = reinterpret_cast<bf16 *>(dynamic_shared());
    keys = queries + QUERIES * N, values = keys + 2 * TILE * N;
  }

  // Query i of this thread: its place in the tile.
  DEVICE int query(int i) const { return warp * 16 + lane / 4 + 8 * i; }
  DEVICE int row_of(int query) const { return first_row + query / a.group; }

  DEVICE void bring_queries() {
    int count = (end_row - first_row) * a.group;
    for (int i = threadIdx.x; i < QUERIES * WIDTH; i += THREADS) {
      int m = i / WIDTH, chunk = i % WIDTH;
      bool inside = m < count && chunk * 8 < a.head_dim;
      const bf16 *from = a.q;
      if (inside)
        from += size_t(row_of(m)) * a.q_stride + size_t(kv_head * a.group + m % a.group) * a.head_dim + chunk * 8;
      copy_async_16(place<N>(queries, m, chunk), from, inside ? 16 : 0);
    }
  }

  // Keys and values of a tile of positions: those from first to last, and zeros.
  DEVICE void bring(const uint32_t *table, int tile, int first, int last) {
    bf16 *k = keys + tile % 2 * TILE * N, *v = values + tile % 2 * TILE * N;
    for (int i = threadIdx.x; i < TILE * WIDTH; i += THREADS) {
      int row = i / WIDTH, chunk = i % WIDTH, position = tile * TILE + row;
      bool inside = position >= first && position <= last && chunk * 8 < a.head_dim;
      size_t at = 0, entry = 0;
      int column = kv_head * a.head_dim + chunk * 8;
      if (inside) {
        entry = size_t(table[position / a.block_size]) * a.block_size + position % a.block_size;
        at = entry * a.entry + column;
      }
      const C *from_k = static_cast<const C *>(a.k) + at, *from_v = static_cast<const C *>(a.v) + at;
      if constexpr (sizeof(C) == sizeof(bf16)) {
        copy_async_16(place<N>(k, row, chunk), from_k, inside ? 16 : 0);
        copy_async_16(place<N>(v, row, chunk), from_v, inside ? 16 : 0);
      } else {
        const float *scales = a.scales + entry * a.scales_of_place + column / a.sharing;
        widen(place<N>(k, row, chunk), from_k, inside, scales, 0);
        widen(place<N>(v, row, chunk), from_v, inside, scales, a.value_first);
      }
    }
  }

  // Eight codes with the scale scales[at], or zeros.
  DEVICE static void widen(bf16 *to, const uint8_t *from, bool inside, const float *scales, int at) {
    Several<bf16, 8> numbers;
    auto codes = inside ? *reinterpret_cast<const Several<uint8_t, 8> *>(from) : Several<uint8_t, 8>{};
    float scale = inside ? scales[at] : 0;
    for (int i = 0; i < 8; i++) numbers.of[i] = to_bf16(cache::number(codes.of[i]) * scale);
    *reinterpret_cast<Several<bf16, 8> *>(to) = numbers;
  }

  // Adds a tile to the sums. All lanes of a warp call it.
  DEVICE void attend(Sums<N> &sums, int tile) {
    bf16 *k = keys + tile % 2 * TILE * N, *v = values + tile % 2 * TILE * N;
    float scores[TILE / 8][4] = {};
#pragma unroll
    for (int step = 0; step < N / 16; step++) {
      uint32_t q[4];
      ldmatrix_x4(q, place<N>(queries, warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int pair = 0; pair < TILE / 16; pair++) {
        uint32_t b[4];
        ldmatrix_x4(b, place<N>(k, pair * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
        mma_m16n8k16(scores[2 * pair], q, {b[0], b[1]});
        mma_m16n8k16(scores[2 * pair + 1], q, {b[2], b[3]});
      }
    }
    for (int i = 0; i < 2; i++) {
      float largest = sums.largest[i], weights = 0;
#pragma unroll
      for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; e++) {
          int position = tile * TILE + j * 8 + lane % 4 * 2 + e % 2;
          bool seen = position >= low[i] && position <= high[i];
          scores[j][e] = seen ? multiply(scores[j][e], a.scale * LOG2_E) : -INFINITY;
          largest = fmaxf(largest, scores[j][e]);
        }
      largest = fmaxf(largest, shuffle_xor(largest, 1));
      largest = fmaxf(largest, shuffle_xor(largest, 2));
      // A query that has seen nothing yet has no largest score.
      float from = largest == -INFINITY ? 0 : largest, decay = exp2f(sums.largest[i] - from);
#pragma unroll
      for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; e++) weights += scores[j][e] = exp2f(scores[j][e] - from);
      sums.largest[i] = largest;
      sums.weights[i] = add(multiply(sums.weights[i], decay), weights);
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; e++) sums.values[j][e] = multiply(sums.values[j][e], decay);
    }
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
      const float(&left)[4] = scores[2 * step], (&right)[4] = scores[2 * step + 1];
      uint32_t p[4] = {pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]), pack(right[2], right[3])};
#pragma unroll
      for (int pair = 0; pair < N / 16; pair++) {
        uint32_t b[4];
        ldmatrix_x4<true>(b, place<N>(v, step * 16 + lane / 8 % 2 * 8 + lane % 8, pair * 2 + lane / 16));
        mma_m16n8k16(sums.values[2 * pair], p, {b[0], b[1]});
        mma_m16n8k16(sums.values[2 * pair + 1], p, {b[2], b[3]});
      }
    }
  }

  // What this thread's queries see: those of rows from up to to.
  DEVICE void look(int from, int to) {
    for (int i = 0; i < 2; i++) {
      int row = row_of(query(i));
      bool inside = row >= from && row < to;
      high[i] = inside ? int(a.positions[row]) : -1;
      low[i] = inside ? first_seen(a, high[i]) : 0x7fffffff;
    }
  }

  // Positions first to last of a sequence, and `after` each tile.
  template <class After>
  DEVICE void walk(Sums<N> &sums, const uint32_t *table, int first, int last, After after) {
    int from = first / TILE, end = last / TILE + 1;
    int highest = high[0] > high[1] ? high[0] : high[1], lowest = low[0] < low[1] ? low[0] : low[1];
    for (int mask = 4; mask < 32; mask *= 2) {
      int other = shuffle_xor(highest, mask);
      highest = other > highest ? other : highest;
      other = shuffle_xor(lowest, mask);
      lowest = other < lowest ? other : lowest;
    }
    bring(table, from, first, last);
    copy_async_commit();
    for (int tile = from; tile < end; tile++) {
      if (tile + 1 < end) bring(table, tile + 1, first, last);
      copy_async_commit();
      copy_async_wait<1>();
      __syncthreads();
      // A tile of which a query sees nothing would change none of its bits.
      if (highest >= tile * TILE && lowest < (tile + 1) * TILE) attend(sums, tile);
      after(tile);
      __syncthreads();
    }
    copy_async_wait<0>();
  }

  DEVICE void store(const Sums<N> &sums) const {
    for (int i = 0; i < 2; i++) {
      if (high[i] < 0) continue;
      int m = query(i), row = row_of(m), head = kv_head * a.group + m % a.group;
      bf16 *out = a.out + (size_t(row) * heads + head) * a.head_dim;
      float weights = divisor(a, head, sums.largest[i], sums.weights[i]);
#pragma unroll
      for (int j = 0; j < N / 8; j++)
        for (int e = 0; e < 2; e++) {
          int column = j * 8 + lane % 4 * 2 + e;
          if (column < a.head_dim) out[column] = to_bf16(sums.values[j][2 * i + e] / weights);
        }
    }
  }

  DEVICE void store_zeros(int from, int to) const {
    int numbers = a.group * a.head_dim;
    for (int i = threadIdx.x; i < (to - from) * numbers; i += THREADS)
      a.out[(size_t(from + i / numbers) * heads + kv_head * a.group) * a.head_dim + i % numbers] = to_bf16(0);
  }
};

template <int N, class C>
DEVICE void whole(const FlashArgs &a) {
  // Blocks begin in this order, and later rows see more.
  Block<N, 8, C> block(a, gridDim.x - 1 - blockIdx.x);
  block.bring_queries();
  for (int from = block.first_row, to; from < block.end_row; from = to) {
    uint32_t sequence = a.sequences[from];
    for (to = from + 1; to < block.end_row && a.sequences[to] == sequence; to++) {}
    if (sequence == NONE) {
      block.store_zeros(from, to);
      continue;
    }
    block.look(from, to);
    int first = first_seen(a, a.positions[from]), last = a.positions[to - 1];
    Sums<N> sums, chunk;
    sums.clear(), chunk.clear();
    block.walk(chunk, a.tables + size_t(sequence) * a.table_stride, first, last, [&](int tile) {
      if ((tile + 1) % (CHUNK / TILE) && tile < last / TILE) return;
      chunk.gather_weights();
      sums.join(chunk);
      chunk.clear();
    });
    block.store(sums);
  }
  // Where no row has a sequence, nothing has waited for the queries.
  copy_async_commit();
  copy_async_wait<0>();
}

template <int N, class C>
DEVICE void split(const FlashArgs &a) {
  int row = a.first + blockIdx.x, chunk = blockIdx.z;
  Block<N, 4, C> block(a, blockIdx.x);
  uint32_t sequence = a.sequences[row];
  if (sequence == NONE) {
    if (chunk == 0) block.store_zeros(row, row + 1);
    return;
  }
  int last = a.positions[row], first = first_seen(a, last);
  if (chunk < first / CHUNK || chunk > last / CHUNK) return;
  block.bring_queries();
  block.look(row, row + 1);
  Sums<N> sums;
  sums.clear();
  int from = chunk * CHUNK > first ? chunk * CHUNK : first, to = (chunk + 1) * CHUNK - 1;
  block.walk(sums, a.tables + size_t(sequence) * a.table_stride, from, to < last ? to : last, [](int) {});
  sums.gather_weights();
  if (first / CHUNK == last / CHUNK) {
    block.store(sums);
    return;
  }
  for (int i = 0; i < 2; i++) {
    int m = block.query(i);
    if (m >= a.group) continue;
    size_t at = (size_t(row - a.first) * block.heads + block.kv_head * a.group + m) * a.chunks + chunk;
    float *to = a.partial + at * a.partial_stride;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      for (int e = 0; e < 2; e++) to[j * 8 + block.lane % 4 * 2 + e] = sums.values[j][2 * i + e];
    if (block.lane % 4 == 0) to[N] = sums.largest[i], to[N + 1] = sums.weights[i];
  }
}

}  // namespace flash

ENTRY(flash_bf16_64, (256, 1), FlashArgs) { flash::whole<64, bf16>(a); }
ENTRY(flash_bf16_128, (256, 1), FlashArgs) { flash::whole<128, bf16>(a); }
ENTRY(flash_split_bf16_64, (128), FlashArgs) { flash::split<64, bf16>(a); }
ENTRY(flash_split_bf16_128, (128), FlashArgs) { flash::split<128, bf16>(a); }
ENTRY(flash_fp8_64, (256, 1), FlashArgs) { flash::whole<64, uint8_t>(a); }
ENTRY(flash_fp8_128, (256, 1), FlashArgs) { flash::whole<128, uint8_t>(a); }
ENTRY(flash_split_fp8_64, (128), FlashArgs) { flash::split<64, uint8_t>(a); }
ENTRY(flash_split_fp8_128, (128), FlashArgs) { flash::split<128, uint8_t>(a); }

ENTRY(flash_merge, (128), FlashArgs) {
  int row = a.first + blockIdx.x, head = blockIdx.y, column = threadIdx.x, end = a.partial_stride - 4;
  if (a.sequences[row] == NONE) return;
  int last = a.positions[row], first = flash::first_seen(a, last) / flash::CHUNK;
  if (first == last / flash::CHUNK || column >= a.head_dim) return;
  const float *partial = a.partial + (size_t(blockIdx.x) * gridDim.y + head) * a.chunks * a.partial_stride;
  float largest = -INFINITY, weights = 0, sum = 0;
  for (int chunk = first; chunk <= last / flash::CHUNK; chunk++) {
    const float *part = partial + size_t(chunk) * a.partial_stride;
    flash::Joined joined(largest, part[end]);
    largest = joined.largest;
    weights = joined.sum(weights, part[end + 1]);
    sum = joined.sum(sum, part[column]);
  }
  a.out[(size_t(row) * gridDim.y + head) * a.head_dim + column] = to_bf16(sum / flash::divisor(a, head, largest, weights));
}
