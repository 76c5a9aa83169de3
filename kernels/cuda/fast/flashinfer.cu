// Attention over the paged latent cache: FlashInfer's kernel for Hopper (Apache-2.0,
// https://github.com/flashinfer-ai/flashinfer), for queries and caches in bf16, 512 latent and 64 rotated columns.
// latent_attention_fp8: the cache has e4m3 codes, and `scales` [places, 4] those of each 128 latent columns (cache.cu);
// they become bf16 in shared memory, which is exact.
//
// Queries of row r and head h: q_latent [rows, heads, 512] and q_rope [rows, heads, 64]; scores, their softmax and
// the sums of latents as attention.cu says. A piece of work is up to 64 queries (rows times heads, packed) of one
// sequence over a range of its positions, in tiles of 64 from the range's start: so a query's bits depend only on the
// ranges, which latent_work puts at fixed positions. With partial_at >= 0 the results are normalized bf16 [query,
// 512] in `partial` and the base-2 logarithm of the sum of weights in partial_scale, which latent_merge adds up; with
// -1 they are rows of out.
// Grid: (1, blocks), all at once (a cooperative launch); 256 threads; shared memory: latent_attention_shared.
// heads divides 64.
#include <flashinfer/attention/mla_hopper.cuh>

#include "args.h"

namespace {

using Params = flashinfer::MLAParams<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, int32_t>;
constexpr uint32_t STAGES = 2, LATENT = 512, ROPE = 64, QUERIES = 64, POSITIONS = 64;
using Traits = flashinfer::mla::hopper::HopperKernelTraits<true, STAGES, LATENT, ROPE, QUERIES, POSITIONS, __nv_bfloat16,
                                                           __nv_bfloat16, __nv_bfloat16, int32_t>;

using Fp8Params = flashinfer::MLAParams<__nv_bfloat16, __nv_fp8_e4m3, __nv_bfloat16, int32_t>;
using Fp8Traits = flashinfer::mla::hopper::HopperKernelTraits<true, STAGES, LATENT, ROPE, QUERIES, POSITIONS,
                                                              __nv_bfloat16, __nv_fp8_e4m3, __nv_bfloat16, int32_t>;

#define SAME(theirs, ours) \
  static_assert(offsetof(Params, theirs) == offsetof(LatentArgs, ours) && \
                offsetof(Fp8Params, theirs) == offsetof(LatentArgs, ours) && \
                sizeof(Params::theirs) == sizeof(LatentArgs::ours))
SAME(q_nope, q_latent);
SAME(q_pe, q_rope);
SAME(ckv, latent);
SAME(kpe, rope);
SAME(partial_o, partial);
SAME(partial_lse, partial_scale);
SAME(final_o, out);
SAME(final_lse, out_scale);
SAME(q_indptr, first_row);
SAME(kv_indptr, first_block);
SAME(partial_indptr, partial_at);
static_assert(offsetof(Params, merge_packed_offset_start) == offsetof(LatentArgs, merge));
SAME(kv_indices, tables);
SAME(q_len, row_count);
SAME(kv_len, positions);
SAME(q_start, first_query);
SAME(kv_start, from);
SAME(kv_end, to);
SAME(work_indptr, work);
SAME(block_size, block_size);
SAME(num_heads, heads);
SAME(q_nope_stride_n, q_latent_stride);
SAME(q_nope_stride_h, q_latent_head_stride);
SAME(q_pe_stride_n, q_rope_stride);
SAME(q_pe_stride_h, q_rope_head_stride);
SAME(ckv_stride_page, latent_block_stride);
SAME(ckv_stride_n, latent_stride);
SAME(kpe_stride_page, rope_block_stride);
SAME(kpe_stride_n, rope_stride);
SAME(o_stride_n, out_stride);
SAME(o_stride_h, out_head_stride);
SAME(sm_scale, scale);
SAME(ckv_scale, latent_scale);
SAME(kpe_scale, rope_scale);
SAME(ckv_scale_arr, scales);
SAME(return_lse_base_on_e, natural_log);
static_assert(sizeof(Params) == sizeof(LatentArgs) && sizeof(Fp8Params) == sizeof(LatentArgs));

}  // namespace

extern "C" __device__ const unsigned latent_attention_shared = sizeof(Traits::SharedStorage);
extern "C" __device__ const auto latent_attention =
    &flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<Traits, Params>;
extern "C" __device__ const unsigned latent_attention_fp8_shared = sizeof(Fp8Traits::SharedStorage);
extern "C" __device__ const auto latent_attention_fp8 =
    &flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<Fp8Traits, Fp8Params>;
