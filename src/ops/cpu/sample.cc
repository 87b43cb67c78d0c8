#include "ops/cpu/sample.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu/sample_filter.h"
#include "ops/cpu/sample_kernels.h"
#include "ops/cpu/sample_process.h"

namespace tandem::ops {
namespace {

// Below this total number of logits it does not pay to wake the pool.
constexpr int64_t kMinParallelLogits = 64 * 1024;

// Draws for one row; holds the data that all steps share.
class RowSampler {
 public:
  RowSampler(const SampleRow& row, int64_t vocab, SampleScratch& scratch)
      : row_(row),
        params_(row.slot->params),
        vocab_(vocab),
        scratch_(scratch),
        kernels_(KernelsForThisCpu()) {}

  void Run(SampledToken& out) {
    out.token = row_.given >= 0 ? row_.given : Draw();
    TANDEM_CHECK(out.token >= 0 && out.token < vocab_, "a token outside the vocabulary");
    if (params_.num_top_logprobs >= 0) FillLogprobs(out);
  }

 private:
  int32_t Draw() {
    const float* logits = row_.logits;
    if (ChangesLogits(row_)) {
      ProcessLogits(row_, vocab_, scratch_.logits.get());
      logits = scratch_.logits.get();
    }
    const MaxLogit max = kernels_.arg_max(logits, vocab_);
    if (max.token < 0) return Certain(FallbackToken(row_, vocab_));
    // With an infinite logit there is no distribution to draw from.
    if (params_.greedy() || std::isinf(max.value)) return Certain(max.token);
    return DrawFrom(logits, DrawScores(params_, max.value), max.token);
  }

  int32_t Certain(int32_t token) const {
    if (row_.probs != nullptr) {
      std::fill(row_.probs, row_.probs + vocab_, 0.0f);
      row_.probs[token] = 1.0f;
    }
    return token;
  }

  int32_t DrawFrom(const float* logits, const ScoreMap& map, int32_t likeliest) {
    const float top_p = EffectiveTopP(row_);
    const bool has_top_k = params_.top_k > 0 && params_.top_k < vocab_;
    const bool has_top_p = top_p < 1.0f;
    if (!has_top_k && !has_top_p) return DrawUnfiltered(logits, map, likeliest);

    std::span<Candidate> kept;
    if (has_top_k) {
      kept = TopK(kernels_, logits, vocab_, map, params_.top_k, scratch_.candidates.get());
      if (has_top_p) kept = KeepMass(kept, double{top_p} * TotalWeight(kept));
    } else {
      const double total = kernels_.sum_exp(logits, vocab_, map);
      kept =
          NucleusCandidates(kernels_, logits, vocab_, map, total, top_p, scratch_.candidates.get());
      kept = KeepMass(kept, double{top_p} * total);
    }
    if (row_.probs != nullptr) WriteProbs(kept);
    return DrawCandidate(kept, Key());
  }

  int32_t DrawUnfiltered(const float* logits, const ScoreMap& map, int32_t likeliest) {
    if (row_.probs != nullptr) {
      const double total = kernels_.sum_exp(logits, vocab_, map);
      kernels_.exp_scores(logits, vocab_, map, static_cast<float>(1.0 / total), row_.probs);
    }
    return kernels_.gumbel_arg_max(logits, vocab_, map, Key(), likeliest);
  }

  void WriteProbs(std::span<const Candidate> kept) const {
    std::fill(row_.probs, row_.probs + vocab_, 0.0f);
    const float scale = static_cast<float>(1.0 / TotalWeight(kept));
    for (const Candidate& candidate : kept) {
      row_.probs[candidate.token] = candidate.weight * scale;
    }
  }

  NoiseKey Key() const {
    const int32_t position = row_.history.num_tokens + row_.num_ahead;
    return MakeNoiseKey(NoiseStream::kToken, params_.seed, params_.choice, position);
  }

  void FillLogprobs(SampledToken& out) {
    const MaxLogit max = kernels_.arg_max(row_.logits, vocab_);
    if (max.token < 0 || std::isinf(max.value)) {
      // No finite softmax: the whole probability is on the infinite logit, or nowhere.
      out.logprob = max.token >= 0 && row_.logits[out.token] == max.value ? 0.0f : kMinLogprob;
      return;
    }
    ScoreMap map;
    map.max = max.value;
    const auto log_sum = static_cast<float>(std::log(kernels_.sum_exp(row_.logits, vocab_, map)));
    const float score = row_.logits[out.token] - max.value;
    out.logprob = score - log_sum > kMinLogprob ? score - log_sum : kMinLogprob;  // NaN included

    const int64_t top = std::min<int64_t>({params_.num_top_logprobs, kMaxTopLogprobs, vocab_});
    if (top == 0) return;
    map.floor = std::numeric_limits<float>::lowest();
    const std::span<Candidate> best =
        TopK(kernels_, row_.logits, vocab_, map, top, scratch_.candidates.get());
    std::sort(best.begin(), best.end(), IsBetter);
    for (const Candidate& candidate : best) {
      out.top_ids[out.num_top] = candidate.token;
      out.top_logprobs[out.num_top] = std::max(candidate.score - log_sum, kMinLogprob);
      ++out.num_top;
    }
  }

  const SampleRow& row_;
  const SamplingParams& params_;
  const int64_t vocab_;
  SampleScratch& scratch_;
  const SampleKernels& kernels_;
};

}  // namespace

CpuSampler::CpuSampler(ThreadPool& pool) : pool_(pool) {}

void CpuSampler::Reserve(int64_t vocab) {
  if (vocab <= reserved_vocab_) return;
  scratch_.clear();
  for (int thread = 0; thread < pool_.num_threads(); ++thread) scratch_.emplace_back(vocab);
  reserved_vocab_ = vocab;
}

void CpuSampler::Sample(std::span<const SampleRow> rows, int64_t vocab,
                        std::span<SampledToken> out) {
  TANDEM_CHECK(vocab > 0 && out.size() >= rows.size(), "one result a row, at least one token");
  Reserve(vocab);
  // Rows differ in cost (a greedy one is one pass), so threads take them one by one.
  std::atomic<size_t> next{0};
  const auto run = [&](int thread) {
    SampleScratch& scratch = scratch_[static_cast<size_t>(thread)];
    for (size_t i = next.fetch_add(1); i < rows.size(); i = next.fetch_add(1)) {
      out[i].num_top = 0;
      out[i].logprob = std::numeric_limits<float>::quiet_NaN();
      if (rows[i].logits == nullptr) {
        out[i].token = -1;
      } else {
        RowSampler(rows[i], vocab, scratch).Run(out[i]);
      }
    }
  };
  if (rows.size() < 2 || static_cast<int64_t>(rows.size()) * vocab < kMinParallelLogits) {
    run(0);
  } else {
    pool_.Run(run);
  }
}

}  // namespace tandem::ops
