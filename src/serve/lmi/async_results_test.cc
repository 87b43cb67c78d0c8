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

// Begins, and breaks off.
class Broken final : public Reply {
 public:
  Progress Poll(HttpHead&, std::string& out) override {
    out = "the beg";
    return Progress::kBroken;
  }
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

AsyncResults::Begin Saying(std::vector<std::string> parts) {
  return [parts = std::move(parts)](const auto&) { return std::make_unique<Parts>(parts); };
}

// The whole answer, once it is complete.
AsyncPart FetchWhole(AsyncResults& results, const std::string& token) {
  AsyncPart part;
  EXPECT_TRUE(Eventually([&] {
    const Result<AsyncPart> fetched = results.Fetch(token, "", kAll);
    EXPECT_TRUE(fetched.ok()) << fetched.status().message();
    if (fetched.ok()) part = *fetched;
    return !fetched.ok() || part.next_token.empty();
  }));
  return part;
}

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

TEST(LmiAsyncResultsTest, FetchedAnswersMakeRoomForNewOnes) {
  const FakeClock clock;
  AsyncResults results({}, clock);
  std::vector<std::string> tokens;
  for (int i = 0; i < 300; ++i) {
    const Result<std::string> token = results.Start("", Saying({"a\n", "b\n"}));
    ASSERT_TRUE(token.ok()) << i << ": " << token.status().message();
    EXPECT_EQ(FetchWhole(results, *token).body, "a\nb\n");
    tokens.push_back(*token);
  }
  // The oldest went first; the others can be fetched again.
  EXPECT_FALSE(results.Fetch(tokens.front(), "", kAll).ok());
  EXPECT_EQ(results.Fetch(tokens[300 - AsyncLimits().results], "", kAll)->body, "a\nb\n");
}

TEST(LmiAsyncResultsTest, AnswersThatWereNotFetchedKeepTheirPlaces) {
  const FakeClock clock;
  AsyncResults results({.results = 2}, clock);
  const Result<std::string> first = results.Start("", Saying({"a\n", "b\n"}));
  const Result<std::string> second = results.Start("", Saying({"c\n"}));
  ASSERT_TRUE(Eventually([&] { return results.num_running() == 0; }));
  EXPECT_EQ(results.Fetch(*first, "", 1)->body, "a\n");
  EXPECT_EQ(results.Start("", Saying({"d\n"})).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(results.Fetch(*first + ".1", "", 1)->body, "b\n");
  EXPECT_TRUE(results.Start("", Saying({"d\n"})).ok());
  EXPECT_FALSE(results.Fetch(*first, "", 1).ok());
  EXPECT_EQ(FetchWhole(results, *second).body, "c\n");
}

TEST(LmiAsyncResultsTest, FetchingAgainDoesNotRenewAnAnswersTime) {
  FakeClock clock;
  AsyncResults results({.expiry = std::chrono::seconds(10)}, clock);
  const Result<std::string> token = results.Start("", Saying({"a\n", "b\n"}));
  ASSERT_TRUE(Eventually([&] { return results.num_running() == 0; }));
  clock.Advance(std::chrono::seconds(6));
  EXPECT_EQ(results.Fetch(*token, "", 1)->body, "a\n");
  clock.Advance(std::chrono::seconds(6));
  EXPECT_EQ(results.Fetch(*token, "", kAll)->body, "a\nb\n");
  clock.Advance(std::chrono::seconds(6));
  EXPECT_EQ(results.Fetch(*token, "", kAll)->body, "a\nb\n");
  clock.Advance(std::chrono::seconds(6));
  EXPECT_FALSE(results.Fetch(*token, "", kAll).ok());
}

TEST(LmiAsyncResultsTest, AWholeAnswerCountsToo) {
  const FakeClock clock;
  AsyncResults results({.bytes = 1000}, clock);
  const std::string most(900, 'a');
  const Result<std::string> first = results.Start("", Saying({most}));
  ASSERT_TRUE(Eventually([&] { return results.num_running() == 0; }));
  const Result<std::string> second = results.Start("", Saying({most}));
  const AsyncPart refused = FetchWhole(results, *second);
  EXPECT_EQ(refused.head.status, 503);
  EXPECT_NE(refused.body.find("too much memory"), std::string::npos) << refused.body;
  // What it had is free again, and so is the place of one that was fetched.
  const Result<std::string> small = results.Start("", Saying({"b"}));
  EXPECT_EQ(FetchWhole(results, *small).body, "b");
  EXPECT_EQ(FetchWhole(results, *first).body, most);
  const Result<std::string> third = results.Start("", Saying({most}));
  EXPECT_EQ(FetchWhole(results, *third).body, most);
  EXPECT_FALSE(results.Fetch(*first, "", kAll).ok());
}

TEST(LmiAsyncResultsTest, AnAnswerThatIsDroppedIsAnErrorFromAnyTokenOn) {
  const FakeClock clock;
  AsyncResults results({.bytes = 1000}, clock);
  const Result<std::string> token = results.Start("", Saying({"a", "b", std::string(1000, 'c')}));
  ASSERT_TRUE(Eventually([&] { return results.num_running() == 0; }));
  for (const char* from : {"", ".2", ".1"}) {
    const Result<AsyncPart> part = results.Fetch(*token + from, "", 1);
    ASSERT_TRUE(part.ok()) << from;
    EXPECT_EQ(part->head.status, 503);
    EXPECT_EQ(part->next_token, "");
  }
}

TEST(LmiAsyncResultsTest, AnAnswerThatBreaksOffIsAnError) {
  const FakeClock clock;
  AsyncResults results({}, clock);
  const Result<std::string> token =
      results.Start("", [](const auto&) { return std::make_unique<Broken>(); });
  EXPECT_EQ(FetchWhole(results, *token).head.status, 500);
}

}  // namespace
}  // namespace tandem::serve::lmi
