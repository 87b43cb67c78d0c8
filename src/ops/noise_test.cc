#include "ops/noise.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "ops/sampling.h"
#include "ops/testing/chi_square.h"

namespace tandem::ops {
namespace {

uint32_t Bits(uint64_t seed, uint32_t choice, int32_t position, int32_t token) {
  return NoiseBits(MakeNoiseKey(NoiseStream::kToken, seed, choice, position),
                   static_cast<uint32_t>(token));
}

TEST(PortableMath, LogIsWithinTwoUlpOfTheExactOne) {
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::ldexp(1.0f + static_cast<float>(random() >> 9) * 0x1p-23f,
                               static_cast<int>(random() % 200) - 120);
    const double exact = std::log(double{x});
    ASSERT_NEAR(PortableLog(x), exact, 2.0 * 0x1p-24 * std::max(std::abs(exact), 1e-2)) << x;
  }
}

TEST(PortableMath, ExpIsWithinTwoUlpOfTheExactOne) {
  for (float x = -87.0f; x < 88.0f; x += 0.000731f) {
    const double exact = std::exp(double{x});
    ASSERT_NEAR(PortableExp(x), exact, 2.0 * 0x1p-24 * exact) << x;
  }
}

TEST(GumbelNoise, HasKnownValues) {
  // Any device and any later version must reproduce these bits.
  EXPECT_EQ(GumbelNoise(0, 0, 0, 0), 0x1.240ea2p+0f);
  EXPECT_EQ(GumbelNoise(42, 1, 17, 128'255), 0x1.c62bfcp+1f);
  EXPECT_EQ(GumbelNoise(~uint64_t{0}, 127, 1'048'575, 262'143), -0x1.cd7ecp-2f);
  EXPECT_EQ(UniformNoise(0, 0, 0), 0x1.925a82p-1f);
  EXPECT_EQ(UniformNoise(42, 1, 17), 0x1.e022b2p-1f);
  EXPECT_EQ(GumbelFromBits(0), 0x1.6dfb52p+4f);
  EXPECT_EQ(GumbelFromBits(~0u), -0x1.90a3aap+1f);
}

TEST(GumbelNoise, FollowsTheExactFormulaForAnyBits) {
  std::mt19937 random(2);
  for (int i = 0; i < 500'000; ++i) {
    uint32_t bits = static_cast<uint32_t>(random());
    if (i % 2 == 0) bits >>= random() % 32;  // small and large ones as often as others
    if (i % 3 == 0) bits = ~bits;
    const double v = (bits + 0.5) * 0x1p-32;
    ASSERT_NEAR(GumbelFromBits(bits), -std::log(-std::log1p(-v)), 2e-6) << bits;
  }
}

TEST(GumbelNoise, StaysBelowItsBounds) {
  std::mt19937 random(3);
  EXPECT_LT(GumbelFromBits(0), kMaxGumbel);
  EXPECT_GT(GumbelFromBits(~0u), -4.0f);
  for (int i = 0; i < 500'000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random()) >> (random() % 32);
    ASSERT_GE(GumbelBound<float>(bits), GumbelFromBits(bits)) << bits;
    ASSERT_LE(GumbelFromBits(bits), kMaxGumbel);
  }
}

TEST(NoiseBits, AreUniformOverTokensPositionsSeedsAndChoices) {
  constexpr int kDraws = 1 << 18;
  using Draw = uint32_t (*)(int i);
  const std::array<Draw, 4> along = {
      [](int i) { return Bits(7, 0, 5, i); },
      [](int i) { return Bits(7, 0, i, 5); },
      [](int i) { return Bits(static_cast<uint64_t>(i), 0, 5, 5); },
      [](int i) { return Bits(7, static_cast<uint32_t>(i), 5, 5); },
  };
  for (size_t axis = 0; axis < along.size(); ++axis) {
    for (const int shift : {24, 12, 0}) {  // the high, middle and low bits
      std::vector<int64_t> counts(256);
      for (int i = 0; i < kDraws; ++i) ++counts[along[axis](i) >> shift & 255u];
      EXPECT_LT(ChiSquareZ(counts, std::vector<double>(256, 1.0 / 256)), 4.0)
          << "axis " << axis << ", bits from " << shift;
    }
  }
}

// Pairs of neighbours along each axis of the key, and pairs of streams, fill a 16 x 16 grid evenly.
TEST(NoiseBits, OfNeighboursAreIndependent) {
  constexpr int kDraws = 1 << 18;
  struct Case {
    const char* name;
    uint32_t (*first)(uint32_t i);
    uint32_t (*second)(uint32_t i);
  };
  const auto base = [](uint32_t i) {
    return Bits(i * 2654435761u, 0, static_cast<int32_t>(i % 997), static_cast<int32_t>(i % 1009));
  };
  const Case cases[] = {
      {"token", base,
       [](uint32_t i) {
         return Bits(i * 2654435761u, 0, static_cast<int32_t>(i % 997),
                     static_cast<int32_t>(i % 1009 + 1));
       }},
      {"position", base,
       [](uint32_t i) {
         return Bits(i * 2654435761u, 0, static_cast<int32_t>(i % 997 + 1),
                     static_cast<int32_t>(i % 1009));
       }},
      {"choice", base,
       [](uint32_t i) {
         return Bits(i * 2654435761u, 1, static_cast<int32_t>(i % 997),
                     static_cast<int32_t>(i % 1009));
       }},
      {"seed", base,
       [](uint32_t i) {
         return Bits(i * 2654435761u + 1u, 0, static_cast<int32_t>(i % 997),
                     static_cast<int32_t>(i % 1009));
       }},
      {"stream", base,
       [](uint32_t i) {
         const NoiseKey key =
             MakeNoiseKey(NoiseStream::kAccept, i * 2654435761u, 0, static_cast<int32_t>(i % 997));
         return NoiseBits<uint32_t>(key, i % 1009);
       }},
  };
  for (const Case& pair : cases) {
    for (const int shift : {28, 0}) {
      std::vector<int64_t> counts(256);
      for (uint32_t i = 0; i < kDraws; ++i) {
        ++counts[(pair.first(i) >> shift & 15u) * 16 + (pair.second(i) >> shift & 15u)];
      }
      EXPECT_LT(ChiSquareZ(counts, std::vector<double>(256, 1.0 / 256)), 4.0)
          << pair.name << ", bits from " << shift;
    }
  }
}

TEST(UniformNoise, IsUniformAndNeverZeroOrOne) {
  constexpr int kDraws = 1 << 18;
  std::vector<int64_t> counts(256);
  for (int i = 0; i < kDraws; ++i) {
    const float u = UniformNoise(11, 2, i);
    ASSERT_GT(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++counts[static_cast<size_t>(u * 256.0f)];
  }
  EXPECT_LT(ChiSquareZ(counts, std::vector<double>(256, 1.0 / 256)), 4.0);
}

TEST(UniformDouble, IsUniform) {
  constexpr int kDraws = 1 << 18;
  std::vector<int64_t> counts(256);
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<size_t>(UniformDouble(NoiseStream::kResidual, 11, 2, i) * 256.0)];
  }
  EXPECT_LT(ChiSquareZ(counts, std::vector<double>(256, 1.0 / 256)), 4.0);
}

}  // namespace
}  // namespace tandem::ops
