// The products of the fast tier: kernels of DeepGEMM (Apache-2.0, https://github.com/deepseek-ai/DeepGEMM), for
// sm_90a. This list is read by deep_gemm.cu, which compiles them, by the driver of the tests, which stands in for
// them, and by the tests of kernels/src/cuda/fast, which compare it with the plans.
//
// out [rows, n] = x [rows, k] times w [n, k] transposed. Each number is a sum over k in blocks of 128 (FP8) or in
// steps of 16 (bf16), in ascending order, whatever the tile is: so its bits depend on neither the tile nor the other
// rows.
//
// FP8: x and w are e4m3 codes. The sum of a block of 128 is multiplied by x_scales [k / 128, rows aligned to 4] and
// by w_scales [ceil(n / 128), k / 128], as quantize_fp8 makes them with a scale_stride, and added in f32. out is
// bf16.
// BF16: out is bf16 or f32 (_f32).
//
// dense     one product.
// batched   a product for each of `groups` matrices, or fewer: the maps have a third dimension, beyond whose end
//           nothing is written.
// grouped   a product for each of `groups` experts, whose weights follow each other. The rows of expert g begin at
//           the first multiple of the tile's rows from ends[g - 1] on and end before ends[g] (moe_place); all
//           `groups` ends are read. Rows in gaps of a tile are written too.
//
// Grid: 132, in clusters of `cluster`; threads: 128, which copy, and those that multiply. The maps
// (cuTensorMapEncodeTiled) have boxes of 128 bytes of k by the tile's rows or columns, 128-byte swizzle; out has
// boxes of at most 64 columns (bf16, a swizzle of as many bytes) or of the tile's columns (f32, none) by the tile's
// rows; x_scales boxes of the tile's rows by 1, no swizzle. Addresses and strides of matrices are multiples of 16
// bytes. Tiles are shared along n, so with clusters of 2 and groups, n is a multiple of twice the tile's columns. Any n
// and k otherwise: beyond their ends zeros are read, or another expert's weight, whose results are not written.
//
// KERNEL(name, type of x, type of out, form, rows, columns, stages, threads that multiply, cluster, groups)
KERNEL(fp8_dense_16x16, fp8, bf16, dense, 16, 16, 16, 128, 1, 1)
KERNEL(fp8_dense_16x32, fp8, bf16, dense, 16, 32, 16, 128, 1, 1)
KERNEL(fp8_dense_16x64, fp8, bf16, dense, 16, 64, 16, 128, 1, 1)
KERNEL(fp8_dense_16x128, fp8, bf16, dense, 16, 128, 10, 128, 1, 1)
KERNEL(fp8_dense_32x32, fp8, bf16, dense, 32, 32, 16, 128, 1, 1)
KERNEL(fp8_dense_32x64, fp8, bf16, dense, 32, 64, 14, 128, 1, 1)
KERNEL(fp8_dense_32x128, fp8, bf16, dense, 32, 128, 10, 128, 1, 1)
KERNEL(fp8_dense_64x32, fp8, bf16, dense, 64, 32, 14, 128, 1, 1)
KERNEL(fp8_dense_64x64, fp8, bf16, dense, 64, 64, 10, 128, 1, 1)
KERNEL(fp8_dense_64x128, fp8, bf16, dense, 64, 128, 8, 128, 1, 1)
KERNEL(fp8_dense_128x128, fp8, bf16, dense, 128, 128, 5, 256, 2, 1)
KERNEL(fp8_grouped_16x128_of_64, fp8, bf16, grouped, 16, 128, 10, 128, 1, 64)
KERNEL(fp8_grouped_32x128_of_64, fp8, bf16, grouped, 32, 128, 10, 128, 1, 64)
KERNEL(fp8_grouped_64x128_of_64, fp8, bf16, grouped, 64, 128, 8, 128, 1, 64)
KERNEL(fp8_grouped_128x128_of_64, fp8, bf16, grouped, 128, 128, 5, 256, 2, 64)
KERNEL(fp8_grouped_128x128_of_64_alone, fp8, bf16, grouped, 128, 128, 5, 256, 1, 64)
KERNEL(fp8_grouped_16x128_of_128, fp8, bf16, grouped, 16, 128, 10, 128, 1, 128)
KERNEL(fp8_grouped_32x128_of_128, fp8, bf16, grouped, 32, 128, 10, 128, 1, 128)
KERNEL(fp8_grouped_64x128_of_128, fp8, bf16, grouped, 64, 128, 8, 128, 1, 128)
KERNEL(fp8_grouped_128x128_of_128, fp8, bf16, grouped, 128, 128, 5, 256, 2, 128)
KERNEL(fp8_grouped_128x128_of_128_alone, fp8, bf16, grouped, 128, 128, 5, 256, 1, 128)
KERNEL(fp8_grouped_16x128_of_256, fp8, bf16, grouped, 16, 128, 10, 128, 1, 256)
KERNEL(fp8_grouped_32x128_of_256, fp8, bf16, grouped, 32, 128, 10, 128, 1, 256)
KERNEL(fp8_grouped_64x128_of_256, fp8, bf16, grouped, 64, 128, 8, 128, 1, 256)
KERNEL(fp8_grouped_128x128_of_256, fp8, bf16, grouped, 128, 128, 5, 256, 2, 256)
KERNEL(fp8_grouped_128x128_of_256_alone, fp8, bf16, grouped, 128, 128, 5, 256, 1, 256)
KERNEL(bf16_dense_16x16, bf16, bf16, dense, 16, 16, 16, 128, 1, 1)
KERNEL(bf16_dense_16x32, bf16, bf16, dense, 16, 32, 16, 128, 1, 1)
KERNEL(bf16_dense_16x64, bf16, bf16, dense, 16, 64, 16, 128, 1, 1)
KERNEL(bf16_dense_16x128, bf16, bf16, dense, 16, 128, 10, 128, 1, 1)
KERNEL(bf16_dense_32x32, bf16, bf16, dense, 32, 32, 16, 128, 1, 1)
KERNEL(bf16_dense_32x64, bf16, bf16, dense, 32, 64, 14, 128, 1, 1)
KERNEL(bf16_dense_32x128, bf16, bf16, dense, 32, 128, 10, 128, 1, 1)
KERNEL(bf16_dense_64x32, bf16, bf16, dense, 64, 32, 14, 128, 1, 1)
KERNEL(bf16_dense_64x64, bf16, bf16, dense, 64, 64, 10, 128, 1, 1)
KERNEL(bf16_dense_64x128, bf16, bf16, dense, 64, 128, 8, 128, 1, 1)
KERNEL(bf16_dense_128x128, bf16, bf16, dense, 128, 128, 5, 256, 2, 1)
KERNEL(bf16_dense_128x256, bf16, bf16, dense, 128, 256, 3, 256, 2, 1)
KERNEL(bf16_dense_16x64_f32, bf16, f32, dense, 16, 64, 16, 128, 1, 1)
KERNEL(bf16_dense_16x128_f32, bf16, f32, dense, 16, 128, 10, 128, 1, 1)
KERNEL(bf16_dense_64x64_f32, bf16, f32, dense, 64, 64, 10, 128, 1, 1)
KERNEL(bf16_dense_64x128_f32, bf16, f32, dense, 64, 128, 7, 128, 1, 1)
KERNEL(bf16_dense_128x128_f32, bf16, f32, dense, 128, 128, 4, 256, 2, 1)
KERNEL(bf16_batched_16x64_of_8, bf16, bf16, batched, 16, 64, 16, 128, 1, 8)
KERNEL(bf16_batched_64x64_of_8, bf16, bf16, batched, 64, 64, 10, 128, 1, 8)
KERNEL(bf16_batched_128x128_of_8, bf16, bf16, batched, 128, 128, 5, 256, 1, 8)
KERNEL(bf16_batched_16x64_of_16, bf16, bf16, batched, 16, 64, 16, 128, 1, 16)
KERNEL(bf16_batched_64x64_of_16, bf16, bf16, batched, 64, 64, 10, 128, 1, 16)
KERNEL(bf16_batched_128x128_of_16, bf16, bf16, batched, 128, 128, 5, 256, 1, 16)
KERNEL(bf16_batched_16x64_of_64, bf16, bf16, batched, 16, 64, 16, 128, 1, 64)
KERNEL(bf16_batched_64x64_of_64, bf16, bf16, batched, 64, 64, 10, 128, 1, 64)
KERNEL(bf16_batched_128x128_of_64, bf16, bf16, batched, 128, 128, 5, 256, 1, 64)
KERNEL(bf16_grouped_16x128_of_64, bf16, bf16, grouped, 16, 128, 10, 128, 1, 64)
KERNEL(bf16_grouped_32x128_of_64, bf16, bf16, grouped, 32, 128, 10, 128, 1, 64)
KERNEL(bf16_grouped_64x128_of_64, bf16, bf16, grouped, 64, 128, 8, 128, 1, 64)
KERNEL(bf16_grouped_128x128_of_64, bf16, bf16, grouped, 128, 128, 5, 256, 2, 64)
KERNEL(bf16_grouped_128x128_of_64_alone, bf16, bf16, grouped, 128, 128, 5, 256, 1, 64)
KERNEL(bf16_grouped_16x128_of_128, bf16, bf16, grouped, 16, 128, 10, 128, 1, 128)
KERNEL(bf16_grouped_32x128_of_128, bf16, bf16, grouped, 32, 128, 10, 128, 1, 128)
KERNEL(bf16_grouped_64x128_of_128, bf16, bf16, grouped, 64, 128, 8, 128, 1, 128)
KERNEL(bf16_grouped_128x128_of_128, bf16, bf16, grouped, 128, 128, 5, 256, 2, 128)
KERNEL(bf16_grouped_128x128_of_128_alone, bf16, bf16, grouped, 128, 128, 5, 256, 1, 128)
KERNEL(bf16_grouped_16x128_of_256, bf16, bf16, grouped, 16, 128, 10, 128, 1, 256)
KERNEL(bf16_grouped_32x128_of_256, bf16, bf16, grouped, 32, 128, 10, 128, 1, 256)
KERNEL(bf16_grouped_64x128_of_256, bf16, bf16, grouped, 64, 128, 8, 128, 1, 256)
KERNEL(bf16_grouped_128x128_of_256, bf16, bf16, grouped, 128, 128, 5, 256, 2, 256)
KERNEL(bf16_grouped_128x128_of_256_alone, bf16, bf16, grouped, 128, 128, 5, 256, 1, 256)
