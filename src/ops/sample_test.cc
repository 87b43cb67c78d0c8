// Sample and VerifyAndAccept on every backend, against a sampler written from the definition.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/noise.h"
#include "ops/testing/reference_sampler.h"
#include "ops/testing/sampling_memory.h"

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

// A row over `vocab` tokens with a history of few distinct tokens, so that n-grams and bans occur.
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

class SampleTest : public ::testing::TestWithParam<SamplingBackend> {
 protected:
  // The row alone; the distribution it was drawn from is returned in `probs`.
  SampledToken Draw(const OwnedRow& row, std::vector<float>* probs = nullptr) {
    memory_.Rewind(0);
    SampleRow placed = row.Place(memory_);
    if (probs != nullptr) placed.probs = memory_.Room<float>(row.logits.size());
    const SampledToken out = memory_.Draw({placed}, row.vocab())[0];
    if (probs != nullptr) *probs = memory_.Get(placed.probs, row.logits.size());
    return out;
  }

  // `border`: how many tokens at the border of a nucleus may differ: thousands of light tokens can
  // lie closer together than sums in float can distinguish.
  void ExpectLikeReference(const OwnedRow& row, const std::string& what, double border = 0.0) {
    const ReferenceDraw expected = ReferenceSample(row);
    double lightest = 1.0;
    for (const double p : expected.probs) {
      if (p > 0.0) lightest = std::min(lightest, p);
    }
    std::vector<float> probs;
    const SampledToken with_probs = Draw(row, &probs);
    const SampledToken alone = Draw(row);
    ASSERT_EQ(with_probs.token, alone.token) << what;
    if (expected.token < 0) return;  // nothing may be drawn: tested separately
    ASSERT_EQ(alone.token, expected.token) << what;
    for (size_t i = 0; i < probs.size(); ++i) {
      const double moved = border * lightest;
      ASSERT_NEAR(probs[i], expected.probs[i], (1e-5 + moved) * expected.probs[i] + 1e-12 + moved)
          << what << ' ' << i;
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().make();
  SamplingMemory memory_{*backend_};
};

INSTANTIATE_TEST_SUITE_P(Backends, SampleTest, ::testing::ValuesIn(SamplingBackends()),
                         [](const auto& info) { return info.param.name; });

constexpr int64_t kVocabs[] = {1, 2, 7, 31, 32, 33, 64, 257, 1000, 4099};

TEST_P(SampleTest, AgreesWithTheReferenceForEachOption) {
  Random random(1);
  for (const Option& option : kOptions) {
    for (int i = 0; i < 120; ++i) {
      OwnedRow row = RandomRow(random, kVocabs[static_cast<size_t>(i) % std::size(kVocabs)]);
      option.set(random, row);
      ASSERT_NO_FATAL_FAILURE(ExpectLikeReference(row, fmt::format("{} {}", option.name, i)));
    }
  }
}

TEST_P(SampleTest, AgreesWithTheReferenceForAnyMixOfOptions) {
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

TEST_P(SampleTest, AgreesWithTheReferenceOnLargeVocabularies) {
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

TEST_P(SampleTest, AgreesWithTheReferenceForAnyMixOfOptionsOnLargeVocabularies) {
  Random random(12);
  for (int i = 0; i < 60; ++i) {
    OwnedRow row = RandomRow(random, i % 2 == 0 ? 20'001 : 70'000);
    for (const Option& option : kOptions) {
      if (option.name != std::string("greedy") && random() % 3 == 0) option.set(random, row);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectLikeReference(row, std::to_string(i), 1.5));
  }
}

TEST_P(SampleTest, EqualLogitsGiveTheLowestTokenWhenGreedy) {
  OwnedRow row;
  row.logits.assign(1000, 1.0f);
  row.params.temperature = 0.0f;
  EXPECT_EQ(Draw(row).token, 0);
  row.logits[777] = row.logits[778] = 2.0f;
  EXPECT_EQ(Draw(row).token, 777);
}

TEST_P(SampleTest, ARowGivesTheSameResultAloneAndInABatch) {
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
  std::vector<SampleRow> placed;
  for (const OwnedRow& row : rows) placed.push_back(row.Place(memory_));
  const std::vector<SampledToken> together = memory_.Draw(placed, kVocab);
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

// A backend may have room for only some of them at a time.
TEST_P(SampleTest, ManyRowsOfALargeVocabulary) {
  Random random(15);
  OwnedRow row = RandomRow(random, 262'144);
  row.params.top_p = 0.9f;
  row.params.repetition_penalty = 1.3f;
  const SampleRow placed = row.Place(memory_);
  std::vector<SampleRow> rows;
  SlotSampling slot;
  slot.params = row.params;
  for (int i = 0; i < 150; ++i) {
    slot.params.seed = random();
    rows.push_back(placed);
    rows.back().slot = memory_.Put(std::vector<SlotSampling>{slot});
  }
  const std::vector<SampledToken> together = memory_.Draw(rows, row.vocab());
  for (const size_t i : {0, 1, 62, 63, 64, 65, 127, 128, 149}) {
    EXPECT_EQ(together[i].token, memory_.Draw({rows[i]}, row.vocab())[0].token) << i;
  }
}

// The host knows only an upper bound of the rows.
TEST_P(SampleTest, InertRowsGetNoToken) {
  Random random(13);
  std::vector<SampleRow> placed(5);
  OwnedRow row = RandomRow(random, 1000);
  placed[2] = row.Place(memory_);
  const std::vector<SampledToken> drawn = memory_.Draw(placed, 1000);
  EXPECT_EQ(drawn[2].token, ReferenceSample(row).token);
  for (const size_t inert : {0, 1, 3, 4}) EXPECT_EQ(drawn[inert].token, -1);
}

// The basis of exact verification: drafts ahead of a row act as if they had been committed.
TEST_P(SampleTest, DraftsAheadActLikeHistoryBitForBit) {
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

TEST_P(SampleTest, LeavesLogitsAndCountsUntouched) {
  Random random(6);
  OwnedRow row = RandomRow(random, 500);
  for (const Option& option : kOptions) option.set(random, row);
  row.params.temperature = 1.0f;
  const SampleRow placed = row.Place(memory_);
  memory_.Upload();
  const std::vector<int32_t> counts = memory_.Get(placed.history.counts, 500);
  memory_.Draw({placed}, 500);
  EXPECT_EQ(memory_.Get(placed.logits, 500), row.logits);
  EXPECT_EQ(memory_.Get(placed.history.counts, 500), counts);
}

TEST_P(SampleTest, LogprobsAreOfTheRawLogits) {
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

TEST_P(SampleTest, WithoutLogprobsNoneAreSet) {
  Random random(8);
  OwnedRow row = RandomRow(random, 100);
  const SampledToken got = Draw(row);
  EXPECT_TRUE(std::isnan(got.logprob));
  EXPECT_EQ(got.num_top, 0);
}

TEST_P(SampleTest, AGivenTokenIsKeptAndGetsItsLogprob) {
  Random random(9);
  OwnedRow row = RandomRow(random, 100);
  row.params.num_top_logprobs = 2;
  SampleRow placed = row.Place(memory_);
  placed.given = 37;
  const SampledToken out = memory_.Draw({placed}, 100)[0];
  EXPECT_EQ(out.token, 37);
  EXPECT_NEAR(out.logprob, ReferenceLogprobs(row.logits)[37], 2e-5);
  EXPECT_EQ(out.num_top, 2);
}

TEST_P(SampleTest, WhenAllIsBannedTheMaskHoldsThenTheEndIdIsDrawn) {
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

TEST_P(SampleTest, NaNIsNeverDrawnAndInfinityIsCertain) {
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

TEST_P(SampleTest, AnyFloatAnywhereStaysInsideTheVocabulary) {
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

    std::vector<float> target = row.logits;
    target.insert(target.end(), probs.begin(), probs.end());
    const auto draft = static_cast<int32_t>(random() % 2 == 0 ? random() : 0);
    memory_.Rewind(0);
    VerifyRow verify;
    verify.slot = memory_.Put(std::vector<SlotSampling>(1));
    verify.position = 5;
    verify.draft = memory_.Put(std::vector<int32_t>{draft});
    verify.num_draft = 1;
    verify.draft_probs = memory_.Put(row.logits);
    verify.target_probs = memory_.Put(target);
    const SamplingMemory::Verified verified = memory_.Verify({verify}, row.vocab())[0];
    ASSERT_TRUE(verified.accepted == 0 || verified.accepted == 1);
    ASSERT_TRUE(verified.next >= 0 && verified.next < row.vocab()) << i;
  }
}

// Random distributions: p of `rows` tokens rows, with some tokens impossible.
std::vector<float> RandomProbs(Random& random, int64_t rows, int64_t vocab) {
  std::vector<float> probs;
  for (int64_t row = 0; row < rows; ++row) {
    double total = 0.0;
    for (int64_t i = 0; i < vocab; ++i) {
      probs.push_back(random() % 3 == 0 ? 0.0f : Uniform(random, 0.0f, 1.0f));
      total += double{probs.back()};
    }
    if (total == 0.0) probs.back() = static_cast<float>(total = 1.0);
    for (auto p = probs.end() - vocab; p != probs.end(); ++p) *p /= static_cast<float>(total);
  }
  return probs;
}

// The rules from their definition: the ratio rule if the threshold is negative.
SamplingMemory::Verified ReferenceVerify(uint64_t seed, int32_t position, int64_t vocab,
                                         const std::vector<int32_t>& draft,
                                         const std::vector<float>& q, const std::vector<float>& p,
                                         bool sent, float threshold) {
  const auto at = [&](const std::vector<float>& probs, size_t row, int64_t token) {
    return probs[row * static_cast<size_t>(vocab) + static_cast<size_t>(token)];
  };
  const auto holds = [&](size_t i) {
    if (threshold >= 0.0f) return at(p, i, draft[i]) >= threshold;
    const float u = UniformNoise(seed, 0, position + static_cast<int32_t>(i),
                                 sent ? NoiseStream::kSentAccept : NoiseStream::kAccept);
    return u * at(q, i, draft[i]) < at(p, i, draft[i]);
  };
  size_t held = 0;
  while (held < draft.size() && holds(held)) ++held;
  std::vector<double> target;
  std::vector<double> residual;
  for (int64_t i = 0; i < vocab; ++i) {
    target.push_back(double{at(p, held, i)});
    if (held < draft.size() && threshold < 0.0f) {
      residual.push_back(std::max(double{at(p, held, i) - at(q, held, i)}, 0.0));
    }
  }
  const auto sum = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  // No residual when p and q agree.
  const std::vector<double>& weights = sum(residual) > 0.0 ? residual : target;
  double rest = UniformDouble(sent ? NoiseStream::kSentResidual : NoiseStream::kResidual, seed, 0,
                              position + static_cast<int32_t>(held)) *
                sum(weights);
  int32_t next = 0;
  while ((rest -= weights[static_cast<size_t>(next)]) >= 0.0) ++next;
  return {static_cast<int32_t>(held), next};
}

TEST_P(SampleTest, VerificationFollowsItsRules) {
  Random random(14);
  for (const int64_t vocab : {2, 3, 33, 1000, 9001, 40'000, 128'256}) {
    memory_.Rewind(0);
    std::vector<VerifyRow> rows;
    std::vector<SamplingMemory::Verified> expected;
    for (int i = 0; i < (vocab < 9000 ? 50 : 6); ++i) {
      const int32_t num_draft = Below(random, vocab < 9000 ? 40 : 4);
      const std::vector<int32_t> draft = RandomTokens(random, num_draft, vocab);
      const std::vector<float> q = RandomProbs(random, num_draft, vocab);
      std::vector<float> p = RandomProbs(random, num_draft + 1, vocab);
      for (size_t j = 0; j < q.size(); ++j) p[j] = 0.9f * q[j] + 0.1f * p[j];  // drafts often hold
      SlotSampling slot;
      slot.params.seed = random();
      VerifyRow row;
      row.slot = memory_.Put(std::vector<SlotSampling>{slot});
      row.position = i;
      row.draft = memory_.Put(draft);
      row.num_draft = num_draft;
      row.sent = i % 3 == 1 ? 1 : 0;
      if (i % 5 == 4) row.threshold = 0.5f / static_cast<float>(vocab);
      row.draft_probs = row.threshold < 0.0f ? memory_.Put(q) : nullptr;
      row.target_probs = memory_.Put(p);
      rows.push_back(row);
      expected.push_back(
          ReferenceVerify(slot.params.seed, i, vocab, draft, q, p, row.sent != 0, row.threshold));
      rows.emplace_back();  // an inert row
      expected.emplace_back();
    }
    const std::vector<SamplingMemory::Verified> verified = memory_.Verify(rows, vocab);
    for (size_t i = 0; i < rows.size(); i += 2) {
      ASSERT_EQ(verified[i].accepted, expected[i].accepted) << vocab << ' ' << i;
      ASSERT_EQ(verified[i].next, expected[i].next) << vocab << ' ' << i;
      ASSERT_EQ(verified[i + 1].next, -1);  // unchanged
    }
  }
}

}  // namespace
}  // namespace tandem::ops
