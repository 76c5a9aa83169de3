// Work for the attention of fast/flashinfer.cu, and the sum of its parts.
//
// A tile is up to `tile` rows of one sequence that follow each other and whose positions are p, p + 1, ... up to the
// next multiple of `tile`; a piece of work is a tile over positions from a multiple of `chunk` to the next, of which
// `tile` is a divisor. So all rows of a tile have equally many pieces, and which pieces a row has depends on its
// position alone.
//
// latent_work: the pieces of rows first up to first + rows. One block of 256 threads.
//   sequences, positions [all rows], as attention.cu has them; rows whose sequence is NONE have no work.
//   first_row, first_block, partial_at, row_count, kv_len, first_query, from, to [pieces]: as flashinfer.cu says.
//   A tile's only piece goes to out, piece c of more to partial + ((row - first) * chunks + c * row_count) * heads.
//   tile_first, tile_rows [rows]: the first row of each row's tile, and its rows.
//   With lanes > 0, pieces are of positions of a lane (lanes.cu), and tile's piece c of the rank's lane i goes to
//   partial + ((row - first) * lanes * chunks + (i * chunks + c) * row_count) * heads, also if it is the only one.
//   work [blocks + 1]: the pieces, in shares of equally many positions: a piece has up to `chunk`, and counts PIECE
//   more.
//
// latent_merge: out [all rows, heads, 512] bf16, rows out_stride apart: for rows with several pieces, the sum of their
//   parts, weighted by 2 to the power of their scale, in ascending order of positions; zeros for rows without a
//   sequence. Others are not written. partial [pieces, heads * row_count, 512] bf16, partial_scale f32.
//   Grid: (rows, heads); 128 threads.
//   Error: f32 sums, exp2f, rounding.
#pragma once
#include "common.cuh"

struct LatentWorkArgs {
  const uint32_t *sequences, *positions;
  int *first_row, *first_block, *partial_at, *row_count, *kv_len, *first_query, *from, *to, *tile_first, *tile_rows, *work;
  int first, rows, heads, table_stride, tile, chunk, chunks, blocks;
  int lanes, lane_first, lane_step, lane_stride;
};

struct LatentMergeArgs {
  const uint32_t *sequences, *positions;
  const int *tile_first, *tile_rows;
  const bf16 *partial;
  const float *partial_scale;
  bf16 *out;
  int first, heads, chunk, chunks, out_stride;
};

namespace latent {

constexpr int LATENT = 512, THREADS = 256, PIECE = 64;

// The sum over the threads up to this one. All have what a thread added last.
DEVICE int sum_up_to(int number, int *sums, int &all) {
  int *from = sums, *to = sums + THREADS, thread = threadIdx.x;
  from[thread] = number;
  __syncthreads();
  for (int step = 1; step < THREADS; step *= 2) {
    to[thread] = from[thread] + (thread >= step ? from[thread - step] : 0);
    __syncthreads();
    int *swap = from;
    from = to, to = swap;
  }
  int sum = from[thread];
  all = from[THREADS - 1];
  __syncthreads();
  return sum;
}

// Positions of a lane up to `position`: it has each eighth of the tiles of 64.
DEVICE int seen(int position, int lane) {
  int tile = position / 64, before = tile / 8 * 64, in_turn = tile % 8;
  return before + (in_turn > lane ? 64 : in_turn == lane ? position % 64 + 1 : 0);
}

// Pieces of a tile whose last position is `last`.
DEVICE int pieces_of(const LatentWorkArgs &a, int last) {
  if (!a.lanes) return last / a.chunk + 1;
  int pieces = 0;
  for (int i = 0; i < a.lanes; i++) pieces += (seen(last, a.lane_first + i * a.lane_step) + a.chunk - 1) / a.chunk;
  return pieces;
}

// Piece `at`, number `c` of the positions up to `length` in the blocks from `block` on.
DEVICE void piece(const LatentWorkArgs &a, int at, int row, int count, int block, int partial, int c, int length,
                  int kv_len) {
  int end = (c + 1) * a.chunk;
  a.first_row[at] = row;
  a.first_block[at] = block;
  a.partial_at[at] = partial;
  a.row_count[at] = count;
  a.kv_len[at] = kv_len;
  a.first_query[at] = 0;
  a.from[at] = c * a.chunk;
  a.to[at] = end < length ? end : length;
}

// Whether a row continues the tile of the row before it.
DEVICE bool continues(const LatentWorkArgs &a, int row) {
  uint32_t sequence = a.sequences[row], position = a.positions[row];
  return row > a.first && sequence != NONE && a.sequences[row - 1] == sequence && a.positions[row - 1] + 1 == position &&
         position % a.tile != 0;
}

}  // namespace latent

ENTRY(latent_work, (256), LatentWorkArgs) {
  SHARED(int, sums, 2 * latent::THREADS);
  int thread = threadIdx.x, end = a.first + a.rows, before = 0, all = 0;
  for (int base = a.first; base < end; base += latent::THREADS) {
    int row = base + thread, count = 0, pieces = 0;
    bool begins = row < end && a.sequences[row] != NONE && !latent::continues(a, row);
    if (begins) {
      count = 1;
      while (row + count < end && latent::continues(a, row + count)) count++;
      pieces = latent::pieces_of(a, a.positions[row] + count - 1);
    }
    int at = before + latent::sum_up_to(pieces, sums, all) - pieces;
    before += all;
    if (!begins) continue;
    int length = a.positions[row] + count;
    for (int i = 0; i < count; i++) {
      a.tile_first[row - a.first + i] = row;
      a.tile_rows[row - a.first + i] = count;
    }
    int block = a.sequences[row] * a.table_stride, tile = row - a.first;
    for (int c = 0; c < pieces && !a.lanes; c++) {
      int partial = pieces == 1 ? -1 : (tile * a.chunks + c * count) * a.heads;
      latent::piece(a, at + c, row, count, block, partial, c, length, length);
    }
    for (int i = 0; i < a.lanes; i++) {
      int lane = a.lane_first + i * a.lane_step, in_lane = latent::seen(length - 1, lane);
      // Row r of a tile sees all but the last count - 1 - r positions up to kv_len. If the tile's own positions are of
      // another lane, its rows see all positions of this one.
      int kv_len = (length - 1) / 64 % 8 == lane ? in_lane : in_lane + count - 1;
      for (int c = 0; c * a.chunk < in_lane; c++) {
        int partial = (tile * a.lanes * a.chunks + (i * a.chunks + c) * count) * a.heads;
        latent::piece(a, at++, row, count, block + i * a.lane_stride, partial, c, in_lane, kv_len);
      }
    }
  }
  __syncthreads();
  // A piece is of the block in whose share of the cost its middle lies.
  auto cost = [&](int piece) { return piece < before ? a.to[piece] - a.from[piece] + latent::PIECE : 0; };
  int64_t total = 0, done = 0;
  for (int base = 0; base < before; base += latent::THREADS) {
    latent::sum_up_to(cost(base + thread), sums, all);
    total += all;
  }
  for (int i = thread; i <= a.blocks; i += latent::THREADS) a.work[i] = before;
  __syncthreads();
  for (int base = 0; base < before; base += latent::THREADS) {
    int piece = base + thread, own = cost(piece);
    int64_t ends = done + latent::sum_up_to(own, sums, all);
    done += all;
    if (piece >= before) continue;
    auto block = [&](int64_t middle) { return int(middle * a.blocks / (2 * total)); };
    int mine = block(2 * ends - own), last = piece ? block(2 * (ends - own) - cost(piece - 1)) : -1;
    for (int i = last + 1; i <= mine; i++) a.work[i] = piece;
  }
}

ENTRY(latent_merge, (128), LatentMergeArgs) {
  int index = blockIdx.x, row = a.first + index, head = blockIdx.y;
  bf16 *out = a.out + size_t(row) * a.out_stride + head * latent::LATENT;
  bool has_work = a.sequences[row] != NONE;
  int pieces = has_work ? int(a.positions[row]) / a.chunk + 1 : 0;
  if (pieces == 1) return;
  // The query's place in the first piece, and how far pieces are apart.
  size_t query = 0, apart = 0;
  float largest = -INFINITY, total = 0, sums[4] = {};
  if (has_work) {
    int first = a.tile_first[index];
    apart = size_t(a.tile_rows[index]) * a.heads;
    query = size_t(first - a.first) * a.chunks * a.heads + size_t(row - first) * a.heads + head;
  }
  for (int c = 0; c < pieces; c++) largest = fmaxf(largest, a.partial_scale[query + c * apart]);
  for (int c = 0; c < pieces; c++) {
    float weight = exp2f(a.partial_scale[query + c * apart] - largest);
    total += weight;
    const bf16 *part = a.partial + (query + c * apart) * latent::LATENT;
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] += weight * to_float(part[i * 128 + threadIdx.x]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) out[i * 128 + threadIdx.x] = to_bf16(has_work ? sums[i] / total : 0.0f);
}
