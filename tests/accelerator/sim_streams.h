// Streams of the simulated accelerator, events, and pinned memory.
//
// Law: what is queued on a stream runs as late as it may: when somebody waits for it, or when an operator on the same
// stream comes after it. So a wait that is missing is seen every time, not when threads happen to race: a buffer that is
// reused too early is copied with its new bytes, a target that is read too early has its old ones. One thread runs
// queued work at a time, without Python's lock.

#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace sim_streams {

constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kMost = 16;

using Task = std::function<void()>;

class Queue {
 public:
  uint64_t put(Task task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    return done_ + tasks_.size();
  }

  uint64_t last() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_ + tasks_.size();
  }

  bool reached(uint64_t ticket) const { return done_ >= ticket; }
  size_t waiting() { return last() - done_; }

  // Runs what comes up to `ticket`, at most `most` tasks.
  void run(uint64_t ticket, size_t most = SIZE_MAX) {
    std::vector<Task> finished;  // their memory is freed when nothing is locked
    for (; most > 0 && !reached(ticket); --most) {
      std::lock_guard<std::recursive_mutex> alone(turn());
      if (reached(ticket)) return;
      Task task;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        task = tasks_.front();
      }
      task();
      std::lock_guard<std::mutex> lock(mutex_);
      finished.push_back(std::move(tasks_.front()));
      tasks_.pop_front();
      ++done_;
    }
  }

 private:
  static std::recursive_mutex& turn() {
    static auto* instance = new std::recursive_mutex;
    return *instance;
  }
  std::mutex mutex_;
  std::deque<Task> tasks_;
  std::atomic<uint64_t> done_{0};
};

// All streams of all devices: number 0 is the default one of its device. None ever ends.
class Streams {
 public:
  Queue& queue(const c10::Stream& stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    return queue(stream.device_index(), stream.id());
  }

  c10::Stream made(c10::Device device) {
    std::lock_guard<std::mutex> lock(mutex_);
    return c10::Stream(c10::Stream::UNSAFE, device, ++made_);
  }

  std::vector<Queue*> of(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Queue*> found;
    for (auto& [key, queue] : queues_)
      if (device < 0 || key.first == device) found.push_back(queue.get());
    return found;
  }

 private:
  Queue& queue(c10::DeviceIndex device, c10::StreamId id) {
    auto& place = queues_[{device, id}];
    if (!place) place = std::make_unique<Queue>();
    return *place;
  }
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::unique_ptr<Queue>> queues_;
  c10::StreamId made_ = 0;
};

inline Streams& streams() {
  static auto* instance = new Streams;
  return *instance;
}

inline thread_local std::array<c10::StreamId, kMost> current_ids{};

inline c10::Stream current(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, current_ids[device.index()]);
}

inline c10::Stream exchange(const c10::Stream& stream) {
  const auto before = current(stream.device());
  current_ids[stream.device_index()] = stream.id();
  return before;
}

inline Queue& queue_here(c10::Device device) { return streams().queue(current(device)); }

// What an operator does first: all that was queued on its stream before.
inline void catch_up(c10::Device device) {
  Queue& queue = queue_here(device);
  queue.run(queue.last());
}

inline void catch_up_all(c10::DeviceIndex device) {
  for (Queue* queue : streams().of(device)) queue->run(queue->last());
}

inline int64_t waiting() {
  int64_t total = 0;
  for (Queue* queue : streams().of(-1)) total += static_cast<int64_t>(queue->waiting());
  return total;
}

// An event that was recorded: a place in a queue.
struct Mark {
  Queue* queue;
  uint64_t ticket;
};

inline void record(void** event, const c10::Stream& stream) {
  if (*event == nullptr) *event = new Mark{};
  Queue& queue = streams().queue(stream);
  *static_cast<Mark*>(*event) = {&queue, queue.last()};
}

inline void block(void* event, const c10::Stream& stream) {
  if (event == nullptr) return;
  const Mark mark = *static_cast<Mark*>(event);
  streams().queue(stream).put([mark] { mark.queue->run(mark.ticket); });
}

inline void wait(void* event) {
  if (event != nullptr) static_cast<Mark*>(event)->queue->run(static_cast<Mark*>(event)->ticket);
}

// Asking moves the work on by one task, so that a loop of questions ends.
inline bool ask(Queue& queue, uint64_t ticket) {
  const bool reached = queue.reached(ticket);
  queue.run(ticket, 1);
  return reached;
}

// Pinned memory: blocks of the host that go back to a pool, so that what is queued never reads memory that is gone.
class Pinned final : public c10::Allocator {
 public:
  explicit Pinned(c10::Allocator* host) : host_(host) {}

  c10::DataPtr allocate(size_t nbytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& free = free_[nbytes];
    void* address;
    if (free.empty()) {
      blocks_.push_back(host_->allocate(nbytes));
      address = blocks_.back().get();
      sizes_[address] = nbytes;
    } else {
      address = free.back();
      free.pop_back();
    }
    return {address, address, &Pinned::release, c10::Device(c10::kCPU)};
  }

  bool holds(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = sizes_.upper_bound(const_cast<void*>(address));
    if (after == sizes_.begin()) return false;
    const auto& [start, nbytes] = *--after;
    return static_cast<const char*>(address) < static_cast<char*>(start) + nbytes;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Pinned::release; }
  void copy_data(void* dest, const void* src, size_t count) const override { default_copy_data(dest, src, count); }

 private:
  static void release(void* address);

  c10::Allocator* host_;
  std::mutex mutex_;
  std::vector<c10::DataPtr> blocks_;
  std::map<void*, size_t> sizes_;
  std::unordered_map<size_t, std::vector<void*>> free_;
};

inline Pinned& pinned() {
  static auto* instance = new Pinned(c10::GetAllocator(c10::kCPU));
  return *instance;
}

inline void Pinned::release(void* address) {
  if (address == nullptr) return;
  std::lock_guard<std::mutex> lock(pinned().mutex_);
  pinned().free_[pinned().sizes_[address]].push_back(address);
}

}  // namespace sim_streams
