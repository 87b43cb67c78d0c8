#include "ops/cpu/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/sample_kernels.h"
#include "ops/testing/reference_sampler.h"

namespace tandem::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Random = std::mt19937_64;

int32_t Below(Random& random, int64_t bound) {
  return static_cast<int32_t>(random() % static_cast<uint64_t>(bound));
}

float Uniform(Random& random, float low, float high) {
  return low + (high - low) * static_cast<float>(random() >> 40) * 0x1p-24f;
}

std::vector<int32_t> RandomTokens(Random& random, int count, int64_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = Below(random, vocab);
  return tokens;
}

// A row over `vocab` tokens with a history of few distinct tokens, so that n-grams and bans come
// about.
OwnedRow RandomRow(Random& random, int64_t vocab) {
  OwnedRow row;
  std::normal_distribution<float> normal(0.0f, Uniform(random, 0.3f, 5.0f));
  for (int64_t i = 0; i < vocab; ++i) row.logits.push_back(normal(random));
  if (random() % 4 == 0) {
    for (float& logit : row.logits) logit = std::round(logit);  // many ties
  }
  const int64_t common = std::min<int64_t>(vocab, 6);
  row.prompt = RandomTokens(random, 1 + Below(random, 20), common);
  row.output = RandomTokens(random, Below(random, 20), common);
  row.ahead = RandomTokens(random, Below(random, 5), common);
  row.params.seed = random();
  row.params.choice = static_cast<uint32_t>(Below(random, 4));
  return row;
}

struct Option {
  const char* name;
  void (*set)(Random& random, OwnedRow& row);
};

const Option kOptions[] = {
    {"temperature",
     [](Random& random, OwnedRow& row) { row.params.temperature = Uniform(random, 0.05f, 3.0f); }},
    {"greedy", [](Random&, OwnedRow& row) { row.params.temperature = 0.0f; }},
    {"top_k",
     [](Random& random, OwnedRow& row) { row.params.top_k = 1 + Below(random, row.vocab() + 3); }},
    {"top_p",
     [](Random& random, OwnedRow& row) { row.params.top_p = Uniform(random, 0.0f, 1.0f); }},
    {"top_p_decay",
     [](Random& random, OwnedRow& row) {
       row.params.top_p = 0.95f;
       row.params.top_p_decay = Uniform(random, 0.6f, 0.99f);
       row.params.top_p_min = Uniform(random, 0.01f, 0.5f);
       row.params.top_p_reset_id = Below(random, 6);
     }},
    {"min_p",
     [](Random& random, OwnedRow& row) { row.params.min_p = Uniform(random, 0.0f, 0.6f); }},
    {"repetition",
     [](Random& random, OwnedRow& row) {
       row.params.repetition_penalty = Uniform(random, 0.5f, 2.0f);
     }},
    {"presence", [](Random& random,
                    OwnedRow& row) { row.params.presence_penalty = Uniform(random, -2.0f, 2.0f); }},
    {"frequency",
     [](Random& random, OwnedRow& row) {
       row.params.frequency_penalty = Uniform(random, -2.0f, 2.0f);
     }},
    {"no_repeat_ngram",
     [](Random& random, OwnedRow& row) { row.params.no_repeat_ngram_size = 1 + Below(random, 3); }},
    {"min_tokens",
     [](Random& random, OwnedRow& row) {
       row.params.min_tokens = Below(random, 25);
       row.end_ids = RandomTokens(random, 2, row.vocab());
     }},
    {"bias",
     [](Random& random, OwnedRow& row) {
       for (int i = 0; i < 3; ++i) {
         row.bias_ids.push_back(Below(random, row.vocab()));
         row.bias_values.push_back(Uniform(random, -5.0f, 5.0f));
       }
     }},
    {"bans",
     [](Random& random, OwnedRow& row) {
       for (int length = 0; length < 4; ++length) {
         row.bans.push_back(RandomTokens(random, length, std::min<int64_t>(row.vocab(), 6)));
       }
     }},
    {"allowed",
     [](Random& random, OwnedRow& row) {
       row.allowed.resize(static_cast<size_t>((row.vocab() + 31) / 32));
       for (uint32_t& word : row.allowed) {
         word = random() % 3 == 0 ? 0u : random() % 2 == 0 ? ~0u : static_cast<uint32_t>(random());
       }
     }},
};

class CpuSamplerTest : public ::testing::Test {
 protected:
  SampledToken Draw(OwnedRow& row, std::vector<float>* probs = nullptr) {
    SampleRow view = row.View();
    if (probs != nullptr) {
      probs->assign(row.logits.size(), -1.0f);
      view.probs = probs->data();
    }
    SampledToken out;
    sampler_.Sample({&view, 1}, row.vocab(), {&out, 1});
    return out;
  }

  void ExpectLikeReference(OwnedRow& row, const std::string& what) {
    const ReferenceDraw expected = ReferenceSample(row);
    std::vector<float> probs;
    const SampledToken with_probs = Draw(row, &probs);
    const SampledToken alone = Draw(row);
    ASSERT_EQ(with_probs.token, alone.token) << what;
    if (expected.token < 0) return;  // nothing may be drawn: tested by itself
    ASSERT_EQ(alone.token, expected.token) << what;
    for (size_t i = 0; i < probs.size(); ++i) {
      ASSERT_NEAR(probs[i], expected.probs[i], 1e-5 * expected.probs[i] + 1e-12)
          << what << ' ' << i;
    }
  }

  ThreadPool pool_{3, /*pin=*/false};
  CpuSampler sampler_{pool_};
};

constexpr int64_t kVocabs[] = {1, 2, 7, 31, 32, 33, 64, 257, 1000, 4099};

TEST_F(CpuSamplerTest, AgreesWithTheReferenceForEachOption) {
  Random random(1);
  for (const Option& option : kOptions) {
    for (int i = 0; i < 120; ++i) {
      OwnedRow row = RandomRow(random, kVocabs[static_cast<size_t>(i) % std::size(kVocabs)]);
      option.set(random, row);
      ASSERT_NO_FATAL_FAILURE(ExpectLikeReference(row, option.name + (" " + std::to_string(i))));
    }
  }
}

TEST_F(CpuSamplerTest, AgreesWithTheReferenceForAnyMixOfOptions) {
  Random random(2);
  for (int i = 0; i < 3000; ++i) {
    OwnedRow row = RandomRow(random, kVocabs[random() % std::size(kVocabs)]);
    std::string names;
    for (const Option& option : kOptions) {
      if (random() % 3 != 0 || (option.name == std::string("greedy") && random() % 4 != 0))
        continue;
      option.set(random, row);
      names += std::string(option.name) + ' ';
    }
    ASSERT_NO_FATAL_FAILURE(ExpectLikeReference(row, names + std::to_string(i)));
  }
}

TEST_F(CpuSamplerTest, AgreesWithTheReferenceOnLargeVocabularies) {
  Random random(3);
  for (const int64_t vocab : {32'000, 131'072, 262'144}) {
    for (int mix = 0; mix < 6; ++mix) {
      OwnedRow row = RandomRow(random, vocab);
      row.params.temperature = mix == 5 ? 0.0f : 1.0f;
      if (mix == 1 || mix == 3) row.params.top_k = 50;
      if (mix == 2 || mix == 3) row.params.top_p = 0.9f;
      if (mix == 4) row.params.min_p = 0.01f;
      ASSERT_NO_FATAL_FAILURE(ExpectLikeReference(row, std::to_string(vocab * 10 + mix)));
    }
  }
}

TEST_F(CpuSamplerTest, EqualLogitsGiveTheLowestTokenWhenGreedy) {
  OwnedRow row;
  row.logits.assign(1000, 1.0f);
  row.params.temperature = 0.0f;
  EXPECT_EQ(Draw(row).token, 0);
  row.logits[777] = row.logits[778] = 2.0f;
  EXPECT_EQ(Draw(row).token, 777);
}

TEST_F(CpuSamplerTest, ARowAloneIsTheRowInABatch) {
  Random random(4);
  constexpr int64_t kVocab = 9001;
  std::vector<OwnedRow> rows;
  for (int i = 0; i < 40; ++i) {
    rows.push_back(RandomRow(random, kVocab));
    for (const Option& option : kOptions) {
      if (random() % 4 == 0) option.set(random, rows.back());
    }
    rows.back().params.num_top_logprobs = Below(random, 6);
  }
  std::vector<SampleRow> views;
  for (OwnedRow& row : rows) views.push_back(row.View());
  std::vector<SampledToken> together(rows.size());
  sampler_.Sample(views, kVocab, together);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampledToken alone = Draw(rows[i]);
    ASSERT_EQ(together[i].token, alone.token) << i;
    ASSERT_EQ(together[i].logprob, alone.logprob) << i;
    ASSERT_EQ(together[i].num_top, alone.num_top) << i;
    for (int32_t j = 0; j < alone.num_top; ++j) {
      ASSERT_EQ(together[i].top_ids[j], alone.top_ids[j]);
      ASSERT_EQ(together[i].top_logprobs[j], alone.top_logprobs[j]);
    }
  }
}

// What makes verification exact: drafts ahead of a row act as if they had been committed.
TEST_F(CpuSamplerTest, DraftsAheadActLikeHistoryBitForBit) {
  Random random(5);
  for (int i = 0; i < 1000; ++i) {
    OwnedRow ahead = RandomRow(random, kVocabs[random() % std::size(kVocabs)]);
    for (const Option& option : kOptions) {
      if (random() % 3 == 0) option.set(random, ahead);
    }
    OwnedRow committed = ahead;
    committed.output.insert(committed.output.end(), ahead.ahead.begin(), ahead.ahead.end());
    committed.ahead.clear();
    std::vector<float> probs_ahead;
    std::vector<float> probs_committed;
    ASSERT_EQ(Draw(ahead, &probs_ahead).token, Draw(committed, &probs_committed).token) << i;
    ASSERT_EQ(probs_ahead, probs_committed) << i;
  }
}

TEST_F(CpuSamplerTest, LeavesLogitsAndCountsUntouched) {
  Random random(6);
  OwnedRow row = RandomRow(random, 500);
  for (const Option& option : kOptions) option.set(random, row);
  row.params.temperature = 1.0f;
  const std::vector<float> logits = row.logits;
  SampleRow view = row.View();
  const std::vector<int32_t> counts(view.history.counts, view.history.counts + 500);
  SampledToken out;
  sampler_.Sample({&view, 1}, 500, {&out, 1});
  EXPECT_EQ(row.logits, logits);
  EXPECT_EQ(counts, std::vector<int32_t>(view.history.counts, view.history.counts + 500));
}

TEST_F(CpuSamplerTest, LogprobsAreOfTheRawLogits) {
  Random random(7);
  for (int i = 0; i < 300; ++i) {
    OwnedRow row = RandomRow(random, kVocabs[random() % std::size(kVocabs)]);
    for (const Option& option : kOptions) {
      if (random() % 3 == 0) option.set(random, row);
    }
    row.params.num_top_logprobs = Below(random, kMaxTopLogprobs + 1);
    const std::vector<double> expected = ReferenceLogprobs(row.logits);
    const SampledToken got = Draw(row);
    ASSERT_NEAR(got.logprob, expected[static_cast<size_t>(got.token)], 2e-5);
    ASSERT_EQ(got.num_top, std::min<int64_t>(row.params.num_top_logprobs, row.vocab()));
    std::vector<int32_t> order(expected.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return row.logits[static_cast<size_t>(a)] > row.logits[static_cast<size_t>(b)];
    });
    for (int32_t j = 0; j < got.num_top; ++j) {
      const int32_t token = order[static_cast<size_t>(j)];
      ASSERT_EQ(got.top_ids[j], token) << i;
      ASSERT_NEAR(got.top_logprobs[j], expected[static_cast<size_t>(token)], 2e-5);
    }
  }
}

TEST_F(CpuSamplerTest, WithoutLogprobsNoneAreSet) {
  Random random(8);
  OwnedRow row = RandomRow(random, 100);
  const SampledToken got = Draw(row);
  EXPECT_TRUE(std::isnan(got.logprob));
  EXPECT_EQ(got.num_top, 0);
}

TEST_F(CpuSamplerTest, AGivenTokenIsKeptAndGetsItsLogprob) {
  Random random(9);
  OwnedRow row = RandomRow(random, 100);
  row.params.num_top_logprobs = 2;
  SampleRow view = row.View();
  view.given = 37;
  SampledToken out;
  sampler_.Sample({&view, 1}, 100, {&out, 1});
  EXPECT_EQ(out.token, 37);
  EXPECT_NEAR(out.logprob, ReferenceLogprobs(row.logits)[37], 2e-5);
  EXPECT_EQ(out.num_top, 2);
}

TEST_F(CpuSamplerTest, WhenAllIsBannedTheMaskHoldsThenTheEndIdIsDrawn) {
  OwnedRow row;
  row.logits = {3.0f, 2.0f, 1.0f, 0.0f};
  row.bans = {{0}, {1}, {2}, {3}};
  std::vector<float> probs;
  EXPECT_EQ(Draw(row, &probs).token, 0);
  EXPECT_EQ(probs, (std::vector<float>{1, 0, 0, 0}));
  row.end_ids = {2};
  EXPECT_EQ(Draw(row, &probs).token, 2);
  EXPECT_EQ(probs, (std::vector<float>{0, 0, 1, 0}));
  row.allowed = {0b1010};  // bans yield to the mask
  EXPECT_EQ(Draw(row).token, 1);
  row.allowed = {0};
  EXPECT_EQ(Draw(row).token, 2);
  row.end_ids = {99};  // outside the vocabulary
  EXPECT_EQ(Draw(row).token, 0);
}

TEST_F(CpuSamplerTest, NaNIsNeverDrawnAndInfinityIsCertain) {
  for (const float temperature : {0.0f, 1.0f}) {
    OwnedRow row;
    row.logits.assign(300, kNaN);
    row.params.temperature = temperature;
    row.params.num_top_logprobs = 3;
    SampledToken got = Draw(row);
    EXPECT_EQ(got.token, 0);
    EXPECT_EQ(got.logprob, kMinLogprob);
    row.logits[211] = -4.0f;
    got = Draw(row);
    EXPECT_EQ(got.token, 211);
    EXPECT_NEAR(got.logprob, 0.0f, 1e-6f);
    EXPECT_EQ(got.num_top, 1);
    row.logits[200] = row.logits[250] = kInf;
    got = Draw(row);
    EXPECT_EQ(got.token, 200);
    EXPECT_EQ(got.logprob, 0.0f);
    row.logits.assign(300, -kInf);
    got = Draw(row);
    EXPECT_EQ(got.token, 0);
    EXPECT_EQ(got.logprob, kMinLogprob);
  }
}

TEST_F(CpuSamplerTest, AnyFloatAnywhereStaysInsideTheVocabulary) {
  const float odd[] = {kNaN,    -kNaN,    kInf,   -kInf,   0.0f, -0.0f, 1e38f, -1e38f,
                       3.4e38f, -3.4e38f, 1e-45f, -1e-45f, 1.0f, -1.0f, 100.0f};
  Random random(10);
  const auto pick = [&] { return odd[random() % std::size(odd)]; };
  for (int i = 0; i < 20'000; ++i) {
    OwnedRow row = RandomRow(random, kVocabs[random() % (std::size(kVocabs) - 2)]);
    for (float& logit : row.logits) {
      if (random() % 4 == 0) logit = pick();
    }
    for (const Option& option : kOptions) {
      if (random() % 4 == 0) option.set(random, row);
    }
    SamplingParams& params = row.params;
    float* const fields[] = {&params.temperature,
                             &params.top_p,
                             &params.top_p_min,
                             &params.top_p_decay,
                             &params.min_p,
                             &params.repetition_penalty,
                             &params.presence_penalty,
                             &params.frequency_penalty};
    if (random() % 2 == 0) *fields[random() % std::size(fields)] = pick();
    if (random() % 8 == 0) params.top_k = static_cast<int32_t>(random());
    if (random() % 8 == 0) params.no_repeat_ngram_size = static_cast<int32_t>(random());
    if (random() % 8 == 0) params.min_tokens = static_cast<int32_t>(random());
    if (random() % 8 == 0) row.ahead.push_back(static_cast<int32_t>(random()));
    if (random() % 8 == 0) row.output.push_back(static_cast<int32_t>(random()));
    if (random() % 8 == 0) row.end_ids.push_back(static_cast<int32_t>(random()));
    if (random() % 8 == 0) row.bans.push_back({static_cast<int32_t>(random())});
    if (random() % 8 == 0) {
      row.bias_ids.push_back(static_cast<int32_t>(random()));
      row.bias_values.push_back(pick());
    }
    params.num_top_logprobs = Below(random, 30) - 2;
    std::vector<float> probs;
    const SampledToken got = Draw(row, &probs);
    ASSERT_GE(got.token, 0) << i;
    ASSERT_LT(got.token, row.vocab()) << i;
    if (params.num_top_logprobs >= 0) {
      ASSERT_TRUE(std::isfinite(got.logprob)) << i;
      ASSERT_LE(got.num_top, kMaxTopLogprobs);
    }
    for (int32_t j = 0; j < got.num_top; ++j) ASSERT_TRUE(std::isfinite(got.top_logprobs[j])) << i;
    for (const float p : probs) ASSERT_TRUE(p >= 0.0f && p <= 1.0001f) << i << ' ' << p;

    int32_t next = -1;
    std::vector<float> target = row.logits;
    target.insert(target.end(), probs.begin(), probs.end());
    const auto draft = static_cast<int32_t>(random() % 2 == 0 ? random() : 0);
    SampleRow view = row.View();
    int32_t held = -1;
    const VerifyRow verify = {view.slot,     5,     &draft, 1, row.logits.data(),
                              target.data(), &held, &next};
    sampler_.VerifyAndAccept({&verify, 1}, row.vocab());
    ASSERT_TRUE(held == 0 || held == 1);
    ASSERT_TRUE(next >= 0 && next < row.vocab()) << i;
  }
}

TEST(SampleKernels, GiveTheSameBitsOnEveryInstructionSet) {
  if (&KernelsForThisCpu() == &kSampleKernelsBaseline) GTEST_SKIP() << "this CPU has no AVX2";
  const SampleKernels& slow = kSampleKernelsBaseline;
  const SampleKernels& fast = kSampleKernelsAvx2;
  Random random(11);
  for (int i = 0; i < 200; ++i) {
    const int64_t vocab = 1 + Below(random, 3000);
    OwnedRow row = RandomRow(random, vocab);
    const float* logits = row.logits.data();
    const MaxLogit max = slow.arg_max(logits, vocab);
    ASSERT_EQ(max.token, fast.arg_max(logits, vocab).token);
    ScoreMap map{max.value, Uniform(random, 0.1f, 3.0f), Uniform(random, -20.0f, 0.0f)};
    ASSERT_EQ(slow.sum_exp(logits, vocab, map), fast.sum_exp(logits, vocab, map));
    std::vector<float> a(row.logits.size());
    std::vector<float> b(row.logits.size());
    slow.exp_scores(logits, vocab, map, 0.3f, a.data());
    fast.exp_scores(logits, vocab, map, 0.3f, b.data());
    ASSERT_EQ(a, b);
    const NoiseKey key = MakeNoiseKey(NoiseStream::kToken, random(), 0, i);
    ASSERT_EQ(slow.gumbel_arg_max(logits, vocab, map, key, max.token),
              fast.gumbel_arg_max(logits, vocab, map, key, max.token));
    std::vector<Candidate> c(row.logits.size());
    std::vector<Candidate> d(row.logits.size());
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
