// One GPU as a backend.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/log.h"
#include "ops/backend.h"
#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/context.cuh"
#include "ops/cuda/device/memset_nodes.cuh"
#include "ops/cuda/device/random_words.cuh"
#include "ops/cuda/linear/measure.cuh"
#include "ops/cuda/linear/pack.cuh"
#include "ops/cuda/round.cuh"

namespace tandem::ops {
namespace {

using cuda::CheckCuda;

void FreeDevice(void* data, size_t /*bytes*/) { cudaFree(data); }
void FreePinned(void* data, size_t /*bytes*/) { cudaFreeHost(data); }

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraphExec_t exec) : exec_(exec) {}
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
};

struct SideStream {
  cudaStream_t stream = nullptr;
  cudaEvent_t end = nullptr;
  bool joined = true;  // the backend's stream waits for all that was enqueued

  // A wait means the event as it was last recorded, so it can be recorded again at once.
  void MakeWait(cudaStream_t waiting) const {
    CheckCuda(cudaEventRecord(end, stream), "the end of side copies");
    CheckCuda(cudaStreamWaitEvent(waiting, end, 0), "a wait for side copies");
  }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const cuda::Context& context, std::string name)
      : context_(context), name_(std::move(name)), ops_(context), round_(context) {
    for (cudaEvent_t& mark : marks_) {
      CheckCuda(cudaEventCreateWithFlags(&mark, cudaEventDefault), "an event");
    }
    for (SideStream* side : {&to_host_, &to_device_}) {
      CheckCuda(cudaStreamCreateWithFlags(&side->stream, cudaStreamNonBlocking), "a stream");
      CheckCuda(cudaEventCreateWithFlags(&side->end, cudaEventDisableTiming), "an event");
    }
  }
  ~CudaBackend() override {
    for (const SideStream& side : {to_host_, to_device_}) {
      cudaStreamSynchronize(side.stream);
      cudaEventDestroy(side.end);
      cudaStreamDestroy(side.stream);
    }
    cudaStreamSynchronize(context_.stream);
    for (cudaEvent_t mark : marks_) cudaEventDestroy(mark);
    cudaStreamDestroy(context_.stream);
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string Describe() const override {
    return fmt::format("cuda {} {}{}", context_.device, name_,
                       context_.batch_invariant ? ", batch-invariant" : "");
  }
  Device device() const override { return {Device::Kind::kCuda, context_.device}; }
  const cuda::Context& context() const { return context_; }
  Ops& ops() override { return ops_; }
  RoundOps& round() override { return round_; }
  void WarmUp(const std::function<void()>& work) override { ops_.WarmUp(work); }

  Result<Buffer> Allocate(size_t bytes) override;
  Result<Buffer> AllocatePinned(size_t bytes) override;
  // The plain copies wait for completion: loading and tests use them.
  void CopyToDevice(void* to, const void* from, size_t bytes) override {
    EnqueueCopyToDevice(to, from, bytes);
    CheckCuda(cudaStreamSynchronize(context_.stream), "a copy to the device");
  }
  void CopyToHost(void* to, const void* from, size_t bytes) override {
    EnqueueCopyToHost(to, from, bytes);
    CheckCuda(cudaStreamSynchronize(context_.stream), "a copy to the host");
  }
  void FillRandom(const Tensor& out, const RandomWords& words) override {
    cuda::FillRandomWords(context_, out.data, out.NumBytes(), words);
  }
  // The runtime's current device is a property of the thread.
  void BindThread() const override {
    CheckCuda(cudaSetDevice(context_.device), "choosing the GPU");
  }
  int64_t FreeBytes() const override {
    BindThread();
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();  // then there is none
    return static_cast<int64_t>(free);
  }
  void EnqueueCopyToDevice(void* to, const void* from, size_t bytes) override {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context_.stream),
              "a copy to the device");
  }
  void EnqueueCopyToHost(void* to, const void* from, size_t bytes) override {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, context_.stream),
              "a copy to the host");
  }

  void EnqueueSideCopyToHost(void* to, const void* from, size_t bytes) override {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, to_host_.stream),
              "a copy of cache blocks to the host");
    to_host_.joined = to_device_waits_ = false;
  }
  void EnqueueSideCopyToDevice(void* to, const void* from, size_t bytes) override {
    if (!to_device_waits_) to_host_.MakeWait(to_device_.stream);
    to_device_waits_ = true;
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, to_device_.stream),
              "a copy of cache blocks to the device");
    to_device_.joined = false;
  }
  void JoinSideCopies() override {
    if (!to_host_.joined) to_host_.MakeWait(context_.stream);
    if (!to_device_.joined) {
      to_device_.MakeWait(context_.stream);
      to_device_.MakeWait(to_host_.stream);
    }
    to_host_.joined = to_device_.joined = true;
  }

  void Mark(int mark) override {
    CheckCuda(cudaEventRecord(marks_[static_cast<size_t>(mark)], context_.stream), "a mark");
  }
  Status WaitFor(int mark) override {
    CheckCuda(cudaEventSynchronize(marks_[static_cast<size_t>(mark)]), "a kernel before a mark");
    return Failure();
  }
  double SecondsBetween(int from, int to) override {
    float milliseconds = 0.0f;
    CheckCuda(cudaEventElapsedTime(&milliseconds, marks_[static_cast<size_t>(from)],
                                   marks_[static_cast<size_t>(to)]),
              "the time between two marks");
    return milliseconds * 1e-3;
  }
  Status Synchronize() override {
    JoinSideCopies();
    CheckCuda(cudaStreamSynchronize(context_.stream), "a kernel");
    return Failure();
  }
  std::unique_ptr<Graph> Capture(const std::function<void()>& enqueue) override;
  void Launch(const Graph& graph) override {
    CheckCuda(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).exec(), context_.stream),
              "a graph");
  }

  Status CheckSizes(int64_t vocab, int64_t head_dim) const override {
    if (vocab > cuda::CudaSampler::kMaxVocab) {
      return InvalidArgument(fmt::format("vocab_size is {}; on a GPU it is at most {}", vocab,
                                         cuda::CudaSampler::kMaxVocab));
    }
    if (head_dim > cuda::kMaxGenericHeadDim) {
      return InvalidArgument(fmt::format("head_dim is {}; on a GPU it is at most {}", head_dim,
                                         cuda::kMaxGenericHeadDim));
    }
    return {};
  }
  Status CheckKvType(DType stored) const override {
    if (stored != DType::kI8) return {};
    return Unimplemented(
        "kv_cache_dtype int8: on a GPU keys and values are kept in 16 bits or in fp8, which takes "
        "the same memory as int8");
  }
  Status CheckFormat(const WeightFormat& stored, const WeightFormat& kept) const override {
    return cuda::CheckFormat(stored, kept);
  }
  QuantScheme KeptScheme(const QuantScheme& stored) const override {
    return cuda::HasKernels(stored) ? stored : QuantScheme{};
  }
  Result<LinearWeight> PackLinear(std::span<const LinearPart> parts,
                                  const WeightFormat& kept) override {
    Result<LinearWeight> packed =
        cuda::PackLinear(context_, [this](size_t bytes) { return Allocate(bytes); }, parts, kept);
    if (packed.ok()) ops_.ReserveFor(*packed);
    TANDEM_RETURN_IF_ERROR(Failure());
    return packed;
  }
  Result<Buffer> MakeExpertTable(const ExpertWeights& weights) override {
    Result<Buffer> table =
        cuda::MakeExpertTable(context_, [this](size_t bytes) { return Allocate(bytes); }, weights);
    TANDEM_RETURN_IF_ERROR(Failure());
    return table;
  }
  int64_t PackedBytes(int64_t rows, int64_t cols, const WeightFormat& kept) const override {
    return cuda::PackedBytes(rows, cols, kept);
  }

  double MeasureReadBandwidth() override { return cuda::MeasureReadBandwidth(context_); }
  double MeasureMatrixPeak(DType dtype) override {
    return cuda::MeasureMatrixPeak(context_, dtype);
  }

 private:
  // The first failure, if any.
  Status Failure() {
    if (failure_.ok()) failure_ = cuda::TakeFailure();
    return failure_;
  }
  // Why the runtime refused to allocate; `refused` if it has no memory and nothing has failed.
  Status WhyRefused(cudaError_t error, const std::function<std::string()>& refused);

  const cuda::Context context_;
  const std::string name_;
  cuda::CudaOps ops_;
  cuda::CudaRoundOps round_;
  std::array<cudaEvent_t, kNumMarks> marks_{};
  // One for each direction: the device has a copy engine for each.
  SideStream to_host_, to_device_;
  bool to_device_waits_ = true;  // for all copies to the host
  Status failure_;
};

Status CudaBackend::WhyRefused(cudaError_t error, const std::function<std::string()>& refused) {
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clear the error
    return ResourceExhausted(refused());
  }
  CheckCuda(error, "an allocation");
  return Failure();
}

Result<Buffer> CudaBackend::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer{};
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, bytes); error != cudaSuccess) {
    return WhyRefused(error, [&] {
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      return fmt::format("{} bytes of device memory were asked for, {} of {} are free", bytes, free,
                         total);
    });
  }
  CheckCuda(cudaMemsetAsync(data, 0, bytes, context_.stream), "clearing memory");
  return Buffer(data, bytes, device(), FreeDevice);
}

Result<Buffer> CudaBackend::AllocatePinned(size_t bytes) {
  if (bytes == 0) return Buffer{};
  void* data = nullptr;
  if (const cudaError_t error = cudaMallocHost(&data, bytes); error != cudaSuccess) {
    return WhyRefused(error,
                      [&] { return fmt::format("{} bytes of pinned memory were refused", bytes); });
  }
  std::fill_n(static_cast<std::byte*>(data), bytes, std::byte{0});
  return Buffer(data, bytes, Device{}, FreePinned);
}

std::unique_ptr<Graph> CudaBackend::Capture(const std::function<void()>& enqueue) {
  CheckCuda(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal), "a capture");
  enqueue();
  cudaGraph_t graph = nullptr;
  CheckCuda(cudaStreamEndCapture(context_.stream, &graph), "the end of a capture");
  if (graph == nullptr) return nullptr;
  cuda::ReplaceMemsets(graph);
  cudaGraphExec_t exec = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
  CheckCuda(cudaGraphDestroy(graph), "a graph");
  if (made == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the work can still be enqueued kernel by kernel
    LogWarning("no device memory is left for a graph: steps go on without, and are slower");
    return nullptr;
  }
  CheckCuda(made, "a graph's instance");
  if (made != cudaSuccess) return nullptr;
  return std::make_unique<CudaGraph>(exec);
}

// The first failure while the backend was made, if any.
Status WhyNotStarted(int device) {
  const Status failure = cuda::TakeFailure();
  if (failure.ok()) return {};
  if (failure.code() != Code::kResourceExhausted) {
    return failure.Annotate(fmt::format("GPU {} cannot be used", device));
  }
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
  return failure.Annotate(
      fmt::format("GPU {} has {} of {} bytes free, too few to start with (nvidia-smi shows which "
                  "programs have the rest)",
                  device, free, total));
}

}  // namespace

const cuda::Context* cuda::ContextOf(const Backend& backend) {
  const auto* const gpu = dynamic_cast<const CudaBackend*>(&backend);
  return gpu == nullptr ? nullptr : &gpu->context();
}

int NumCudaDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::vector<CudaDevice> CudaDevices() {
  std::vector<CudaDevice> devices;
  for (int index = 0; index < NumCudaDevices(); ++index) {
    cudaDeviceProp properties{};
    CheckCuda(cudaGetDeviceProperties(&properties, index), "the GPU's properties");
    CudaDevice& device = devices.emplace_back();
    device.kind = properties.name;
    for (const std::byte byte : std::as_bytes(std::span(properties.uuid.bytes))) {
      device.id += fmt::format("{:02x}", static_cast<int>(byte));
    }
  }
  return devices;
}

Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return Unavailable(fmt::format("no GPU can be used: {}", cudaGetErrorString(error)));
  }
  if (options.device < 0 || options.device >= count) {
    return Unavailable(fmt::format("GPU {} does not exist; there are {}", options.device, count));
  }
  cudaDeviceProp properties{};
  CheckCuda(cudaSetDevice(options.device), "choosing the GPU");
  CheckCuda(cudaGetDeviceProperties(&properties, options.device), "the GPU's properties");
  TANDEM_RETURN_IF_ERROR(WhyNotStarted(options.device));
  if (!cuda::HasKernelsForDevice()) {
    return Unavailable(fmt::format(
        "GPU {} ({}) has compute capability {}.{}; this program holds no kernels for it",
        options.device, properties.name, properties.major, properties.minor));
  }
  cuda::Context context;
  context.device = options.device;
  context.num_sms = properties.multiProcessorCount;
  context.l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  context.compute_capability = 10 * properties.major + properties.minor;
  context.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  if (const int most = options.max_compute_capability; most > 0) {
    constexpr int kLeastSharedBytes = 99 << 10;  // of GPUs from sm_80 on
    context.compute_capability = std::min(context.compute_capability, most);
    if (most < 90) context.shared_bytes = std::min(context.shared_bytes, kLeastSharedBytes);
  }
  context.batch_invariant = options.batch_invariant;
  CheckCuda(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking), "a stream");
  auto backend = std::make_unique<CudaBackend>(context, properties.name);
  TANDEM_RETURN_IF_ERROR(WhyNotStarted(options.device));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace tandem::ops
