// A CUDA driver without a GPU: libcuda.so.1 with the functions that kernels/src/cuda calls, over the kernels on the
// CPU. A stream is a thread that does its work in order; a captured stream records. Kernels run one at a time, but a
// kernel that meets other ranks waits without keeping them from running. Environment variables choose what the driver
// pretends to be:
//   REIN_FAKE_CUDA_VERSION     13000 (CUDA 13.0)
//   REIN_FAKE_CUDA_DEVICES     1
//   REIN_FAKE_CUDA_CAPABILITY  90 (9.0)
//   REIN_FAKE_CUDA_MEMORY      268435456 (bytes of device memory)
//   REIN_FAKE_CUDA_OTHERS      0 (bytes of it that other processes use)
//   REIN_FAKE_CUDA_FAULT       FUNCTION[:AFTER[:CODE]]: the function fails after that many calls (0) with that error (700,
//                              CUDA_ERROR_ILLEGAL_ADDRESS). As on a GPU, all calls fail after an error of the device. 0:
//                              the process aborts
//   REIN_FAKE_CUDA_HANG        FUNCTION[:AFTER]: the function never returns after that many calls (0)
//                              FUNCTION is a function of the driver, or a kernel: what waits for the kernel fails or hangs
//   REIN_FAKE_CUDA_TRACE       a file that gets a line for each call that does work: the thread's id, the function
//   REIN_FAKE_CUDA_ALLOCATIONS a file that gets a line for each allocation of device memory: its bytes
//   REIN_FAKE_CUDA_QUEUES      a file that gets the number of queues for streams that the process asks for
//   REIN_FAKE_CUDA_MACHINE     the process's id: devices of one index and number are one device
//   REIN_FAKE_CUDA_PEERS       1 (0: no device reaches the memory of another)
//   REIN_FAKE_CUDA_SKIP        the names of kernels that do nothing, with commas between; *: all do nothing, and memory is
//                              zero, so that times are those of the host; meet: only those that draw and those with
//                              which ranks meet do something
//   REIN_FAKE_CUDA_KERNEL_TIME 0 (microseconds that a kernel takes which does nothing)
//   REIN_FAKE_CUDA_IDLE        a file that gets a line for each time that a stream waited for work: microseconds
// CUDA_VISIBLE_DEVICES holds as for NVIDIA's driver, with indices only.
#include <limits.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include "../kernels.cu"
#include "fast.h"

namespace {

// A piece of work. One that waits for others is begun first; it runs once it is ready.
struct Work {
  std::function<void()> run;
  std::function<void()> begin;
  std::function<bool()> ready;
  bool alone = true;  // No other work runs meanwhile.
};

enum Code {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_IMAGE = 200,
  NO_BINARY = 209,
  ECC_UNCORRECTABLE = 214,
  NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700,
  HARDWARE_STACK = 714,
  LAUNCH_FAILED = 719,
  CAPTURE_UNSUPPORTED = 900,
};

// Where a parameter begins in the struct of all, and its bytes. Alone it has the alignment of its type, else that of
// its size.
struct Parameter {
  size_t offset, bytes, alignment = bytes;
};

struct Kernel {
  const char *name;
  std::vector<Parameter> parameters;
  int least;  // Compute capability, times 10; 900: exactly 9.0.
  std::function<Work(const void *)> bind;
  unsigned most_shared = 48 << 10;  // Bytes of dynamic shared memory that a launch may ask for.
  // Of a stand-in, in place of `bind`: called once with the parameters, not by each thread.
  std::function<void(const void *, const fast::Launch &)> whole = nullptr;
};

template <class A>
Kernel kernel(const char *name, void (*function)(A), int least) {
  return {name, {{0, sizeof(A), alignof(A)}}, least, [=](const void *argument) -> Work {
            // Copies of over-aligned arguments, on the heap, keep their alignment.
            auto copy = std::make_shared<A>();
            memcpy(static_cast<void *>(copy.get()), argument, sizeof(A));
            Work work{[=] { function(*copy); }, nullptr, nullptr};
            if constexpr (std::is_same_v<A, MeetArgs>) {
              work.begin = [=] { ranks::post_all(*copy); };
              work.ready = [=] { return ranks::all_have_come(*copy); };
            }
            return work;
          }};
}

// Kernels that need a later device.
const std::map<std::string, int> LEAST = {
    {"linear_sm90_f32", 900}, {"linear_sm90_bf16", 900}, {"ptx_bulk_copy", 90},
    {"ptx_tensor_copy", 90},  {"ptx_wgmma_64", 900},     {"ptx_wgmma_128", 900},
};

int least_of(const char *name) {
  auto found = LEAST.find(name);
  return found == LEAST.end() ? 80 : found->second;
}

#define KERNEL(name) kernel(#name, name, least_of(#name)),
Kernel KERNELS[] = {
#include "kernels.inc"
};

template <class A>
Kernel stand_in(const char *name, std::vector<Parameter> parameters, std::function<void(const A &, const fast::Launch &)> call) {
  auto whole = [=](const void *arguments, const fast::Launch &launch) { call(*static_cast<const A *>(arguments), launch); };
  return {name, parameters, 900, nullptr, 48 << 10, whole};
}

// The kernels of ../fast.
std::vector<Kernel> fast_kernels() {
  constexpr size_t MAP = sizeof(FastMap);
  std::vector<Kernel> all;
  for (const fast::Tile &tile : fast::TILES) {
    if (tile.x == fast::fp8) {
      std::vector<Parameter> parameters = {{0, 8}, {8, 8}, {16, 4}, {20, 4}, {24, 4}};
      for (int i = 0; i < 4; i++) parameters.push_back({128 + i * MAP, MAP});
      all.push_back(stand_in<GemmFp8Args>(tile.name, parameters, [&](const GemmFp8Args &a, const fast::Launch &launch) {
        fast::Gemm gemm = {fast::host_map(a.x), fast::host_map(a.w), fast::host_map(a.out), fast::host_map(a.x_scales),
                           a.w_scales, a.ends, a.rows, a.n, a.k};
        fast::gemm(tile, gemm, launch);
      }));
    } else {
      std::vector<Parameter> parameters = {{0, 8}, {8, 4}, {12, 4}, {16, 4}};
      for (int i = 0; i < 3; i++) parameters.push_back({128 + i * MAP, MAP});
      all.push_back(stand_in<GemmBf16Args>(tile.name, parameters, [&](const GemmBf16Args &a, const fast::Launch &launch) {
        fast::Gemm gemm = {fast::host_map(a.x), fast::host_map(a.w), fast::host_map(a.out), {}, nullptr, a.ends, a.rows, a.n, a.k};
        fast::gemm(tile, gemm, launch);
      }));
    }
  }
  for (const fast::Int4Tile &tile : fast::INT4_TILES) {
    std::vector<Parameter> parameters = {{0, MAP}, {128, MAP}, {256, 8}, {264, 8}, {272, 8}, {384, MAP}};
    for (size_t offset = 512; offset <= 576; offset += 8) parameters.push_back({offset, 8});
    parameters.insert(parameters.end(), {{584, 4}, {588, 4}, {592, 1}});
    all.push_back(stand_in<Int4Args>(tile.name, parameters, [&](const Int4Args &a, const fast::Launch &launch) {
      fast::int4_product(tile, a, launch);
    }));
  }
  std::vector<Parameter> of_repack = {{0, 8}, {8, 8}, {16, 8}};
  for (size_t offset = 24; offset <= 40; offset += 4) of_repack.push_back({offset, 4});
  all.push_back(stand_in<Int4RepackArgs>("int4_repack", of_repack, fast::int4_repack));
  std::vector<Parameter> of_latent = {{0, sizeof(LatentArgs), alignof(LatentArgs)}};
  all.push_back(stand_in<LatentArgs>("latent_attention", of_latent, fast::latent_attention<bf16, 222048>));
  all.push_back(stand_in<LatentArgs>("latent_attention_fp8", of_latent, fast::latent_attention<uint8_t, 230208>));
  return all;
}
std::vector<Kernel> FAST_KERNELS = fast_kernels();

struct Graph {
  std::vector<Work> work;
};

std::recursive_mutex lock;  // Kernels run one at a time: their fibres share what host.h has.
std::map<uint64_t, size_t> allocations;
std::map<char *, size_t> pinned;
size_t allocated = 0;
constexpr auto PAUSE = std::chrono::microseconds(20);  // Between two looks whether work is ready.

// A kernel never ends. What waits for the device does not return then.
std::atomic<bool> hung = false;

void wait_for_device() {
  while (hung) pause();
}

// Destroyed first when the process ends. Other threads that still call wait for good.
struct AtExit {
  ~AtExit() {
    wait_for_device();
    lock.lock();
  }
} at_exit;

void perform(const Work &work) {
  if (work.begin) work.begin();
  while (work.ready && !work.ready()) std::this_thread::sleep_for(PAUSE);
  if (!work.alone) return work.run();
  std::lock_guard<std::recursive_mutex> guard(lock);
  work.run();
}

void note(const char *variable, const std::string &line);

struct Stream {
  std::unique_ptr<Graph> capture;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  bool busy = false, ends = false;
  const bool notes_idle = getenv("REIN_FAKE_CUDA_IDLE");
  std::thread thread{[this] { loop(); }};

  void loop() {
    std::unique_lock<std::mutex> guard(mutex);
    for (bool began = false;; began = true) {
      if (queue.empty() && began && notes_idle) {
        auto since = std::chrono::steady_clock::now();
        changed.wait(guard, [&] { return ends || !queue.empty(); });
        auto idle = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - since);
        note("REIN_FAKE_CUDA_IDLE", std::to_string(gettid()) + " " + std::to_string(idle.count()));
      }
      changed.wait(guard, [&] { return ends || !queue.empty(); });
      if (queue.empty()) return;
      Work work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      guard.unlock();
      perform(work);
      guard.lock();
      busy = false;
      changed.notify_all();
    }
  }
  void push(Work work) {
    std::lock_guard<std::mutex> guard(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  void drain() {
    std::unique_lock<std::mutex> guard(mutex);
    changed.wait(guard, [&] { return queue.empty() && !busy; });
  }
  ~Stream() {
    {
      std::lock_guard<std::mutex> guard(mutex);
      ends = true;
      changed.notify_all();
    }
    thread.join();
  }
};

std::mutex of_streams;
auto &streams = *new std::map<Stream *, std::shared_ptr<Stream>>;  // Not destroyed: work may wait when the process ends.

// As the driver does before it frees memory: on a device that several ranks share, for the work of all of them.
void drain_all() {
  std::vector<std::shared_ptr<Stream>> all;
  {
    std::lock_guard<std::mutex> guard(of_streams);
    for (auto &[stream, shared] : streams) all.push_back(shared);
  }
  for (auto &stream : all) stream->drain();
}

// A point in a stream. Work that is still to come holds what it will set.
struct Event {
  struct Point {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
    std::chrono::steady_clock::time_point at;
  };
  std::shared_ptr<Point> point;
};

thread_local Stream *capturing = nullptr;

long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

// Whether `setting`, FUNCTION[:AFTER[:CODE]], is about this function and has had its calls. Sets the code if there is one.
bool is_due(const char *setting, const char *function, std::atomic<long> &calls, long &code) {
  size_t length = strlen(function);
  if (!setting || strncmp(setting, function, length) || (setting[length] && setting[length] != ':')) return false;
  long after = 0;
  sscanf(setting + length, ":%ld:%ld", &after, &code);
  return calls++ >= after;
}

// After an error of the device, rather than of a call, everything fails until the process ends.
bool is_sticky(long code) {
  return code == ECC_UNCORRECTABLE || code == ILLEGAL_ADDRESS || (code >= HARDWARE_STACK && code <= LAUNCH_FAILED);
}

std::atomic<int> lost = SUCCESS;

// The error of this call, SUCCESS if it is not to fail.
int fault(const char *function) {
  static std::atomic<long> calls = 0, calls_of_hang = 0;
  long code = ILLEGAL_ADDRESS;
  while (is_due(getenv("REIN_FAKE_CUDA_HANG"), function, calls_of_hang, code)) pause();
  if (lost || !is_due(getenv("REIN_FAKE_CUDA_FAULT"), function, calls, code)) return lost;
  if (code == SUCCESS) abort();
  if (is_sticky(code)) lost = int(code);
  return int(code);
}

// Runs a kernel, unless the device has failed or hangs.
void run(const Kernel &kernel, const fast::Launch &launch, const std::function<void()> &call) {
  static std::atomic<long> calls = 0, calls_of_hang = 0;
  long code = ILLEGAL_ADDRESS;
  if (is_due(getenv("REIN_FAKE_CUDA_HANG"), kernel.name, calls_of_hang, code)) hung = true;
  if (is_due(getenv("REIN_FAKE_CUDA_FAULT"), kernel.name, calls, code)) {
    if (code == SUCCESS) abort();
    lost = int(code);
  }
  if (hung || lost) return;
  if (kernel.whole) return call();
  host::waited = false;
  host::launch(kernel.name, launch.grid, launch.threads, launch.shared, call);
  if (launch.overlaps && !host::waited) fast::wrong(kernel.name, "did not wait for the kernels before it");
}

// Adds a line to the file that a variable names.
void note(const char *variable, const std::string &line) {
  const char *path = getenv(variable);
  FILE *file = path ? fopen(path, "a") : nullptr;
  if (!file) return;
  fprintf(file, "%s\n", line.c_str());
  fclose(file);
}

void trace(const char *function) { note("REIN_FAKE_CUDA_TRACE", std::to_string(gettid()) + " " + function); }

// Whether no kernel does anything.
bool skips_all() {
  const char *names = getenv("REIN_FAKE_CUDA_SKIP");
  return names && (!strcmp(names, "*") || !strcmp(names, "meet"));
}

// Whether a kernel does nothing.
bool skips(const char *kernel) {
  const char *names = getenv("REIN_FAKE_CUDA_SKIP");
  if (names && !strcmp(names, "meet")) return strcmp(kernel, "meet_ranks") && !strstr(kernel, "draw");
  return skips_all() ||
         (names && (std::string(",") + names + ",").find(std::string(",") + kernel + ",") != std::string::npos);
}

size_t memory() { return setting("REIN_FAKE_CUDA_MEMORY", 256 << 20); }
size_t unused() { return memory() - setting("REIN_FAKE_CUDA_OTHERS", 0) - allocated; }
int capability() { return int(setting("REIN_FAKE_CUDA_CAPABILITY", 90)); }

// The devices that CUDA_VISIBLE_DEVICES leaves, up to its first index of none.
std::vector<int> visible() {
  int count = int(setting("REIN_FAKE_CUDA_DEVICES", 1));
  std::vector<int> devices;
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  if (!list)
    for (int i = 0; i < count; i++) devices.push_back(i);
  std::istringstream indices(list ? list : "");
  for (std::string index; std::getline(indices, index, ',');) {
    int device = index.empty() || !isdigit(index[0]) ? -1 : atoi(index.c_str());
    if (device < 0 || device >= count) break;
    devices.push_back(device);
  }
  return devices;
}

// Puts the work into the stream, or records it if the stream is captured.
int put(Stream *stream, Work work) {
  if (stream->capture)
    stream->capture->work.push_back(std::move(work));
  else
    stream->push(std::move(work));
  return SUCCESS;
}
int put(Stream *stream, std::function<void()> run) { return put(stream, Work{std::move(run), nullptr, nullptr}); }

bool is_pinned(const void *address) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto next = pinned.upper_bound(static_cast<char *>(const_cast<void *>(address)));
  if (next == pinned.begin()) return false;
  auto [start, bytes] = *std::prev(next);
  return address < start + bytes;
}

}  // namespace

#define FUNCTION(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)
#define WORK       \
  trace(__func__); \
  if (int code = fault(__func__)) return code

FUNCTION(cuDriverGetVersion, int *version) { return *version = int(setting("REIN_FAKE_CUDA_VERSION", 13000)), SUCCESS; }
FUNCTION(cuInit, unsigned) {
  const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  note("REIN_FAKE_CUDA_QUEUES", queues ? queues : "8");
  return visible().empty() ? NO_DEVICE : SUCCESS;
}
FUNCTION(cuDeviceGetCount, int *count) { return *count = int(visible().size()), SUCCESS; }
FUNCTION(cuDeviceGet, int *device, int index) { return *device = visible().at(index), SUCCESS; }
FUNCTION(cuDeviceGetName, char *name, int size, int device) {
  std::string number = device ? " " + std::to_string(device) : "";
  return snprintf(name, size, "Rein's CPU emulation%s", number.c_str()), SUCCESS;
}
FUNCTION(cuDeviceTotalMem_v2, size_t *bytes, int) { return *bytes = memory(), SUCCESS; }
FUNCTION(cuDeviceGetAttribute, int *value, int attribute, int) {
  constexpr int MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76;
  if (attribute == MULTIPROCESSORS)
    *value = 1;
  else if (attribute == MAJOR)
    *value = capability() / 10;
  else if (attribute == MINOR)
    *value = capability() % 10;
  else
    return INVALID_VALUE;
  return SUCCESS;
}
FUNCTION(cuDeviceGetUuid_v2, unsigned char *id, int device) {
  // That of the process too: emulated devices of two processes are two.
  memset(id, 0, 16);
  int words[] = {device, int(setting("REIN_FAKE_CUDA_MACHINE", getpid()))};
  memcpy(id, words, sizeof words);
  return SUCCESS;
}
FUNCTION(cuDeviceGetPCIBusId, char *text, int size, int device) {
  return snprintf(text, size, "0000:%02X:00.0", device + 1), SUCCESS;
}
FUNCTION(cuDeviceCanAccessPeer, int *can, int, int) { return *can = setting("REIN_FAKE_CUDA_PEERS", 1), SUCCESS; }
FUNCTION(cuCtxEnablePeerAccess, void *, unsigned) { return SUCCESS; }
FUNCTION(cuDevicePrimaryCtxRetain, void **context, int) { return *context = &allocations, SUCCESS; }
FUNCTION(cuDevicePrimaryCtxRelease_v2, int) { return SUCCESS; }
FUNCTION(cuCtxSetCurrent, void *) { return SUCCESS; }
FUNCTION(cuModuleLoadDataEx, void **module, const void *image, unsigned count, int *options, void **values) {
  trace(__func__);
  if (int code = fault(__func__)) {
    constexpr int ERROR_LOG_BUFFER = 5;
    for (unsigned i = 0; i < count; i++)
      if (options[i] == ERROR_LOG_BUFFER) strcpy(static_cast<char *>(values[i]), "ptxas fatal: no such instruction\n");
    return code;
  }
  // The magic number of fat binaries.
  uint32_t magic;
  memcpy(&magic, image, 4);
  // Cubins are ELF files; those that are loaded are the fast kernels.
  bool is_cubin = !memcmp(image, "\177ELF", 4);
  *module = is_cubin ? static_cast<void *>(&FAST_KERNELS) : &allocations;
  return is_cubin || magic == 0xba55ed50 ? SUCCESS : INVALID_IMAGE;
}
FUNCTION(cuModuleUnload, void *) { return SUCCESS; }
FUNCTION(cuModuleGetFunction, void **function, void *module, const char *name) {
  for (Kernel &kernel : FAST_KERNELS)
    if (module == &FAST_KERNELS && !strcmp(kernel.name, name)) return *function = &kernel, SUCCESS;
  for (Kernel &kernel : KERNELS) {
    if (module == &FAST_KERNELS) break;
    bool runs = kernel.least == 900 ? capability() == 90 : capability() >= kernel.least;
    if (runs && !strcmp(kernel.name, name)) return *function = &kernel, SUCCESS;
  }
  return NOT_FOUND;
}
FUNCTION(cuModuleGetFunctionCount, unsigned *count, void *module) {
  return *count = module == &FAST_KERNELS ? FAST_KERNELS.size() : sizeof KERNELS / sizeof *KERNELS, SUCCESS;
}
FUNCTION(cuModuleEnumerateFunctions, Kernel **functions, unsigned count, void *module) {
  for (unsigned i = 0; i < count; i++) functions[i] = module == &FAST_KERNELS ? &FAST_KERNELS[i] : &KERNELS[i];
  return SUCCESS;
}
FUNCTION(cuFuncLoad, Kernel *) {
  WORK;
  drain_all();
  return lost;
}
FUNCTION(cuFuncGetParamInfo, Kernel *kernel, size_t index, size_t *offset, size_t *size) {
  if (index >= kernel->parameters.size()) return INVALID_VALUE;
  // As on compute capability 9.0: parameters begin at 528 of the constant bank, and are aligned there.
  constexpr size_t BANK = 528;
  size_t end = BANK, start = BANK;
  for (size_t i = 0; i <= index; i++) {
    const Parameter &parameter = kernel->parameters[i];
    start = (end + parameter.alignment - 1) / parameter.alignment * parameter.alignment;
    end = start + parameter.bytes;
  }
  *offset = start - BANK;
  *size = kernel->parameters[index].bytes;
  return SUCCESS;
}
FUNCTION(cuFuncSetAttribute, Kernel *kernel, int attribute, int value) {
  constexpr int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, PREFERRED_SHARED_MEMORY_CARVEOUT = 9;
  if (attribute == PREFERRED_SHARED_MEMORY_CARVEOUT) return value >= 0 && value <= 100 ? SUCCESS : INVALID_VALUE;
  if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || size_t(value) > host::MAX_SHARED) return INVALID_VALUE;
  return kernel->most_shared = value, SUCCESS;
}

FUNCTION(cuMemGetInfo_v2, size_t *free, size_t *total) {
  WORK;
  std::lock_guard<std::recursive_mutex> guard(lock);
  *total = memory();
  *free = unused();
  return SUCCESS;
}
FUNCTION(cuMemAlloc_v2, uint64_t *address, size_t bytes) {
  WORK;
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (bytes == 0) return INVALID_VALUE;
  if (capturing) return CAPTURE_UNSUPPORTED;
  if (bytes > unused()) return OUT_OF_MEMORY;
  allocated += bytes;
  void *memory = host::allocate(bytes);
  if (skips_all()) memset(memory, 0, bytes);
  *address = uint64_t(memory);
  allocations[*address] = bytes;
  note("REIN_FAKE_CUDA_ALLOCATIONS", std::to_string(bytes));
  return SUCCESS;
}
FUNCTION(cuMemFree_v2, uint64_t address) {
  WORK;
  drain_all();
  wait_for_device();
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto found = allocations.find(address);
  if (found == allocations.end()) return INVALID_VALUE;
  allocated -= found->second;
  host::release(reinterpret_cast<void *>(address), found->second);
  allocations.erase(found);
  return SUCCESS;
}
FUNCTION(cuMemHostAlloc, void **start, size_t bytes, unsigned) {
  WORK;
  std::lock_guard<std::recursive_mutex> guard(lock);
  *start = malloc(bytes);
  pinned[static_cast<char *>(*start)] = bytes;
  return *start ? SUCCESS : OUT_OF_MEMORY;
}
FUNCTION(cuMemFreeHost, void *start) {
  WORK;
  drain_all();
  wait_for_device();
  std::lock_guard<std::recursive_mutex> guard(lock);
  pinned.erase(static_cast<char *>(start));
  return free(start), SUCCESS;
}
FUNCTION(cuMemHostGetDevicePointer_v2, uint64_t *address, void *start, unsigned) {
  return *address = uint64_t(start), SUCCESS;
}
FUNCTION(cuMemcpyHtoDAsync_v2, uint64_t to, const void *from, size_t bytes, Stream *stream) {
  WORK;
  if (is_pinned(from)) return put(stream, [=] { memcpy(reinterpret_cast<void *>(to), from, bytes); });
  // Other memory may be gone when this returns.
  auto staged = std::make_shared<std::vector<char>>(static_cast<const char *>(from), static_cast<const char *>(from) + bytes);
  return put(stream, [=] { memcpy(reinterpret_cast<void *>(to), staged->data(), bytes); });
}
FUNCTION(cuMemcpyDtoHAsync_v2, void *to, uint64_t from, size_t bytes, Stream *stream) {
  WORK;
  put(stream, [=] { memcpy(to, reinterpret_cast<void *>(from), bytes); });
  if (stream->capture || is_pinned(to)) return SUCCESS;
  stream->drain();
  wait_for_device();
  return lost;
}
FUNCTION(cuMemcpyDtoH_v2, void *to, uint64_t from, size_t bytes) {
  WORK;
  std::lock_guard<std::recursive_mutex> guard(lock);
  return memcpy(to, reinterpret_cast<void *>(from), bytes), SUCCESS;
}
FUNCTION(cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, Stream *stream) {
  WORK;
  return put(stream, [=] { memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes); });
}
FUNCTION(cuMemsetD8Async, uint64_t to, unsigned char byte, size_t bytes, Stream *stream) {
  WORK;
  return put(stream, [=] { memset(reinterpret_cast<void *>(to), byte, bytes); });
}

FUNCTION(cuStreamCreate, Stream **stream, unsigned) {
  WORK;
  auto made = std::make_shared<Stream>();
  std::lock_guard<std::mutex> guard(of_streams);
  streams[*stream = made.get()] = made;
  return SUCCESS;
}
FUNCTION(cuStreamDestroy_v2, Stream *stream) {
  std::shared_ptr<Stream> last;
  std::lock_guard<std::mutex> guard(of_streams);
  last = streams[stream];
  streams.erase(stream);
  return SUCCESS;
}
FUNCTION(cuStreamSynchronize, Stream *stream) {
  WORK;
  if (stream->capture) return CAPTURE_UNSUPPORTED;
  stream->drain();
  wait_for_device();
  return lost;
}
FUNCTION(cuStreamBeginCapture_v2, Stream *stream, int) {
  WORK;
  stream->capture = std::make_unique<Graph>();
  capturing = stream;
  return SUCCESS;
}
FUNCTION(cuStreamEndCapture, Stream *stream, Graph **graph) {
  trace(__func__);
  capturing = nullptr;
  return *graph = stream->capture.release(), SUCCESS;
}
FUNCTION(cuGraphInstantiateWithFlags, Graph **executable, Graph *graph, unsigned long long) {
  return *executable = new Graph(*graph), SUCCESS;
}
FUNCTION(cuGraphLaunch, Graph *executable, Stream *stream) {
  WORK;
  for (const Work &work : executable->work) put(stream, work);
  return SUCCESS;
}
FUNCTION(cuGraphExecDestroy, Graph *executable) { return delete executable, SUCCESS; }
FUNCTION(cuGraphDestroy, Graph *graph) { return delete graph, SUCCESS; }

// For nccl.cpp: work that may wait for other ranks.
extern "C" __attribute__((visibility("default"))) void rein_fake_enqueue(Stream *stream, void (*run)(void *), void *data) {
  trace(__func__);
  put(stream, Work{[=] { run(data); }, nullptr, nullptr, false});
}

FUNCTION(cuEventCreate, Event **event, unsigned) { return *event = new Event, SUCCESS; }
FUNCTION(cuEventDestroy_v2, Event *event) { return delete event, SUCCESS; }
FUNCTION(cuEventRecord, Event *event, Stream *stream) {
  WORK;
  auto point = event->point = std::make_shared<Event::Point>();
  return put(stream, [=] {
    std::lock_guard<std::mutex> guard(point->mutex);
    point->reached = true;
    point->at = std::chrono::steady_clock::now();
    point->changed.notify_all();
  });
}
FUNCTION(cuEventSynchronize, Event *event) {
  WORK;
  if (auto point = event->point) {
    std::unique_lock<std::mutex> guard(point->mutex);
    point->changed.wait(guard, [&] { return point->reached; });
  }
  wait_for_device();
  return lost;
}
FUNCTION(cuEventElapsedTime_v2, float *milliseconds, Event *begin, Event *end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->point->at - begin->point->at).count();
  return SUCCESS;
}

// Copies the parameters into the struct of all.
std::shared_ptr<void> gather(const Kernel &kernel, void **arguments) {
  const Parameter &last = kernel.parameters.back();
  void *all = aligned_alloc(alignof(FastMap), (last.offset + last.bytes + alignof(FastMap) - 1) / alignof(FastMap) * alignof(FastMap));
  for (size_t i = 0; i < kernel.parameters.size(); i++)
    memcpy(static_cast<char *>(all) + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].bytes);
  return {all, free};
}

static int put_kernel(const Kernel *kernel, const fast::Launch &launch, Stream *stream, void **arguments) {
  auto [x, y, z] = launch.grid;
  unsigned threads = launch.threads.x * launch.threads.y * launch.threads.z;
  bool fits = x > 0 && y > 0 && z > 0 && x <= INT_MAX && y <= 65535 && z <= 65535 && threads > 0 && threads <= 1024;
  if (!fits || launch.shared > kernel->most_shared || x % launch.cluster) return INVALID_VALUE;
  if (skips(kernel->name)) {
    static const long time = setting("REIN_FAKE_CUDA_KERNEL_TIME", 0);
    auto sleep = [] { std::this_thread::sleep_for(std::chrono::microseconds(time)); };
    return time ? put(stream, Work{sleep, nullptr, nullptr, false}) : SUCCESS;
  }
  Work work;
  if (kernel->whole)
    work.run = [=, all = gather(*kernel, arguments)] { kernel->whole(all.get(), launch); };
  else
    work = kernel->bind(arguments[0]);
  work.run = [=, call = work.run] { run(*kernel, launch, call); };
  return put(stream, work);
}

// A CUlaunchConfig, and its attributes.
struct LaunchAttribute {
  int id;
  char pad[4];
  unsigned value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  Stream *stream;
  LaunchAttribute *attributes;
  unsigned count;
};
FUNCTION(cuLaunchKernelEx, const LaunchConfig *config, Kernel *kernel, void **arguments, void **) {
  WORK;
  constexpr int COOPERATIVE = 2, CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6;
  auto [grid, block, shared, stream, attributes, count] = *config;
  fast::Launch launch = {dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared};
  for (unsigned i = 0; i < count; i++) {
    if (attributes[i].id == COOPERATIVE) launch.together = attributes[i].value[0];
    if (attributes[i].id == CLUSTER_DIMENSION) launch.cluster = attributes[i].value[0];
    if (attributes[i].id == PROGRAMMATIC_STREAM_SERIALIZATION) launch.overlaps = attributes[i].value[0];
  }
  return put_kernel(kernel, launch, stream, arguments);
}

FUNCTION(cuTensorMapEncodeTiled, TensorMap *map, int type, unsigned rank, void *data, const uint64_t *dims,
         const uint64_t *strides, const unsigned *boxes, const unsigned *, int, int swizzle, int, int) {
  uint64_t bytes = type == fast::fp8 ? 1 : type == fast::bf16_numbers ? 2 : type == fast::f32 || type == fast::words ? 4 : 0;
  // 1 to 3: of 32, 64 or 128 bytes, as wide as a box.
  bool swizzled = swizzle != 0;
  if (bytes == 0 || (rank != 2 && rank != 3) || swizzle < 0 || swizzle > 3) return INVALID_VALUE;
  if (uintptr_t(data) % 16 || strides[0] % 16 || (rank == 3 && strides[1] % 16)) return INVALID_VALUE;
  if (boxes[0] * bytes % 16 || boxes[0] > 256 || boxes[1] > 256 || (swizzled && boxes[0] * bytes != 16u << swizzle)) return INVALID_VALUE;
  *map = host_tensor_map({data, dims[1], dims[0], strides[0], boxes[1], boxes[0], rank == 3 ? dims[2] : 1,
                          rank == 3 ? strides[1] : 0, uint64_t(type), swizzled, rank == 3 ? boxes[2] : 1});
  return SUCCESS;
}

FUNCTION(cuGetErrorName, int code, const char **name) {
  *name = code == ILLEGAL_ADDRESS     ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : code == INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
          : code == OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == NO_BINARY         ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : code == ECC_UNCORRECTABLE ? "CUDA_ERROR_ECC_UNCORRECTABLE"
                                      : nullptr;
  return *name ? SUCCESS : INVALID_VALUE;
}
FUNCTION(cuGetErrorString, int code, const char **text) {
  *text = code == ILLEGAL_ADDRESS     ? "an illegal memory access was encountered"
          : code == OUT_OF_MEMORY     ? "out of memory"
          : code == INVALID_VALUE     ? "invalid argument"
          : code == NO_BINARY         ? "no kernel image is available for execution on the device"
          : code == ECC_UNCORRECTABLE ? "uncorrectable ECC error encountered"
                                      : nullptr;
  return *text ? SUCCESS : INVALID_VALUE;
}
