// embed: out [rows, hidden] f32 = table [count, hidden] T at ids [rows] - first; zeros where the id is NONE, and -0
// where the table does not have it: added to what another rank has, -0 changes no bit.
// Grid: rows. Any hidden. Exact.
#include "common.cuh"

struct EmbedArgs {
  const void *table;
  const uint32_t *ids;
  float *out;
  int hidden;
  uint32_t first, count;
};

template <class T>
DEVICE void embed(const EmbedArgs &a) {
  uint32_t id = a.ids[blockIdx.x];
  bool held = id - a.first < a.count;
  const T *from = static_cast<const T *>(a.table) + size_t(id - a.first) * a.hidden;
  float *to = a.out + size_t(blockIdx.x) * a.hidden, other = id == NONE ? 0.0f : -0.0f;
  for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) to[i] = held ? to_float(from[i]) : other;
}

extern "C" __global__ void __launch_bounds__(256) embed_f32(const EmbedArgs a) { embed<float>(a); }
extern "C" __global__ void __launch_bounds__(256) embed_bf16(const EmbedArgs a) { embed<bf16>(a); }
