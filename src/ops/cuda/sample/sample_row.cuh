// SampleRowDraw: the draw of one row by a team of blocks. The row's logits are read once into the
// blocks' slices (in shared memory, unless the team is one block whose slice is too long for it).
// There penalties, biases, bans and the mask change them, and every further pass reads them; the
// logits and the counts in global memory stay unchanged. Lives in the registers of a kernel.
#pragma once

#include <cfloat>
#include <cmath>

#include "ops/cuda/sample/sample_ranking.cuh"
#include "ops/noise.h"

namespace tandem::ops::cuda {

class SampleRowDraw {
 public:
  // slice: room for this block's part of the row, in shared memory, or anywhere if the team is one
  // block.
  __device__ SampleRowDraw(SampleTeam& team, const SampleRow& row, int64_t vocab, float* slice,
                           int32_t slice_tokens)
      : team_(team),
        row_(row),
        params_(row.slot->params),
        vocab_(static_cast<int32_t>(vocab)),
        slice_(slice),
        slice_tokens_(slice_tokens),
        begin_(team.rank() * slice_tokens),
        count_(max(0, min(slice_tokens, vocab_ - begin_))) {}

  __device__ void Run(SampledToken& out) {
    const bool wants_logprobs = params_.num_top_logprobs >= 0;
    uint64_t raw_best = 0;  // once the slice holds the raw logits
    int32_t token = row_.given;
    if (token < 0) {
      const bool changed = ChangesLogits(row_);
      uint64_t best = Load(changed || wants_logprobs || !params_.greedy());
      if (changed) best = Process();
      best = team_.Max(best);
      if (!changed) raw_best = best;
      token = Draw(best);
    }
    if (team_.is_leader()) {
      out.token = token < vocab_ ? token : -1;
      out.logprob = __int_as_float(0x7fc00000);
      out.num_top = 0;
    }
    if (!wants_logprobs || token >= vocab_) return;
    if (raw_best == 0) {
      __syncthreads();  // the slice may still be read
      raw_best = team_.Max(Load(/*keep=*/true));
    }
    WriteLogprobs(token, raw_best, out);
  }

 private:
  static constexpr float kBanned = -INFINITY;

  // Reads this block's part of the raw logits, into the slice if it is kept. Returns this thread's
  // best; 0 if none is above minus infinity.
  __device__ uint64_t Load(bool keep) {
    constexpr int kUnroll = 2;  // loads in flight per thread; more would not fit in 64 registers
    const float* from = row_.logits + begin_;
    float best = kBanned;
    int32_t best_index = -1;
    const auto take = [&](int32_t i, float logit) {
      if (logit > best) {
        best = logit;
        best_index = i;
      }
    };
    const bool aligned = reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0;
    const int32_t quads = aligned ? count_ / 4 : 0;
    for (int32_t first = static_cast<int32_t>(threadIdx.x); first < quads;
         first += kUnroll * kSampleThreads) {
      float4 logits[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int32_t i = first + j * kSampleThreads;
        if (i < quads) logits[j] = __ldg(reinterpret_cast<const float4*>(from) + i);
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int32_t i = first + j * kSampleThreads;
        if (i >= quads) break;
        take(4 * i, logits[j].x);
        take(4 * i + 1, logits[j].y);
        take(4 * i + 2, logits[j].z);
        take(4 * i + 3, logits[j].w);
        if (keep) reinterpret_cast<float4*>(slice_)[i] = logits[j];
      }
    }
    for (int32_t i = 4 * quads + static_cast<int32_t>(threadIdx.x); i < count_;
         i += kSampleThreads) {
      const float logit = __ldg(from + i);
      take(i, logit);
      if (keep) slice_[i] = logit;
    }
    return best_index < 0 ? 0 : PackBest(best, begin_ + best_index);
  }

  // Applies penalties, biases, bans and the mask to the slice; returns this thread's best remaining
  // token.
  __device__ uint64_t Process() {
    const SlotSampling& slot = *row_.slot;
    __syncthreads();
    if (HasPenalty(params_)) {
      PenaliseHistory();
      __syncthreads();
      PenaliseAhead();
      __syncthreads();
    }
    AddBias(slot);
    const int32_t ngram = params_.no_repeat_ngram_size;
    if (ngram > 0) {
      team_.Sync();  // bans reach into the other blocks' slices
      BanRepeatedNgrams(ngram - 1);
      team_.Sync();
    } else {
      __syncthreads();
    }
    if (BansEndIds(row_)) {
      for (int32_t i = Thread(); i < slot.num_end_ids; i += kSampleThreads) Ban(slot.end_ids[i]);
    }
    BanSequences(slot);
    __syncthreads();

    float best = kBanned;
    int32_t best_token = -1;
    for (int32_t i = Thread(); i < count_; i += kSampleThreads) {
      if (!IsAllowed(row_.allowed, begin_ + i)) slice_[i] = kBanned;
      if (slice_[i] > best) {
        best = slice_[i];
        best_token = begin_ + i;
      }
    }
    return best_token < 0 ? 0 : PackBest(best, best_token);
  }

  __device__ static int32_t Thread() { return static_cast<int32_t>(threadIdx.x); }
  __device__ bool IsMine(int32_t token) const { return token >= begin_ && token - begin_ < count_; }
  __device__ void Ban(int32_t token) {
    if (IsMine(token)) slice_[token - begin_] = kBanned;
  }

  __device__ void PenaliseHistory() {
    const int32_t* counts = row_.history.counts + begin_;
#pragma unroll 4
    for (int32_t i = Thread(); i < count_; i += kSampleThreads) {
      const int32_t count = __ldg(counts + i);
      if (count > 0) slice_[i] = Penalised(slice_[i], count, params_);
    }
  }

  // Penalties of tokens among the drafts are computed again from raw logits; equal drafts write
  // equal values.
  __device__ void PenaliseAhead() {
    for (int32_t i = Thread(); i < row_.num_ahead; i += kSampleThreads) {
      const int32_t token = row_.ahead[i];
      if (!IsMine(token)) continue;
      int32_t count = row_.history.counts[token];
      for (int32_t j = 0; j < row_.num_ahead; ++j) count += row_.ahead[j] == token ? 1 : 0;
      slice_[token - begin_] = Penalised(row_.logits[token], count, params_);
    }
  }

  // A token's first entry adds all of its entries, in their order.
  __device__ void AddBias(const SlotSampling& slot) {
    for (int32_t i = Thread(); i < slot.num_bias; i += kSampleThreads) {
      const int32_t token = slot.bias_ids[i];
      if (!IsMine(token)) continue;
      bool is_first = true;
      for (int32_t j = 0; is_first && j < i; ++j) is_first = slot.bias_ids[j] != token;
      if (!is_first) continue;
      float logit = slice_[token - begin_];
      for (int32_t j = i; j < slot.num_bias; ++j) {
        if (slot.bias_ids[j] == token) logit += slot.bias_values[j];
      }
      slice_[token - begin_] = logit;
    }
  }

  // Bans the token that followed each earlier occurrence of the last `prefix` tokens. Each block
  // handles its part of the context.
  __device__ void BanRepeatedNgrams(int32_t prefix) {
    const SampleContext context(row_);
    const int32_t stride = team_.size() * kSampleThreads;
    for (int64_t i = int64_t{prefix} + team_.rank() * kSampleThreads + Thread(); i < context.size();
         i += stride) {
      const auto next = static_cast<int32_t>(i);
      if (!context.Repeats(next, prefix)) continue;
      const int32_t token = context[next];
      if (token < 0 || token >= vocab_) continue;
      if (IsMine(token)) {
        Ban(token);
      } else {
        *team_.Of(token / slice_tokens_, slice_ + token % slice_tokens_) = kBanned;
      }
    }
  }

  // Bans the last token of each sequence whose other tokens were just seen.
  __device__ void BanSequences(const SlotSampling& slot) {
    const SampleContext context(row_);
    for (int32_t i = Thread(); i < slot.num_bans; i += kSampleThreads) {
      const int32_t begin = i == 0 ? 0 : slot.ban_ends[i - 1];
      const int32_t before = slot.ban_ends[i] - begin - 1;
      if (before >= 0 && IsMine(slot.ban_tokens[begin + before]) &&
          context.EndsWith(slot.ban_tokens + begin, before)) {
        Ban(slot.ban_tokens[begin + before]);
      }
    }
  }

  // The token drawn from the slices, whose best is `best`.
  __device__ int32_t Draw(uint64_t best) {
    if (best == 0) return Certain(Fallback());
    const float largest = ValueOfBest(best);
    // With an infinite logit there is no distribution to draw from.
    if (params_.greedy() || isinf(largest)) return Certain(TokenOfBest(best));
    SampleRanking ranking(team_, slice_, begin_, count_, vocab_, DrawScores(params_, largest));
    uint64_t last = kKeepAll;
    if (params_.top_k > 0 && params_.top_k < vocab_) {
      last = ranking.LastOfBest(static_cast<uint64_t>(params_.top_k));
    }
    const float top_p = EffectiveTopP();
    if (top_p < 1.0f) last = ranking.LastOfNucleus(last, top_p);
    if (row_.probs != nullptr) WriteProbs(ranking, last);
    return DrawKept(ranking, last);
  }

  // Writes the distribution of a draw with a single outcome.
  __device__ int32_t Certain(int32_t token) {
    if (row_.probs != nullptr) {
      for (int32_t i = Thread(); i < count_; i += kSampleThreads) {
        row_.probs[begin_ + i] = begin_ + i == token ? 1.0f : 0.0f;
      }
    }
    return token;
  }

  // The token to draw when every token is banned: see the CPU's FallbackToken.
  __device__ int32_t Fallback() {
    if (row_.allowed != nullptr) {
      const uint64_t best = LikeliestAllowed(row_.allowed);
      if (best != 0) return TokenOfBest(best);
    }
    const SlotSampling& slot = *row_.slot;
    if (slot.num_end_ids > 0 && slot.end_ids[0] >= 0 && slot.end_ids[0] < vocab_) {
      return slot.end_ids[0];
    }
    return TokenOfBest(LikeliestAllowed(nullptr));
  }
  // Of raw logits, where NaN counts as minus infinity; 0 when no token is allowed.
  __device__ uint64_t LikeliestAllowed(const uint32_t* allowed) {
    uint64_t best = 0;
    for (int32_t i = Thread(); i < count_; i += kSampleThreads) {
      if (!IsAllowed(allowed, begin_ + i)) continue;
      const float logit = row_.logits[begin_ + i];
      best = max(best, PackBest(isnan(logit) ? kBanned : logit, begin_ + i));
    }
    return team_.Max(best);
  }

  // top_p, decayed for every output token since the last reset token.
  __device__ float EffectiveTopP() {
    if (params_.top_p_decay == 1.0f) return params_.top_p;
    const SampleContext context(row_);
    const int32_t prompt = row_.history.prompt_tokens;
    uint64_t behind_reset = 0;  // position after the prompt's end, plus 1
    for (int32_t i = prompt + team_.rank() * kSampleThreads + Thread(); i < context.size();
         i += team_.size() * kSampleThreads) {
      if (context[i] == params_.top_p_reset_id) {
        behind_reset = static_cast<uint64_t>(i - prompt) + 1;
      }
    }
    behind_reset = team_.Max(behind_reset);
    return DecayedTopP(params_, context.num_output() - static_cast<int32_t>(behind_reset));
  }

  __device__ void WriteProbs(SampleRanking& ranking, uint64_t last) {
    const auto scale = static_cast<float>(1.0 / ranking.WeightOf(ranking.TotalMass(last)));
    // Tokens that the ranking skips have probability zero.
    for (int32_t i = Thread(); i < count_; i += kSampleThreads) row_.probs[begin_ + i] = 0.0f;
    ranking.ForEach([&](float score, int32_t token, uint64_t position) {
      if (position <= last) row_.probs[token] = PortableExp(score) * scale;
    });
  }

  __device__ int32_t DrawKept(SampleRanking& ranking, uint64_t last) {
    const int32_t at = row_.history.num_tokens + row_.num_ahead;
    const NoiseKey key = MakeNoiseKey(NoiseStream::kToken, params_.seed, params_.choice, at);
    float best = kBanned;
    int32_t best_token = -1;
    ranking.ForEach([&](float score, int32_t token, uint64_t position) {
      if (position > last || score + kMaxGumbel < best) return;
      const uint32_t bits = NoiseBits(key, static_cast<uint32_t>(token));
      if (score + GumbelBound<float>(bits) < best) return;
      const float noisy = score + GumbelFromBits(bits);
      if (noisy > best) {
        best = noisy;
        best_token = token;
      }
    });
    return TokenOfBest(team_.Max(best_token < 0 ? 0 : PackBest(best, best_token)));
  }

  // The slices hold raw logits, whose best is `best`.
  __device__ void WriteLogprobs(int32_t token, uint64_t best, SampledToken& out) {
    const float largest = best == 0 ? kBanned : ValueOfBest(best);
    const float logit = row_.logits[token];
    if (isinf(largest)) {
      // No finite softmax: the whole probability is on the infinite logit, or nowhere.
      if (team_.is_leader()) {
        out.logprob = best != 0 && logit == largest ? 0.0f : kMinLogprob;
      }
      return;
    }
    ScoreMap map;
    map.max = largest;
    SampleRanking ranking(team_, slice_, begin_, count_, vocab_, map);
    const double sum = ranking.WeightOf(ranking.TotalMass(kKeepAll));
    const float log_sum = PortableLog(static_cast<float>(sum));
    if (team_.is_leader()) {
      const float logprob = logit - largest - log_sum;
      out.logprob = logprob > kMinLogprob ? logprob : kMinLogprob;  // NaN included
    }
    const int32_t top = min(params_.num_top_logprobs, min(kMaxTopLogprobs, vocab_));
    if (top > 0) WriteTop(map, top, log_sum, out);
  }

  __device__ void WriteTop(ScoreMap map, int32_t top, float log_sum, SampledToken& out) {
    map.floor = -FLT_MAX;
    SampleRanking ranking(team_, slice_, begin_, count_, vocab_, map);
    SampleShared& shared = team_.shared();
    if (team_.is_leader()) shared.num_top = 0;  // visible to all after the first barrier
    const uint64_t last = ranking.LastOfBest(static_cast<uint64_t>(top));
    SampleShared& leader = *team_.Of(0, &shared);
    ranking.ForEach([&](float score, int32_t token, uint64_t position) {
      if (position <= last) leader.top[atomicAdd(&leader.num_top, 1)] = {score, token};
    });
    team_.Sync();
    // The tokens came in arbitrary order.
    if (team_.rank() != 0 || Thread() >= shared.num_top) return;
    const TopLogit mine = shared.top[Thread()];
    int32_t place = 0;
    for (int32_t i = 0; i < shared.num_top; ++i) {
      const TopLogit other = shared.top[i];
      const bool is_better =
          other.score > mine.score || (other.score == mine.score && other.token < mine.token);
      place += is_better ? 1 : 0;
    }
    const float logprob = mine.score - log_sum;
    out.top_ids[place] = mine.token;
    out.top_logprobs[place] = logprob > kMinLogprob ? logprob : kMinLogprob;
    if (Thread() == 0) out.num_top = shared.num_top;
  }

  SampleTeam& team_;
  const SampleRow& row_;
  const SamplingParams& params_;
  const int32_t vocab_;
  float* const slice_;
  const int32_t slice_tokens_;
  const int32_t begin_;
  const int32_t count_;
};

}  // namespace tandem::ops::cuda
