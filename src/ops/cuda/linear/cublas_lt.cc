#include "ops/cuda/linear/cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "ops/cuda/device/stopwatch.cuh"
#include "ops/cuda/linear/choose_fastest.h"
#include "ops/cuda/linear/measure.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr uint32_t kAlignment = 16;

// In warm-up. Larger products take long to time; what bounds them is arithmetic, which divided sums
// and smaller tiles do not speed up.
constexpr int64_t kMostTimedTokens = 512;
constexpr size_t kMostAlgorithms = 16;
// Each algorithm's time is the minimum of this many, so that a disturbance does not count.
constexpr int kRounds = 5;
// For all warm-ups together. A start never waits longer for this, whatever is slow; Llama-3.1-8B
// has 45 shapes of some milliseconds each.
constexpr std::chrono::duration<double> kTimeLimit{2.0};

// Prompts come in every length. Token counts up to the same bound use the same algorithm, so that
// there are few algorithms and they are looked up soon.
int64_t TokensBound(int64_t tokens) {
  const int64_t step = tokens <= 64 ? 16 : tokens <= 256 ? 32 : tokens <= 1024 ? 128 : 512;
  return (tokens + step - 1) / step * step;
}

// Refused memory and a lost GPU are kept as the device's failure; any other error is a bug in this
// program.
void CheckLt(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  std::string message = fmt::format("cuBLASLt: {}: status {}", what, static_cast<int>(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    KeepFailure(ResourceExhausted(std::move(message)));
  } else {
    TANDEM_CHECK(status == CUBLAS_STATUS_EXECUTION_FAILED || status == CUBLAS_STATUS_INTERNAL_ERROR,
                 message);
    KeepFailure(Unavailable(std::move(message)));
  }
}

cudaDataType_t CudaTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kI8:
      return CUDA_R_8I;
    case DType::kI32:
      return CUDA_R_32I;
    default:
      break;
  }
  TANDEM_CHECK(false, "a type without products");
  return CUDA_R_32F;
}

// The functions used, by the names and types of the header; nothing links against them.
struct Functions {
  decltype(&cublasLtCreate) Create = nullptr;
  decltype(&cublasLtDestroy) Destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate = nullptr;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic = nullptr;
  decltype(&cublasLtMatmul) Matmul = nullptr;
};

// Loaded once for the process and never unloaded; null when the library or a function is missing.
const Functions* LoadFunctions() {
  static const Functions* const functions = []() -> const Functions* {
    void* handle = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so"}) {
      if (handle == nullptr) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (handle == nullptr) {
      LogWarning(
          "libcublasLt.so.13 was not found, so large products take a slower kernel; install cuBLAS "
          "of CUDA 13 (NVIDIA's package libcublas-13-0) or name its folder in LD_LIBRARY_PATH");
      return nullptr;
    }
    static Functions loaded;
    bool complete = true;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      complete = complete && function != nullptr;
    };
    find("cublasLtCreate", loaded.Create);
    find("cublasLtDestroy", loaded.Destroy);
    find("cublasLtMatmulDescCreate", loaded.MatmulDescCreate);
    find("cublasLtMatmulDescDestroy", loaded.MatmulDescDestroy);
    find("cublasLtMatmulDescSetAttribute", loaded.MatmulDescSetAttribute);
    find("cublasLtMatrixLayoutCreate", loaded.MatrixLayoutCreate);
    find("cublasLtMatrixLayoutDestroy", loaded.MatrixLayoutDestroy);
    find("cublasLtMatrixLayoutSetAttribute", loaded.MatrixLayoutSetAttribute);
    find("cublasLtMatmulPreferenceCreate", loaded.MatmulPreferenceCreate);
    find("cublasLtMatmulPreferenceDestroy", loaded.MatmulPreferenceDestroy);
    find("cublasLtMatmulPreferenceSetAttribute", loaded.MatmulPreferenceSetAttribute);
    find("cublasLtMatmulAlgoGetHeuristic", loaded.MatmulAlgoGetHeuristic);
    find("cublasLtMatmul", loaded.Matmul);
    return complete ? &loaded : nullptr;
  }();
  return functions;
}

// The key that determines how a product is computed; the number of tokens is rounded up to its
// bound.
using Shape = std::tuple<DType, DType, int64_t, int64_t, int64_t, int64_t, bool, bool>;

Shape ShapeOf(const LtProduct& product) {
  return {product.input, product.output, TokensBound(product.tokens),     product.rows,
          product.cols,  product.pitch,  product.token_scales != nullptr, product.bias != nullptr};
}

}  // namespace

class CublasLt::Library {
 public:
  Library(const Functions& functions, cublasLtHandle_t handle, const Context& context,
          void* workspace, size_t workspace_bytes)
      : lt_(functions),
        handle_(handle),
        context_(context),
        workspace_(workspace),
        workspace_bytes_(workspace_bytes) {}
  ~Library() {
    for (const auto& [shape, plan] : plans_) {
      for (const cublasLtMatrixLayout_t layout : {plan.weight, plan.x, plan.out}) {
        lt_.MatrixLayoutDestroy(layout);
      }
      lt_.MatmulDescDestroy(plan.operation);
    }
    lt_.Destroy(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool Run(const LtProduct& product) {
    const auto [place, added] = plans_.try_emplace(ShapeOf(product));
    Plan& plan = place->second;
    if (added) {
      AwaitStreamUnlessRecorded();
      MakePlan(product, plan);
    }
    if (!plan.possible) return false;
    SetPointers(product, plan);
    if (IsToBeTimed(product, plan)) {
      AwaitStreamUnlessRecorded();
      KeepFastest(product, plan);
    }
    SetTokens(product.tokens, plan);
    const cublasStatus_t status = Enqueue(product, plan, plan.algorithm);
    // An algorithm may not support fewer tokens than it was chosen for.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    CheckLt(status, "a product");
    return true;
  }

  void WarmUp(const std::function<void()>& work) {
    watches_ = std::make_unique<Watches>();
    work();
    watches_.reset();
  }

 private:
  using Watches = std::array<Stopwatch, kMostAlgorithms>;

  // In the library's column-major terms: out [rows, tokens] = weight^T x.
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t weight = nullptr;  // [cols, rows]
    cublasLtMatrixLayout_t x = nullptr;       // [cols, tokens]
    cublasLtMatrixLayout_t out = nullptr;     // [rows, tokens]
    cublasLtMatmulAlgo_t algorithm{};
    int64_t tokens = 0;  // the number of tokens in the layouts
    bool possible = false;
    bool timed = false;
  };

  template <typename T>
  bool TrySet(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return lt_.MatmulDescSetAttribute(plan.operation, attribute, static_cast<const void*>(&value),
                                      sizeof(value)) == CUBLAS_STATUS_SUCCESS;
  }
  template <typename T>
  void Set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    TANDEM_CHECK(TrySet(plan, attribute, value), "cuBLASLt refuses an attribute of a product");
  }

  void SetPointers(const LtProduct& product, const Plan& plan) {
    if (product.bias != nullptr) Set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
    if (product.token_scales == nullptr) return;
    Set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.row_scales);
    Set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.token_scales);
  }

  void SetTokens(int64_t tokens, Plan& plan) const {
    if (plan.tokens == tokens) return;
    const auto cols = static_cast<uint64_t>(tokens);
    for (const cublasLtMatrixLayout_t layout : {plan.x, plan.out}) {
      CheckLt(
          lt_.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &cols, sizeof(cols)),
          "the number of tokens");
    }
    plan.tokens = tokens;
  }

  void MakePlan(const LtProduct& product, Plan& plan) {
    const auto layout = [&](cublasLtMatrixLayout_t& made, DType dtype, int64_t rows, int64_t cols,
                            int64_t pitch) {
      CheckLt(lt_.MatrixLayoutCreate(&made, CudaTypeOf(dtype), static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(cols), pitch),
              "a layout");
    };
    layout(plan.weight, product.input, product.cols, product.rows, product.pitch);
    plan.tokens = TokensBound(product.tokens);
    layout(plan.x, product.input, product.cols, plan.tokens, product.cols);
    layout(plan.out, product.output, product.rows, plan.tokens, product.rows);
    const bool integers = product.input == DType::kI8;
    CheckLt(
        lt_.MatmulDescCreate(&plan.operation, integers ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                             integers ? CUDA_R_32I : CUDA_R_32F),
        "a description");
    Set(plan, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    Set(plan, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    if (product.input == DType::kF8E4M3) Set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    if (product.bias != nullptr) {
      Set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      Set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
          static_cast<int32_t>(CudaTypeOf(LtBiasType(product.input, product.output))));
    }
    if (product.token_scales != nullptr) {
      // Libraries older than this mode refuse it.
      const auto mode = static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
      if (!TrySet(plan, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode) ||
          !TrySet(plan, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode)) {
        return;
      }
    }
    // The choice depends on the alignment of these pointers.
    SetPointers(product, plan);
    const std::vector<cublasLtMatmulAlgo_t> first = Ask(plan, 1, CUBLASLT_REDUCTION_SCHEME_MASK);
    plan.possible = !first.empty();
    if (plan.possible) plan.algorithm = first.front();
  }

  // At most `most` algorithms for the numbers in the layouts, ordered by the time that the library
  // estimates. `reductions`: allowed ways of adding up the parts of a divided sum.
  std::vector<cublasLtMatmulAlgo_t> Ask(const Plan& plan, size_t most, uint32_t reductions) {
    cublasLtMatmulPreference_t preference = nullptr;
    CheckLt(lt_.MatmulPreferenceCreate(&preference), "a preference");
    const auto bytes = static_cast<uint64_t>(workspace_bytes_);
    CheckLt(lt_.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &bytes, sizeof(bytes)),
            "the bound of the workspace");
    CheckLt(lt_.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &reductions, sizeof(reductions)),
            "the ways of dividing sums");
    // Rows of activations may begin anywhere; callers guarantee only this alignment.
    const uint32_t alignment = kAlignment;
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      CheckLt(
          lt_.MatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof(alignment)),
          "the alignment of activations");
    }
    std::vector<cublasLtMatmulHeuristicResult_t> results(most);
    int found = 0;
    const cublasStatus_t status =
        lt_.MatmulAlgoGetHeuristic(handle_, plan.operation, plan.weight, plan.x, plan.out, plan.out,
                                   preference, static_cast<int>(most), results.data(), &found);
    lt_.MatmulPreferenceDestroy(preference);
    results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (const cublasLtMatmulHeuristicResult_t& result : results) {
      if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
    }
    return algorithms;
  }

  cublasStatus_t Enqueue(const LtProduct& product, const Plan& plan,
                         const cublasLtMatmulAlgo_t& algorithm) {
    const float one = 1.0f;
    const int32_t integer_one = 1;
    const int64_t zero = 0;  // of either type
    const bool integers = product.input == DType::kI8;
    return lt_.Matmul(handle_, plan.operation,
                      integers ? static_cast<const void*>(&integer_one) : &one, product.weight,
                      plan.weight, product.x, plan.x, &zero, product.out, plan.out, product.out,
                      plan.out, &algorithm, workspace_, workspace_bytes_, context_.stream);
  }

  // The first product of a shape may load a kernel. The driver then waits until the GPU is idle,
  // while it and the library may hold locks that another rank's thread needs to reach its part of a
  // sum that this GPU waits in. So the stream is waited for first, without those locks.
  void AwaitStreamUnlessRecorded() const {
    if (IsRecorded(context_)) return;
    CheckCuda(cudaStreamSynchronize(context_.stream), "the GPU's earlier work");
  }

  bool IsToBeTimed(const LtProduct& product, const Plan& plan) const {
    return watches_ != nullptr && !plan.timed && product.tokens <= kMostTimedTokens &&
           time_spent_ < kTimeLimit && !IsRecorded(context_);
  }

  // Replaces the plan's algorithm by the fastest for this product; leaves its result void.
  void KeepFastest(const LtProduct& product, Plan& plan) {
    const auto began = std::chrono::steady_clock::now();
    plan.timed = true;
    SetTokens(TokensBound(product.tokens), plan);
    // Parts of a sum that are rounded to the output's type would cost accuracy.
    std::vector<cublasLtMatmulAlgo_t> algorithms =
        Ask(plan, kMostAlgorithms - 1, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    algorithms.insert(algorithms.begin(), plan.algorithm);
    SetTokens(product.tokens, plan);
    // The first launch of a kernel loads it, so it is not timed. As in Run, an algorithm may not
    // support fewer tokens; and there may be no memory left for its kernel.
    std::erase_if(algorithms, [&](const cublasLtMatmulAlgo_t& algorithm) {
      return Enqueue(product, plan, algorithm) != CUBLAS_STATUS_SUCCESS;
    });
    if (algorithms.empty()) return;
    const std::vector<double> seconds = Time(product, plan, algorithms);
    const size_t fastest = ChooseFastest(seconds);
    plan.algorithm = algorithms[fastest];
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
    time_spent_ += spent;
    LogDebug(
        "product of {} tokens and {} x {} {} weights: {:.1f} us by the first of {} algorithms, "
        "{:.1f} us by the chosen one, number {}; timed in {:.1f} ms, {:.2f} s in all",
        product.tokens, product.rows, product.cols, DTypeName(product.input), 1e6 * seconds.front(),
        seconds.size(), 1e6 * seconds[fastest], fastest, 1e3 * spent.count(), time_spent_.count());
  }

  std::vector<double> Time(const LtProduct& product, const Plan& plan,
                           const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
    std::vector<double> seconds(algorithms.size(), std::numeric_limits<double>::infinity());
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < algorithms.size(); ++i) {
        // In a step the weights are in no cache. The read also lasts until the host has enqueued
        // the product, so that the stream never waits for the host between start and stop.
        EnqueueRead(context_, workspace_, workspace_bytes_);
        (*watches_)[i].Start(context_.stream);
        CheckLt(Enqueue(product, plan, algorithms[i]), "a product");
        (*watches_)[i].Stop(context_.stream);
      }
      for (size_t i = 0; i < algorithms.size(); ++i) {
        seconds[i] = std::min(seconds[i], (*watches_)[i].Seconds());
      }
    }
    return seconds;
  }

  const Functions& lt_;
  const cublasLtHandle_t handle_;
  const Context context_;
  void* const workspace_;
  const size_t workspace_bytes_;
  std::map<Shape, Plan> plans_;
  std::unique_ptr<Watches> watches_;  // in WarmUp
  std::chrono::duration<double> time_spent_{0};
};

CublasLt::CublasLt(std::unique_ptr<Library> library) : library_(std::move(library)) {}
CublasLt::~CublasLt() = default;

std::unique_ptr<CublasLt> CublasLt::Load(const Context& context, void* workspace,
                                         size_t workspace_bytes) {
  const Functions* const functions = LoadFunctions();
  if (functions == nullptr) return nullptr;
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t made = functions->Create(&handle);
  if (made == CUBLAS_STATUS_ALLOC_FAILED) CheckLt(made, "its handle");
  if (made != CUBLAS_STATUS_SUCCESS) return nullptr;
  return std::unique_ptr<CublasLt>(new CublasLt(
      std::make_unique<Library>(*functions, handle, context, workspace, workspace_bytes)));
}

bool CublasLt::Run(const LtProduct& product) { return library_->Run(product); }

void CublasLt::WarmUp(const std::function<void()>& work) { library_->WarmUp(work); }

}  // namespace tandem::ops::cuda
