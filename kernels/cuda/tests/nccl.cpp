// An NCCL without GPUs: libnccl.so.2 with the functions that kernels/src/cuda calls. It works on the streams of the
// emulated driver (driver.cpp), and moves bytes between threads and processes through a file in shared memory. As with
// NVLink, a rank that is lost is not noticed: the others wait. Environment variables choose what it pretends to be:
//   REIN_FAKE_NCCL_VERSION  22809 (2.28.9)
//   REIN_FAKE_NCCL_TRACE    a file that gets a line for each call: the process's id, the rank (-1: none), the function,
//                           the bytes that it sends
//   REIN_FAKE_NCCL_FAULT    RANK:WHAT[:AFTER[:CODE]], for one rank (-1: all), after that many groups (0):
//     group  ncclGroupEnd fails with CODE (1, ncclUnhandledCudaError), once in a process
//     async  ncclCommGetAsyncError gives CODE (6, ncclRemoteError)
//     hang   groups move no more bytes
//     kill   the process kills itself while a group moves bytes
//     join   ncclCommInitRankConfig never returns
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

enum Code { SUCCESS = 0, UNHANDLED = 1, SYSTEM = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };

constexpr int MOST_RANKS = 16;
constexpr size_t ROOM = 64 << 10;  // Bytes in flight between two ranks.
constexpr auto PAUSE = std::chrono::microseconds(20);
constexpr char MAGIC[] = "rein-fake-nccl-";

struct UniqueId {
  char name[128];
};

struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

// The bytes from one rank to another.
struct Channel {
  std::atomic<uint64_t> written, read;
  unsigned char bytes[ROOM];
};

struct Shared {
  std::atomic<int> joined[MOST_RANKS];
  Channel channels[MOST_RANKS][MOST_RANKS];  // From, to.
};

long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

void trace(int rank, const char *function, size_t bytes = 0) {
  const char *path = getenv("REIN_FAKE_NCCL_TRACE");
  FILE *file = path ? fopen(path, "a") : nullptr;
  if (!file) return;
  fprintf(file, "%d %d %s %zu\n", getpid(), rank, function, bytes);
  fclose(file);
}

struct Communicator {
  Shared *shared;
  int rank, ranks;
  std::atomic<bool> aborted{false};
  std::atomic<long> groups{0};
  std::atomic<uint64_t> sent{0};  // Bytes of all groups that were ended.
};

// The code of a fault of this rank, -1 if there is none.
int fault(const Communicator &comm, const char *what) {
  const char *text = getenv("REIN_FAKE_NCCL_FAULT");
  int rank, length = 0;
  if (!text || sscanf(text, "%d:%n", &rank, &length) != 1 || (rank >= 0 && rank != comm.rank)) return -1;
  text += length;
  size_t name = strlen(what);
  if (strncmp(text, what, name) || (text[name] && text[name] != ':')) return -1;
  long after = 0, code = what == std::string("async") ? REMOTE : UNHANDLED;
  sscanf(text + name, ":%ld:%ld", &after, &code);
  return comm.groups < after ? -1 : int(code);
}

struct Operation {
  std::shared_ptr<Communicator> comm;
  bool sends;
  unsigned char *data;
  size_t left;
  int peer;

  // Whether anything moved.
  bool step() {
    Channel &channel = sends ? comm->shared->channels[comm->rank][peer] : comm->shared->channels[peer][comm->rank];
    uint64_t written = channel.written.load(std::memory_order_acquire), read = channel.read.load(std::memory_order_acquire);
    uint64_t at = sends ? written : read;
    size_t room = sends ? ROOM - (written - read) : written - read;
    size_t count = std::min(std::min(left, room), ROOM - at % ROOM);
    if (!count) return false;
    unsigned char *bytes = channel.bytes + at % ROOM;
    if (sends)
      memcpy(bytes, data, count), channel.written.store(written + count, std::memory_order_release);
    else
      memcpy(data, bytes, count), channel.read.store(read + count, std::memory_order_release);
    data += count;
    left -= count;
    return true;
  }
};

// What a group does on a stream, each time that it runs there: a graph runs it again and again.
void run(std::vector<Operation> work) {
  if (work.empty()) return;
  Communicator &comm = *work[0].comm;
  if (fault(comm, "kill") >= 0) kill(getpid(), SIGKILL);
  for (bool done = false; !done && !comm.aborted;) {
    bool moved = false;
    done = true;
    if (fault(comm, "hang") < 0)
      for (size_t i = 0; i < work.size(); i++) {
        // Those with one peer follow each other.
        bool waits = false;
        for (size_t j = 0; j < i; j++)
          waits |= work[j].left && work[j].peer == work[i].peer && work[j].sends == work[i].sends;
        if (!waits) moved |= work[i].left && work[i].step();
      }
    for (Operation &operation : work) done &= operation.left == 0;
    if (!moved && !done) std::this_thread::sleep_for(PAUSE);
  }
  comm.groups++;
}

thread_local int depth = 0;
thread_local std::vector<Operation> group;
thread_local void *stream_of_group = nullptr;

// Handles point to these; they are never freed, so that a late call finds an aborted one.
std::mutex lock;
std::vector<std::shared_ptr<Communicator>> communicators;

std::shared_ptr<Communicator> find(void *handle) {
  std::lock_guard<std::mutex> guard(lock);
  for (auto &comm : communicators)
    if (comm.get() == handle) return comm;
  return nullptr;
}

// The ids that this process has made. Those of groups that never formed are still files when it ends.
struct Names {
  std::vector<std::string> all;
  ~Names() {
    for (auto &name : all) shm_unlink(name.c_str());
  }
} names;

using Enqueue = void (*)(void *stream, void (*run)(void *), void *data);

// Puts work into a stream of the emulated driver, or records it. `after` runs once the bytes have moved.
void enqueue(void *stream, std::vector<Operation> work, std::function<void()> after = [] {}) {
  static Enqueue put = [] {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<Enqueue>(driver ? dlsym(driver, "rein_fake_enqueue") : nullptr);
  }();
  if (!put) {
    fprintf(stderr, "rein's fake NCCL needs rein's fake driver\n");
    _exit(1);
  }
  // Kept: a graph may run it at any time.
  auto *kept = new std::function<void()>([=] { run(work), after(); });
  put(stream, [](void *data) { (*static_cast<std::function<void()> *>(data))(); }, kept);
}

int add(void *handle, bool sends, void *data, size_t count, int type, int peer, void *stream) {
  auto comm = find(handle);
  if (!comm || comm->aborted) return INVALID_ARGUMENT;
  constexpr int UINT8 = 1;
  if (type != UINT8 || peer < 0 || peer >= comm->ranks || depth == 0) return INVALID_ARGUMENT;
  group.push_back({comm, sends, static_cast<unsigned char *>(data), count, peer});
  stream_of_group = stream;
  return SUCCESS;
}

}  // namespace

#define FUNCTION(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)

FUNCTION(ncclGetVersion, int *version) { return *version = int(setting("REIN_FAKE_NCCL_VERSION", 22809)), SUCCESS; }

FUNCTION(ncclGetUniqueId, UniqueId *id) {
  static std::atomic<int> next = 0;
  memset(id, 0, sizeof *id);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(id->name, sizeof id->name, "%s%d-%d-%ld", MAGIC, getpid(), next++, now.tv_nsec);
  trace(-1, __func__);
  int file = shm_open(id->name, O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return SYSTEM;
  close(file);
  std::lock_guard<std::mutex> guard(lock);
  names.all.push_back(id->name);
  return SUCCESS;
}

FUNCTION(ncclCommInitRankConfig, void **handle, int ranks, UniqueId id, int rank, Config *config) {
  trace(rank, __func__);
  if (strncmp(id.name, MAGIC, strlen(MAGIC)) || ranks > MOST_RANKS || rank >= ranks) return INVALID_ARGUMENT;
  if (config->magic != 0xcafebeef || config->blocking != 0) return INVALID_ARGUMENT;
  auto comm = std::make_shared<Communicator>();
  comm->rank = rank;
  comm->ranks = ranks;
  if (fault(*comm, "join") >= 0)
    for (;;) pause();
  int file = shm_open(id.name, O_RDWR, 0600);
  if (file < 0) return SYSTEM;  // The id of a group that has ended.
  void *pages = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (pages == MAP_FAILED) return SYSTEM;
  comm->shared = static_cast<Shared *>(pages);
  if (comm->shared->joined[rank].exchange(1)) return INVALID_USAGE;
  // The name is not needed once all have joined. The last one takes it away.
  int joined = 0;
  for (int r = 0; r < ranks; r++) joined += comm->shared->joined[r];
  if (joined == ranks) shm_unlink(id.name);
  std::lock_guard<std::mutex> guard(lock);
  communicators.push_back(comm);
  *handle = comm.get();
  return IN_PROGRESS;
}

FUNCTION(ncclCommGetAsyncError, void *handle, int *code) {
  auto comm = find(handle);
  if (!comm) return INVALID_ARGUMENT;
  *code = SUCCESS;
  for (int r = 0; r < comm->ranks; r++)
    if (!comm->shared->joined[r]) *code = IN_PROGRESS;
  int wrong = fault(*comm, "async");
  if (wrong >= 0) *code = wrong;
  return SUCCESS;
}

FUNCTION(ncclCommAbort, void *handle) {
  auto comm = find(handle);
  trace(comm ? comm->rank : -1, __func__);
  if (!comm || comm->aborted.exchange(true)) return INVALID_ARGUMENT;
  return SUCCESS;
}

FUNCTION(ncclGroupStart) { return depth++, SUCCESS; }

FUNCTION(ncclGroupEnd) {
  if (depth == 0) return INVALID_USAGE;
  if (--depth > 0) return SUCCESS;
  std::vector<Operation> work;
  work.swap(group);
  if (work.empty()) return SUCCESS;
  size_t bytes = 0;
  for (const Operation &operation : work) bytes += operation.sends ? operation.left : 0;
  work[0].comm->sent += bytes;
  trace(work[0].comm->rank, __func__, bytes);
  int wrong = fault(*work[0].comm, "group");
  static std::atomic<bool> failed{false};
  if (wrong >= 0 && !failed.exchange(true)) return wrong;
  enqueue(stream_of_group, std::move(work));
  return IN_PROGRESS;
}

FUNCTION(ncclSend, const void *data, size_t count, int type, int peer, void *comm, void *stream) {
  return add(comm, true, const_cast<void *>(data), count, type, peer, stream);
}
FUNCTION(ncclRecv, void *data, size_t count, int type, int peer, void *comm, void *stream) {
  return add(comm, false, data, count, type, peer, stream);
}

// Sums of bf16, added in rank order.
FUNCTION(ncclAllReduce, const void *data, void *out, size_t count, int type, int op, void *handle, void *stream) {
  constexpr int BF16 = 9, SUM = 0;
  auto comm = find(handle);
  if (!comm || comm->aborted || type != BF16 || op != SUM) return INVALID_ARGUMENT;
  trace(comm->rank, __func__);
  auto parts = std::make_shared<std::vector<std::vector<uint16_t>>>(comm->ranks, std::vector<uint16_t>(count));
  std::vector<Operation> work;
  for (int peer = 0; peer < comm->ranks; peer++) {
    work.push_back({comm, true, static_cast<unsigned char *>(const_cast<void *>(data)), 2 * count, peer});
    work.push_back({comm, false, reinterpret_cast<unsigned char *>((*parts)[peer].data()), 2 * count, peer});
  }
  enqueue(stream, std::move(work), [=] {
    auto widen = [](uint16_t bits) {
      uint32_t wide = uint32_t(bits) << 16;
      float x;
      return memcpy(&x, &wide, 4), x;
    };
    for (size_t i = 0; i < count; i++) {
      float sum = 0;
      for (auto &part : *parts) sum += widen(part[i]);
      uint32_t bits;
      memcpy(&bits, &sum, 4);
      static_cast<uint16_t *>(out)[i] = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
  });
  return IN_PROGRESS;
}

// For tests.
extern "C" __attribute__((visibility("default"))) uint64_t rein_fake_sent(void *handle) {
  auto comm = find(handle);
  return comm ? comm->sent.load() : 0;
}

extern "C" __attribute__((visibility("default"))) const char *ncclGetErrorString(int code) {
  switch (code) {
    case UNHANDLED: return "unhandled cuda error";
    case SYSTEM: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE: return "remote process exited or there was a network error";
    default: return "unknown result code";
  }
}
extern "C" __attribute__((visibility("default"))) const char *ncclGetLastError(void *) { return ""; }
