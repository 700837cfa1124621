// Lets a failed start of Horovod's background thread end that thread instead of the whole process.
//
// Horovod 0.28.1 forms a ring in a thread of its own (BackgroundThreadLoop in horovod/common/operations.cc). Up to the
// end of GlooContext::Initialize and ProcessSetTable::Initialize nothing catches there. So a peer that dies while a
// ring forms makes gloo throw, and std::terminate ends every survivor with SIGABRT.
//
// Horovod's library starts threads through std::thread::_M_start_thread of libstdc++, like any C++ program. `edl_watch`
// points that library's own reference to it (a slot of its global offset table; no other library sees it) to `start`
// below, which runs a thread under a catch when the caller has said `edl_arm`. Unwinding then does what it does in any
// program: locks are let go and sockets closed. Afterwards horovod_shutdown() joins the thread and resets Horovod.
//
// Called through ctypes by edl/collectives/forming.py; built by setup.py where there is a compiler. Without it rings form
// as well, but a peer's death in that moment takes the survivors with it.

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>

namespace {

constexpr const char* kStartThread =
    "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE";

using State = std::thread::_State;
using Start = void (*)(std::thread*, std::unique_ptr<State>, void (*)());

Start real_start = nullptr;
thread_local int armed_attempt = 0;     // threads that this one starts belong to this attempt
std::atomic<int> failed_attempt{0};     // the newest attempt whose first thread ended by an exception
char failure[512] = "";                 // written before failed_attempt, read after it

void note(int attempt, const char* what) {
  std::strncpy(failure, what, sizeof failure - 1);
  failed_attempt.store(attempt, std::memory_order_release);
}

// Horovod's background thread, or one that it starts: gloo's, which serves the connections.
struct Watched : State {
  Watched(std::unique_ptr<State> inner, int attempt, bool first)
      : inner_(std::move(inner)), attempt_(attempt), first_(first) {}

  void _M_run() override {
    armed_attempt = -attempt_;
    try {
      inner_->_M_run();
    } catch (abi::__forced_unwind&) {  // the thread is being cancelled, which must go on
      throw;
    } catch (const std::exception& error) {
      if (first_) note(attempt_, error.what());
    } catch (...) {
      if (first_) note(attempt_, "an exception of unknown type");
    }
  }

  std::unique_ptr<State> inner_;
  int attempt_;
  bool first_;
};

void start(std::thread* thread, std::unique_ptr<State> state, void (*depend)()) {
  if (armed_attempt > 0) {
    state.reset(new Watched(std::move(state), armed_attempt, true));
    armed_attempt = 0;
  } else if (armed_attempt < 0) {  // we are on a watched thread
    state.reset(new Watched(std::move(state), -armed_attempt, false));
  }
  real_start(thread, std::move(state), depend);
}

// A loaded library: where it is, and what its dynamic section says.
struct Library {
  const char* path;
  uintptr_t base = 0;
  uintptr_t sealed_begin = 0, sealed_end = 0;  // made read-only by the loader after relocation
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

// Points the slots of one relocation table that refer to kStartThread to `start`.
int redirect(const Library& library, uintptr_t table, size_t bytes) {
  int slots = 0;
  const auto* entries = reinterpret_cast<const ElfW(Rela)*>(table);
  for (size_t i = 0; table != 0 && i < bytes / sizeof(ElfW(Rela)); ++i) {
    const auto index = ELF64_R_SYM(entries[i].r_info);
    if (index == 0 || std::strcmp(library.names + library.symbols[index].st_name, kStartThread) != 0) continue;
    if (write_slot(library, library.base + entries[i].r_offset, reinterpret_cast<void*>(&start))) ++slots;
  }
  return slots;
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

}  // namespace

extern "C" {

// The library at `path`, which must be loaded, starts its threads through us from now on. Returns how many references
// were redirected: 0 means that it is not as we know it, and that nothing has changed. Harmless twice.
int edl_watch(const char* path) {
  real_start = reinterpret_cast<Start>(dlsym(RTLD_DEFAULT, kStartThread));
  Library library{path};
  if (real_start == nullptr || dl_iterate_phdr(find, &library) == 0) return 0;
  if (library.symbols == nullptr || library.names == nullptr) return 0;
  return redirect(library, library.jumps, library.jump_bytes) +
         redirect(library, library.relocations, library.relocation_bytes);
}

// The next thread that this thread starts in a watched library belongs to `attempt`, which is greater than 0.
void edl_arm(int attempt) { armed_attempt = attempt; }

// Why that thread ended, or a null pointer while it has not.
const char* edl_failure(int attempt) {
  return failed_attempt.load(std::memory_order_acquire) == attempt ? failure : nullptr;
}
}
