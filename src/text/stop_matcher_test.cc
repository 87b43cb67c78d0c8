#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem {
namespace {

struct Ending {
  std::string text;
  int stop_index;
  bool operator==(const Ending&) const = default;
};

// The rule in its slowest form: the shortest prefix of `text` that ends in a stop string, without
// the longest such string.
Ending SlowReference(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t s = 0; s < stops.size(); ++s) {
      const bool ends = !stops[s].empty() && text.substr(0, end).ends_with(stops[s]);
      if (ends && (best < 0 || stops[s].size() > stops[best].size())) best = static_cast<int>(s);
    }
    if (best >= 0) return {text.substr(0, end - stops[best].size()), best};
  }
  return {text, -1};
}

Ending Stream(const std::string& text, const std::vector<std::string>& stops,
              std::mt19937& random) {
  StopMatcher matcher(StopStrings::Compile(stops).value());
  Ending result{"", -1};
  for (size_t at = 0; at < text.size() && result.stop_index < 0;) {
    const size_t length = 1 + random() % 4;
    const StopMatcher::Output output = matcher.Push(std::string_view(text).substr(at, length));
    result.text += output.emit;
    result.stop_index = output.stop_index;
    EXPECT_EQ(output.matched, output.stop_index >= 0);
    at += length;
  }
  if (result.stop_index < 0) result.text += matcher.Flush();
  return result;
}

TEST(StopMatcher, EqualsTheSlowReferenceOnRandomStrings) {
  std::mt19937 random(11);
  const auto word = [&](size_t longest) {
    std::string text(random() % (longest + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = word(5);
    const std::string text = word(30);
    ASSERT_EQ(Stream(text, stops, random), SlowReference(text, stops)) << text;
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStop) {
  StopMatcher matcher(StopStrings::Compile({"\n\nQ:"}).value());
  EXPECT_EQ(matcher.Push("answer").emit, "answer");
  EXPECT_EQ(matcher.Push("\n").emit, "");
  EXPECT_EQ(matcher.Push("\n").emit, "");
  EXPECT_EQ(matcher.Push("\n").emit, "\n");  // the last two may still begin the stop
  EXPECT_EQ(matcher.Push("A").emit, "\n\nA");
  EXPECT_EQ(matcher.Push("\n\nQ").emit, "");
  EXPECT_EQ(matcher.Flush(), "\n\nQ");
}

TEST(StopMatcher, IncludesTheStopStringWhenAsked) {
  StopMatcher matcher(StopStrings::Compile({"END"}).value(), /*include_stop=*/true);
  EXPECT_EQ(matcher.Push("the E").emit, "the ");
  const StopMatcher::Output output = matcher.Push("NDless");
  EXPECT_EQ(output.emit, "END");
  EXPECT_TRUE(output.matched);
  EXPECT_EQ(matcher.Push("more").emit, "");
}

TEST(StopMatcher, NeverCutsACharacter) {
  // The stop shares its first byte with what comes before it.
  StopMatcher matcher(StopStrings::Compile({"é!"}).value());
  EXPECT_EQ(matcher.Push("è").emit, "è");
  EXPECT_EQ(matcher.Push("é").emit, "");
  EXPECT_EQ(matcher.Push("è").emit, "éè");
}

TEST(StopMatcher, WithoutStringsPassesEverything) {
  StopMatcher matcher(StopStrings::Compile({"", ""}).value());
  EXPECT_EQ(matcher.Push("abc").emit, "abc");
  EXPECT_EQ(matcher.Flush(), "");
}

// Comparing again at every byte would take 2e12 steps, far beyond a test's time limit.
TEST(StopMatcher, IsLinearOnPeriodicText) {
  const std::string almost(60000, 'a');
  StopMatcher matcher(StopStrings::Compile({almost + "b"}).value());
  const std::string text(1 << 25, 'a');
  size_t emitted = 0;
  for (size_t at = 0; at < text.size(); at += 4096) {
    emitted += matcher.Push(std::string_view(text).substr(at, 4096)).emit.size();
  }
  EXPECT_EQ(emitted + matcher.Flush().size(), text.size());
}

TEST(StopMatcher, RefusesTooManyBytes) {
  const Status status = StopStrings::Compile({std::string(70000, 'x')}).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
