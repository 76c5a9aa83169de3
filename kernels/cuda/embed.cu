// embed: out [rows, hidden] f32 = table [vocab, hidden] T at ids [rows]; zeros where the id is NONE.
// Grid: rows. Any hidden. Exact. Ids below vocab are the caller's promise.
#include "common.cuh"

struct EmbedArgs {
  const void *table;
  const uint32_t *ids;
  float *out;
  int hidden;
};

template <class T>
DEVICE void embed(const EmbedArgs &a) {
  uint32_t id = a.ids[blockIdx.x];
  const T *from = static_cast<const T *>(a.table) + size_t(id) * a.hidden;
  float *to = a.out + size_t(blockIdx.x) * a.hidden;
  for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) to[i] = id == NONE ? 0.0f : to_float(from[i]);
}

extern "C" __global__ void __launch_bounds__(256) embed_f32(const EmbedArgs a) { embed<float>(a); }
extern "C" __global__ void __launch_bounds__(256) embed_bf16(const EmbedArgs a) { embed<bf16>(a); }
