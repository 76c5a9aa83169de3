// The kernels of gemm.h. Each gets a variable with its short name, which scripts/cuda.sh reads from the PTX.
#include <cuda_bf16.h>

#include <deep_gemm/impls/sm90_bf16_gemm.cuh>
#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>
#include <type_traits>

#include "args.h"

namespace {

// Of out: as wide as its boxes.
constexpr uint32_t swizzle_of(uint32_t columns) { return columns < 64 ? 2 * columns : 128; }

constexpr uint32_t BLOCKS = 132, COPY_THREADS = 128, SWIZZLE = 128, FP8_DEPTH = 128, BF16_DEPTH = 64;
constexpr auto BY_K = cute::UMMA::Major::K;

using fp8 = __nv_fp8_e4m3;
using bf16 = cutlass::bfloat16_t;
using f32 = float;
constexpr auto dense = deep_gemm::GemmType::Normal;
constexpr auto batched = deep_gemm::GemmType::Batched;
constexpr auto grouped = deep_gemm::GemmType::MGroupedContiguousWithPsumLayout;

template <class X, class Out, deep_gemm::GemmType TYPE, uint32_t ROWS, uint32_t COLS, uint32_t STAGES, uint32_t THREADS,
          uint32_t CLUSTER, uint32_t GROUPS>
constexpr auto kernel() {
  if constexpr (std::is_same_v<X, fp8>)
    return &deep_gemm::sm90_fp8_gemm_1d2d_impl<BY_K, 0, 0, 0, GROUPS, ROWS, COLS, FP8_DEPTH, SWIZZLE, SWIZZLE,
                                               swizzle_of(COLS), STAGES, COPY_THREADS, THREADS, CLUSTER, true, BLOCKS, TYPE, Out>;
  else
    return &deep_gemm::sm90_bf16_gemm_impl<BY_K, BY_K, 0, 0, 0, GROUPS, ROWS, COLS, BF16_DEPTH, SWIZZLE, SWIZZLE,
                                           std::is_same_v<Out, f32> ? 0 : swizzle_of(COLS), STAGES, COPY_THREADS, THREADS, CLUSTER,
                                           true, BLOCKS, TYPE, false, Out>;
}

// The parameters are those of the structs that the host fills.
using Map = const cute::TmaDescriptor;
using Fp8Kernel = void (*)(decltype(GemmFp8Args::w_scales), decltype(GemmFp8Args::ends), uint32_t, uint32_t, uint32_t, Map, Map,
                           Map, Map);
using Bf16Kernel = void (*)(decltype(GemmBf16Args::ends), uint32_t, uint32_t, uint32_t, Map, Map, Map);
static_assert(std::is_same_v<decltype(kernel<fp8, bf16, dense, 64, 64, 10, 128, 1, 1>()), Fp8Kernel>);
static_assert(std::is_same_v<decltype(kernel<bf16, bf16, dense, 64, 64, 10, 128, 1, 1>()), Bf16Kernel>);
static_assert(sizeof(Map) == sizeof(FastMap) && alignof(Map) == alignof(FastMap));

}  // namespace

#define KERNEL(name, ...) extern "C" __device__ const auto name = kernel<__VA_ARGS__>();
#include "gemm.h"
