#include <algorithm>

#include "ops/cuda/linear/add_rms_norm.cuh"
#include "ops/cuda/linear/linear.cuh"
#include "ops/cuda/linear/linear_args.cuh"
#include "ops/cuda/linear/linear_kernels.cuh"
#include "ops/cuda/linear/quantize.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr size_t kLibraryBytes = size_t{64} << 20;
// For one product's activations: rounded for the library, or arranged for our own kernel. A
// chunk of 8,192 tokens is one product up to 16,384 columns.
constexpr size_t kActivationBytes = size_t{128} << 20;
static_assert(kActivationBytes >= kArrangedBytes);
// For rows that are arranged as a weight takes them.
constexpr size_t kInputBytes = size_t{32} << 20;
// For sums of integers that the library leaves to be scaled: of a chunk of 2,048 tokens up to
// 32,768 rows.
constexpr size_t kSumBytes = size_t{256} << 20;
constexpr int64_t kMaxScales = int64_t{1} << 16;  // tokens whose scales fit
constexpr int64_t kMaxBias = int64_t{1} << 19;    // rows whose bias fits

void* Allocate(size_t bytes) {
  return AllocateWorkspace(bytes, "the workspace of matrix products");
}

// Whether the library takes the weight's input rounded to the weight's type.
bool TakesRounded(const LinearWeight& weight) {
  return weight.dtype == DType::kF8E4M3 ||
         (weight.dtype == DType::kI8 && weight.scheme.inputs != QuantScheme::Inputs::kPlain);
}

// How many rows of the weight's input fit when they are rounded.
int64_t MostRounded(const LinearWeight& weight) {
  return std::min<int64_t>(kMaxScales, static_cast<int64_t>(kActivationBytes) / weight.cols);
}

void CheckTypes(const Tensor& x, const LinearWeight& weight) {
  TANDEM_CHECK(x.dim(1) == weight.cols, "as many inputs as the weight has");
  TANDEM_CHECK(x.dtype == DType::kBF16 || x.dtype == DType::kF16, "activations of 16 bits");
  TANDEM_CHECK(weight.dtype == x.dtype || !weight.scheme.is_plain(),
               "weights of the activations' type or quantized");
}

__global__ void ConvertBiasKernel(const float* from, int count, Bf16* to_bf16, Fp16* to_half) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  if (to_bf16 != nullptr) to_bf16[i] = __float2bfloat16_rn(from[i]);
  if (to_half != nullptr) to_half[i] = __float2half_rn(from[i]);
}

}  // namespace

// Members that neither the library nor our kernel needs are null.
struct LinearRunner::Workspace {
  Workspace(bool for_library, bool for_warpgroups)
      : activations(for_library      ? Allocate(kActivationBytes)
                    : for_warpgroups ? Allocate(kArrangedBytes)
                                     : nullptr),
        inputs(Allocate(kInputBytes)),
        library(for_library ? Allocate(kLibraryBytes) : nullptr),
        scales(for_library ? Allocate(kMaxScales * sizeof(float)) : nullptr),
        bias(for_library ? Allocate(kMaxBias * sizeof(Bf16)) : nullptr) {}
  ~Workspace() {
    for (void* data : {activations, inputs, library, sums, scales, bias}) cudaFree(data);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* const activations;
  void* const inputs;
  void* const library;
  void* sums = nullptr;  // once there are weights that need it
  void* const scales;
  void* const bias;
};

LinearRunner::LinearRunner(const Context& context) : context_(context) {
  const bool warpgroups = HasWarpgroups(context);
  PrepareTiled();
  if (warpgroups) PrepareWarpgroup();
  if (!context.batch_invariant) {
    workspace_ = std::make_unique<Workspace>(true, warpgroups);
    library_ = CublasLt::Load(context, workspace_->library, kLibraryBytes);
  }
  if (library_ != nullptr) rounded_ = std::make_unique<RoundedRunner>(context);
  if (library_ == nullptr) workspace_ = std::make_unique<Workspace>(false, warpgroups);
}

LinearRunner::~LinearRunner() = default;

void LinearRunner::ReserveFor(const LinearWeight& weight) {
  const bool integers = weight.dtype == DType::kI8 && TakesRounded(weight);
  if (library_ == nullptr || !integers || workspace_->sums != nullptr) return;
  workspace_->sums = Allocate(kSumBytes);
}

void LinearRunner::Run(const Tensor& x, const LinearWeight& weight, const Tensor& out) {
  CheckTypes(x, weight);
  TANDEM_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == weight.rows, "the shape of a product");
  TANDEM_CHECK(out.dtype == x.dtype || out.dtype == DType::kF32, "the type of a product");
  if (x.dim(0) == 0) return;
  if (!ArrangesInputs(weight)) return RunArranged(x, weight, out);
  const int64_t row_bytes = weight.cols * static_cast<int64_t>(SizeOf(x.dtype));
  const int64_t most = static_cast<int64_t>(kInputBytes) / row_bytes;
  TANDEM_CHECK(most >= kMaxStreamingTokens, "rows that fit into the memory for inputs");
  const int64_t piece = CeilDiv(x.dim(0), CeilDiv(x.dim(0), most));
  for (int64_t first = 0; first < x.dim(0); first += piece) {
    const int64_t tokens = std::min(piece, x.dim(0) - first);
    RunArranged(Arranged(x.RowRange(first, tokens), weight), weight, out.RowRange(first, tokens));
  }
}

Tensor LinearRunner::Arranged(const Tensor& x, const LinearWeight& weight) {
  if (!ArrangesInputs(weight)) return x;
  ArrangeInputs(context_, x, weight.input_order.As<int32_t>(), weight.input_factors.As<float>(),
                workspace_->inputs);
  return {workspace_->inputs, x.dtype, x.shape, x.device};
}

void LinearRunner::RunArranged(const Tensor& x, const LinearWeight& weight, const Tensor& out) {
  if (x.dim(0) > kMaxStreamingTokens && RunLibrary(x, weight, out)) return;
  RunOwn(x, weight, out);
}

void LinearRunner::RunOwn(const Tensor& x, const LinearWeight& weight, const Tensor& out) {
  if (AreFew(x)) return LaunchFew(ArgsOf(x, weight, out), x.dtype, weight);
  const int most = HasWarpgroups(context_) ? WarpgroupTokens(weight.cols) : 0;
  WithTypes(x.dtype, weight, [&]<typename T, typename W>() {
    if (most == 0) {
      LaunchTiled<T, W>(context_, ArgsOf(x, weight, out));
    } else {
      // Pieces of nearly equal size: a small last one would read all weights for a few tokens.
      const int64_t piece = CeilDiv(x.dim(0), CeilDiv(x.dim(0), most));
      for (int64_t first = 0; first < x.dim(0); first += piece) {
        const int64_t tokens = std::min(piece, x.dim(0) - first);
        LaunchWarpgroup<T, W>(
            context_, ArgsOf(x.RowRange(first, tokens), weight, out.RowRange(first, tokens)),
            workspace_->activations);
      }
    }
  });
}

LinearArgs LinearRunner::ArgsOfFew(const FewRows& x, const LinearWeight& weight,
                                   const Tensor& out) {
  CheckTypes(x.rows, weight);
  TANDEM_CHECK(TakesFewRows(x, weight), "the input of a product of few rows");
  LinearArgs args = ArgsOf(Arranged(x.rows, weight), weight, out);
  args.squares = x.squares;
  args.epsilon = x.epsilon;
  args.x_is_factors = x.are_factors;
  return args;
}

bool LinearRunner::AreFew(const Tensor& rows) {
  return rows.dim(0) > 0 && rows.dim(0) <= kMaxStreamingTokens;
}

bool LinearRunner::AreFewWhole(const Tensor& rows) {
  return AreFew(rows) && rows.dim(1) % kUnitCols == 0 &&
         reinterpret_cast<uintptr_t>(rows.data) % 16 == 0;
}

bool LinearRunner::TakesFewRows(const FewRows& x, const LinearWeight& weight) {
  return AreFew(x.rows) && (!x.are_factors || TakesFactors(x.rows.dtype, weight));
}

bool LinearRunner::TakesGated(const FewRows& x, const LinearWeight& gate_up) {
  // Tiles hold gate rows or up rows.
  return TakesFewRows(x, gate_up) && AreFewWhole(x.rows) &&
         (!IsInt4(gate_up.scheme) || gate_up.rows / 2 % kInt4TileRows == 0);
}

std::optional<FewRows> LinearRunner::RunGated(const FewRows& x, const LinearWeight& gate_up,
                                              const LinearWeight& down, const Tensor& activated) {
  TANDEM_CHECK(activated.dtype == x.rows.dtype && activated.dim(0) == x.rows.dim(0) &&
                   2 * activated.dim(1) == gate_up.rows,
               "gate and up rows are twice the result's");
  if (!TakesGated(x, gate_up)) return std::nullopt;
  FewRows result = activated;
  result.are_factors = TakesFactors(activated.dtype, down);
  LinearArgs args = ArgsOfFew(x, gate_up, activated);
  args.rows /= 2;
  args.out_is_factors = result.are_factors;
  WithTypes(x.rows.dtype, gate_up,
            [&]<typename T, typename W>() { LaunchStreamingGated<T, W>(context_, args); });
  return result;
}

bool LinearRunner::RunTurned(const FewRows& x, const LinearWeight& weight, const Tensor& qkv,
                             const RopeJob& job) {
  const int half = job.head_dim / 2;
  const int multiple = IsInt4(weight.scheme) ? kHalfHeadMultiple<Int4<1>> : kHalfHeadMultiple<Fp8>;
  if (!TakesFewRows(x, weight) || !AreFewWhole(x.rows) || job.halves ||
      2 * job.pairs != job.head_dim || half % multiple != 0) {
    return false;
  }
  LinearArgs args = ArgsOfFew(x, weight, qkv);
  args.rows /= 2;
  args.half_head = half;
  WithTypes(x.rows.dtype, weight,
            [&]<typename T, typename W>() { LaunchStreamingTurned<T, W>(context_, args, job); });
  return true;
}

bool LinearRunner::TakesAdded(const Tensor& x, const LinearWeight& weight,
                              const NormedRows& sum) const {
  // A norm that is taken later rounds otherwise, so that more rows would give other bits. In fp16
  // the residual times a weight might be too large.
  return !sum.squares.empty() && !context_.batch_invariant && x.dtype == DType::kBF16 &&
         IsPlainNorm(sum) && AreFewWhole(x) && weight.rows % kAddedRowsMultiple == 0;
}

bool LinearRunner::RunAdded(const FewRows& x, const LinearWeight& weight, NormedRows& sum) {
  static_assert(kMaxAddedRows == kMaxStreamingTokens);
  if (!TakesAdded(x.rows, weight, sum)) return false;
  TANDEM_CHECK(sum.residual.dim(0) == x.rows.dim(0) && sum.residual.dim(1) == weight.rows &&
                   sum.residual.dtype == x.rows.dtype,
               "the shape of a residual");
  // Mostly the next product has weights of the same type; if not, the norm is taken anew.
  sum.rows_are_factors = TakesFactors(x.rows.dtype, weight);
  const LinearArgs args = ArgsOfFew(x, weight, sum.residual);
  const AddJob job{.residual = sum.residual.data,
                   .norm_weight = sum.norm.weight.data,
                   .rows = sum.rows.data,
                   .rows_are_factors = sum.rows_are_factors,
                   .squares = sum.squares.As<unsigned long long>()};
  WithTypes(x.rows.dtype, weight, [&]<typename T, typename W>() {
    if constexpr (std::is_same_v<T, Bf16>) {  // as TakesAdded has checked
      LaunchStreamingAdded<T, W>(context_, args, job);
    }
  });
  sum.delta = {};
  return true;
}

void LinearRunner::RunFew(const FewRows& x, const LinearWeight& weight, const Tensor& out) {
  TANDEM_CHECK(out.dim(0) == x.rows.dim(0) && out.dim(1) == weight.rows, "the shape of a product");
  LaunchFew(ArgsOfFew(x, weight, out), x.rows.dtype, weight);
}

void LinearRunner::LaunchFew(const LinearArgs& args, DType activations,
                             const LinearWeight& weight) {
  WithTypes(activations, weight,
            [&]<typename T, typename W>() { LaunchStreaming<T, W>(context_, args); });
}

void LinearRunner::WarmUp(const std::function<void()>& work) {
  if (library_ != nullptr) {
    library_->WarmUp(work);
  } else {
    work();
  }
}

const void* LinearRunner::BiasFor(const LinearWeight& weight, DType output) {
  if (weight.bias.data() == nullptr) return nullptr;
  const DType wanted = LtBiasType(weight.dtype, output);
  if (wanted == DType::kF32) return weight.bias.data();
  const int count = static_cast<int>(weight.rows);
  const bool bf16 = wanted == DType::kBF16;
  ConvertBiasKernel<<<static_cast<unsigned>(CeilDiv(count, 256)), 256, 0, context_.stream>>>(
      weight.bias.As<float>(), count, bf16 ? static_cast<Bf16*>(workspace_->bias) : nullptr,
      bf16 ? nullptr : static_cast<Fp16*>(workspace_->bias));
  CheckLaunch("converting a bias");
  return workspace_->bias;
}

bool LinearRunner::RunSwiGluLinear(const Tensor& gate_up, const LinearWeight& weight,
                                   const Tensor& out) {
  if (!RoundsInput(gate_up, weight, out)) return false;
  return RunRounded(
      weight, out, [&](int64_t first, int64_t count, float scale, void* to, float* scales) {
        QuantizeSwiGlu(context_, gate_up.RowRange(first, count), weight.dtype, scale, to, scales);
      });
}

bool LinearRunner::RunNormLinear(NormedRows& x, const LinearWeight& weight, const Tensor& out) {
  if (!IsPlainNorm(x)) return false;
  // The residual may change only once, so all rows are one product.
  if (!RoundsInput(x.rows, weight, out) || out.dim(0) > MostRounded(weight)) return false;
  return RunRounded(weight, out, [&](int64_t, int64_t, float scale, void* to, float* scales) {
    QuantizeNorm(context_, x, weight.dtype, scale, to, scales);
    x.delta = {};
  });
}

bool LinearRunner::RoundsInput(const Tensor& x, const LinearWeight& weight,
                               const Tensor& out) const {
  return out.dim(0) > kMaxStreamingTokens && TakesRounded(weight) && !ArrangesInputs(weight) &&
         LibraryTakes(x, weight, out);
}

bool LinearRunner::LibraryTakes(const Tensor& x, const LinearWeight& weight,
                                const Tensor& out) const {
  // The library's fast kernels require this; other products are small or odd and run in ours.
  const bool aligned = weight.cols % 16 == 0 && weight.rows % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
  // fp8 with scales per token and per row needs sm_90; on older GPUs our kernel widens the weights.
  const bool has_type =
      weight.scheme.is_plain() ||
      (TakesRounded(weight) && (weight.dtype == DType::kI8 || context_.compute_capability >= 90));
  return library_ != nullptr && !weight.same_everywhere && aligned && has_type &&
         weight.rows <= kMaxBias;
}

bool LinearRunner::RunLibrary(const Tensor& x, const LinearWeight& weight, const Tensor& out) {
  if (!LibraryTakes(x, weight, out)) return false;
  if (TakesRounded(weight)) {
    return RunRounded(
        weight, out, [&](int64_t first, int64_t count, float scale, void* to, float* scales) {
          QuantizeActivations(context_, x.RowRange(first, count), weight.dtype, scale, to, scales);
        });
  }
  return library_->Run({.input = x.dtype,
                        .output = out.dtype,
                        .tokens = x.dim(0),
                        .rows = weight.rows,
                        .cols = weight.cols,
                        .pitch = weight.cols,
                        .x = x.data,
                        .weight = weight.data.data(),
                        .out = out.data,
                        .bias = BiasFor(weight, out.dtype)});
}

template <typename Quantize>
bool LinearRunner::RunRounded(const LinearWeight& weight, const Tensor& out,
                              const Quantize& quantize) {
  const int64_t most = MostRounded(weight);
  if (most == 0 || weight.rows % 16 != 0) return false;
  auto* const scales = static_cast<float*>(workspace_->scales);
  for (int64_t first = 0; first < out.dim(0); first += most) {
    const int64_t tokens = std::min(most, out.dim(0) - first);
    quantize(first, tokens, weight.input_scale, workspace_->activations, scales);
    const Tensor results = out.RowRange(first, tokens);
    const bool done =
        weight.dtype == DType::kI8
            ? MultiplyIntegers(
                  weight, {static_cast<const int8_t*>(workspace_->activations), scales, tokens},
                  results)
            : MultiplyFp8(weight, results);
    // Then our own kernel computes all of it.
    if (!done) return false;
  }
  return true;
}

bool LinearRunner::MultiplyFp8(const LinearWeight& weight, const Tensor& out) {
  if (rounded_->Run({.x = workspace_->activations,
                     .token_scales = static_cast<const float*>(workspace_->scales),
                     .weight = weight.data.data(),
                     .row_scales = weight.scales.As<float>(),
                     .bias = weight.bias.As<float>(),
                     .out = out.data,
                     .output = out.dtype,
                     .tokens = static_cast<int>(out.dim(0)),
                     .rows = static_cast<int>(weight.rows),
                     .cols = static_cast<int>(weight.cols)})) {
    return true;
  }
  return library_->Run({.input = DType::kF8E4M3,
                        .output = out.dtype,
                        .tokens = out.dim(0),
                        .rows = weight.rows,
                        .cols = weight.cols,
                        .pitch = weight.cols,
                        .x = workspace_->activations,
                        .weight = weight.data.data(),
                        .out = out.data,
                        .token_scales = static_cast<const float*>(workspace_->scales),
                        .row_scales = weight.scales.As<float>(),
                        .bias = BiasFor(weight, out.dtype)});
}

template <typename Finish>
bool LinearRunner::MultiplyIntegers(const LinearWeight& weight, const RoundedRows& x,
                                    const Finish& finish) {
  const int64_t row_bytes = weight.rows * static_cast<int64_t>(sizeof(int32_t));
  const int64_t most = static_cast<int64_t>(kSumBytes) / row_bytes;
  if (most == 0 || workspace_->sums == nullptr) return false;
  // Pieces of nearly equal size.
  const int64_t piece = CeilDiv(x.tokens, CeilDiv(x.tokens, most));
  for (int64_t first = 0; first < x.tokens; first += piece) {
    const int64_t tokens = std::min(piece, x.tokens - first);
    const bool done = library_->Run({.input = DType::kI8,
                                     .output = DType::kI32,
                                     .tokens = tokens,
                                     .rows = weight.rows,
                                     .cols = weight.cols,
                                     .pitch = weight.cols,
                                     .x = x.rows + first * weight.cols,
                                     .weight = weight.data.data(),
                                     .out = workspace_->sums});
    if (!done) return false;
    finish(first, tokens,
           IntegerSums{static_cast<const int32_t*>(workspace_->sums), x.scales + first,
                       weight.scales.As<float>(), weight.bias.As<float>()});
  }
  return true;
}

bool LinearRunner::MultiplyIntegers(const LinearWeight& weight, const RoundedRows& x,
                                    const Tensor& out) {
  const DType activations = out.dtype == DType::kF32 ? DType::kBF16 : out.dtype;
  return MultiplyIntegers(weight, x,
                          [&](int64_t first, int64_t tokens, const IntegerSums& product) {
                            ScaleSums(context_, product, activations, out.RowRange(first, tokens));
                          });
}

bool LinearRunner::RunIntegerMlp(NormedRows& x, const LinearWeight& gate_up,
                                 const LinearWeight& down, const Tensor& inner, const Tensor& out) {
  const int64_t tokens = out.dim(0), cols = down.cols;
  const bool integers = gate_up.dtype == DType::kI8 && down.dtype == DType::kI8;
  if (!integers || !IsPlainNorm(x) || gate_up.rows != 2 * cols || gate_up.rows % 16 != 0 ||
      down.rows % 16 != 0 || !RoundsInput(x.rows, gate_up, inner) ||
      !RoundsInput(inner, down, out)) {
    return false;
  }
  if (tokens > kMaxScales / 2 ||
      tokens * (gate_up.cols + cols) > static_cast<int64_t>(kActivationBytes)) {
    return false;
  }
  auto* const rounded = static_cast<int8_t*>(workspace_->activations);
  auto* const scales = static_cast<float*>(workspace_->scales);
  int8_t* const activated = rounded + tokens * gate_up.cols;
  QuantizeNorm(context_, x, DType::kI8, gate_up.input_scale, rounded, scales);
  x.delta = {};
  const bool done = MultiplyIntegers(
      gate_up, {rounded, scales, tokens},
      [&](int64_t first, int64_t count, const IntegerSums& product) {
        QuantizeSwiGluSums(context_, product, x.rows.dtype, count, cols, down.input_scale,
                           activated + first * cols, scales + tokens + first);
      });
  return done && MultiplyIntegers(down, {activated, scales + tokens, tokens}, out);
}

}  // namespace tandem::ops::cuda
