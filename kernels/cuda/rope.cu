// rope: rotates heads of one matrix or two in place. Grid: (rows, the sum of ceil(heads / heads_of_block), of which
// `blocks` are those of the first); heads_of_block * dims <= 512.
//
// x       [rows, heads * dim] T, rows `stride` apart: `dims` columns at `offset` of each head are rotated
// angles  [positions, dims] f32: dims / 2 cosines, then dims / 2 sines, scaled
//
// `interleaved`: pairs are (2i, 2i + 1), and the result has the first of each pair, then the second. Otherwise pairs
// are (i, i + dims / 2). `dims` is even and at most 512. Error: rounding to T.
//
// cache_write: writes rows to the paged cache. Grid: (rows, 2).
//
// x       [2][rows, width] T, rows `stride` apart: copied to caches [2][places, width] T
// places  [rows]: of a row with place NONE nothing is written
#include "common.cuh"

struct RopeHeads {
  void *x;
  const float *angles;
  int dims, interleaved, heads, dim, offset, stride, heads_of_block;
};

struct RopeArgs {
  RopeHeads of[2];
  const uint32_t *positions;
  int blocks;
};

constexpr int ROPE_THREADS = 128, ROPE_PAIRS = 2;

template <class T>
DEVICE void rope(const RopeHeads &a, const uint32_t *positions, int block) {
  size_t row = blockIdx.x;
  int half = a.dims / 2, first_head = block * a.heads_of_block;
  int left = a.heads - first_head, count = (left < a.heads_of_block ? left : a.heads_of_block) * half;
  const float *angles = a.angles + size_t(positions[row]) * a.dims;
  T *x = static_cast<T *>(a.x) + row * a.stride + size_t(first_head) * a.dim + a.offset;
  float first[ROPE_PAIRS], second[ROPE_PAIRS];
#pragma unroll
  for (int k = 0; k < ROPE_PAIRS; k++) {
    int i = threadIdx.x + k * ROPE_THREADS;
    if (i >= count) continue;
    const T *head = x + i / half * a.dim;
    int pair = i % half;
    first[k] = to_float(head[a.interleaved ? 2 * pair : pair]);
    second[k] = to_float(head[a.interleaved ? 2 * pair + 1 : pair + half]);
  }
  // Pairs of other threads are written over.
  if (a.interleaved) __syncthreads();
#pragma unroll
  for (int k = 0; k < ROPE_PAIRS; k++) {
    int i = threadIdx.x + k * ROPE_THREADS;
    if (i >= count) continue;
    T *head = x + i / half * a.dim;
    int pair = i % half;
    float cosine = angles[pair], sine = angles[half + pair];
    head[pair] = from_float<T>(first[k] * cosine - second[k] * sine);
    head[pair + half] = from_float<T>(second[k] * cosine + first[k] * sine);
  }
}

template <class T>
DEVICE void rope(const RopeArgs &a) {
  int block = blockIdx.y;
  rope<T>(block < a.blocks ? a.of[0] : a.of[1], a.positions, block < a.blocks ? block : block - a.blocks);
}

struct CacheWriteArgs {
  const void *x[2];
  void *caches[2];
  const uint32_t *places;
  int width[2], stride[2];
};

template <class T>
DEVICE void cache_write(const CacheWriteArgs &a) {
  size_t row = blockIdx.x;
  uint32_t place = a.places[row];
  if (place == NONE) return;
  int part = blockIdx.y, width = a.width[part];
  const T *from = static_cast<const T *>(a.x[part]) + row * a.stride[part];
  T *to = static_cast<T *>(a.caches[part]) + size_t(place) * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

ENTRY(rope_f32, (ROPE_THREADS), RopeArgs) { rope<float>(a); }
ENTRY(rope_bf16, (ROPE_THREADS), RopeArgs) { rope<bf16>(a); }
ENTRY(cache_write_f32, (128), CacheWriteArgs) { cache_write<float>(a); }
ENTRY(cache_write_bf16, (128), CacheWriteArgs) { cache_write<bf16>(a); }
