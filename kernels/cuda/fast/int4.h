// The products of experts with weights of four bits: kernels of humming (Apache-2.0,
// https://github.com/vllm-project/humming), for sm_90a. This list is read as gemm.h is.
//
// out [rows, n] bf16 = x [rows, k] bf16 times w [n, k] transposed, for each of 64 experts: the rows of expert g are
// those from starts[g] to starts[g + 1] (moe_place with tiles of 1), its weight is the g-th. Each number is a sum in
// f32 over k in steps of 16, in ascending order, whatever the tile is. w is integers (INTEGERS: codes less 8) or floats
// (FLOATS: e2m1) in groups of 32 with bf16 scales; a value times its scale is rounded to bf16.
//
// Layout: n is padded by `pad` zeros to a multiple of 256, here N. int4_repack gives a weight [n, k / 8] of words (as
// linear.cu has them) the layout [k / 16, 2 N] that the products take. Scales are [k / 32, N], in each 64 columns of
// which number 8 i + j is that of column 8 j + i.
//
// Products. Grid: as many blocks as there are multiprocessors; 384 threads; shared memory: NAME_shared. Maps: x has
// boxes of 64 columns by the tile's rows, 128-byte swizzle; w as words [64 k / 16, N / 8, 16] has boxes of 4 by 32 by
// 16; the scales [64 k / 32, N / 16, 16] boxes of 2 by 16 by 16.
// int4_repack. Grid: (N / 64, k / 64); 32 threads.
//
// KERNEL(name, rows of a tile, stages, n, k, pad, what w is)
KERNEL(int4_few_4096x7168, 16, 8, 4096, 7168, 0, INTEGERS)
KERNEL(int4_many_4096x7168, 128, 4, 4096, 7168, 0, INTEGERS)
KERNEL(int4_few_7168x2048, 16, 8, 7168, 2048, 0, INTEGERS)
KERNEL(int4_many_7168x2048, 128, 4, 7168, 2048, 0, INTEGERS)
KERNEL(mxfp4_few_5760x2880, 16, 8, 5760, 2880, 128, FLOATS)
KERNEL(mxfp4_many_5760x2880, 128, 4, 5760, 2880, 128, FLOATS)
KERNEL(mxfp4_few_2880x2880, 16, 8, 2880, 2880, 192, FLOATS)
KERNEL(mxfp4_many_2880x2880, 128, 4, 2880, 2880, 192, FLOATS)
// For checks on an emulated device.
KERNEL(int4_few_512x256, 16, 8, 512, 256, 0, INTEGERS)
KERNEL(int4_many_512x256, 128, 4, 512, 256, 0, INTEGERS)
KERNEL(int4_few_256x256, 16, 8, 256, 256, 0, INTEGERS)
KERNEL(int4_many_256x256, 128, 4, 256, 256, 0, INTEGERS)
KERNEL(mxfp4_few_384x192, 16, 8, 384, 192, 128, FLOATS)
KERNEL(mxfp4_many_384x192, 128, 4, 384, 192, 128, FLOATS)
KERNEL(mxfp4_few_192x192, 16, 8, 192, 192, 64, FLOATS)
KERNEL(mxfp4_many_192x192, 128, 4, 192, 192, 64, FLOATS)
