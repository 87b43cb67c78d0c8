// ops_bench [ISA] [THREADS]: the products and the attention of a Llama-3.2-1B layer in bf16, beside
// what the machine can do at most, measured between the runs. Best times: other programs can only
// slow a run down.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "ops/backend.h"

namespace tandem::ops {
namespace {

constexpr int64_t kHidden = 2048, kIntermediate = 8192;
constexpr int32_t kHeads = 32, kKvHeads = 8, kHeadDim = 64, kBlockTokens = 32;
constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kCopies = 4;  // of every weight: together more than any cache holds

double Seconds(const std::function<void()>& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Buffer RandomBf16(Backend& backend, int64_t count) {
  Buffer buffer = backend.Allocate(static_cast<size_t>(count) * 2).value();
  uint32_t state = 12345;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    buffer.As<BFloat16>()[i] = ToBFloat16(static_cast<float>(state >> 8) * 0x1p-24f - 0.5f);
  }
  return buffer;
}

struct Layer {
  const char* name;
  int64_t outputs, inputs;
  std::vector<LinearWeight> weights;  // [kCopies]
};

std::vector<Layer> MakeLayers(Backend& backend) {
  std::vector<Layer> layers;
  layers.push_back({"qkv", kQkv, kHidden, {}});
  layers.push_back({"out", kHidden, kHidden, {}});
  layers.push_back({"gate_up", 2 * kIntermediate, kHidden, {}});
  layers.push_back({"down", kHidden, kIntermediate, {}});
  for (Layer& layer : layers) {
    const Buffer values = RandomBf16(backend, layer.outputs * layer.inputs);
    const Tensor view = values.View(DType::kBF16, {layer.outputs, layer.inputs});
    for (int i = 0; i < kCopies; ++i) {
      layer.weights.push_back(backend.PackLinear({{{view}}}, DType::kBF16).value());
    }
  }
  return layers;
}

// All layers in turn, as a decode step meets them; best seconds of each.
void BenchLinear(Backend& backend, std::vector<Layer>& layers, int64_t num_rows, double& bandwidth,
                 double& peak) {
  const Buffer x = RandomBf16(backend, num_rows * kIntermediate);
  const Buffer y = backend.Allocate(static_cast<size_t>(num_rows * 2 * kIntermediate) * 2).value();
  std::vector<double> best(layers.size(), 1e9);
  double best_all = 1e9;
  const int rounds = num_rows > 64 ? 3 : 12;
  for (int round = 0; round < rounds; ++round) {
    double all = 0.0;
    for (size_t i = 0; i < layers.size(); ++i) {
      Layer& layer = layers[i];
      const double seconds = Seconds([&] {
        backend.ops().Linear(x.View(DType::kBF16, {num_rows, layer.inputs}),
                             layer.weights[static_cast<size_t>(round) % kCopies],
                             y.View(DType::kBF16, {num_rows, layer.outputs}));
      });
      best[i] = std::min(best[i], seconds);
      all += seconds;
    }
    best_all = std::min(best_all, all);
  }
  bandwidth = std::max(bandwidth, backend.MeasureReadBandwidth());
  peak = std::max(peak, backend.MeasureMatrixPeak(DType::kBF16));
  double elements = 0.0;
  const auto print = [&](const char* name, double size, double seconds) {
    const double bytes_rate = size * 2 / seconds;
    const double rate = size * 2 * static_cast<double>(num_rows) / seconds;
    fmt::print("{:8} {:5} rows {:9.3f} ms {:8.2f} GB/s {:5.1f} % {:9.1f} GFLOP/s {:5.1f} %\n", name,
               num_rows, seconds * 1e3, bytes_rate / 1e9, 100 * bytes_rate / bandwidth, rate / 1e9,
               100 * rate / peak);
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto size = static_cast<double>(layers[i].outputs * layers[i].inputs);
    print(layers[i].name, size, best[i]);
    elements += size;
  }
  print("layer", elements, best_all);
}

// `num_seqs` sequences of `context` tokens, each computing its last `rows` positions.
void BenchAttention(Backend& backend, int32_t num_seqs, int32_t context, int32_t rows) {
  KvPool pool;
  pool.num_layers = 1;
  pool.num_kv_heads = kKvHeads;
  pool.block_tokens = kBlockTokens;
  pool.head_dim = kHeadDim;
  const int32_t blocks = (context + kBlockTokens - 1) / kBlockTokens;
  pool.num_blocks = int64_t{blocks} * num_seqs;
  const Buffer memory = RandomBf16(backend, pool.num_blocks * pool.elements_per_block());
  pool.data = memory.View(DType::kBF16, {pool.num_blocks * pool.elements_per_block()});
  std::vector<int32_t> table, start = {0};
  for (int32_t i = 0; i < pool.num_blocks; ++i) table.push_back(i);
  for (int32_t s = 0; s < num_seqs; ++s) start.push_back((s + 1) * rows);
  const std::vector<int32_t> lengths(static_cast<size_t>(num_seqs), context);
  BatchView batch;
  batch.num_rows = num_seqs * rows;
  batch.num_seqs = num_seqs;
  batch.query_start = start.data();
  batch.context_len = lengths.data();
  batch.block_table = table.data();
  batch.max_blocks = blocks;
  const Buffer qkv = RandomBf16(backend, batch.num_rows * kQkv);
  const Buffer out = backend.Allocate(static_cast<size_t>(batch.num_rows) * kHidden * 2).value();
  double best = 1e9;
  for (int round = 0; round < 7; ++round) {
    best = std::min(best, Seconds([&] {
                      backend.ops().PagedAttention(
                          qkv.View(DType::kBF16, {batch.num_rows, kQkv}), batch, pool, 0, 0.125f,
                          out.View(DType::kBF16, {batch.num_rows, kHidden}));
                    }));
  }
  const double keys = static_cast<double>(batch.num_rows) * (context - (rows - 1) / 2.0);
  const double flops = 4.0 * keys * kHeads * kHeadDim / best;
  const double bytes = static_cast<double>(memory.bytes()) / best;
  fmt::print(
      "attention {:3} x {:5} of {:5} tokens {:9.3f} ms {:8.1f} GFLOP/s {:8.2f} GB/s of keys and "
      "values\n",
      num_seqs, rows, context, best * 1e3, flops / 1e9, bytes / 1e9);
}

int Main(int argc, char** argv) {
  CpuOptions options;
  if (argc > 1) options.isa = argv[1];
  if (argc > 2) options.num_threads = std::atoi(argv[2]);
  auto made = MakeCpuBackend(options);
  if (!made.ok()) {
    fmt::print(stderr, "ops_bench: {}\n", made.status().message());
    return 2;
  }
  Backend& backend = **made;
  double bandwidth = backend.MeasureReadBandwidth();
  double peak = backend.MeasureMatrixPeak(DType::kBF16);
  fmt::print(
      "{}: read {:.2f} GB/s, bf16 matrix peak {:.1f} GFLOP/s (best so far; the % below use it)\n",
      backend.Describe(), bandwidth / 1e9, peak / 1e9);
  std::vector<Layer> layers = MakeLayers(backend);
  for (const int64_t rows : {1, 2, 4, 5, 8, 9, 16, 64, 512}) {
    BenchLinear(backend, layers, rows, bandwidth, peak);
  }
  for (const auto& [seqs, context, rows] : {std::array{1, 512, 1},
                                            {1, 4096, 1},
                                            {16, 2048, 1},
                                            {1, 2048, 5},
                                            {1, 512, 512},
                                            {1, 2048, 2048}}) {
    BenchAttention(backend, seqs, context, rows);
  }
  fmt::print("{}: read {:.2f} GB/s, bf16 matrix peak {:.1f} GFLOP/s (best of all)\n",
             backend.Describe(), bandwidth / 1e9, peak / 1e9);
  return 0;
}

}  // namespace
}  // namespace tandem::ops

int main(int argc, char** argv) { return tandem::ops::Main(argc, argv); }
