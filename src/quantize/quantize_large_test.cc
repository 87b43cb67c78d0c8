// The memory that quantizing a large model takes, with weights that are made as they are read.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/file.h"
#include "base/testing/source_dir.h"
#include "checkpoint/testing/hf_folder.h"
#include "model/dummy_weights.h"
#include "quantize/quantize.h"

namespace tandem {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Memory of this process that no file backs.
int64_t OwnBytes() {
  std::ifstream status("/proc/self/status");
  int64_t bytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:") || line.starts_with("RssShmem:")) {
      bytes += std::stoll(line.substr(line.find(':') + 1)) * 1024;
    }
  }
  return bytes;
}

// The most since it was made, looked at many times a second.
class PeakOfOwnBytes {
 public:
  PeakOfOwnBytes() : watcher_([this] { Watch(); }) {}
  ~PeakOfOwnBytes() {
    done_ = true;
    watcher_.join();
  }
  PeakOfOwnBytes(const PeakOfOwnBytes&) = delete;
  PeakOfOwnBytes& operator=(const PeakOfOwnBytes&) = delete;
  int64_t Bytes() const { return peak_; }

 private:
  void Watch() {
    while (!done_) {
      peak_ = std::max(peak_.load(), OwnBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  std::atomic<bool> done_ = false;
  std::atomic<int64_t> peak_ = 0;
  std::thread watcher_;
};

// A source of dummies that keeps nothing between tensors, as a mapped file does not.
class StreamedDummies final : public WeightSource {
 public:
  explicit StreamedDummies(ModelSpec spec) : spec_(std::move(spec)) {}
  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override {
    TANDEM_ASSIGN_OR_RETURN(auto source, DummySource::FromSpec(spec_, {.num_threads = 2}));
    sources_.push_back(std::move(source));
    return sources_.back()->Get(id);
  }
  void Release() override { sources_.clear(); }

 private:
  ModelSpec spec_;
  std::vector<std::unique_ptr<DummySource>> sources_;
};

class QuantizeLargeTest : public FolderTest {
 protected:
  // int4_awq with 32 samples of 256 tokens: takes what it says, and no more than a few tensors of
  // dummies beyond that.
  void Measure(const ModelSpec& spec) {
    StreamedDummies source(spec);
    std::vector<std::vector<int32_t>> samples(32);
    for (size_t i = 0; i < samples.size(); ++i) {
      for (int32_t token = 0; token < 256; ++token) {
        samples[i].push_back((token * 7 + static_cast<int32_t>(i) * 31) % 1000);
      }
    }
    int64_t dummies = 0;  // the largest tensors that are held at a time: q, k and v; gate and up
    for (const WeightId& id : StoredWeights(spec)) {
      if (!RowOf(id.role).per_layer) continue;
      dummies = std::max(dummies, 2 * WeightShape(spec, id).NumElements() *
                                      static_cast<int64_t>(SizeOf(WeightDType(spec, id))));
    }
    dummies = std::max(
        dummies, spec.vocab_size * spec.hidden_size * static_cast<int64_t>(SizeOf(spec.dtype)));
    const auto backend = ops::MakeCpuBackend({.num_threads = 2, .pin_threads = false}).value();
    const int64_t before = OwnBytes();
    const PeakOfOwnBytes peak;
    CalibrationEstimate estimate;
    const auto begin = std::chrono::steady_clock::now();
    double seconds = 0.0;
    const auto report = Quantize(
        source, "dummies",
        {.model_dir = folder_,
         .output_dir = folder_ / "out",
         .recipe = RecipeOf("int4_awq", 128, "none").value(),
         .num_threads = 2},
        samples, *backend,
        {.estimate = [&](const CalibrationEstimate& e) { estimate = e; },
         .calibrating =
             [&](double) {
               seconds =
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
               return Status();
             }});
    ASSERT_TRUE(report.ok()) << report.status().message();
    const int64_t taken = peak.Bytes() - before;
    std::printf("%lld layers: said %lld MiB, %.0f s; took %lld MiB (dummies %lld), %.0f s\n",
                static_cast<long long>(spec.num_layers()),
                static_cast<long long>(estimate.memory_bytes / kMiB), estimate.seconds,
                static_cast<long long>(taken / kMiB), static_cast<long long>(dummies / kMiB),
                seconds);
    EXPECT_LE(taken, estimate.memory_bytes + dummies + 64 * kMiB);
    EXPECT_GE(taken, estimate.memory_bytes / 2);
  }
};

TEST_F(QuantizeLargeTest, TakesTheMemoryThatItSays) {
  Measure(SpecFromHfConfig(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 1000,
      "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 2,
      "num_attention_heads": 8, "num_key_value_heads": 2, "torch_dtype": "bfloat16"})")
              .value());
}

TEST_F(QuantizeLargeTest, TakesTheMemoryThatItSaysOfExperts) {
  Measure(SpecFromHfConfig(R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 1000,
      "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
      "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 16,
      "num_experts_per_tok": 2, "max_position_embeddings": 512, "torch_dtype": "bfloat16"})")
              .value());
}

// Slow, and takes 8 GiB: the test quantize_70b runs it. One of the layers, which all take the
// same.
TEST_F(QuantizeLargeTest, DISABLED_TakesTheMemoryThatItSaysOf70B) {
  ModelSpec spec =
      SpecFromHfConfig(*ReadTextFile(SourceDir() / "bench" / "configs" / "llama-3.3-70b.json"))
          .value();
  spec.layers.resize(1);
  Measure(spec);
}

}  // namespace
}  // namespace tandem
