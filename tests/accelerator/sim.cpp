// The operators of the simulated accelerator, PyTorch's PrivateUse1 backend under the name `sim`.
//
// Law: every operator runs the CPU's own kernel over the very bytes of its device tensors, so a result is
// bit-equal to the CPU's. Before that, tensors on different devices are refused in PyTorch's own words.
// Inside one call each device storage has exactly one host twin over the same memory, and what comes back
// passes through the same table: a view of an input stays a view, an input stays itself, and new memory is
// adopted by the device without a copy. Random numbers come from the device's generator, never the CPU's.
//
// Not here: kernels that run later (copies do), memory a kernel frees before it returns, sparse and quantized layouts.

#include "sim_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

// While it lives, the CPU's default generator draws the numbers of `source`; then each has its own state again.
// Some CPU kernels take no generator argument, so lending the default one is the only way to reach them all.
class Lent {
 public:
  explicit Lent(at::Generator source)
      : lock_(mutex()),
        source_(std::move(source)),
        host_(at::detail::getDefaultCPUGenerator()),
        kept_(host_.get_state()) {
    host_.set_state(source_.get_state());
  }
  ~Lent() {
    source_.set_state(host_.get_state());
    host_.set_state(kept_);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  std::lock_guard<std::mutex> lock_;
  at::Generator source_, host_;
  Tensor kept_;
};

// The table of one call: device tensors and storages beside their host twins.
class Call {
 public:
  explicit Call(Device device) : device_(device) {}

  Tensor host(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
    for (const auto& pair : tensors_)
      if (pair.sim.is_same(tensor)) return pair.host;
    Tensor twin = at::detail::make_tensor<c10::TensorImpl>(
        host(tensor.storage()), marks(tensor).add(DispatchKey::CPU), tensor.dtype());
    copy_geometry(tensor, twin);
    tensors_.push_back({tensor, twin});
    return twin;
  }

  Storage host(const Storage& storage) {
    for (const auto& pair : storages_)
      if (pair.sim.is_alias_of(storage)) return pair.host;
    Storage twin(Storage::use_byte_size_t(), storage.nbytes(), lend(storage, at::kCPU), host_allocator(), true);
    storages_.push_back({storage, twin});
    return twin;
  }

  // Carries over to the device what the kernel did to memory (a resize) and to geometry (resize_, set_).
  void settle() {
    for (const auto& [sim, host] : storages_) {
      if (sim.data() != host.data()) sim.unsafeGetStorageImpl()->set_data_ptr_noswap(adopted(host));
      sim.unsafeGetStorageImpl()->set_nbytes(host.nbytes());
    }
    for (const auto& [sim, host] : tensors_) {
      auto* impl = sim.unsafeGetTensorImpl();
      const Storage storage = device(host.storage());
      if (!storage.is_alias_of(sim.storage())) impl->set_storage_keep_dtype(storage);
      if (sim.sizes() != host.sizes() || sim.strides() != host.strides() ||
          sim.storage_offset() != host.storage_offset())
        impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

  Tensor device(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (const auto& pair : tensors_)
      if (pair.host.is_same(tensor)) return pair.sim;
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "sim: no results of layout ", tensor.layout());
    Tensor result = view_of_input(tensor);
    if (!result.defined())
      result = at::detail::make_tensor<c10::TensorImpl>(
          device(tensor.storage()), marks(tensor).add(DispatchKey::PrivateUse1), tensor.dtype());
    copy_geometry(tensor, result);
    tensors_.push_back({result, tensor});
    return result;
  }

 private:
  template <class T>
  struct Pair {
    T sim;
    T host;
  };

  Storage device(const Storage& storage) {
    for (const auto& pair : storages_)
      if (pair.host.is_alias_of(storage)) return pair.sim;
    Storage made(Storage::use_byte_size_t(), storage.nbytes(), adopted(storage), &allocator(), true);
    storages_.push_back({made, storage});
    return made;
  }

  c10::DataPtr adopted(const Storage& memory) {
    return allocator().counted(lend(memory, at::kCPU), memory.nbytes(), device_.index());
  }

  // A view has the keys of its base, so that autograd tracks it, in inference mode too; undefined if it is no view.
  Tensor view_of_input(const Tensor& tensor) {
    for (const auto& pair : tensors_) {
      if (!pair.host.storage().is_alias_of(tensor.storage())) continue;
      const auto keys = (pair.sim.key_set() - all_marks) | marks(tensor);
      return at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, Storage(pair.sim.storage()), keys, tensor.dtype());
    }
    return {};
  }

  // Conjugation, negation and zeros without memory are marks on a tensor, not bytes.
  static constexpr DispatchKeySet all_marks{DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor};
  static DispatchKeySet marks(const Tensor& tensor) { return tensor.key_set() & all_marks; }

  static void copy_geometry(const Tensor& from, const Tensor& to) {
    auto* impl = to.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
    if (from.dim() == 0) impl->set_wrapped_number(from.unsafeGetTensorImpl()->is_wrapped_number());
  }

  Device device_;
  std::vector<Pair<Tensor>> tensors_;
  std::vector<Pair<Storage>> storages_;
};

// Operators that read small arguments from the CPU, on a GPU too: the pointwise ones, and some not tagged so.
bool reads_from_cpu(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> names = {
      "aten::fill",  "aten::fill_",     "aten::masked_fill", "aten::masked_fill_",
      "aten::index", "aten::index_put", "aten::index_put_",  "aten::_index_put_impl_"};
  return op.hasTag(at::Tag::pointwise) || names.count(op.operator_name().name) > 0;
}

// The one device that all arguments of a call agree on.
class OneDevice {
 public:
  explicit OneDevice(const c10::OperatorHandle& op) : op_(op), lenient_(reads_from_cpu(op)) {}

  void see(const c10::Argument& argument, const IValue& value) {
    if (value.isTensor()) {
      see(argument, value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) see(argument, tensor);
    } else if (value.isOptionalTensorList()) {
      // Only indices come as optional tensors; PyTorch takes them from the CPU as well.
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
        if (tensor.has_value() && !tensor->is_cpu()) see(argument, *tensor);
    } else if (value.isStorage()) {
      agree(argument, value.toStorage().device());
    } else if (value.isDevice() && !device_) {
      device_ = value.toDevice();
    }
  }

  Device get() const { return Device(kSim, checked(device_ ? device_->index() : -1)); }

 private:
  void see(const c10::Argument& argument, const Tensor& tensor) {
    if (!tensor.defined()) return;
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (!lenient_ || written || !tensor.is_cpu() || tensor.dim() > 0) agree(argument, tensor.device());
  }

  void agree(const c10::Argument& argument, Device device) {
    if (!device_) device_ = device;
    if (*device_ == device) return;
    const std::string method = "wrapper_sim_" + op_.schema().name().substr(op_.schema().name().find("::") + 2);
    const std::string place =
        c10::str(" (when checking argument for argument ", argument.name(), " in method ", method, ")");
    TORCH_CHECK(
        false, "Expected all tensors to be on the same device, but found at least two devices, ", *device_, " and ",
        device, "!", lenient_ ? "" : place);
  }

  const c10::OperatorHandle& op_;
  bool lenient_;
  std::optional<Device> device_;
};

at::Generator source_of_numbers(const IValue& given, Device device) {
  if (!given.isGenerator()) return default_generator(device.index());
  const auto generator = given.toGenerator();
  const auto type = generator.device().type();
  TORCH_CHECK(type == kSim, "Expected a 'sim' device type for generator but found '", type, "'");
  return generator;
}

IValue to_host(Call& call, const IValue& value) {
  if (value.isTensor()) return call.host(value.toTensor());
  if (value.isStorage()) return call.host(value.toStorage());
  if (value.isDevice()) return Device(at::kCPU);
  if (value.isTensorList()) {
    c10::List<Tensor> tensors;
    for (const Tensor& tensor : value.toTensorVector()) tensors.push_back(call.host(tensor));
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> tensors;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
      tensors.push_back(tensor.has_value() ? std::optional<Tensor>(call.host(*tensor)) : std::nullopt);
    return tensors;
  }
  return value;
}

IValue to_device(Call& call, const IValue& value) {
  if (value.isTensor()) return call.device(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<Tensor> tensors;
  for (const Tensor& tensor : value.toTensorVector()) tensors.push_back(call.device(tensor));
  return tensors;
}

// The kernel of every operator.
void run_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  OneDevice one(op);
  for (size_t i = 0; i < arguments.size(); ++i) one.see(arguments[i], (*stack)[first + i]);
  const Device device = one.get();
  sim_streams::catch_up(device);

  Call call(device);
  std::optional<at::Generator> source;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) source = default_generator(device.index());
  for (size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = (*stack)[first + i];
    if (arguments[i].name() == "generator") {
      source = source_of_numbers(value, device);
      value = IValue();
    } else {
      value = to_host(call, value);
    }
  }
  // Backward runs on a thread per device: with the caller's number of threads, or sums would be split otherwise.
  at::init_num_threads();
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::optional<Lent> lent;
    if (source) lent.emplace(*source);
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  call.settle();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = to_device(call, (*stack)[i]);
}

// The bytes of a tensor as one of the CPU that owns nothing.
Tensor bare(const Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

// A copy between pinned memory and a device is queued on a stream that is not the default one; every other one is done
// when it returns. PyTorch's own writer of sharded folders forgets to wait for devices other than the current one.
Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  const Tensor& place = target.is_privateuseone() ? target : source;
  const Tensor& other = target.is_privateuseone() ? source : target;
  const bool marked = source.is_conj() || source.is_neg() || source._is_zerotensor();
  const bool hosted = other.is_cpu() && other.numel() > 0 && sim_streams::pinned().holds(other.data_ptr());
  if (non_blocking && !marked && hosted && sim_streams::current(place.device()).id() != 0) {
    const Tensor from = bare(source), to = bare(target);
    sim_streams::queue_here(place.device()).put([from, to, keep = place.storage()] {
      const at::NoGradGuard no_grad;
      to.copy_(from);
    });
    return target;
  }
  sim_streams::catch_up(place.device());
  if (other.is_privateuseone()) sim_streams::catch_up(other.device());
  Call call(place.device());
  call.host(target).copy_(call.host(source));
  return target;
}

Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  const DispatchKeySet keys(DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &allocator(), keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>, std::optional<Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  const DispatchKeySet keys(DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &allocator(), keys, c10::dtype_or_default(dtype));
}

// Dense tensors of the host and of a device may take each other's place: `Module.to` keeps its parameters' identity.
bool may_replace(const Tensor& self, const Tensor& from) {
  auto dense = [](const Tensor& t) { return t.layout() == at::kStrided && (t.is_cpu() || t.is_privateuseone()); };
  return dense(self) && dense(from);
}

// Whether a composite kernel, which precedes the fallback, would compute otherwise than the CPU: the CPU has a
// kernel of its own (layer_norm), or the composite one chooses its algorithm by device (convolution).
bool shadows_cpu(const c10::OperatorName& name) {
  if (name.getNamespace() != "aten") return false;
  if (name.name == "aten::convolution" || name.name == "aten::convolution_backward") return true;
  const auto op = c10::Dispatcher::singleton().findOp(name);
  return op && op->hasKernelForDispatchKey(DispatchKey::CPU) &&
      (op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
       op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
       op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd));
}

}  // namespace

TORCH_LIBRARY(sim, m) {
  m.def("device_count() -> int", []() -> int64_t { return kDevices; });
  m.def("waiting() -> int", []() { return sim_streams::waiting(); });
  m.def("default_generator(int index) -> Generator?", [](int64_t i) { return default_generator(DeviceIndex(i)); });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_has_compatible_shallow_copy_type", may_replace);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    if (shadows_cpu(name))
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

// PyTorch would resolve a conjugated or negated source by copying it, which is what `_copy_from` is for.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

// torch.autocast("sim") casts what a GPU casts, but for the operators whose signature changes on the way.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define DOWN(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define UP(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define UP_UNLESS_ASKED(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(DOWN)
  AT_FORALL_FP32(UP)
  AT_FORALL_FP32_SET_OPT_DTYPE(UP_UNLESS_ASKED)
  AT_FORALL_PROMOTE(WIDEST)
}
