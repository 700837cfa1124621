// A guard around Horovod 0.28.1 and the gloo in it, so that a peer's death ends neither the process nor its patience.
//
// 1. Horovod forms a ring in a thread of its own (BackgroundThreadLoop in horovod/common/operations.cc). Up to the end
//    of GlooContext::Initialize and ProcessSetTable::Initialize nothing catches there. So a peer that dies while a ring
//    forms makes gloo throw, and std::terminate ends every survivor with SIGABRT. Once something catches, the thread
//    that has called horovod_init() looks each millisecond for a start that never comes (InitializeHorovodOnce).
// 2. When gloo loses a connection in the middle of a message, it forgets those who wait for that very message
//    (Pair::signalException in gloo/transport/tcp/pair.cc looks at the queues, not at rx_.ubuf and tx_): they wait
//    until gloo's time-out. Seen in 3 of 10 kills during a large all-reduce.
//
// 3. Horovod forms its second mesh, that of the process set of all, on another device than its first: not on the
//    interface that it was told, as GlooContext::InitializeForProcessSet looks for that in an object that never heard
//    of it, but on what the host's name resolves to. That is a loopback address on many a host, which no other host
//    reaches; and a name that does not resolve ends the process with SIGSEGV (lookupAddrForHostname in
//    gloo/transport/tcp/device.cc takes -1 for the one error of getaddrinfo).
//
// 4. To free who waits for a peer that is gone, the ring's connections have to be shut down, and those alone: the script
//    has connections of its own, which its threads open when they like. Only the guard knows which are which.
// 5. Horovod reads where it belongs from the environment, which all threads share: while a ring forms beside training,
//    no thread may change that one. glibc's setenv() moves it away from under those who read it.
//
// 6. horovod.torch waits for a collective in a loop that never sleeps (WaitAndClear in horovod/torch/mpi_ops_v2.cc).
//    Where workers share cores, one that waits takes a core from those it waits for: newcomers, which wait for the
//    survivors from the announcement of a switch on, did so for a third of a second.
// 7. A tensor that is enqueued while Horovod's thread ends is never answered: the thread says that it is over, and then
//    answers all that is enqueued (Finalize in horovod/common/process_set.cc); one that had looked before that, and
//    enqueues after it (EnqueueTensorAllreduces in horovod/common/operations.cc), waits for ever. Seen in 1 of 700
//    broken rings that reduced small tensors.
// 8. What HOROVOD_CYCLE_TIME and HOROVOD_FUSION_THRESHOLD have fixed stays so in Horovod's ParameterManager, which lives
//    as long as the library. When the next ring forms, the default of a parameter that is fixed already is written to
//    the first that is not (BayesianParameter::SetValue in horovod/common/parameter_manager.cc asks index_, which does
//    not have it, and finds 0): the cycle time's 1 ms becomes a fusion threshold of 1 MB, in place of 128. Each member
//    fuses for itself what it finds in its cache. So those whose library forms its first ring reduce together what the
//    others reduce apart, and the ring breaks in its second step, if a gradient is larger than 1 MB. With both set there
//    is no parameter left to write to: SIGSEGV in the second ring of a library.
// 9. gloo's loop does not wait for a connection that another thread has locked: it asks for the same events again, at
//    once and as often as it takes (handleEvents in gloo/transport/tcp/pair.cc). Where workers share cores, it keeps one
//    from the very thread that it needs: two such loops had both cores for 8 ms of a switch, and in training 8 % of
//    what three workers had of them.
// 10. Where a connection is taken from gloo's loop, as it is when it stands and when it is closed, that waits for the
//    loop's next turn (unregisterDescriptor in gloo/transport/tcp/loop.cc). The loop takes one each 10 ms while nothing
//    happens (run, there): a mesh of three has spent most of its time in such waits, which come one after the other.
//    Beside training that is well, as it leaves the cores to those who train; after a death all wait for the ring.
// 11. Horovod waits for a member that does not come, for ever: its threads go on talking to each other while one member's
//    script hangs, so that nothing of gloo's is under way that could time out. Whether something moves is seen here, and
//    edl ends the wait (edl/collectives/ring_port.py).
//
// What is done about it, without a patch or a build of Horovod: Horovod's library calls a few functions of other
// libraries through its global offset table, which no other library sees. `edl_watch` points some of its slots here:
//
//    std::thread::_M_start_thread   Horovod's thread runs under a catch. Unwinding does what it does in any program:
//                                   locks are let go, sockets closed. horovod_shutdown() then joins the thread and
//                                   resets Horovod. gloo's loop, if an exception ends it, begins again.
//    close                          a connection that gloo's thread closes in a ring that stands means that it is
//                                   broken: hurry.
//    pthread_cond_clockwait,        once in a hurry, every wait and sleep of Horovod's and gloo's threads is over: the
//    steady_clock::now,             clock that they look at leaps ahead, so gloo's own time-outs throw, and all ends in
//    nanosleep                      order. And who waits for the start of a ring that came to nothing waits no more.
//    gethostname                    to Horovod's thread this host is called by the address that it is to listen at.
//    socket, accept, close          what Horovod's library opens is the ring's, until it closes it: `edl_cut` ends that.
//    getenv                         the library has an environment of its own, before that of the process.
//    sched_yield                    who waits for a collective naps between two looks, once that takes long.
//    pthread_mutex_trylock          gloo's loop gives way to who has locked a connection.
//    epoll_wait                     gloo's loop takes a turn each millisecond while a ring forms that all wait for.
//    pthread_mutex_lock, _unlock    a queue of tensors is locked by Horovod's thread to answer all that is in it: it is
//                                   closed from then on. It is unlocked by one that has enqueued: if it is closed, all
//                                   that is in it is answered once more. Else it is the queue that `edl_pulse` looks at;
//                                   Horovod's thread locks it in each of its turns.
//
// And the ParameterManager is made anew, by its own functions, before Horovod's thread starts.
//
// All of this is the state of one library. Who watches two of them loads a copy of this one for the second.
//
// Called through ctypes by edl/collectives/library_guard.py; built by setup.py where there is a compiler. Without it edl works,
// but a peer's death is as bad as it is for Horovod.

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

using State = std::thread::_State;
using Steady = std::chrono::steady_clock;

constexpr long kLookNs = 20'000'000;            // how soon one who waits sees that there is a hurry
constexpr auto kLeap = std::chrono::hours(1);   // longer than any time-out of gloo's
constexpr int64_t kMostLeaps = 1'000'000;           // so that the clock stays within its 64 bits
// Until it is said otherwise: in a shorter wait, as a step's is, a nap would slow each step.
constexpr int64_t kSpinNs = 50'000'000;
constexpr int64_t kSettlingSpinNs = 1'000'000;
constexpr int64_t kLongestNapNs = 500'000;
constexpr int64_t kNapShare = 32;                   // a nap is so small a part of the wait so far: it ends little later
constexpr int64_t kBetweenLooksNs = 200'000;        // at most, in one wait
constexpr int kRefusalsInPlace = 4;                 // who has a lock and a core lets go of it soon
constexpr long kRefusedNapNs = 50'000;
constexpr int kTurnMs = 1;

std::atomic<bool> hurry{false};
std::atomic<bool> standing{false};   // a ring stands: none of its connections may end
std::atomic<bool> awaited{false};    // a ring forms while its members wait for it
std::atomic<int> failed_attempt{0};  // the newest attempt whose first thread ended by an exception
char failure[512] = "";              // written before failed_attempt, read after it

enum class Role { kOther, kHorovods, kGloos };
thread_local Role role = Role::kOther;
char host[64] = "";                  // written before Horovod's thread starts, which reads it
thread_local int attempt_here = 0;  // > 0: the thread that this one starts next is Horovod's, of this attempt
thread_local int starting = 0;  // > 0: this thread is in horovod_init(), of this attempt

// How far the library's clock is ahead. It never falls back: Horovod compares times of one ring with those of the next.
std::atomic<int64_t> leaps{0};

void note(int attempt, const char* what) {
  std::strncpy(failure, what, sizeof failure - 1);
  failed_attempt.store(attempt, std::memory_order_release);
}

// ----------------------------------------------------------------------------------------------- the ring's sockets

// What the library has opened and not closed, by descriptor. A descriptor that other code closed behind its back may
// be another socket by now, which the inode tells. Never destroyed: the library's threads may outlive it.
struct Sockets {
  std::mutex mutex;
  std::unordered_map<int, ino_t> open;
};

Sockets& sockets() {
  static Sockets* all = new Sockets;
  return *all;
}

ino_t inode_of(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

int remember(int descriptor) {
  if (descriptor < 0) return descriptor;
  const std::lock_guard<std::mutex> lock(sockets().mutex);
  sockets().open[descriptor] = inode_of(descriptor);
  return descriptor;
}

void forget(int descriptor) {
  const std::lock_guard<std::mutex> lock(sockets().mutex);
  sockets().open.erase(descriptor);
}

// ----------------------------------------------------------------------------------------------- its environment

// What the library finds there before it looks at the process's own; without a value, it finds nothing. Changed between
// two rings, when none of Horovod's threads may hold a value any more. Never destroyed, as above.
struct Environment {
  std::mutex mutex;
  std::unordered_map<std::string, std::optional<std::string>> variables;
};

Environment& environment() {
  static Environment* own = new Environment;
  return *own;
}

// ------------------------------------------------------------------------------------- its queues of tensors

struct Function {
  uintptr_t begin = 0, end = 0;

  bool calls(const void* from) const {  // `from`: where a function returns to
    const auto place = reinterpret_cast<uintptr_t>(from);
    return begin < place && place <= end;
  }
};

// A class of Horovod's, made and never ended.
struct Status {
  Status(const Status&);
  ~Status();
  alignas(16) unsigned char bytes[256];  // more than it has
};

Function add_one, add_many, answer_all;  // of horovod::common::TensorQueue
void (*answer)(void* queue, const Status* status) = nullptr;
const Status* over = nullptr;
std::ptrdiff_t lock_in_queue = 0;              // where in a queue its mutex lies
thread_local pthread_mutex_t* locked = nullptr;  // the newest, while that is looked for

struct Queues {
  std::mutex mutex;
  std::unordered_set<pthread_mutex_t*> closed;  // by their mutexes
  std::atomic<bool> any{false};
  std::atomic<pthread_mutex_t*> used{nullptr};  // that of the ring that stands; set and used under `mutex`, but compared
  std::atomic<int64_t> added{0};                // times that tensors were enqueued there
  std::atomic<int64_t> turns{0};                // of Horovod's thread there, which alone counts them
};

Queues& queues() {  // never destroyed, as above
  static Queues* all = new Queues;
  return *all;
}

void close_queue(pthread_mutex_t* mutex) {
  const std::lock_guard<std::mutex> lock(queues().mutex);
  queues().closed.insert(mutex);
  queues().any = true;
  queues().used = nullptr;  // it is about to end
}

void open_queues() {
  const std::lock_guard<std::mutex> lock(queues().mutex);
  queues().closed.clear();
  queues().any = false;
  queues().used = nullptr;
  queues().added = queues().turns = 0;
}

bool is_closed(pthread_mutex_t* mutex) {
  if (!queues().any) return false;
  const std::lock_guard<std::mutex> lock(queues().mutex);
  return queues().closed.count(mutex) != 0;
}

// Tensors were enqueued.
void note_added(pthread_mutex_t* mutex) {
  queues().added.fetch_add(1, std::memory_order_relaxed);
  if (queues().used.load(std::memory_order_relaxed) == mutex) return;
  const std::lock_guard<std::mutex> lock(queues().mutex);
  if (queues().closed.count(mutex) == 0) queues().used = mutex;
}

// As the table of tensors in a queue is, but for what it has of each.
using Table = std::unordered_map<std::string, int>;

// ------------------------------------------------------------------------------------- its parameters

constexpr size_t kMostOfManager = 1 << 14;  // more bytes than a ParameterManager has

struct Manager {
  void* place = nullptr;  // of the only one that the library has
  void (*make)(void* place) = nullptr;
  void (*end)(void* place) = nullptr;

  void renew() const {  // none of Horovod's threads may be there
    if (place == nullptr) return;
    end(place);
    make(place);
  }
} manager;

// ------------------------------------------------------------------------------------------------- replacements

struct Watched : State {
  Watched(std::unique_ptr<State> inner, Role role, int attempt)
      : inner_(std::move(inner)), role_(role), attempt_(attempt) {}

  void _M_run() override {
    role = role_;
    while (!ends_well()) {
      // gloo's loop wakes those who close a connection; without it they would wait for ever. It has no state but what
      // it looks at anew in each turn. The connection whose handling failed is lost, and with it the ring.
      if (standing) hurry = true;
      std::this_thread::yield();
    }
  }

  // False: it must go on.
  bool ends_well() {
    try {
      inner_->_M_run();
    } catch (abi::__forced_unwind&) {  // the thread is being cancelled, which must go on
      throw;
    } catch (const std::exception& error) {
      if (role_ == Role::kHorovods) note(attempt_, error.what());
      return !is_loop();
    } catch (...) {
      if (role_ == Role::kHorovods) note(attempt_, "an exception of unknown type");
      return !is_loop();
    }
    return true;
  }

  bool is_loop() const { return std::strstr(typeid(*inner_).name(), "4gloo9transport3tcp4Loop") != nullptr; }

  std::unique_ptr<State> inner_;
  Role role_;
  int attempt_;
};

void (*real_start)(std::thread*, std::unique_ptr<State>, void (*)()) = nullptr;
void start(std::thread* thread, std::unique_ptr<State> state, void (*depend)()) {
  if (std::strstr(typeid(*state).name(), "HorovodGlobalState")) {  // for the ring that is to form
    open_queues();
    manager.renew();
  }
  if (attempt_here > 0) {
    state.reset(new Watched(std::move(state), Role::kHorovods, attempt_here));
    attempt_here = 0;
  } else if (role != Role::kOther) {
    state.reset(new Watched(std::move(state), Role::kGloos, 0));
  }
  real_start(thread, std::move(state), depend);
}

int (*real_close)(int) = nullptr;
int close_descriptor(int descriptor) {
  if (role == Role::kGloos && standing) hurry = true;
  forget(descriptor);  // before its number is given out again
  return real_close(descriptor);
}

int (*real_socket)(int, int, int) = nullptr;
int open_socket(int domain, int type, int protocol) { return remember(real_socket(domain, type, protocol)); }

int (*real_accept)(int, sockaddr*, socklen_t*) = nullptr;
int accept_connection(int listening, sockaddr* peer, socklen_t* bytes) {
  return remember(real_accept(listening, peer, bytes));
}

Steady::time_point (*real_now)() = nullptr;
Steady::time_point now() {
  // Each look at the clock finds it later by another leap. So also a time-out that begins in a hurry ends at once.
  if (role != Role::kOther && hurry && leaps < kMostLeaps) ++leaps;
  return real_now() + leaps.load() * kLeap;
}

int (*real_wait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*) = nullptr;
int wait_until(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* end) {
  if (role != Role::kOther && hurry) return ETIMEDOUT;
  timespec real_end = *end;  // `end` is a time of the clock that leaps
  real_end.tv_sec -= leaps.load() * std::chrono::seconds(kLeap).count();
  timespec look;
  clock_gettime(clock, &look);
  look.tv_nsec += kLookNs;
  look.tv_sec += look.tv_nsec / 1'000'000'000;
  look.tv_nsec %= 1'000'000'000;
  const bool last = real_end.tv_sec < look.tv_sec ||
                    (real_end.tv_sec == look.tv_sec && real_end.tv_nsec <= look.tv_nsec);
  const int result = real_wait(condition, mutex, clock, last ? &real_end : &look);
  // Only the caller can wait on: it must look at its condition first. A thread that was to be woken while this one was
  // about to hold the mutex again, after the time was up, is not woken another time.
  return result == ETIMEDOUT && !last ? 0 : result;
}

struct Abandoned {};  // thrown through InitializeHorovodOnce, which holds nothing while it sleeps

int (*real_sleep)(const timespec*, timespec*) = nullptr;
int sleep_for(const timespec* time, timespec* left) {
  if (starting > 0 && failed_attempt.load(std::memory_order_acquire) >= starting) throw Abandoned{};
  return role != Role::kOther && hurry ? 0 : real_sleep(time, left);
}

int64_t nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

std::atomic<int64_t> spin{kSpinNs};
std::atomic<int64_t> settling{0};    // for so long from a ring's first wait on, a wait spins for kSettlingSpinNs at most
std::atomic<int64_t> first_wait{0};  // of this ring; 0: there was none yet

int64_t spin_at(int64_t now) {
  if (settling == 0) return spin;
  int64_t first = first_wait;
  if (first == 0 && first_wait.compare_exchange_strong(first, now)) first = now;
  return now - first < settling ? std::min(spin.load(), kSettlingSpinNs) : spin.load();
}

int (*real_yield)() = nullptr;
int give_way() {
  thread_local int64_t began = 0, looked = 0;  // of the wait that this thread is in
  const int64_t now = nanoseconds();
  if (now - looked > kBetweenLooksNs) began = now;  // the one before is over
  const int64_t waited = now - began;
  int result = 0;
  if (role != Role::kOther || waited < spin_at(now)) {
    result = real_yield();
  } else {
    const timespec nap{0, std::min(kLongestNapNs, waited / kNapShare)};
    nanosleep(&nap, nullptr);
  }
  looked = nanoseconds();
  return result;
}

int (*real_name)(char*, size_t) = nullptr;
int name_of_host(char* name, size_t bytes) {
  if (role != Role::kHorovods || host[0] == 0 || std::strlen(host) >= bytes) return real_name(name, bytes);
  std::strcpy(name, host);
  return 0;
}

char* (*real_getenv)(const char*) = nullptr;
char* variable(const char* name) {
  const std::lock_guard<std::mutex> lock(environment().mutex);
  const auto found = environment().variables.find(name);
  if (found == environment().variables.end()) return real_getenv(name);
  return found->second ? found->second->data() : nullptr;
}

int (*real_lock)(pthread_mutex_t*) = nullptr;
int lock(pthread_mutex_t* mutex) {
  if (answer_all.calls(__builtin_return_address(0))) close_queue(mutex);
  if (role == Role::kHorovods && mutex == queues().used.load(std::memory_order_relaxed)) {
    queues().turns.store(queues().turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  locked = mutex;
  return real_lock(mutex);
}

int (*real_unlock)(pthread_mutex_t*) = nullptr;
int unlock(pthread_mutex_t* mutex) {
  const void* from = __builtin_return_address(0);
  const int result = real_unlock(mutex);
  if (add_one.calls(from) || add_many.calls(from)) {
    if (is_closed(mutex)) {
      answer(reinterpret_cast<char*>(mutex) - lock_in_queue, over);
    } else {
      note_added(mutex);
    }
  }
  return result;
}

int (*real_try)(pthread_mutex_t*) = nullptr;
int try_to_lock(pthread_mutex_t* mutex) {
  thread_local int refused = 0;  // times in a row
  const int result = real_try(mutex);
  if (role != Role::kGloos) return result;
  refused = result == EBUSY ? refused + 1 : 0;
  if (refused > kRefusalsInPlace) {
    const timespec nap{0, kRefusedNapNs};
    nanosleep(&nap, nullptr);
  } else if (refused > 0) {
    sched_yield();
  }
  return result;
}

int (*real_events)(int, epoll_event*, int, int) = nullptr;
int wait_for_events(int set, epoll_event* events, int most, int milliseconds) {
  return real_events(set, events, most, awaited ? std::min(milliseconds, kTurnMs) : milliseconds);
}

struct Replacement {
  const char* name;
  void* ours;
  void** real;
};

const Replacement replacements[] = {
    {"_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE",
     reinterpret_cast<void*>(&start), reinterpret_cast<void**>(&real_start)},
    {"close", reinterpret_cast<void*>(&close_descriptor), reinterpret_cast<void**>(&real_close)},
    {"socket", reinterpret_cast<void*>(&open_socket), reinterpret_cast<void**>(&real_socket)},
    {"accept", reinterpret_cast<void*>(&accept_connection), reinterpret_cast<void**>(&real_accept)},
    {"_ZNSt6chrono3_V212steady_clock3nowEv", reinterpret_cast<void*>(&now), reinterpret_cast<void**>(&real_now)},
    {"pthread_cond_clockwait", reinterpret_cast<void*>(&wait_until), reinterpret_cast<void**>(&real_wait)},
    {"nanosleep", reinterpret_cast<void*>(&sleep_for), reinterpret_cast<void**>(&real_sleep)},
    {"sched_yield", reinterpret_cast<void*>(&give_way), reinterpret_cast<void**>(&real_yield)},
    {"gethostname", reinterpret_cast<void*>(&name_of_host), reinterpret_cast<void**>(&real_name)},
    {"getenv", reinterpret_cast<void*>(&variable), reinterpret_cast<void**>(&real_getenv)},
    {"pthread_mutex_trylock", reinterpret_cast<void*>(&try_to_lock), reinterpret_cast<void**>(&real_try)},
    {"epoll_wait", reinterpret_cast<void*>(&wait_for_events), reinterpret_cast<void**>(&real_events)},
    {"pthread_mutex_lock", reinterpret_cast<void*>(&lock), reinterpret_cast<void**>(&real_lock)},
    {"pthread_mutex_unlock", reinterpret_cast<void*>(&unlock), reinterpret_cast<void**>(&real_unlock)},
};

// ------------------------------------------------------------------------------ the global offset table of a library

struct Library {
  const char* path;
  uintptr_t base = 0;
  uintptr_t sealed_begin = 0, sealed_end = 0;  // made read-only by the loader after relocation
  uintptr_t variables_begin = 0, variables_end = 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  uintptr_t jumps = 0, relocations = 0;
  size_t jump_bytes = 0, relocation_bytes = 0;
};

bool write_slot(const Library& library, uintptr_t address, void* value) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(address & ~(page_size - 1));
  const bool sealed = library.sealed_begin <= address && address < library.sealed_end;
  if (sealed && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return false;
  *reinterpret_cast<void**>(address) = value;
  if (sealed) mprotect(page, page_size, PROT_READ);
  return true;
}

// Points the slots of one relocation table to the replacements. Returns which were found, one bit for each.
int redirect(const Library& library, uintptr_t table, size_t bytes) {
  int found = 0;
  const auto* entries = reinterpret_cast<const ElfW(Rela)*>(table);
  for (size_t i = 0; table != 0 && i < bytes / sizeof(ElfW(Rela)); ++i) {
    const auto index = ELF64_R_SYM(entries[i].r_info);
    if (index == 0 || library.symbols[index].st_shndx != SHN_UNDEF) continue;
    const char* name = library.names + library.symbols[index].st_name;
    int bit = 1;
    for (const auto& replacement : replacements) {
      if (std::strcmp(name, replacement.name) == 0 && *replacement.real != nullptr &&
          write_slot(library, library.base + entries[i].r_offset, replacement.ours)) {
        found |= bit;
      }
      bit <<= 1;
    }
  }
  return found;
}

bool same_file(const char* one, const char* other) {  // however the loader was told to find it
  struct stat a, b;
  return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int find(dl_phdr_info* info, size_t, void* data) {
  auto* library = static_cast<Library*>(data);
  if (info->dlpi_name == nullptr || !same_file(info->dlpi_name, library->path)) return 0;
  library->base = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type == PT_GNU_RELRO) {
      library->sealed_begin = info->dlpi_addr + part.p_vaddr;
      library->sealed_end = library->sealed_begin + part.p_memsz;
    }
    if (part.p_type == PT_LOAD && (part.p_flags & PF_W)) {
      library->variables_begin = info->dlpi_addr + part.p_vaddr;
      library->variables_end = library->variables_begin + part.p_memsz;
    }
    if (part.p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + part.p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      switch (entry->d_tag) {
        case DT_JMPREL: library->jumps = entry->d_un.d_ptr; break;
        case DT_PLTRELSZ: library->jump_bytes = entry->d_un.d_val; break;
        case DT_RELA: library->relocations = entry->d_un.d_ptr; break;
        case DT_RELASZ: library->relocation_bytes = entry->d_un.d_val; break;
        case DT_SYMTAB: library->symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr); break;
        case DT_STRTAB: library->names = reinterpret_cast<const char*>(entry->d_un.d_ptr); break;
        default: break;
      }
    }
  }
  return 1;
}

// --------------------------------------------------------------------------------------- the functions of a library

// Finds one of the library's own by its name, and where it lies.
template <typename Pointer>
bool find(void* library, const char* name, Pointer* pointer, Function* function = nullptr) {
  void* address = dlsym(library, name);
  Dl_info info;
  void* symbol = nullptr;
  if (address == nullptr || dladdr1(address, &info, &symbol, RTLD_DL_SYMENT) == 0 || symbol == nullptr) return false;
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (function != nullptr) *function = {begin, begin + static_cast<const ElfW(Sym)*>(symbol)->st_size};
  *pointer = reinterpret_cast<Pointer>(address);
  return true;
}

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define QUEUE "7horovod6common11TensorQueue"

// What is to be known of Horovod's queues. Its slots must point to the replacements by now.
bool know_queues(const char* path) {
  struct {  // as Horovod's, whatever the tensors and the messages in it are
    Table tensors;
    std::queue<int> messages;
    std::mutex mutex;
  } like;
  void* add = nullptr;
  bool (*has)(const void*, const std::string&) = nullptr;
  Status (*error)(const std::string&) = nullptr;
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  const bool found =
      library != nullptr && find(library, "_ZNK" QUEUE "22IsTensorPresentInTableERK" STRING, &has) &&
      find(library, "_ZN7horovod6common6Status12UnknownErrorERK" STRING, &error) &&
      find(library, "_ZN" QUEUE "16AddToTensorQueueERNS0_16TensorTableEntryERNS0_7RequestE", &add, &add_one) &&
      find(library,
           "_ZN" QUEUE
           "21AddToTensorQueueMultiERSt6vectorINS0_16TensorTableEntryESaIS3_EERS2_INS0_7RequestESaIS7_EE",
           &add, &add_many) &&
      find(library, "_ZN" QUEUE "19FinalizeTensorQueueERKNS0_6StatusE", &answer, &answer_all);
  if (library != nullptr) dlclose(library);
  if (!found) return false;
  over = new Status(error("Horovod has been shut down."));  // the library's own, as what it is made of is
  locked = nullptr;
  has(&like, "");
  lock_in_queue = reinterpret_cast<char*>(locked) - reinterpret_cast<char*>(&like);
  return locked == like.mutex.native_handle();
}

#define MANAGER "7horovod6common16ParameterManager"
constexpr size_t kVariablesLookedAt = 1 << 16;  // few others are behind it, and a buffer of 160 MB is before it

uintptr_t word_at(uintptr_t address) { return *reinterpret_cast<const uintptr_t*>(address); }

bool is_table(uintptr_t word) {  // of virtual functions of its parameters
  constexpr char name[] = "_ZTVN" MANAGER;
  Dl_info info;
  return word != 0 && dladdr(reinterpret_cast<void*>(word), &info) != 0 && info.dli_sname != nullptr &&
         std::strncmp(info.dli_sname, name, sizeof name - 1) == 0;
}

// Where in the ParameterManager at `place` its parameters point to their virtual functions.
std::vector<size_t> marks_of(uintptr_t place) {
  std::vector<size_t> marks;
  for (size_t at = 0; at < kMostOfManager; at += sizeof(uintptr_t)) {
    if (is_table(word_at(place + at))) marks.push_back(at);
  }
  return marks;
}

// The places among the last variables of the library that have the same as `like` has at each of its marks.
std::vector<uintptr_t> places_like(uintptr_t like, const std::vector<size_t>& marks, const Library& library) {
  std::vector<uintptr_t> places;
  if (marks.empty()) return places;
  const uintptr_t end = library.variables_end & ~(sizeof(uintptr_t) - 1);
  const uintptr_t begin = std::max(library.variables_begin + sizeof(uintptr_t) - 1, end - kVariablesLookedAt);
  for (uintptr_t place = begin & ~(sizeof(uintptr_t) - 1); place + marks.back() < end; place += sizeof(uintptr_t)) {
    const auto same = [&](size_t at) { return word_at(place + at) == word_at(like + at); };
    if (std::all_of(marks.begin(), marks.end(), same)) places.push_back(place);
  }
  return places;
}

// Where its ParameterManager lies. Its slots must point to the replacements by now.
bool know_manager(const Library& library) {
  alignas(16) static unsigned char like[kMostOfManager];
  void* loaded = dlopen(library.path, RTLD_NOW | RTLD_NOLOAD);
  const bool found = loaded != nullptr && find(loaded, "_ZN" MANAGER "C1Ev", &manager.make) &&
                     find(loaded, "_ZN" MANAGER "D1Ev", &manager.end);
  if (loaded != nullptr) dlclose(loaded);
  if (!found) return false;
  manager.make(like);
  const auto place = reinterpret_cast<uintptr_t>(like);
  const auto places = places_like(place, marks_of(place), library);
  manager.end(like);
  manager.place = places.size() == 1 ? reinterpret_cast<void*>(places.front()) : nullptr;
  return manager.place != nullptr;
}

}  // namespace

extern "C" {

// The library at `path`, which must be loaded, calls our replacements from now on. Returns how many of them it has a
// use for; its queues count as one, and so do its parameters: fewer than there are means that it is not as we know it.
// Harmless twice.
int edl_watch(const char* path) {
  for (const auto& replacement : replacements) *replacement.real = dlsym(RTLD_DEFAULT, replacement.name);
  Library library{path};
  if (dl_iterate_phdr(find, &library) == 0 || library.symbols == nullptr || library.names == nullptr) return 0;
  const int found = redirect(library, library.jumps, library.jump_bytes) |
                    redirect(library, library.relocations, library.relocation_bytes);
  if (found == 0) return 0;
  return __builtin_popcount(static_cast<unsigned>(found)) + know_queues(path) + know_manager(library);
}

int edl_replacements() { return 2 + sizeof replacements / sizeof replacements[0]; }

// What this host is called in Horovod's next thread; empty: its own name.
void edl_set_host(const char* address) { std::strncpy(host, address, sizeof host - 1); }

// Calls horovod_init() with these arguments. The thread that it starts is Horovod's, of `attempt`, which is greater than
// 0. Returns what it says; -1: its thread ended first, of which `edl_failure` tells.
int edl_start(int attempt, bool (*init)(const int*, int, const int*, const int*, int), const int* ranks, int size,
              const int* sizes, const int* members, int sets) {
  attempt_here = starting = attempt;
  int said = -1;
  try {
    said = init(ranks, size, sizes, members, sets) ? 1 : 0;
  } catch (const Abandoned&) {
  }
  starting = 0;
  return said;
}

// Why that thread ended, or a null pointer while it has not.
const char* edl_failure(int attempt) {
  return failed_attempt.load(std::memory_order_acquire) == attempt ? failure : nullptr;
}

void edl_set_hurry(int on) { hurry = on != 0; }

// Whether a connection of the ring that stands has ended, or the daemon is in a hurry for another reason.
int edl_hurries() { return hurry; }

// What the library finds in the environment by this name from now on; a null pointer: nothing.
void edl_set_variable(const char* name, const char* value) {
  const std::lock_guard<std::mutex> lock(environment().mutex);
  environment().variables[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

void edl_set_spin(int64_t nanoseconds, int64_t for_settling) {
  spin = nanoseconds;
  settling = for_settling;
  first_wait = 0;
}

void edl_set_standing(int on) { standing = on != 0; }

void edl_set_awaited(int on) { awaited = on != 0; }

struct Pulse {
  int64_t waiting;  // tensors that are enqueued, and that not all members have come with
  int64_t added;    // times that tensors were enqueued
  int64_t turns;    // that Horovod's thread has taken: none while it waits for the word of a member, or reduces
  int64_t bytes;    // that have gone over the ring's connections, both ways
};

// What has moved in the ring that stands. Returns whether anything was enqueued there yet. From any thread. `names`: of
// what is waiting, one behind the other with a line's end each, as many as there is room for; or a null pointer.
int edl_pulse(Pulse* pulse, char* names, int room) {
  *pulse = {};
  if (names != nullptr && room > 0) *names = 0;
  {
    const std::lock_guard<std::mutex> lock(queues().mutex);  // so that the queue does not end meanwhile
    pthread_mutex_t* mutex = queues().used;
    if (mutex == nullptr) return 0;
    pulse->added = queues().added;
    pulse->turns = queues().turns;
    pthread_mutex_lock(mutex);
    const auto& tensors = *reinterpret_cast<const Table*>(reinterpret_cast<char*>(mutex) - lock_in_queue);
    pulse->waiting = static_cast<int64_t>(tensors.size());
    for (auto one = tensors.begin(); names != nullptr && one != tensors.end(); ++one) {
      const auto bytes = static_cast<int>(one->first.size());
      if (bytes + 2 > room) break;
      std::memcpy(names, one->first.data(), bytes);
      names[bytes] = '\n';
      names[bytes + 1] = 0;
      names += bytes + 1;
      room -= bytes + 1;
    }
    pthread_mutex_unlock(mutex);
  }
  const std::lock_guard<std::mutex> lock(sockets().mutex);
  for (const auto& [descriptor, inode] : sockets().open) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (inode == 0 || inode_of(descriptor) != inode) continue;
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    pulse->bytes += static_cast<int64_t>(info.tcpi_bytes_acked + info.tcpi_bytes_received);
  }
  return 1;
}

// Shuts down all that the library has open: a thread that waits for it sees the end. Returns how many. From any thread:
// none of them is closed meanwhile.
int edl_cut() {
  const std::lock_guard<std::mutex> lock(sockets().mutex);
  int cut = 0;
  for (const auto& [descriptor, inode] : sockets().open) {
    cut += inode != 0 && inode_of(descriptor) == inode && shutdown(descriptor, SHUT_RDWR) == 0;
  }
  return cut;
}

}
