// RelativeError: how far computed numbers are from the expected ones. Test code, pure functions.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <type_traits>

namespace tandem {

namespace relative_error_detail {

struct Squares {
  double difference = 0.0;
  double expected = 0.0;
};

template <typename Found, typename Expected>
void Add(const Found& found, const Expected& expected, Squares& sum) {
  if constexpr (std::is_arithmetic_v<Found>) {
    sum.difference += std::pow(double{found} - double{expected}, 2);
    sum.expected += std::pow(double{expected}, 2);
  } else {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) Add(found[i], expected[i], sum);
  }
}

}  // namespace relative_error_detail

// |found - expected| / |expected| over all numbers of two lists, or of two lists of lists.
template <typename Found, typename Expected>
double RelativeError(const Found& found, const Expected& expected) {
  relative_error_detail::Squares sum;
  relative_error_detail::Add(found, expected, sum);
  return std::sqrt(sum.difference / sum.expected);
}

}  // namespace tandem
