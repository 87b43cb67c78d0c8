#include "ops/cpu/sample_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace tandem::ops {
namespace {

float Uniform(std::mt19937_64& random, float low, float high) {
  return low + (high - low) * static_cast<float>(random() >> 40) * 0x1p-24f;
}

TEST(SampleKernels, GiveTheSameBitsOnEveryInstructionSet) {
  if (&KernelsForThisCpu() == &kSampleKernelsBaseline) GTEST_SKIP() << "this CPU has no AVX2";
  const SampleKernels& slow = kSampleKernelsBaseline;
  const SampleKernels& fast = kSampleKernelsAvx2;
  std::mt19937_64 random(11);
  for (int i = 0; i < 200; ++i) {
    const int64_t vocab = 1 + static_cast<int64_t>(random() % 3000);
    std::normal_distribution<float> normal(0.0f, Uniform(random, 0.3f, 5.0f));
    std::vector<float> row(static_cast<size_t>(vocab));
    for (float& logit : row) logit = normal(random);
    if (i % 4 == 0) {
      for (float& logit : row) logit = std::round(logit);  // many ties
    }
    const float* logits = row.data();
    const MaxLogit max = slow.arg_max(logits, vocab);
    ASSERT_EQ(max.token, fast.arg_max(logits, vocab).token);
    ScoreMap map{max.value, Uniform(random, 0.1f, 3.0f), Uniform(random, -20.0f, 0.0f)};
    ASSERT_EQ(slow.sum_exp(logits, vocab, map), fast.sum_exp(logits, vocab, map));
    std::vector<float> a(row.size());
    std::vector<float> b(row.size());
    slow.exp_scores(logits, vocab, map, 0.3f, a.data());
    fast.exp_scores(logits, vocab, map, 0.3f, b.data());
    ASSERT_EQ(a, b);
    const NoiseKey key = MakeNoiseKey(NoiseStream::kToken, random(), 0, i);
    ASSERT_EQ(slow.gumbel_arg_max(logits, vocab, map, key, max.token),
              fast.gumbel_arg_max(logits, vocab, map, key, max.token));
    std::vector<Candidate> c(row.size());
    std::vector<Candidate> d(row.size());
    const int64_t found = slow.gather(logits, 0, vocab, map, c.data());
    ASSERT_EQ(found, fast.gather(logits, 0, vocab, map, d.data()));
    for (size_t j = 0; j < static_cast<size_t>(found); ++j) {
      ASSERT_EQ(c[j].token, d[j].token);
      ASSERT_EQ(c[j].score, d[j].score);
      ASSERT_EQ(c[j].weight, d[j].weight);
    }
  }
}

}  // namespace
}  // namespace tandem::ops
