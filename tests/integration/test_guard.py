"""The guard's replacements of what Horovod's threads call, on a small library in Horovod's place."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from edl.collectives.horovod_engine import GENTLE_INIT
from edl.collectives.library_guard import Guard, private_copy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

LIBRARY = """
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <queue>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
using namespace std::chrono_literals;

// How long, in ms, a thread that waits up to 20 s is not woken; the one that wakes it holds the mutex for a while.
extern "C" double wait_ms() {
  std::mutex mutex;
  std::condition_variable woken;
  bool ready = false, waiting = false;
  double took = 0;
  std::thread waiter([&] {
    std::unique_lock<std::mutex> lock(mutex);
    waiting = true;
    const auto began = std::chrono::steady_clock::now();
    woken.wait_for(lock, 20s, [&] { return ready; });
    took = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
  });
  for (;; std::this_thread::yield()) {
    std::unique_lock<std::mutex> lock(mutex);
    if (!waiting) continue;
    std::this_thread::sleep_for(200ms);
    ready = true;
    woken.notify_one();
    break;
  }
  waiter.join();
  return took;
}

// The turns that a loop like gloo's takes, of which the first two end by an exception.
namespace gloo::transport::tcp {
struct Loop {
  std::atomic<int> turns{0};
  void run() {
    if (++turns < 3) throw std::runtime_error("what happens to a connection");
  }
};
}

// A start like Horovod's: its thread ends by an exception, and the caller waits for what never comes. And one that
// begins no thread: the next thread of the caller is Horovod's.
extern "C" bool start_in_vain() {
  std::thread([] { throw std::runtime_error("no peer"); }).join();
  for (;;) std::this_thread::sleep_for(1ms);
}

extern "C" bool start_of_nothing() { return true; }

extern "C" int turns() {
  gloo::transport::tcp::Loop loop;
  std::thread horovods([&] { std::thread(&gloo::transport::tcp::Loop::run, &loop).join(); });
  horovods.join();
  return loop.turns;
}

// How often a loop like gloo's is refused a lock that another thread has for so long.
extern "C" int refusals(int milliseconds) {
  std::mutex mutex;
  std::atomic<int> count{0};
  mutex.lock();
  std::thread horovods([&] {
    std::thread([&] {
      while (!mutex.try_lock()) ++count;
      mutex.unlock();
    }).join();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  mutex.unlock();
  horovods.join();
  return count;
}

// How many turns a loop like gloo's takes in so long, while nothing happens.
extern "C" int idle_turns(int milliseconds) {
  epoll_event events[4];
  const int set = epoll_create1(0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  int count = 0;
  for (; std::chrono::steady_clock::now() < end; ++count) epoll_wait(set, events, 4, 10);
  close(set);
  return count;
}

// A connection that this library opens, and one that it takes.
extern "C" int connect_to(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  return connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? descriptor : -1;
}

extern "C" int accept_from(int listening) { return accept(listening, nullptr, nullptr); }

extern "C" int close_again(int descriptor) { return close(descriptor); }

extern "C" const char* name_of_host() {
  static char name[64];
  std::thread horovods([] { gethostname(name, sizeof name); });
  horovods.join();
  return name;
}

extern "C" const char* variable(const char* name) { return getenv(name); }

// How often a thread looks in a wait that takes so long, as horovod.torch waits.
extern "C" int looks(int milliseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  int count = 0;
  for (; std::chrono::steady_clock::now() < end; ++count) std::this_thread::yield();
  return count;
}

// A queue of tensors, as Horovod's.
namespace horovod::common {
struct Status {
  static Status UnknownError(const std::string& message);
  std::string reason;
};
Status Status::UnknownError(const std::string& message) { return {message}; }

struct TensorTableEntry {
  std::string name;
  std::function<void(const Status&)> callback;
};

struct Request {};

class TensorQueue {
 public:
  bool IsTensorPresentInTable(const std::string& name) const;
  Status AddToTensorQueue(TensorTableEntry& entry, Request& message);
  Status AddToTensorQueueMulti(std::vector<TensorTableEntry>& entries, std::vector<Request>& messages);
  void FinalizeTensorQueue(const Status& status);

 private:
  std::unordered_map<std::string, TensorTableEntry> tensors_;
  std::queue<Request> messages_;
  mutable std::mutex mutex_;
};

bool TensorQueue::IsTensorPresentInTable(const std::string& name) const {
  std::lock_guard<std::mutex> guard(mutex_);
  return tensors_.find(name) != tensors_.end();
}

Status TensorQueue::AddToTensorQueue(TensorTableEntry& entry, Request& message) {
  std::lock_guard<std::mutex> guard(mutex_);
  tensors_.emplace(entry.name, entry);
  messages_.push(message);
  return {};
}

Status TensorQueue::AddToTensorQueueMulti(std::vector<TensorTableEntry>& entries, std::vector<Request>& messages) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& entry : entries) tensors_.emplace(entry.name, entry);
  for (auto& message : messages) messages_.push(message);
  return {};
}

void TensorQueue::FinalizeTensorQueue(const Status& status) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [name, entry] : tensors_) entry.callback(status);
  tensors_.clear();
}

// What was set for a ring, as Horovod's.
class ParameterManager {
 public:
  ParameterManager();
  ~ParameterManager();
  int threshold = 128;

 private:
  template <class T>
  struct CategoricalParameter {
    virtual ~CategoricalParameter() = default;
  };
  struct BayesianParameter {
    virtual ~BayesianParameter() = default;
  };
  CategoricalParameter<bool> cached_;
  BayesianParameter joint_;
};
ParameterManager::ParameterManager() = default;
ParameterManager::~ParameterManager() = default;

struct HorovodGlobalState {
  ParameterManager parameter_manager;
};
static HorovodGlobalState horovod_global;
void BackgroundThreadLoop(HorovodGlobalState&) {}
}

// The threshold of a ring that forms after one that had another.
extern "C" int threshold_after(int another) {
  using namespace horovod::common;
  horovod_global.parameter_manager.threshold = another;
  std::thread(BackgroundThreadLoop, std::ref(horovod_global)).join();
  return horovod_global.parameter_manager.threshold;
}

// What the tensors are told that are enqueued before Horovod's thread is over, after that, and for the next ring.
extern "C" const char* told() {
  using namespace horovod::common;
  static std::string all;
  static TensorQueue queue, other;
  HorovodGlobalState state;
  Request message;
  auto entry = [](std::string name) {
    return TensorTableEntry{name, [=](const Status& status) { all += name + ": " + status.reason + "; "; }};
  };
  auto early = entry("early"), late = entry("late"), of_other = entry("of another"), next = entry("next");
  std::vector<TensorTableEntry> many{entry("one"), entry("two")};
  std::vector<Request> messages(2);
  all.clear();
  queue.AddToTensorQueue(early, message);
  queue.FinalizeTensorQueue({"it ends"});
  queue.AddToTensorQueue(late, message);
  all += "| ";
  queue.AddToTensorQueueMulti(many, messages);
  all += "| ";
  other.AddToTensorQueue(of_other, message);
  std::thread(BackgroundThreadLoop, std::ref(state)).join();
  queue.AddToTensorQueue(next, message);
  all += queue.IsTensorPresentInTable("next") ? "next waits" : "next is lost";
  return all.c_str();
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler, so no guard either")
    folder = tmp_path_factory.mktemp("library")
    source, library = folder / "waiting.cpp", folder / "libwaiting.so"
    source.write_text(LIBRARY)
    options = ["-std=c++17", "-shared", "-fPIC", "-O1", "-pthread"]
    own = "-Wl,-Bsymbolic"  # its Loop, not that of Horovod's gloo, which all see once another test has imported it
    subprocess.run([compiler, *options, own, source, "-o", library], check=True)
    return library


@pytest.fixture
def native(built, tmp_path):
    return guarded(shutil.copy(built, tmp_path))


def guarded(library: str) -> Any:
    """With a guard of its own: the first one in this process may be around Horovod by now."""
    loaded: Any = ctypes.CDLL(library)
    loaded.guard = Guard(library, copied=True)
    assert loaded.guard.whole
    assert loaded.guard.start(1, loaded.start_of_nothing, GENTLE_INIT)
    loaded.variable.restype = ctypes.c_char_p
    return loaded


def test_a_thread_that_is_woken_while_its_time_is_up_does_not_sleep_on(native):
    native.wait_ms.restype = ctypes.c_double
    assert native.wait_ms() < 5000


def test_one_that_waits_for_a_start_that_never_comes_waits_no_more(native):
    assert native.guard.start(2, native.start_in_vain, GENTLE_INIT) is None
    assert native.guard.failure(2) == "no peer"


def test_a_loop_of_gloo_goes_on_whatever_happens_to_a_connection(native):
    assert native.turns() == 3


def test_to_horovods_thread_a_host_is_called_by_the_address_it_listens_at(native):
    names = []
    for address in ("10.77.0.2", ""):
        native.guard.set_host(address)
        assert native.guard.start(1, native.start_of_nothing, GENTLE_INIT)
        native.name_of_host.restype = ctypes.c_char_p
        names.append(native.name_of_host().decode())
    assert names == ["10.77.0.2", socket.gethostname()]


def test_a_tensor_that_is_enqueued_when_horovods_thread_is_over_is_answered(native):
    native.told.restype = ctypes.c_char_p
    over = "Horovod has been shut down."
    late, many, rest = native.told().decode().split("| ")
    assert late == f"early: it ends; late: {over}; "
    assert sorted(many.split("; ")) == ["", f"one: {over}", f"two: {over}"]
    assert rest == "next waits"


def test_nothing_is_left_of_what_was_set_for_the_ring_before(native):
    assert [native.threshold_after(1), native.threshold_after(2)] == [128, 128]


def pair(server: socket.socket) -> list[socket.socket]:
    """A connection of the script's own, both ends."""
    return [socket.create_connection(server.getsockname()), server.accept()[0]]


def works(one: socket.socket, other: socket.socket) -> bool:
    one.sendall(b"x")
    return other.recv(1) == b"x"


def test_what_horovod_opened_is_cut_and_what_the_script_opened_meanwhile_is_not(native):
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = pair(server)
        mine = native.connect_to(server.getsockname()[1])
        taken, _ = server.accept()
        during = pair(server)
        theirs = socket.create_connection(server.getsockname())
        accepted = native.accept_from(server.fileno())
        after = pair(server)
        assert native.guard.cut() == 2
        assert (taken.recv(1), theirs.recv(1)) == (b"", b"")
        assert all(works(*one) for one in (before, during, after))
        for descriptor in (mine, accepted):
            assert native.close_again(descriptor) == 0
        assert native.guard.cut() == 0
        for one in (*before, *during, *after, taken, theirs):
            one.close()


@pytest.mark.parametrize("behind_its_back", [False, True])
def test_a_number_that_was_given_out_again_belongs_to_its_new_owner(native, behind_its_back):
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = native.connect_to(server.getsockname()[1])
        server.accept()[0].close()
        if behind_its_back:
            os.close(number)
        else:
            native.close_again(number)
        one, other = pair(server)
        assert one.fileno() == number
        assert native.guard.cut() == 0
        assert works(one, other)
        one.close()
        other.close()


def test_a_library_has_an_environment_of_its_own(native, monkeypatch):
    monkeypatch.setenv("EDL_TEST_ONE", "the process's")
    monkeypatch.setenv("EDL_TEST_TWO", "the process's")
    monkeypatch.setenv("EDL_TEST_THREE", "the process's")
    with native.guard.environment({"EDL_TEST_ONE": "its own", "EDL_TEST_TWO": None}):
        found = [native.variable(name) for name in (b"EDL_TEST_ONE", b"EDL_TEST_TWO", b"EDL_TEST_THREE")]
        assert found == [b"its own", None, b"the process's"]
        assert os.environ["EDL_TEST_ONE"] == "the process's"


def test_a_thread_that_waits_for_long_leaves_the_core_to_others(native):
    """Not in a wait as short as a step's: a nap there would slow each step. Where all cores are busy a nap takes a
    millisecond and more, and there are few of them.
    """

    def naps(wait_ms):
        time.sleep(0.01)  # the wait before is over
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        native.looks(wait_ms)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before

    assert naps(45) < 10
    assert naps(900) > 50
    native.guard.set_spin(0.001)
    assert naps(45) > 15, "where workers share cores, they nap in a step's wait, too"
    native.guard.set_spin(0.05)
    assert naps(45) < 10
    native.guard.set_spin(0.05, settling_s=0.3)
    time.sleep(0.3)
    assert naps(45) > 15, "a ring settles from its first wait on"
    time.sleep(0.3)
    assert naps(45) < 10


def test_a_loop_that_is_refused_a_lock_leaves_the_core_to_others(native):
    """Else it asks millions of times a second, and keeps the one that has the lock from letting go of it."""
    assert 4 < native.refusals(200) < 200 / 0.05 + 100


def test_a_loop_takes_more_turns_while_a_ring_forms_that_is_waited_for(native):
    """Who takes a connection from it waits for one. Else they would cost time and bring nothing."""
    with native.guard.awaited():
        assert native.idle_turns(300) > 45
    assert native.idle_turns(300) <= 31


def test_two_copies_of_a_library_share_nothing(native):
    other = guarded(private_copy(native._name))
    for library, value in ((native, "1"), (other, "2")):
        with library.guard.environment({"EDL_TEST_OWN": value}):
            pass
    assert (native.variable(b"EDL_TEST_OWN"), other.variable(b"EDL_TEST_OWN")) == (b"1", b"2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = native.connect_to(server.getsockname()[1])
        assert other.guard.cut() == 0
        assert native.guard.cut() == 1
        assert native.close_again(mine) == 0
    other.guard.set_hurry(True)
    assert (native.guard.hurries, other.guard.hurries) == (False, True)


def test_only_what_is_loaded_is_copied(native, tmp_path):
    longer = tmp_path / "longer.so"
    longer.write_bytes(Path(native._name).read_bytes() + bytes(5_000_000))
    assert Path(private_copy(str(longer))).stat().st_size < longer.stat().st_size - 5_000_000
    (tmp_path / "text").write_text("no library")
    with pytest.raises(OSError, match="no library of 64 bits"):
        private_copy(str(tmp_path / "text"))
