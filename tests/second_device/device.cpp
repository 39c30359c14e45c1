// A stand-in for a CUDA device on a torch without CUDA: tensors of device "cuda" whose memory is the host's.
// Every operator runs torch's CPU kernel on the same memory. What a GPU refuses is refused here: tensors of two
// devices in one operator, kernels that only CUDA has with other arguments than these take.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
constexpr auto kDev = DeviceType::CUDA;

// ---------------------------------------------------------------- statistics
std::mutex stats_mutex;
std::map<std::string, int64_t> op_counts;
std::atomic<int64_t> allocated{0}, peak{0}, total{int64_t(140) << 30};
std::atomic<bool> counting{false};
py::object* sync_hook = nullptr;
std::unordered_set<const void*> pinned;
std::mutex pinned_mutex;

void waits(const std::string& what) {  // the host waits for the device here
  if (sync_hook == nullptr) return;
  py::gil_scoped_acquire gil;
  if (!sync_hook->is_none()) (*sync_hook)(what);
}

void took(int64_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, allocated + bytes <= total, "CUDA out of memory. Tried to allocate ", bytes / 1048576.0, " MiB.");
  auto now = allocated.fetch_add(bytes) + bytes;
  auto most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {}
}

// ---------------------------------------------------------------- devices and streams: one stream, in order
constexpr int device_count = 1;
thread_local DeviceIndex current_device = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kDev; }
  Device exchangeDevice(Device d) const override {
    auto old = getDevice();
    if (d.index() >= 0) current_device = d.index();
    return old;
  }
  Device getDevice() const override { return Device(kDev, current_device); }
  void setDevice(Device d) const override { if (d.index() >= 0) current_device = d.index(); }
  void uncheckedSetDevice(Device d) const noexcept override { if (d.index() >= 0) current_device = d.index(); }
  c10::Stream getStream(Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d.index() < 0 ? getDevice() : d); }
  c10::Stream getDefaultStream(Device d) const override { return getStream(d); }
  c10::Stream getStreamFromGlobalPool(Device d, bool) const override { return getStream(d); }
  c10::Stream getNewStream(Device d, int) const override { return getStream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return getStream(s.device()); }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count); }
  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override { *event = (void*)1; }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// ---------------------------------------------------------------- memory: the host's, full of NaN until written
struct Block { size_t size; void* data; };
void release(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= block->size;
  if (block->data) { std::memset(block->data, 0xff, block->size); std::free(block->data); }
  delete block;
}
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* data = nullptr;
    took(n);
    if (n) {
      TORCH_CHECK(posix_memalign(&data, 512, n) == 0, "the host is out of memory");
      std::memset(data, 0xff, n);
    }
    return {data, new Block{n, data}, &release, Device(kDev, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};
DeviceAllocator device_allocator;

void unpin(void* data) {
  { std::lock_guard<std::mutex> lock(pinned_mutex); pinned.erase(data); }
  std::free(data);
}
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 64, std::max<size_t>(n, 1)) == 0, "out of memory");
    { std::lock_guard<std::mutex> lock(pinned_mutex); pinned.insert(data); }
    return {data, data, &unpin, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};
PinnedAllocator pinned_allocator;
bool is_pinned(const void* data) { std::lock_guard<std::mutex> lock(pinned_mutex); return pinned.count(data) > 0; }

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count); }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex d) const override { ::current_device = d; }
  DeviceIndex exchangeDevice(DeviceIndex d) const override { auto old = ::current_device; ::current_device = d; return old; }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
  int getNumGPUs() const override { return device_count; }
  void deviceSynchronize(DeviceIndex) const override {}
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  Device getDeviceFromPtr(void*) const override { return Device(kDev, 0); }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

}  // namespace
namespace at { C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::Hooks) }
namespace {

// ---------------------------------------------------------------- CPU names for device memory, and back
void drop_storage(void* context) {
  auto* held = static_cast<std::pair<c10::Storage, int64_t>*>(context);
  allocated -= held->second;
  delete held;
}
c10::DataPtr owning(const c10::Storage& cpu, Device device) {
  int64_t size = cpu.nbytes();
  took(size);
  return {cpu.mutable_data(), new std::pair<c10::Storage, int64_t>(cpu, size), &drop_storage, device};
}

struct Names {
  std::unordered_map<c10::TensorImpl*, Tensor> cpu_of;                 // device tensor -> its CPU name
  std::unordered_map<c10::TensorImpl*, Tensor> device_of;              // and back
  std::unordered_map<c10::StorageImpl*, c10::Storage> cpu_storage, device_storage;
  std::unordered_map<c10::StorageImpl*, c10::Storage> wrapped;
  std::unordered_map<c10::StorageImpl*, c10::DispatchKeySet> keys;     // of the tensor that a view is of
  Device device{kDev, 0};

  Tensor to_cpu(const Tensor& t) {
    if (!t.defined() || t.device().type() != kDev) return t;
    auto* impl = t.unsafeGetTensorImpl();
    if (auto found = cpu_of.find(impl); found != cpu_of.end()) return found->second;
    device = t.device();
    auto* storage = t.storage().unsafeGetStorageImpl();
    auto known = cpu_storage.find(storage);
    if (known == cpu_storage.end()) {
      c10::Storage made(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                        c10::DataPtr(t.storage().mutable_data(), Device(DeviceType::CPU)), c10::GetAllocator(DeviceType::CPU), true);
      known = cpu_storage.emplace(storage, made).first;
      device_storage.emplace(made.unsafeGetStorageImpl(), t.storage());
      keys.emplace(made.unsafeGetStorageImpl(), t.key_set());
    }
    Tensor name = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(known->second), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    name.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.is_conj()) name._set_conj(true);
    if (t.is_neg()) name._set_neg(true);
    if (impl->is_wrapped_number()) name.unsafeGetTensorImpl()->set_wrapped_number(true);
    cpu_of.emplace(impl, name);
    device_of.emplace(name.unsafeGetTensorImpl(), t);
    return name;
  }

  Tensor to_device(const Tensor& r) {
    if (!r.defined() || r.device().type() != DeviceType::CPU) return r;
    if (auto found = device_of.find(r.unsafeGetTensorImpl()); found != device_of.end()) return found->second;
    auto* storage = r.storage().unsafeGetStorageImpl();
    c10::Storage made;
    if (auto found = device_storage.find(storage); found != device_storage.end()) {
      Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(found->second), keys.at(storage), r.dtype());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(r.sizes(), r.strides(), r.storage_offset());
      return view;
    } else if (auto found = wrapped.find(storage); found != wrapped.end()) {
      made = found->second;
    } else {
      made = c10::Storage(c10::Storage::use_byte_size_t(), r.storage().nbytes(), owning(r.storage(), device), &device_allocator, true);
      wrapped.emplace(storage, made);
    }
    Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(made), c10::DispatchKeySet(c10::DispatchKey::CUDA), r.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(r.sizes(), r.strides(), r.storage_offset());
    return t;
  }

  void settle() {  // what an operator resized
    for (auto& [from, cpu] : cpu_storage) {
      auto& device_side = device_storage.at(cpu.unsafeGetStorageImpl());
      if (cpu.data() != device_side.data() || cpu.nbytes() != device_side.nbytes()) {
        auto* impl = device_side.unsafeGetStorageImpl();
        size_t bytes = cpu.nbytes();
        if (cpu.data() != device_side.data()) impl->set_data_ptr_noswap(owning(cpu, device));
        impl->set_nbytes(bytes);
      }
    }
    for (auto& [name, t] : device_of) {
      auto* impl = t.unsafeGetTensorImpl();
      if (t.sizes() != name->sizes() || t.strides() != name->strides() || t.storage_offset() != name->storage_offset())
        impl->set_sizes_and_strides(name->sizes(), name->strides(), name->storage_offset());
    }
  }
};

const std::unordered_set<std::string> HOST_INDICES = {  // a GPU takes indices in host memory, and copies them
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::_unsafe_index_put"};
const std::unordered_set<std::string> WAITING = {  // the size of the result, or the result, is read by the host
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::bincount", "aten::equal", "aten::is_nonzero", "aten::nonzero_static_",
    "aten::_assert_async_"};
const std::unordered_set<std::string> TENSOR_INDICES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.operator_name().name;
  const auto count = schema.arguments().size();
  const auto first = stack->size() - count;
  Names names;
  bool on_device = false;
  std::vector<Tensor> on_host;

  auto see = [&](const Tensor& t) {
    if (!t.defined()) return;
    if (t.device().type() == kDev) on_device = true;
    else if (t.device().type() == DeviceType::CPU && t.dim() > 0) on_host.push_back(t);
  };
  for (size_t i = first; i < stack->size(); ++i) {
    const auto& value = (*stack)[i];
    if (value.isTensor()) see(value.toTensor());
    else if (value.isTensorList()) for (const auto& t : value.toTensorList().vec()) see(t);
    else if (value.isOptionalTensorList()) for (const auto& t : value.toOptionalTensorList().vec()) { if (t) see(*t); }
  }
  if (on_device && !on_host.empty()) {
    TORCH_CHECK(HOST_INDICES.count(name), "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (",
                schema.operator_name(), ", a host tensor of shape ", on_host[0].sizes(), ")");
    waits(name + " with indices in host memory");
  }
  if (counting) {
    std::lock_guard<std::mutex> lock(stats_mutex);
    std::ostringstream full; full << schema.operator_name();
    if (name == "aten::index_copy" && at::globalContext().deterministicAlgorithms()) full << " by a sort";  // IndexKernel.cpp
    ++op_counts[full.str()];
  }
  if (WAITING.count(name)) waits(name);
  if (name == "aten::repeat_interleave" && schema.operator_name().overload_name == "Tensor" && (*stack)[first + 1].isNone()) waits(name);
  if (TENSOR_INDICES.count(name)) {
    const auto& list = (*stack)[first + 1];
    if (list.isOptionalTensorList()) for (const auto& t : list.toOptionalTensorList().vec())
      if (t && t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte)) { waits(name + " by a mask"); break; }
  }
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) value = names.to_cpu(value.toTensor());
    else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& t : value.toTensorList().vec()) list.push_back(names.to_cpu(t));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& t : value.toOptionalTensorList().vec())
        list.push_back(t ? std::optional<Tensor>(names.to_cpu(*t)) : std::nullopt);
      value = list;
    } else if (value.isDevice() && value.toDevice().type() == kDev) value = Device(DeviceType::CPU);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const auto results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) value = names.to_device(value.toTensor());
    else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& t : value.toTensorList().vec()) list.push_back(names.to_device(t));
      value = list;
    }
  }
  names.settle();
}

// ---------------------------------------------------------------- operators of their own
void count_own(const char* name) {
  if (!counting) return;
  std::lock_guard<std::mutex> lock(stats_mutex);
  ++op_counts[name];
}

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device>,
             std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())), format);
}
Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())));
}
Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  const bool there = self.device().type() == kDev, here = from.device().type() == kDev;
  count_own(there && here ? "copy_" : there ? "copy_ to device" : "copy_ to host");
  if (there != here && self.numel()) {
    const auto& host = there ? from : self;
    const bool fixed = host.storage().nbytes() && is_pinned(host.storage().data());
    if (!non_blocking) waits(there ? "copy to the device" : "copy to the host");
    else if (!fixed) waits(there ? "copy to the device from memory that is not pinned" : "copy to host memory that is not pinned");
  }
  Names names;
  Tensor to = names.to_cpu(self);
  to.copy_(names.to_cpu(from));
  return self;
}
Tensor& set_storage(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (stride.size() == size.size()) impl->set_sizes_and_strides(sizes, C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  else { impl->set_sizes_contiguous(sizes); impl->set_storage_offset(offset.expect_int()); }
  return self;
}
Tensor& set_source_storage(Tensor& self, at::Storage source) {
  int64_t n = source.nbytes() / self.dtype().itemsize();
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_contiguous(at::IntArrayRef{n}); impl->set_storage_offset(0);
  return self;
}
Tensor& set_source_tensor(Tensor& self, const Tensor& source) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source.storage());
  impl->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  return self;
}
void record_stream(Tensor&, c10::Stream) {}

// Blas.cpp of torch 2.13: _addmm_dtype_cuda, _mm_dtype_cuda, _bmm_dtype_cuda
void check_product(const Tensor& a, const Tensor& b, at::ScalarType out) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "mat1 and mat2 must have the same dtype, but got ", a.dtype(), " and ", b.dtype());
  TORCH_CHECK(out == a.scalar_type() || (out == at::kFloat && (a.scalar_type() == at::kHalf || a.scalar_type() == at::kBFloat16)),
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  for (const auto& t : {a, b}) TORCH_CHECK(t.device().type() == kDev, "Expected all tensors to be on the same device");
}
void check_addmm(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType out) {
  check_product(a, b, out);
  TORCH_CHECK(self.scalar_type() == out || self.scalar_type() == a.scalar_type(), "self dtype must match either out_dtype or mat1 dtype");
  TORCH_CHECK(self.device().type() == kDev, "Expected all tensors to be on the same device (addmm)");
}
Tensor addmm_dtype(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType out, const at::Scalar& beta, const at::Scalar& alpha) {
  count_own("aten::addmm.dtype");
  check_addmm(self, a, b, out);
  return at::addmm(self.to(out), a.to(out), b.to(out), beta, alpha);
}
Tensor& addmm_dtype_out(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType dtype, const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  count_own("aten::addmm.dtype_out");
  check_addmm(self, a, b, dtype);
  TORCH_CHECK(out.scalar_type() == dtype, "out_dtype must be the same as the dtype of the provided out tensor");
  out.copy_(at::addmm(self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha));
  return out;
}

Tensor mm_dtype(const Tensor& a, const Tensor& b, at::ScalarType out) {
  count_own("aten::mm.dtype");
  check_product(a, b, out);
  Names names;
  return names.to_device(at::mm(names.to_cpu(a).to(out), names.to_cpu(b).to(out)));
}
Tensor bmm_dtype(const Tensor& a, const Tensor& b, at::ScalarType out) {
  count_own("aten::bmm.dtype");
  check_product(a, b, out);
  Names names;
  return names.to_device(at::bmm(names.to_cpu(a).to(out), names.to_cpu(b).to(out)));
}

// One kernel on CUDA, of which the CPU's torch has the parts alone: computed in float32, one dtype for input and weight.
std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, at::IntArrayRef shape, const std::optional<Tensor>& weight, std::optional<double> eps) {
  count_own("aten::_fused_rms_norm");
  if (!input.is_contiguous()) count_own("copy_");
  Names names;
  Tensor x = names.to_cpu(input).to(at::kFloat);
  Tensor rstd = (x.pow(2).mean(-1, true) + eps.value_or(std::numeric_limits<float>::epsilon())).rsqrt();
  Tensor out = x * rstd;
  if (weight && weight->defined()) {
    TORCH_CHECK(weight->device() == input.device() && weight->scalar_type() == input.scalar_type() && shape.size() == 1, "_fused_rms_norm");
    out = out * names.to_cpu(*weight).to(at::kFloat);
  }
  return {names.to_device(out.to(input.scalar_type()).contiguous()), names.to_device(rstd)};
}
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape, const Tensor& rstd,
                                             const std::optional<Tensor>& weight, std::array<bool, 2> mask) {
  count_own("aten::_fused_rms_norm_backward");
  Names names;
  Tensor g = names.to_cpu(grad).to(at::kFloat), x = names.to_cpu(input).to(at::kFloat), r = names.to_cpu(rstd);
  Tensor unit = x * r, of_x, of_w;
  const bool weighed = weight && weight->defined();
  if (mask[1] && weighed) of_w = names.to_device((g * unit).reshape({-1, shape[0]}).sum(0).to(weight->scalar_type()));
  if (weighed) g = g * names.to_cpu(*weight).to(at::kFloat);
  if (mask[0]) of_x = names.to_device(((g - unit * (g * unit).mean(-1, true)) * r).to(input.scalar_type()));
  return {of_x, of_w};
}
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& low, const at::Scalar& high) {  // the CPU's takes no integers
  count_own("aten::histc");
  Names names;
  return names.to_device(at::histc(names.to_cpu(self).to(at::kFloat), bins, low, high).to(self.scalar_type()));
}

// Attention in parts, as torch computes it where none of its kernels takes the arguments.
int64_t sdpa(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool gqa) {
  count_own(gqa ? "attention of grouped keys" : "attention");
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

}  // namespace

namespace at::native { REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &sdpa) }

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_source_storage);
  m.impl("set_.source_Tensor", &set_source_tensor);
  m.impl("record_stream", &record_stream);
  for (const char* name : {"convolution", "convolution_backward", "_convolution"})  // else by kernels that only CUDA has
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  m.impl("_fused_rms_norm", &rms_norm);
  m.impl("_fused_rms_norm_backward", &rms_norm_backward);
  m.impl("histc", &histc);
  m.impl("mm.dtype", &mm_dtype);
  m.impl("bmm.dtype", &bmm_dtype);
  m.impl("addmm.dtype", &addmm_dtype);
  m.impl("addmm.dtype_out", &addmm_dtype_out);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(kDev, &device_allocator);
  m.def("set_total", [](int64_t bytes) { total = bytes; });
  m.def("current_device", [] { return (int)current_device; });
  m.def("set_device", [](int n) { current_device = n; });
  m.def("count", [](bool on) { std::lock_guard<std::mutex> lock(stats_mutex); counting = on; });
  m.def("pause", [] { return counting.exchange(false); });
  m.def("add", [](const std::string& name) { std::lock_guard<std::mutex> lock(stats_mutex); counting = true; ++op_counts[name]; });
  m.def("clear", [] { std::lock_guard<std::mutex> lock(stats_mutex); op_counts.clear(); });
  m.def("counts", [] { std::lock_guard<std::mutex> lock(stats_mutex); return op_counts; });
  m.def("allocated", [] { return allocated.load(); });
  m.def("peak", [] { return peak.load(); });
  m.def("reset_peak", [] { peak = allocated.load(); });
  m.def("on_wait", [](py::object hook) { delete sync_hook; sync_hook = new py::object(std::move(hook)); });
  m.def("resize_storage", [](const Tensor& t, int64_t size) {
    auto* impl = t.storage().unsafeGetStorageImpl();
    auto made = device_allocator.allocate(size);
    if (size && impl->nbytes()) std::memcpy(made.get(), impl->data(), std::min<int64_t>(size, impl->nbytes()));
    impl->set_data_ptr_noswap(std::move(made));
    impl->set_nbytes(size);
  });
}
