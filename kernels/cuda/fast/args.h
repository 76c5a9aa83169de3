// The parameters of the fast kernels, as structs: each member lies where the kernel's parameter does. Their Rust
// twins are in kernels/src/cuda/fast/args.rs; scripts/cuda.sh compares the compiled kernels' parameters with both
// (report.txt).
#pragma once
#include <cstddef>
#include <cstdint>

// A CUtensorMap.
struct alignas(128) FastMap {
  uint64_t opaque[16];
};

// gemm.h, FP8
struct GemmFp8Args {
  float *w_scales;
  int *ends;
  uint32_t rows, n, k;
  FastMap x, w, out, x_scales;
};
static_assert(offsetof(GemmFp8Args, k) == 24 && offsetof(GemmFp8Args, x) == 128 && sizeof(GemmFp8Args) == 640);

// gemm.h, bf16
struct GemmBf16Args {
  int *ends;
  uint32_t rows, n, k;
  FastMap x, w, out;
};
static_assert(offsetof(GemmBf16Args, k) == 16 && offsetof(GemmBf16Args, x) == 128 && sizeof(GemmBf16Args) == 512);

// int4.h, products
struct Int4Args {
  FastMap x, w;
  void *out;
  const void *unused[2];  // Null.
  FastMap scales;
  const void *none[6];  // Null.
  const int *starts;
  void *buffers[2];  // Null.
  uint32_t rows, top_k;
  bool long_starts;  // False: starts are ints.
};
static_assert(offsetof(Int4Args, scales) == 384 && offsetof(Int4Args, starts) == 560 && offsetof(Int4Args, rows) == 584);
static_assert(offsetof(Int4Args, long_starts) == 592);

// int4.h, int4_repack
struct Int4RepackArgs {
  const uint32_t *from;
  uint32_t *to;
  const uint32_t *zeros;  // Null.
  uint32_t n, k, padded_n, padded_k, interleaved;  // interleaved: 3.
};
static_assert(offsetof(Int4RepackArgs, n) == 24 && sizeof(Int4RepackArgs) == 48);

// A divisor with what a division by it needs, as FlashInfer's uint_fastdiv: quotient = (x + add) * multiplier >> 32 +
// shift, or x >> shift for a power of two (multiplier 0).
struct FastDivisor {
  uint32_t by, multiplier, add;
  int32_t shift;
  uint32_t again;  // `by`.
};
static_assert(sizeof(FastDivisor) == 20);

// latent.h
struct LatentArgs {
  const void *q_latent, *q_rope, *latent, *rope;
  void *partial;
  float *partial_scale;
  void *out;
  float *out_scale;  // Null.
  // For each piece of work: the row its queries begin with, the place of its sequence's block table in `tables`,
  // where its results go in `partial` (-1: to out), its rows, its positions from 0, the first of its queries (packed
  // with heads), and the range of positions that it covers.
  const int *first_row, *first_block, *partial_at;
  const int *merge[5];  // Nothing to merge: an array of zeros, one for each block.
  const int *tables, *row_count, *positions, *first_query, *from, *to;
  const int *work;  // For each block where its work begins, and the end.
  FastDivisor block_size, heads;
  uint32_t q_latent_stride, q_latent_head_stride, q_rope_stride, q_rope_head_stride;
  uint32_t latent_block_stride, latent_stride, rope_block_stride, rope_stride;
  uint32_t out_stride, out_head_stride;
  float scale, latent_scale, rope_scale;
  const float *scales;  // Null, but for codes.
  bool natural_log;
};
static_assert(offsetof(LatentArgs, block_size) == 184 && offsetof(LatentArgs, q_latent_stride) == 224);
static_assert(offsetof(LatentArgs, scale) == 264 && offsetof(LatentArgs, scales) == 280 && sizeof(LatentArgs) == 296);
