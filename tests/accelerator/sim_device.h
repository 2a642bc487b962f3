// The devices of the simulated accelerator: memory, random numbers, and what PyTorch asks of a backend.
//
// Law: a device is host memory tagged with its index, the count of its bytes, and a generator of its own.
// Nothing here knows an operator; those are in sim.cpp, the only file that includes this one.

#pragma once

#include "sim_streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <vector>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Storage;

constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 4;
thread_local DeviceIndex current_index = 0;

DeviceIndex checked(DeviceIndex index) {
  TORCH_CHECK(index < kDevices, "sim: invalid device ordinal ", int(index), ", there are ", int(kDevices), " devices");
  return index < 0 ? current_index : index;
}

// Memory of a device is host memory, counted.

c10::Allocator* host_allocator() {
  return c10::GetAllocator(c10::kCPU);
}

// A pointer into `memory` for another device, which keeps it alive.
c10::DataPtr lend(const Storage& memory, Device device) {
  auto release = [](void* held) { delete static_cast<Storage*>(held); };
  return {memory.mutable_data(), new Storage(memory), release, device};
}

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    return counted(host_allocator()->allocate(nbytes), nbytes, current_index);
  }

  c10::DataPtr counted(c10::DataPtr memory, size_t nbytes, DeviceIndex index) {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes(index).increase(nbytes);
    void* address = memory.get();
    return {address, new Block{std::move(memory), nbytes, index}, &SimAllocator::release, Device(kSim, index)};
  }

  void copy_data(void* dest, const void* src, size_t count) const override { default_copy_data(dest, src, count); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_[checked(index)];
  }
  void resetAccumulatedStats(DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes(checked(index)).reset_accumulated();
  }
  void resetPeakStats(DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes(checked(index)).reset_peak();
  }

 private:
  struct Block {
    c10::DataPtr memory;
    size_t nbytes;
    DeviceIndex index;
  };

  static void release(void* context);
  c10::CachingAllocator::Stat& bytes(DeviceIndex index) { return stats_[index].allocated_bytes[0]; }

  std::mutex mutex_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kDevices> stats_;
};

// Never destroyed: storages may outlive every static of this library.
SimAllocator& allocator() {
  static auto* instance = new SimAllocator;
  return *instance;
}

void SimAllocator::release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> lock(allocator().mutex_);
    allocator().bytes(block->index).decrease(block->nbytes);
  }
  delete block;
}

// Random numbers: the CPU's Mersenne twister, one per device.

class SimGenerator final : public at::CPUGeneratorImpl {
 public:
  explicit SimGenerator(DeviceIndex index) {
    device_ = Device(kSim, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  // The twister has no offset, yet torch.Generator pickles one for every device but the CPU.
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }

 private:
  SimGenerator* clone_impl() const override {
    auto* twin = new SimGenerator(device_.index());
    twin->set_state(*get_state());
    return twin;
  }
};

const at::Generator& default_generator(DeviceIndex index) {
  static auto* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (DeviceIndex i = 0; i < kDevices; ++i) made->push_back(at::make_generator<SimGenerator>(i));
    return made;
  }();
  return (*generators)[checked(index)];
}

// A kernel has finished when it returns, copies of pinned memory run later: see sim_streams.h.
struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }
  Device getDevice() const override { return Device(kSim, current_index); }
  void setDevice(Device device) const override { current_index = checked(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { current_index = device.index(); }
  Device exchangeDevice(Device device) const override {
    return Device(kSim, std::exchange(current_index, checked(device.index())));
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(Device device) const override { return sim_streams::current(placed(device)); }
  c10::Stream getDefaultStream(Device device) const override { return c10::Stream(c10::Stream::DEFAULT, placed(device)); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(Device device, int) const override { return sim_streams::streams().made(placed(device)); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return sim_streams::exchange(stream); }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<sim_streams::Mark*>(event); }
  void record(void** event, const c10::Stream& stream, DeviceIndex, c10::EventFlag) const override {
    sim_streams::record(event, stream);
  }
  void block(void* event, const c10::Stream& stream) const override { sim_streams::block(event, stream); }
  bool queryEvent(void* event) const override {
    auto* mark = static_cast<sim_streams::Mark*>(event);
    return mark == nullptr || sim_streams::ask(*mark->queue, mark->ticket);
  }
  bool queryStream(const c10::Stream& stream) const override {
    auto& queue = sim_streams::streams().queue(stream);
    return sim_streams::ask(queue, queue.last());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    auto& queue = sim_streams::streams().queue(stream);
    queue.run(queue.last());
  }
  void synchronizeEvent(void* event) const override { sim_streams::wait(event); }
  void synchronizeDevice(DeviceIndex index) const override { sim_streams::catch_up_all(checked(index)); }

 private:
  static Device placed(Device device) { return Device(kSim, checked(device.index())); }
};

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current_index; }
  void setCurrentDevice(DeviceIndex index) const override { current_index = checked(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(current_index, checked(index)); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &sim_streams::pinned(); }
  bool isPinnedPtr(const void* data) const override { return sim_streams::pinned().holds(data); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<SimGenerator>(checked(index));
  }

  void resizePrivateUse1Bytes(const Storage& storage, size_t nbytes) const override {
    const c10::DeviceGuard guard(storage.device());
    auto memory = allocator().allocate(nbytes);
    allocator().copy_data(memory.mutable_get(), storage.data(), std::min(nbytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard)

const bool registered = [] {
  c10::SetAllocator(kSim, &allocator());
  at::RegisterPrivateUse1HooksInterface(new SimHooks);
  return true;
}();

}  // namespace
