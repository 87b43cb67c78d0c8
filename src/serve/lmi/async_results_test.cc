#include "serve/lmi/async_results.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "serve/testing/test_server.h"

namespace tandem::serve::lmi {
namespace {

// Writes its parts one by one.
class Parts final : public Reply {
 public:
  explicit Parts(std::vector<std::string> parts) : parts_(std::move(parts)) {}
  Progress Poll(HttpHead& head, std::string& out) override {
    head.content_type = "application/jsonlines";
    out = parts_.at(next_++);
    return next_ == parts_.size() ? Progress::kLast : Progress::kMore;
  }

 private:
  const std::vector<std::string> parts_;
  size_t next_ = 0;
};

// Never says anything.
class Silent final : public Reply {
 public:
  explicit Silent(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~Silent() override { --alive_; }
  Progress Poll(HttpHead&, std::string&) override { return Progress::kPending; }

 private:
  std::atomic<int>& alive_;
};

constexpr size_t kAll = static_cast<size_t>(-1);

TEST(LmiAsyncResultsTest, ItemsAreFetchedFromATokenOn) {
  const FakeClock clock;
  AsyncResults results({}, clock);
  const Result<std::string> token = results.Start("", [](const auto&) {
    return std::make_unique<Parts>(std::vector<std::string>{"a\n", "b\n", "c\n"});
  });
  ASSERT_TRUE(token.ok());
  ASSERT_TRUE(Eventually([&] { return results.Fetch(*token, "", kAll)->body == "a\nb\nc\n"; }));
  const Result<AsyncPart> first = results.Fetch(*token, "", 2);
  EXPECT_EQ(first->body, "a\nb\n");
  EXPECT_EQ(first->head.content_type, "application/jsonlines");
  const Result<AsyncPart> rest = results.Fetch(first->next_token, "", 2);
  EXPECT_EQ(rest->body, "c\n");
  EXPECT_EQ(rest->next_token, "");
  EXPECT_FALSE(results.Fetch(*token + ".9", "", 1).ok());
  EXPECT_FALSE(results.Fetch(*token, "another", 1).ok());
}

TEST(LmiAsyncResultsTest, WhatNobodyFetchesExpires) {
  FakeClock clock;
  std::atomic<int> alive{0};
  AsyncResults results({.expiry = std::chrono::seconds(10)}, clock);
  const Result<std::string> token =
      results.Start("", [&](const auto&) { return std::make_unique<Silent>(alive); });
  EXPECT_TRUE(results.Fetch(*token, "", kAll)->is_pending);
  clock.Advance(std::chrono::seconds(11));
  EXPECT_FALSE(results.Fetch(*token, "", kAll).ok());
  EXPECT_TRUE(Eventually([&] { return alive == 0; }));
}

TEST(LmiAsyncResultsTest, TheirNumberAndMemoryAreBounded) {
  const FakeClock clock;
  std::atomic<int> alive{0};
  AsyncResults results({.results = 2, .bytes = 4}, clock);
  const auto silent = [&](const auto&) { return std::make_unique<Silent>(alive); };
  ASSERT_TRUE(results.Start("", silent).ok());
  const Result<std::string> large = results.Start("", [](const auto&) {
    return std::make_unique<Parts>(std::vector<std::string>{"abcdef", "ghijkl"});
  });
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(results.Start("", silent).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(Eventually([&] { return results.Fetch(*large, "", kAll)->head.status == 503; }));
}

}  // namespace
}  // namespace tandem::serve::lmi
