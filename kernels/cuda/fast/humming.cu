// The kernels of int4.h. humming's configurations are classes, which its Python code writes; these are the ones for
// experts with weights of four bits and activations in bf16, without split sums. What storage.cuh asks of the
// preprocessor is said twice.
#define HUMMING_WEIGHT_SCALE_GROUP_SIZE 32
#define HUMMING_IS_GROUP_WEIGHT_SCALE 1
#define HUMMING_IS_GROUPED_GEMM 1
#define HUMMING_IS_GROUPED_CONTIGUOUS_GEMM 1
#define HUMMING_USE_WARP_SPEC 1
#define HUMMING_USE_TMA 1
#define HUMMING_MMA_TYPE_ID 1
#define HUMMING_SMEM_REUSE_MODE_ID 2

#include <cute/arch/mma_sm90_gmma.hpp>
#include <humming/kernel/humming_ws.cuh>
#include <humming/kernel/process.cuh>
#include <utility>

#include "args.h"

namespace {

using Bf16 = FloatingPointType<16, 8, 7>;
// What int4.h calls them.
using INTEGERS = IntegerType<false, 4>;
using FLOATS = Float4E2M1;
constexpr uint32_t COLS = 256, DEPTH = 64, WARP_COLS = 32, EXPERTS = 64, GROUP = 32, MATH_THREADS = 256, COPY_THREADS = 128;

// A product of 64 columns of the weight, in registers, with ROWS rows of x, in shared memory.
template <uint32_t ROWS>
struct Multiply;
template <>
struct Multiply<16> {
  using Instruction = cute::SM90::GMMA::MMA_64x16x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>;
};
template <>
struct Multiply<128> {
  using Instruction = cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>;
};

template <uint32_t ROWS>
struct MmaOp {
  using ElementB = Bf16;
  static constexpr MmaType kMmaType = MmaType::WGMMA;
  using MmaShape = Shape<ROWS, 64, 16>;
  using ValTypeC = float;
  using ValTypeD = float;
  static constexpr uint32_t kATypeBits = 16, kBTypeBits = 16, kCTypeBits = 32, kDTypeBits = 32, SUMS = ROWS / 2;
  static constexpr bool kNativeMixed = false;
  using BRegisters = uint32_t[4];
  using CRegisters = float[SUMS];
  using DRegisters = float[SUMS];

  static CUDA_INLINE void fma(uint64_t &x, uint32_t *w, float *sums, bool adds = true) {
    multiply(x, w, sums, adds, std::make_integer_sequence<int, SUMS>());
  }
  template <int... I>
  static CUDA_INLINE void multiply(uint64_t &x, uint32_t *w, float *sums, bool adds, std::integer_sequence<int, I...>) {
    auto scale = adds ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero;
    Multiply<ROWS>::Instruction::fma(w[0], w[1], w[2], w[3], x, sums[I]..., scale);
  }
};

template <uint32_t N, uint32_t K, uint32_t PAD>
struct Layer {
  static constexpr uint32_t kSmVersion = 90, kShapeN = N + PAD, kShapeK = K, kPadShapeN = PAD, kPadShapeK = 0, kNumExperts = EXPERTS;
  static constexpr auto kInputQuantMode = InputQuantizationMode::Disabled;
  static constexpr auto kWeightScaleType = WeightScaleType::GROUP;
  static constexpr auto kWeightScale2Type = WeightScale2Type::NONE;
  static constexpr uint32_t kInputScaleGroupSize = 0, kWeightScaleGroupSize = GROUP, kWeightScaleGroupSizeN = 0;
  static constexpr uint32_t kMmaScaleGroupSize = GROUP;
  static constexpr bool kIsGroupWeightScale = true;
  static constexpr bool kUseIntWeightScale = false, kUseFusedE8m0Scale = false, kHasZeroPoint = false, kIsFpZeroPoint = false,
                        kHasBias = false, kUsePackedKLayout = false, kIsChannelWeightScale = false, kIsBlockWeightScale = false,
                        kIsTensorWeightScale = false, kIsChannelWeightScale2 = false, kIsTensorWeightScale2 = false,
                        kHasChannelWeightScale = false, kHasTensorWeightScale = false, kHasInputScale = false,
                        kHasInputScale2 = false, kIsGroupInputScale = false, kIsTokenInputScale = false,
                        kIsTensorInputScale = false, kIsTokenInputScale2 = false, kIsTensorInputScale2 = false,
                        kUseRawWeight = false, kUseFlatWeight = false, kUseLdmatrixDequant = false, kUseNativeDequant = false,
                        kUseBlockScaledMma = false;
};

struct Compute {
  static constexpr bool kUseF16Accum = false, kUseBatchInvariant = true, kUseMMajorInputScale = false;
  static constexpr auto kGemmType = GemmType::GROUPED_CONTIGUOUS;
  static constexpr uint32_t kGemmTypeId = 2;
  static constexpr bool kIsIndexedGemm = false, kIsGroupedGemm = true, kIsGroupedContiguousGemm = true,
                        kIsGroupedMaskedGemm = false;
};

template <uint32_t STAGES>
struct Tuning {
  static constexpr auto kMmaType = MmaType::WGMMA;
  static constexpr uint32_t kNumStages = STAGES, kProducerStageUnroll = STAGES, kConsumerStageUnroll = STAGES;
  static constexpr uint32_t kProducerRegisters = 24, kConsumerRegisters = 240, kNumCtasPerSm = 1;
  static constexpr uint32_t kUmmaNumDequantWarpgroups = 1, kUmmaCtaGroupSize = 1, kOutputChunkRows = 0, kMultiCastSizeA = 1,
                            kMultiCastSizeB = 1, kRasterGroupM = 1, kMmaTypeId = 1, kSmemReuseModeId = 2;
  static constexpr uint32_t kNumMathThreads = MATH_THREADS, kNumLoadThreads = COPY_THREADS,
                            kNumThreads = MATH_THREADS + COPY_THREADS;
  static constexpr auto kSmemReuseMode = SmemReuseMode::ALL_STAGES;
  // x, w and the scales come by tensor maps; results are stored row by row, so that no expert writes another's.
  static constexpr bool kUseWarpSpec = true, kUseTma = true, kUseTmaA = true, kUseTmaB = true, kUseTmaBS = true;
  static constexpr bool kUseTmaC = false, kUseTmaAS = false, kUseTmaAS2 = false, kUseTmaBS2 = false, kUseTmaBZP = false,
                        kUseTmaBias = false, kUseStreamK = false, kWgmmaUseLateAS = false, kWgmmaSplitIssueWait = false,
                        kUsePdl = false, kEvictWeightsFirst = false, kUseUmmaSs = false;
};

template <uint32_t ROWS, uint32_t STAGES, uint32_t N, uint32_t K, uint32_t PAD, class Weight>
struct Product {
  using Block = Shape<ROWS, COLS, DEPTH>;
  using Warp = Shape<ROWS, WARP_COLS, DEPTH>;
  using Shared = SharedStorage<MmaOp<ROWS>, Block, Warp, Bf16, Weight, Bf16, Layer<N, K, PAD>, Compute, Tuning<STAGES>>;
  static constexpr auto kernel() {
    return &humming<MmaOp<ROWS>, Shape<0, N + PAD, K>, Block, Warp, Shape<0, PAD, 0>, Bf16, Weight, Bf16, Bf16,
                    Layer<N, K, PAD>, Compute, Tuning<STAGES>>;
  }
};

// The parameters are those of the structs that the host fills.
using Map = CUtensorMap const;
using Pointer = void *const;
using Kernel = void (*)(Map, Map, Pointer, Pointer, Pointer, Map, Pointer, Pointer, Pointer, const uint32_t *, const uint32_t *,
                        const uint32_t *, const uint32_t *, CUtensorMap *, int32_t *, uint32_t, uint32_t, bool);
static_assert(std::is_same_v<decltype(Product<16, 8, 256, 256, 0, INTEGERS>::kernel()), Kernel>);
static_assert(sizeof(Map) == sizeof(FastMap) && alignof(Map) == alignof(FastMap));

constexpr auto repack() { return &weight_repack_nk<4, 16, true, false, false, false, 0, false, false>; }
using Repack = void (*)(const uint32_t *, uint32_t *, const uint32_t *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t);
static_assert(std::is_same_v<decltype(repack()), Repack>);

}  // namespace

#define KERNEL(name, ...)                                                             \
  extern "C" __device__ const unsigned name##_shared = sizeof(Product<__VA_ARGS__>::Shared); \
  extern "C" __device__ const auto name = Product<__VA_ARGS__>::kernel();
#include "int4.h"
extern "C" __device__ const auto int4_repack = repack();
