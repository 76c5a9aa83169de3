// rope_write: rotates queries in place, and writes rotated keys and plain values to the paged cache. Grid: (rows, 3).
//
// q       [rows, q_heads * q_dim] T, rows q_stride apart: `dims` columns at q_offset of each head are rotated in place
// key     [rows, key_heads * key_dim] T, rows key_stride apart: `dims` columns at key_offset of each head are rotated;
//         the result goes to key_cache [places, key_heads * key_dim] T
// plain   [rows, plain_width] T, rows plain_stride apart: copied to plain_cache [places, plain_width] T
// angles  [positions, dims] f32: dims / 2 cosines, then dims / 2 sines, scaled
// positions, places [rows]: of a row with place NONE, q is rotated and nothing is written
//
// GQA: key = k, plain = v. MLA: key = the shared rotary key, one head; plain = the latent.
// `interleaved`: pairs are (2i, 2i + 1), and the result has the first of each pair, then the second. Otherwise pairs
// are (i, i + dims / 2). `dims` is even and at most 512. Error: rounding to T.
#include "common.cuh"

struct RopeWriteArgs {
  void *q;
  const void *key, *plain;
  void *key_cache, *plain_cache;
  const float *angles;
  const uint32_t *positions, *places;
  int dims, interleaved;
  int q_heads, q_dim, q_offset, q_stride;
  int key_heads, key_dim, key_offset, key_stride;
  int plain_width, plain_stride;
};

// Rotates one head of `from` into `to`, which may be the same; the columns outside of the rotated ones are copied.
// `pairs` is a shared array of `dims` floats.
template <class T>
DEVICE void rotate(const T *from, T *to, int dim, int offset, const RopeWriteArgs &a, const float *angles,
                   float *pairs) {
  int half = a.dims / 2;
  for (int i = threadIdx.x; i < a.dims; i += blockDim.x) pairs[i] = to_float(from[offset + i]);
  __syncthreads();
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    int j = i - offset;
    if (j < 0 || j >= a.dims) {
      to[i] = from[i];
      continue;
    }
    int pair = j % half;
    float first = pairs[a.interleaved ? 2 * pair : pair], second = pairs[a.interleaved ? 2 * pair + 1 : pair + half];
    float cosine = angles[pair], sine = angles[half + pair];
    to[i] = from_float<T>(j < half ? first * cosine - second * sine : second * cosine + first * sine);
  }
  __syncthreads();
}

template <class T>
DEVICE void rope_write(const RopeWriteArgs &a) {
  SHARED(float, pairs, 512);
  size_t row = blockIdx.x;
  uint32_t place = a.places[row];
  const float *angles = a.angles + size_t(a.positions[row]) * a.dims;
  if (blockIdx.y == 0) {
    T *q = static_cast<T *>(a.q) + row * a.q_stride;
    for (int head = 0; head < a.q_heads; head++) {
      T *at = q + head * a.q_dim;
      rotate(at, at, a.q_dim, a.q_offset, a, angles, pairs);
    }
  } else if (place == NONE) {
    return;
  } else if (blockIdx.y == 1) {
    const T *key = static_cast<const T *>(a.key) + row * a.key_stride;
    T *cache = static_cast<T *>(a.key_cache) + size_t(place) * a.key_heads * a.key_dim;
    for (int head = 0; head < a.key_heads; head++) {
      int at = head * a.key_dim;
      rotate(key + at, cache + at, a.key_dim, a.key_offset, a, angles, pairs);
    }
  } else {
    const T *plain = static_cast<const T *>(a.plain) + row * a.plain_stride;
    T *cache = static_cast<T *>(a.plain_cache) + size_t(place) * a.plain_width;
    for (int i = threadIdx.x; i < a.plain_width; i += blockDim.x) cache[i] = plain[i];
  }
}

extern "C" __global__ void __launch_bounds__(128) rope_write_f32(const RopeWriteArgs a) { rope_write<float>(a); }
extern "C" __global__ void __launch_bounds__(128) rope_write_bf16(const RopeWriteArgs a) { rope_write<bf16>(a); }
