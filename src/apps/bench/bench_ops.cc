// `tandem bench ops`: every op of a model's step alone, by rows and context: its bandwidth and
// arithmetic compared with the machine's measured limits, and its share of a decode step. The
// shapes come from a config.json; the weights are random.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "base/file.h"
#include "model/decoder/weights.h"
#include "model/families/families.h"
#include "model/kv_pool.h"
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

// More than any cache holds: operands that a step would find in memory are taken in turn from this
// much memory.
constexpr int64_t kBeyondCaches = int64_t{512} << 20;

struct LayerShape {
  const char* name;
  int64_t rows;
  int64_t cols;
};

std::vector<LayerShape> Layers(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.layers.front().attention;
  const LatentSpec& latent = attention.latent;
  const MlpSpec& mlp = spec.layers.front().mlp;
  std::vector<LayerShape> layers;
  if (latent.query_rank > 0) layers.push_back({"q_a", latent.query_rank, spec.hidden_size});
  layers.push_back({attention.has_latents() ? "q" : "qkv", attention.qkv_rows(),
                    latent.query_rank > 0 ? latent.query_rank : spec.hidden_size});
  if (attention.has_latents()) layers.push_back({"kv_a", attention.kv_rows(), spec.hidden_size});
  for (const LayerShape& layer :
       {LayerShape{"out", spec.hidden_size, attention.out_columns()},
        {"gate_up", (mlp.gated ? 2 : 1) * mlp.intermediate_size, spec.hidden_size},
        {"down", spec.hidden_size, mlp.intermediate_size},
        {"head", spec.vocab_size, spec.hidden_size}}) {
    layers.push_back(layer);
  }
  return layers;
}

// Random signs and mantissas, all values in +-[1, 2).
ops::RandomWords OrdinaryNumbers(DType dtype) {
  if (dtype == DType::kBF16) return {7, 0x807f807f807f807fu, 0x3f803f803f803f80u};
  if (dtype == DType::kF16) return {7, 0x83ff83ff83ff83ffu, 0x3c003c003c003c00u};
  if (dtype == DType::kF8E4M3) return {7, 0x8787878787878787u, 0x3838383838383838u};
  if (dtype == DType::kI8) return {7, 0x0707070707070707u, 0};
  return {7, 0x807fffff807fffffu, 0x3f8000003f800000u};
}

class OpTimer {
 public:
  explicit OpTimer(ops::Backend& backend) : backend_(backend) {}

  Result<Buffer> Random(int64_t elements, DType dtype) {
    const auto bytes = static_cast<size_t>(elements) * SizeOf(dtype);
    TANDEM_ASSIGN_OR_RETURN(Buffer buffer, backend_.Allocate(bytes));
    backend_.FillRandom(buffer.View(dtype, {elements}), OrdinaryNumbers(dtype));
    return buffer;
  }
  Result<Buffer> Ints(const std::vector<int32_t>& values) {
    TANDEM_ASSIGN_OR_RETURN(Buffer buffer, backend_.Allocate(values.size() * sizeof(int32_t)));
    backend_.CopyToDevice(buffer.data(), values.data(), values.size() * sizeof(int32_t));
    return buffer;
  }

  // Median seconds of one call; `op(i)` takes operands number i, of which there are `copies`. If
  // the backend records work, a round of all of them is launched as one, as a step's ops are, and
  // is a pass with this batch unless that is null.
  template <typename Op>
  double MedianSeconds(int64_t copies, Op&& op, const ops::BatchView* batch = nullptr) {
    constexpr int64_t kCalls = 20;
    const int64_t calls = std::max(copies, kCalls);
    const auto round = [&] {
      if (batch != nullptr) backend_.ops().BeginPass(*batch);
      for (int64_t i = 0; i < calls; ++i) op(i % copies);
      if (batch != nullptr) backend_.ops().EndPass();
    };
    backend_.WarmUp([&] { op(0); });
    (void)backend_.Synchronize();
    const std::unique_ptr<ops::Graph> graph = backend_.Capture(round);
    std::vector<double> seconds;
    double total = 0;
    while (seconds.size() < 3 || (total < 0.2 && seconds.size() < 50)) {
      const auto start = std::chrono::steady_clock::now();
      if (graph != nullptr) {
        backend_.Launch(*graph);
      } else {
        op(static_cast<int64_t>(seconds.size()) % copies);
      }
      (void)backend_.Synchronize();
      const double elapsed =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      seconds.push_back(graph != nullptr ? elapsed / static_cast<double>(calls) : elapsed);
      total += elapsed;
    }
    std::ranges::nth_element(seconds, seconds.begin() + static_cast<int64_t>(seconds.size() / 2));
    return seconds[seconds.size() / 2];
  }

  ops::Backend& backend() { return backend_; }

 private:
  ops::Backend& backend_;
};

// One line of the table.
struct OpFigure {
  std::string op;
  std::string shape;
  double seconds = 0;
  double bytes = 0;       // that must be moved
  double operations = 0;  // that must be done
  // Of a decode step of this many sequences at kStepContext: how often the op runs there, and the
  // number of sequences it was measured for.
  int64_t step_calls = 0;
  int64_t step_sequences = 0;
};

constexpr int32_t kStepContext = 1024;

class OpsBench {
 public:
  OpsBench(ops::Backend& backend, const ModelSpec& spec, const QuantScheme& scheme, DType kv,
           Console& console)
      : timer_(backend), spec_(spec), scheme_(scheme), kv_(kv), console_(console) {}

  Status Run() {
    bandwidth_ = timer_.backend().MeasureReadBandwidth();
    // Weights of integers are compared with products in the type of the activations.
    const bool fp8 = scheme_.element == QuantScheme::Element::kFp8E4M3;
    const DType element = fp8 ? DType::kF8E4M3 : spec_.dtype;
    peak_ = timer_.backend().MeasureMatrixPeak(element);
    console_.Say(fmt::format("{}; limits: {:.1f} GB/s read, {:.2f} TFLOP/s in {}",
                             MachineLine(timer_.backend()), bandwidth_ / 1e9, peak_ / 1e12,
                             DTypeName(element)));
    console_.Say("op          shape                             time     of read     of matrix");
    for (const LayerShape& shape : Layers(spec_)) TANDEM_RETURN_IF_ERROR(Linear(shape));
    for (const int32_t context : {1024, 8192, 32768}) {
      for (const int32_t sequences : {1, 16, 64}) {
        if (int64_t{sequences} * context > kMostCachedTokens) continue;
        for (const int32_t rows : {1, 5}) {
          TANDEM_RETURN_IF_ERROR(Attention(sequences, rows, context));
        }
      }
    }
    for (const int32_t chunks : {0, 4}) {
      TANDEM_RETURN_IF_ERROR(Attention(256, 1, 1024, chunks));
    }
    for (const int32_t prompt : {512, 2048, 8192}) {
      TANDEM_RETURN_IF_ERROR(Attention(1, prompt, prompt));
    }
    for (const int64_t rows : {1, 16, 64, 512}) {
      TANDEM_RETURN_IF_ERROR(HeadProducts(rows));
      TANDEM_RETURN_IF_ERROR(RowOps(rows));
    }
    for (const int64_t rows : {1, 16, 64, 256}) TANDEM_RETURN_IF_ERROR(Sampling(rows));
    SaySteps();
    return {};
  }

  nlohmann::ordered_json Json() const {
    nlohmann::ordered_json json = {{"read_bytes_per_s", bandwidth_},
                                   {"matrix_flops_per_s", peak_},
                                   {"ops", nlohmann::ordered_json::array()}};
    for (const OpFigure& f : figures_) {
      json["ops"].push_back({{"op", f.op},
                             {"shape", f.shape},
                             {"seconds", f.seconds},
                             {"bytes_per_s", f.bytes / f.seconds},
                             {"share_of_read", f.bytes / f.seconds / bandwidth_},
                             {"flops_per_s", f.operations / f.seconds},
                             {"share_of_matrix_peak", f.operations / f.seconds / peak_}});
    }
    for (const int64_t sequences : kStepSequences) {
      for (const OpFigure* f : StepOps(sequences)) {
        const double seconds = f->seconds * static_cast<double>(f->step_calls);
        json["steps"].push_back({{"sequences", sequences},
                                 {"op", f->op},
                                 {"seconds", seconds},
                                 {"share", seconds / StepSeconds(sequences)}});
      }
    }
    return json;
  }

 private:
  static constexpr std::array<int64_t, 3> kStepSequences = {1, 16, 64};
  static constexpr int64_t kMostCachedTokens = 262144;
  static constexpr int32_t kBlockTokens = 32;
  static constexpr int32_t kChunkRows = 128;

  void Add(OpFigure figure) {
    console_.Say(fmt::format("{:10}  {:28}  {:9.1f} us  {:6.1f} %  {:9.1f} %", figure.op,
                             figure.shape, figure.seconds * 1e6,
                             100 * figure.bytes / figure.seconds / bandwidth_,
                             100 * figure.operations / figure.seconds / peak_));
    figures_.push_back(std::move(figure));
  }

  std::vector<const OpFigure*> StepOps(int64_t sequences) const {
    std::vector<const OpFigure*> ops;
    for (const OpFigure& f : figures_) {
      if (f.step_calls > 0 && f.step_sequences == sequences) ops.push_back(&f);
    }
    return ops;
  }

  // The sum of its ops: less than a step takes, because of the gaps between them.
  double StepSeconds(int64_t sequences) const {
    double seconds = 0;
    for (const OpFigure* f : StepOps(sequences)) {
      seconds += f->seconds * static_cast<double>(f->step_calls);
    }
    return seconds;
  }

  void SaySteps() const {
    console_.Say(fmt::format("a decode step at {} tokens of context, from these:", kStepContext));
    for (const int64_t sequences : kStepSequences) {
      std::string line =
          fmt::format("{:3} sequences {:9.1f} us:", sequences, 1e6 * StepSeconds(sequences));
      for (const OpFigure* f : StepOps(sequences)) {
        line += fmt::format(
            " {} {:.0f} %", f->op,
            100 * f->seconds * static_cast<double>(f->step_calls) / StepSeconds(sequences));
      }
      console_.Say(line);
    }
  }

  Status Linear(const LayerShape& shape) {
    const bool is_head = std::string_view(shape.name) == "head";
    const WeightFormat kept{spec_.dtype, is_head ? QuantScheme{} : scheme_};
    std::vector<ops::LinearWeight> weights;
    const int64_t bytes = timer_.backend().PackedBytes(shape.rows, shape.cols, kept);
    {
      TANDEM_ASSIGN_OR_RETURN(const Buffer values,
                              timer_.Random(shape.rows * shape.cols, spec_.dtype));
      const std::array parts = {
          ops::LinearPart{.weight = values.View(spec_.dtype, {shape.rows, shape.cols})}};
      const int64_t copies = std::max<int64_t>(2, kBeyondCaches / bytes);
      for (int64_t i = 0; i < copies; ++i) {
        TANDEM_ASSIGN_OR_RETURN(weights.emplace_back(), timer_.backend().PackLinear(parts, kept));
      }
    }
    for (const int64_t rows : {1, 2, 4, 5, 8, 16, 32, 64, 128, 192, 256, 512, 2048}) {
      TANDEM_ASSIGN_OR_RETURN(const Buffer x, timer_.Random(rows * shape.cols, spec_.dtype));
      TANDEM_ASSIGN_OR_RETURN(const Buffer y, timer_.Random(rows * shape.rows, spec_.dtype));
      const Tensor in = x.View(spec_.dtype, {rows, shape.cols});
      const Tensor out = y.View(spec_.dtype, {rows, shape.rows});
      const double seconds =
          timer_.MedianSeconds(static_cast<int64_t>(weights.size()), [&](int64_t i) {
            timer_.backend().ops().Linear(in, weights[static_cast<size_t>(i)], out);
          });
      const auto elements = static_cast<double>(shape.rows * shape.cols);
      Add({shape.name, fmt::format("{} x {}, {} rows", shape.rows, shape.cols, rows), seconds,
           static_cast<double>(bytes), 2 * elements * static_cast<double>(rows),
           std::string_view(shape.name) == "head" ? 1 : spec_.num_layers(), rows});
    }
    return {};
  }

  // `sequences` of which each computes `rows` tokens at the end of a context, and in the same step
  // `chunks` whole prompts of kChunkRows tokens.
  Status Attention(int32_t sequences, int32_t rows, int32_t context, int32_t chunks = 0) {
    ModelSpec one_layer = spec_;
    one_layer.layers.resize(1);
    const int32_t blocks = (context + kBlockTokens - 1) / kBlockTokens;
    const int64_t block_bytes = one_layer.KvBytesPerToken(kv_) * kBlockTokens;
    const int64_t copies =
        std::clamp<int64_t>(kBeyondCaches / (block_bytes * blocks * sequences), 1, 8);
    TANDEM_ASSIGN_OR_RETURN(const OwnedKvPool cache,
                            MakeKvPool(one_layer, kv_, int64_t{blocks} * sequences * copies,
                                       kBlockTokens, timer_.backend()));
    const ops::KvGroup& kv = cache.pool.groups.front();
    timer_.backend().FillRandom(kv.data, OrdinaryNumbers(kv_));

    const int64_t num_rows = int64_t{sequences} * rows + int64_t{chunks} * kChunkRows;
    std::vector<int32_t> positions, row_seq, query_start = {0}, lengths, table;
    const auto add = [&](int32_t length, int32_t count) {
      for (int32_t row = 0; row < count; ++row) {
        positions.push_back(length - count + row);
        row_seq.push_back(static_cast<int32_t>(lengths.size()));
      }
      lengths.push_back(length);
      query_start.push_back(query_start.back() + count);
    };
    for (int32_t s = 0; s < sequences; ++s) add(context, rows);
    for (int32_t c = 0; c < chunks; ++c) add(kChunkRows, kChunkRows);
    // Blocks of one sequence do not lie side by side. A prompt has those of a sequence.
    for (int64_t copy = 0; copy < copies; ++copy) {
      for (int64_t seq = 0; seq < sequences + chunks; ++seq) {
        for (int64_t block = 0; block < blocks; ++block) {
          table.push_back(
              static_cast<int32_t>((copy * blocks + block) * sequences + seq % sequences));
        }
      }
    }
    TANDEM_ASSIGN_OR_RETURN(const Buffer positions_buffer, timer_.Ints(positions));
    TANDEM_ASSIGN_OR_RETURN(const Buffer row_seq_buffer, timer_.Ints(row_seq));
    TANDEM_ASSIGN_OR_RETURN(const Buffer query_start_buffer, timer_.Ints(query_start));
    TANDEM_ASSIGN_OR_RETURN(const Buffer lengths_buffer, timer_.Ints(lengths));
    TANDEM_ASSIGN_OR_RETURN(const Buffer table_buffer, timer_.Ints(table));
    ops::BatchView batch;
    batch.num_rows = static_cast<int32_t>(num_rows);
    batch.num_seqs = sequences + chunks;
    batch.max_query_len = chunks > 0 ? std::max(rows, kChunkRows) : rows;
    batch.chunks = {chunks, rows, chunks * kChunkRows, kChunkRows, int64_t{chunks} * kChunkRows};
    batch.positions = positions_buffer.As<int32_t>();
    batch.row_seq = row_seq_buffer.As<int32_t>();
    batch.query_start = query_start_buffer.As<int32_t>();
    batch.context_len = lengths_buffer.As<int32_t>();
    batch.max_blocks = blocks;

    const AttentionSpec& attention = spec_.layers.front().attention;
    const int64_t width = attention.attended_columns();
    const int64_t qkv_rows = attention.attending_columns();
    TANDEM_ASSIGN_OR_RETURN(const Buffer qkv, timer_.Random(num_rows * qkv_rows, spec_.dtype));
    TANDEM_ASSIGN_OR_RETURN(const Buffer out, timer_.Random(num_rows * width, spec_.dtype));
    // As the layers of a step, but each with blocks of its own.
    ops::Ops& ops = timer_.backend().ops();
    const auto attend = [&](int64_t i) {
      ops::BatchView layer = batch;
      layer.block_table = table_buffer.As<int32_t>() + i * blocks * batch.num_seqs;
      ops.PagedAttention(qkv.View(spec_.dtype, {num_rows, qkv_rows}), layer, kv, 0, {0.01f},
                         out.View(spec_.dtype, {num_rows, width}));
    };
    const double seconds = timer_.MedianSeconds(copies, attend, &batch);
    const auto visible = [](double length, double count) {
      return count * (length - (count - 1) / 2);
    };
    const double keys =
        sequences * visible(context, rows) + chunks * visible(kChunkRows, kChunkRows);
    const bool in_step = rows == 1 && context == kStepContext && chunks == 0;
    std::string shape = fmt::format("{} x {} of {} tokens", sequences, rows, context);
    if (chunks > 0) shape += fmt::format(" + {} x {}", chunks, kChunkRows);
    Add({"attention", shape, seconds, static_cast<double>(block_bytes) * blocks * sequences,
         2.0 * static_cast<double>(width + attention.num_heads * attention.head_dim) * keys,
         in_step ? spec_.num_layers() : 0, sequences});
    if (!in_step) return {};
    const int64_t pairs = (attention.has_latents() ? attention.rope.dim : attention.head_dim) / 2;
    TANDEM_ASSIGN_OR_RETURN(const Buffer angles, timer_.Random(context * pairs, DType::kF32));
    const Tensor table_of_angles = angles.View(DType::kF32, {context, pairs});
    const ops::RopeTable rope = {.cos = table_of_angles, .sin = table_of_angles};
    batch.block_table = table_buffer.As<int32_t>();
    const Tensor rows_in = qkv.View(spec_.dtype, {num_rows, qkv_rows});
    const double rope_seconds = timer_.MedianSeconds(1, [&](int64_t) {
      if (attention.has_latents()) {
        // Queries that are as wide as the cache's keys turn in place.
        ops.LatentRopeStore(rows_in, qkv.View(spec_.dtype, {num_rows, attention.head_dim}), rope,
                            batch, kv, 0, rows_in);
      } else {
        ops.QkvRopeStore(rows_in, rope, batch, kv, 0);
      }
    });
    Add({"rope+store", shape, rope_seconds,
         2.0 * static_cast<double>(num_rows * qkv_rows) * static_cast<double>(SizeOf(spec_.dtype)),
         0, spec_.num_layers(), sequences});
    return {};
  }

  // The products of each head of a layer with latents: its key weights with queries, its value
  // weights with what attention gives.
  Status HeadProducts(int64_t rows) {
    const AttentionSpec& attention = spec_.layers.front().attention;
    if (!attention.has_latents()) return {};
    const LatentSpec& latent = attention.latent;
    const int64_t heads = attention.num_heads;
    for (const auto& [name, inputs, outputs] :
         {std::tuple("head keys", latent.key_dim, latent.rank),
          {"head values", latent.rank, latent.value_dim}}) {
      const Shape shape{heads * ops::PaddedHeadRows(outputs), inputs};
      TANDEM_ASSIGN_OR_RETURN(const Buffer values, timer_.Random(shape.NumElements(), spec_.dtype));
      const ops::LinearPart part{.weight = values.View(spec_.dtype, shape)};
      std::vector<ops::LinearWeight> weights(static_cast<size_t>(std::max<int64_t>(
          2, kBeyondCaches / (shape.NumElements() * static_cast<int64_t>(SizeOf(spec_.dtype))))));
      for (ops::LinearWeight& weight : weights) {
        TANDEM_ASSIGN_OR_RETURN(weight, timer_.backend().PackLinear({&part, 1}, {spec_.dtype, {}}));
      }
      TANDEM_ASSIGN_OR_RETURN(const Buffer x, timer_.Random(rows * heads * inputs, spec_.dtype));
      TANDEM_ASSIGN_OR_RETURN(const Buffer y, timer_.Random(rows * heads * outputs, spec_.dtype));
      const ops::HeadColumns in{x.View(spec_.dtype, {rows, heads * inputs}), 0, inputs, inputs};
      const ops::HeadColumns out{y.View(spec_.dtype, {rows, heads * outputs}), 0, outputs, outputs};
      const double seconds =
          timer_.MedianSeconds(static_cast<int64_t>(weights.size()), [&](int64_t i) {
            timer_.backend().ops().HeadLinear(in, weights[static_cast<size_t>(i)], out);
          });
      Add({name, fmt::format("{} x {} x {}, {} rows", heads, outputs, inputs, rows), seconds,
           static_cast<double>(weights.front().weight_bytes()),
           2.0 * static_cast<double>(heads * inputs * outputs * rows), spec_.num_layers(), rows});
    }
    return {};
  }

  Status RowOps(int64_t rows) {
    const int64_t hidden = spec_.hidden_size, wide = spec_.layers.front().mlp.intermediate_size;
    ops::Ops& ops = timer_.backend().ops();
    const DType dtype = spec_.dtype;
    TANDEM_ASSIGN_OR_RETURN(const Buffer residual, timer_.Random(rows * hidden, dtype));
    TANDEM_ASSIGN_OR_RETURN(const Buffer delta, timer_.Random(rows * hidden, dtype));
    TANDEM_ASSIGN_OR_RETURN(const Buffer weight, timer_.Random(hidden, dtype));
    TANDEM_ASSIGN_OR_RETURN(const Buffer normed, timer_.Random(rows * hidden, dtype));
    TANDEM_ASSIGN_OR_RETURN(const Buffer gate_up, timer_.Random(rows * 2 * wide, dtype));
    TANDEM_ASSIGN_OR_RETURN(const Buffer activated, timer_.Random(rows * wide, dtype));
    const auto size = static_cast<double>(SizeOf(dtype));
    const std::string shape = fmt::format("{} rows", rows);
    Add({"norm", shape,
         timer_.MedianSeconds(1,
                              [&](int64_t) {
                                ops.AddNorm({.residual = residual.View(dtype, {rows, hidden}),
                                             .delta = delta.View(dtype, {rows, hidden}),
                                             .norm = {.epsilon = 1e-5f,
                                                      .weight = weight.View(dtype, {hidden})},
                                             .rows = normed.View(dtype, {rows, hidden})});
                              }),
         4 * size * static_cast<double>(rows * hidden), 0, 2 * spec_.num_layers() + 1, rows});
    Add({"swiglu", shape,
         timer_.MedianSeconds(1,
                              [&](int64_t) {
                                ops.Activate(ops::Activation::kSilu,
                                             gate_up.View(dtype, {rows, 2 * wide}),
                                             activated.View(dtype, {rows, wide}));
                              }),
         3 * size * static_cast<double>(rows * wide), 0, spec_.num_layers(), rows});
    return {};
  }

  Status Sampling(int64_t rows) {
    const int64_t vocab = spec_.vocab_size;
    ops::Backend& backend = timer_.backend();
    TANDEM_ASSIGN_OR_RETURN(const Buffer logits, timer_.Random(rows * vocab, DType::kF32));
    TANDEM_ASSIGN_OR_RETURN(const Buffer counts,
                            timer_.Ints(std::vector<int32_t>(static_cast<size_t>(vocab))));
    TANDEM_ASSIGN_OR_RETURN(const Buffer slot, backend.Allocate(sizeof(ops::SlotSampling)));
    TANDEM_ASSIGN_OR_RETURN(const Buffer placed,
                            backend.Allocate(static_cast<size_t>(rows) * sizeof(ops::SampleRow)));
    TANDEM_ASSIGN_OR_RETURN(const Buffer out,
                            backend.Allocate(static_cast<size_t>(rows) * sizeof(SampledToken)));
    std::vector<ops::SampleRow> sample(static_cast<size_t>(rows));
    for (size_t i = 0; i < sample.size(); ++i) {
      sample[i].logits = logits.As<float>() + static_cast<int64_t>(i) * vocab;
      sample[i].slot = slot.As<ops::SlotSampling>();
      sample[i].history.counts = counts.As<int32_t>();
    }
    backend.CopyToDevice(placed.data(), sample.data(), placed.bytes());
    const auto measure = [&](const char* name, const SamplingParams& params) {
      ops::SlotSampling record;
      record.params = params;
      backend.CopyToDevice(slot.data(), &record, sizeof(record));
      const double seconds = timer_.MedianSeconds(1, [&](int64_t) {
        backend.ops().Sample({placed.As<ops::SampleRow>(), sample.size()}, vocab,
                             {out.As<SampledToken>(), sample.size()});
      });
      Add({"sample", fmt::format("{} rows, {}", rows, name), seconds,
           static_cast<double>(rows * vocab) * sizeof(float), 0,
           std::string_view(name) == "greedy" ? 1 : 0, rows});
    };
    measure("greedy", {.temperature = 0.0f});
    measure("temperature", {});
    measure("top-k 50", {.top_k = 50});
    measure("top-p 0.9", {.top_p = 0.9f});
    measure("penalties", {.frequency_penalty = 0.5f});
    measure("log-probs", {.temperature = 0.0f, .num_top_logprobs = 5});
    return {};
  }

  OpTimer timer_;
  const ModelSpec& spec_;
  const QuantScheme scheme_;  // of the layers' weights
  const DType kv_;
  Console& console_;
  double bandwidth_ = 0;
  double peak_ = 0;
  std::vector<OpFigure> figures_;
};

Result<ModelSpec> ShapesToMeasure(const ModelOptions& models) {
  std::filesystem::path config = models.dummy;
  if (config.empty() && !models.target.empty()) config = models.target / "config.json";
  if (config.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path pair, EmbeddedPairFolder());
    config = pair / "target" / "config.json";
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(config));
  return SpecFromHfConfig(text);
}

}  // namespace

Status BenchOps(const BenchOptions&, const OptionValues& values, Console& console) {
  const ModelOptions models = ModelOptionRows().Read(values);
  TANDEM_ASSIGN_OR_RETURN(const ModelSpec spec, ShapesToMeasure(models));
  TANDEM_ASSIGN_OR_RETURN(const auto backend, MakeBackend(BackendOptionRows().Read(values)));
  const QuantScheme scheme = models.quantize.value_or(QuantScheme{});
  const DType kv = EngineOptionsFrom(values).kv_cache_dtype.value_or(spec.dtype);
  TANDEM_RETURN_IF_ERROR(backend->CheckKvType(kv));
  TANDEM_RETURN_IF_ERROR(CheckLoadable(spec, *backend));
  OpsBench bench(*backend, spec, scheme, kv, console);
  TANDEM_RETURN_IF_ERROR(bench.Run());
  nlohmann::ordered_json json = bench.Json();
  json["machine"] = MachineLine(*backend);
  console.Result(json);
  return {};
}

}  // namespace tandem::apps
