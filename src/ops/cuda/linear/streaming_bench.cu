// Microseconds of the products with few tokens of Llama's layers on GPU 0, with what their kernels
// do of the work between products, but without the rest of the engine, so that a change to a kernel
// is built and measured in a minute:
//
//   streaming_bench [FORMAT [LAYER [TOKENS]]]
//
// FORMAT: fp8 (default), int8, int4 (with a scale for 128 weights) or bf16; LAYER: a name of
// kLayers, default all; TOKENS: 1 to 16, default some of them. A graph of kCalls products, which
// take turns in kWeightBytes of weights, is launched kLaunches times; the fastest counts. The hash
// is that of one product's results (of qkv: the queries, and the keys and values in the pool): a
// change that keeps the bits keeps it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

#include "ops/cuda/linear/linear_kernels.cuh"
#include "ops/cuda/linear/product_epilogue.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kCalls = 48;
constexpr int kLaunches = 4;
constexpr int64_t kWeightBytes = int64_t{3} << 30;

struct Layer {
  std::string_view name;
  int rows;
  int cols;
  Epilogue epilogue = Epilogue::kPlain;
  bool takes_activated = false;  // `down`
  int head_dim = 128;
};
constexpr Layer kLayers[] = {
    {"1b.qkv", 3072, 2048, Epilogue::kTurned, false, 64},
    {"1b.out", 2048, 2048, Epilogue::kAdded},
    {"1b.gate_up", 16384, 2048, Epilogue::kGated},
    {"1b.down", 2048, 8192, Epilogue::kAdded, true},
    {"8b.qkv", 6144, 4096, Epilogue::kTurned},
    {"8b.out", 4096, 4096, Epilogue::kAdded},
    {"8b.gate_up", 28672, 4096, Epilogue::kGated},
    {"8b.down", 4096, 14336, Epilogue::kAdded, true},
    {"70b.qkv", 10240, 8192, Epilogue::kTurned},
    {"70b.out", 8192, 8192, Epilogue::kAdded},
    {"70b.gate_up", 57344, 8192, Epilogue::kGated},
    {"70b.down", 8192, 28672, Epilogue::kAdded, true},
    {"head", 128256, 4096},
};
constexpr int kNumKvHeads = 8;

struct Format {
  std::string_view name;
  int bits;
  void (*product)(const Context& context, const LinearArgs& args);
  void (*gated)(const Context& context, const LinearArgs& args);
  void (*turned)(const Context& context, const LinearArgs& args, const RopeJob& job);
  void (*added)(const Context& context, const LinearArgs& args, const AddJob& job);
};
template <typename W>
constexpr Format FormatOf(std::string_view name, int bits) {
  return {name,
          bits,
          LaunchStreaming<Bf16, W>,
          LaunchStreamingGated<Bf16, W>,
          LaunchStreamingTurned<Bf16, W>,
          LaunchStreamingAdded<Bf16, W>};
}
constexpr Format kFormats[] = {FormatOf<Fp8>("fp8", 8), FormatOf<Int8>("int8", 8),
                               FormatOf<Int4<1>>("int4", 4), FormatOf<Bf16>("bf16", 16)};

// Words of random bits where `keep` has ones; `set` is added.
__global__ void Fill(uint32_t* words, int64_t count, uint32_t keep, uint32_t set) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint32_t word = static_cast<uint32_t>(i) * 2654435761u + 7;
    word = (word ^ word >> 15) * 2246822519u;
    word = (word ^ word >> 13) * 3266489917u;
    words[i] = ((word ^ word >> 16) & keep) | set;
  }
}
template <typename Value>
Value* Filled(int64_t bytes, uint32_t keep, uint32_t set) {
  void* data = nullptr;
  CheckCuda(cudaMalloc(&data, static_cast<size_t>(bytes)), "memory for operands");
  Fill<<<1024, 256>>>(static_cast<uint32_t*>(data), bytes / 4, keep, set);
  CheckLaunch("operands");
  return static_cast<Value*>(data);
}

class Bench {
 public:
  explicit Bench(const Format& format)
      : format_(format),
        // Signs and mantissas of fp8 in [1, 2) and of small numbers of bf16 alike.
        weights_(Filled<std::byte>(kWeightBytes, 0x87878787u, 0x38383838u)),
        x_(Filled<uint16_t>(int64_t{kMaxStreamingTokens} * kMostCols * 2, 0x807f807fu,
                            0x3f803f80u)),
        scales_(Filled<float>(kMostScales * 4, 0x007fffffu, 0x3f800000u)),
        out_(Filled<uint16_t>(int64_t{kMaxStreamingTokens} * kMostRows * 2, 0, 0)),
        residual_(Filled<uint16_t>(int64_t{kMaxStreamingTokens} * kMostCols * 2, 0, 0)),
        squares_(Filled<int64_t>(kMaxStreamingTokens * 8, 0, 1 << 20)),
        sums_(Filled<unsigned long long>(kMaxStreamingTokens * 8, 0, 0)),
        pool_(Filled<std::byte>(kPoolBytes, 0, 0)),
        turns_(Filled<float>(kPositions * 64 * 4, 0x007fffffu, 0x3f000000u)) {
    std::vector<int32_t> order(static_cast<size_t>(kPositions));
    std::iota(order.begin(), order.end(), 0);
    CheckCuda(cudaMalloc(&order_, order.size() * 4), "memory for operands");
    CheckCuda(cudaMemcpy(order_, order.data(), order.size() * 4, cudaMemcpyHostToDevice),
              "operands");
    cudaDeviceProp properties{};
    CheckCuda(cudaGetDeviceProperties(&properties, 0), "the GPU's properties");
    context_.num_sms = properties.multiProcessorCount;
    context_.compute_capability = 10 * properties.major + properties.minor;
    context_.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
    CheckCuda(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), "a stream");
    CheckCuda(cudaDeviceSynchronize(), "operands");
  }

  void Measure(const Layer& layer, int tokens) {
    LinearArgs args;
    args.x = x_;
    args.out = out_;
    args.tokens = tokens;
    args.rows = layer.epilogue == Epilogue::kGated ? layer.rows / 2 : layer.rows;
    args.cols = args.pitch = layer.cols;
    args.segment = SegmentCols(layer.cols);
    if (format_.bits == 8) args.scales = scales_;
    if (format_.bits == 4) {
      constexpr int kGroup = 128;
      args.group_scales = reinterpret_cast<const float2*>(scales_);
      args.groups = layer.cols / kGroup;
      args.group_shift = 1;
    }
    const int64_t bytes = int64_t{layer.rows} * layer.cols * format_.bits / 8;
    const RopeJob rope = RopeOf(layer);
    if (layer.epilogue == Epilogue::kTurned) {
      args.rows = layer.rows / 2;
      args.half_head = layer.head_dim / 2;
    }
    if (layer.epilogue == Epilogue::kTurned || layer.epilogue == Epilogue::kGated) {
      args.squares = squares_;
      args.epsilon = 1e-5f;
    }
    // As in a layer, whose products take what those before them leave; attention leaves T.
    const bool takes_factors = format_.bits == 8;
    args.x_is_factors =
        takes_factors && (layer.epilogue != Epilogue::kAdded || layer.takes_activated);
    args.out_is_factors = takes_factors && layer.epilogue == Epilogue::kGated;
    // The sums are never read, so it does not matter that they grow from call to call.
    const AddJob add{.residual = residual_,
                     .norm_weight = x_,
                     .rows = out_,
                     .rows_are_factors = takes_factors,
                     .squares = sums_};
    const auto enqueue = [&](int64_t call) {
      args.weight = weights_ + call % (kWeightBytes / bytes) * bytes;
      switch (layer.epilogue) {
        case Epilogue::kPlain:
          return format_.product(context_, args);
        case Epilogue::kGated:
          return format_.gated(context_, args);
        case Epilogue::kTurned:
          return format_.turned(context_, args, rope);
        case Epilogue::kAdded:
          return format_.added(context_, args, add);
      }
    };
    CheckCuda(cudaMemsetAsync(residual_, 0, kMaxStreamingTokens * kMostCols * 2, context_.stream),
              "the residual");
    CheckCuda(cudaMemsetAsync(out_, 0, kMaxStreamingTokens * kMostRows * 2, context_.stream),
              "the results");
    CheckCuda(cudaMemsetAsync(pool_, 0, kPoolBytes, context_.stream), "the pool");
    enqueue(0);
    const int width = layer.epilogue == Epilogue::kGated ? args.rows : layer.rows;
    uint64_t hash = 0xcbf29ce484222325u;
    Hash(out_, int64_t{tokens} * width * 2, hash);
    if (layer.epilogue == Epilogue::kTurned) Hash(pool_, kPoolBytes, hash);

    const double microseconds = Fastest([&] {
      for (int call = 1; call <= kCalls; ++call) enqueue(call);
    });
    std::printf("%-12s %2d tokens %8.2f us %6.0f GB/s  %016llx\n", layer.name.data(), tokens,
                microseconds, static_cast<double>(bytes) / microseconds * 1e-3,
                static_cast<unsigned long long>(hash));
  }

 private:
  // Adds what the device has there to a hash.
  void Hash(const void* from, int64_t bytes, uint64_t& hash) {
    std::vector<uint16_t> values(static_cast<size_t>(bytes) / 2);
    CheckCuda(cudaMemcpyAsync(values.data(), from, static_cast<size_t>(bytes),
                              cudaMemcpyDeviceToHost, context_.stream),
              "the results");
    CheckCuda(cudaStreamSynchronize(context_.stream), "a product");
    for (const uint16_t value : values) hash = (hash ^ value) * 0x100000001b3u;
  }

  static constexpr int kMostRows = 128256, kMostCols = 28672;
  static constexpr int kPositions = 1024;
  static constexpr int64_t kPoolBytes = int64_t{4} << 20;

  // Token i is that of position i of sequence i, whose only block is block i.
  RopeJob RopeOf(const Layer& layer) const {
    RopeJob job;
    job.qkv = out_;
    job.pool = pool_;
    job.fp8_pool = format_.bits <= 8;
    job.cos = job.sin = turns_;
    job.positions = job.row_seq = job.block_table = order_;
    job.max_blocks = 1;
    job.block_tokens = 32;
    job.num_kv_heads = kNumKvHeads;
    job.num_heads = layer.rows / layer.head_dim - 2 * kNumKvHeads;
    job.head_dim = layer.head_dim;
    job.pairs = layer.head_dim / 2;
    job.block_elements = 2 * kNumKvHeads * job.head_elements();
    return job;
  }
  static constexpr int64_t kMostScales = int64_t{16} << 20;  // of 4 bits: a row has many

  // Of a call, of kCalls that `enqueue` enqueues.
  template <typename Enqueue>
  double Fastest(const Enqueue& enqueue) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CheckCuda(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal), "a graph");
    enqueue();
    CheckCuda(cudaStreamEndCapture(context_.stream, &graph), "a graph");
    CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "a graph");
    cudaEvent_t begin = nullptr, end = nullptr;
    CheckCuda(cudaEventCreate(&begin), "an event");
    CheckCuda(cudaEventCreate(&end), "an event");
    float fastest = 1e9f;
    for (int launch = 0; launch < kLaunches; ++launch) {
      CheckCuda(cudaEventRecord(begin, context_.stream), "an event");
      CheckCuda(cudaGraphLaunch(executable, context_.stream), "a graph");
      CheckCuda(cudaEventRecord(end, context_.stream), "an event");
      CheckCuda(cudaEventSynchronize(end), "a graph");
      float milliseconds = 0.0f;
      CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "the time of a graph");
      fastest = std::min(fastest, milliseconds);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    return fastest * 1e3 / kCalls;
  }

  const Format& format_;
  Context context_;
  const std::byte* const weights_;
  uint16_t* const x_;
  float* const scales_;
  uint16_t* const out_;
  uint16_t* const residual_;
  int64_t* const squares_;
  unsigned long long* const sums_;
  std::byte* const pool_;
  float* const turns_;  // cosines and sines
  int32_t* order_ = nullptr;
};

int Main(int argc, char** argv) {
  const std::string_view format_name = argc > 1 ? argv[1] : "fp8";
  const std::string_view layer_name = argc > 2 ? argv[2] : "all";
  const std::vector<int> tokens =
      argc > 3 ? std::vector<int>{std::atoi(argv[3])} : std::vector<int>{1, 2, 4, 8, 12, 16};
  const auto* const format = std::ranges::find(kFormats, format_name, &Format::name);
  const bool takes_layer =
      layer_name == "all" ||
      std::ranges::find(kLayers, layer_name, &Layer::name) != std::end(kLayers);
  if (format == std::end(kFormats) || !takes_layer || tokens[0] < 1 ||
      tokens[0] > kMaxStreamingTokens) {
    std::fprintf(stderr, "usage: streaming_bench [fp8|int8|int4|bf16 [all|LAYER [TOKENS]]]\n");
    return 2;
  }
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "streaming_bench: there is no GPU\n");
    return 1;
  }
  Bench bench(*format);
  for (const Layer& layer : kLayers) {
    if (layer_name != "all" && layer_name != layer.name) continue;
    for (const int count : tokens) bench.Measure(layer, count);
  }
  return TakeFailure().ok() ? 0 : 1;
}

}  // namespace
}  // namespace tandem::ops::cuda

int main(int argc, char** argv) { return tandem::ops::cuda::Main(argc, argv); }
