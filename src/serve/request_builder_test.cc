#include "serve/request_builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/reason.h"
#include "serve/testing/byte_codec.h"

namespace tandem::serve {
namespace {

constexpr EngineLimits kEngine{.max_seq_len = 100, .max_input_len = 90, .max_choices = 8};

Result<Request> Build(const std::function<void(TextRequest&)>& change,
                      GenerationDefaults defaults = {}) {
  TextRequest text;
  text.text = "hello";
  change(text);
  const ByteCodec codec;
  TANDEM_ASSIGN_OR_RETURN(BuiltRequest built,
                          BuildRequest(text, codec, defaults, kEngine, RequestLimits(), Nanos(0)));
  TANDEM_RETURN_IF_ERROR(FollowGrammar(codec, [] { return true; }, built));
  return std::move(built.request);
}

std::string FieldAtFault(const std::function<void(TextRequest&)>& change) {
  const Result<Request> built = Build(change);
  if (built.ok()) return "nothing";
  EXPECT_EQ(built.status().code(), Code::kInvalidArgument);
  return built.status().field();
}

TEST(RequestBuilderTest, TokenizesAndTakesTheRestOfTheContextByDefault) {
  const Result<Request> built = Build([](TextRequest&) {});
  ASSERT_TRUE(built.ok());
  EXPECT_EQ(built->prompt.size(), 6u);  // with the begin token
  EXPECT_EQ(built->max_tokens, 94);
  EXPECT_EQ(built->end_ids, std::vector<int32_t>{ByteCodec::kEnd});
}

TEST(RequestBuilderTest, SamplesAtTemperatureOneUnlessTheModelSaysOtherwise) {
  EXPECT_EQ(Build([](TextRequest&) {})->sampling.temperature, 1.0f);
  GenerationDefaults greedy;
  greedy.do_sample = false;
  EXPECT_TRUE(Build([](TextRequest&) {}, greedy)->sampling.greedy());
  EXPECT_EQ(
      Build([](TextRequest& t) { t.sampling.temperature = 0.5; }, greedy)->sampling.temperature,
      0.5f);
  GenerationDefaults warm;
  warm.sampling.temperature = 0.6;
  warm.sampling.top_p = 0.9;
  const Result<Request> built = Build([](TextRequest&) {}, warm);
  EXPECT_EQ(built->sampling.temperature, 0.6f);
  EXPECT_EQ(built->sampling.top_p, 0.9f);
}

TEST(RequestBuilderTest, GreedyRouteSamplesOnlyWithTopKOrTopP) {
  const auto temperature = [](std::function<void(SamplingFields&)> change) {
    return Build([&](TextRequest& t) {
             t.defaults = SamplingDefaults::kGreedy;
             change(t.sampling);
           })
        ->sampling.temperature;
  };
  EXPECT_EQ(temperature([](SamplingFields&) {}), 0.0f);
  EXPECT_EQ(temperature([](SamplingFields& s) { s.temperature = 1.0; }), 0.0f);
  EXPECT_EQ(temperature([](SamplingFields& s) { s.top_k = 0, s.top_p = 0.0; }), 0.0f);
  EXPECT_EQ(temperature([](SamplingFields& s) { s.top_p = 0.9; }), 1.0f);
  EXPECT_EQ(temperature([](SamplingFields& s) { s.top_k = 5, s.temperature = 0.7; }), 0.7f);
}

TEST(RequestBuilderTest, NamesTheFieldOfEveryBadValue) {
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.sampling.temperature = -0.1; }), "temperature");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.sampling.temperature = NAN; }), "temperature");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.sampling.top_p = 1.5; }), "top_p");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.sampling.top_k = -2; }), "top_k");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.sampling.repetition_penalty = 0; }),
            "repetition_penalty");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.max_tokens = 0; }), "max_tokens");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.max_tokens = -5; }), "max_tokens");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.num_choices = int64_t{1} << 31; }), "n");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.num_choices = 9; }), "n");  // the engine takes 8
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.num_top_logprobs = 21; }), "logprobs");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.stop.assign(17, "x"); }), "stop");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.stop = {std::string(257, 'x')}; }), "stop");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.logit_bias = {{259, 1.0}}; }), "logit_bias");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.logit_bias.assign(1025, {1, 1.0}); }),
            "logit_bias");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.text = ""; }), "prompt");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.text.reset(), t.tokens.emplace(); }), "prompt");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.text.reset(), t.tokens.emplace(1, 400); }),
            "prompt");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.sampling.min_tokens = 50, t.max_tokens = 20; }),
            "min_tokens");
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.end_id = 300; }), "end_id");
}

TEST(RequestBuilderTest, EveryRowOfTheTableIsCheckedAndReachesTheDraw) {
  ForEachSamplingParameter([](const SamplingParameter& parameter, const auto& members) {
    using Given = std::remove_cvref_t<decltype(*(SamplingFields().*members.given))>;
    const auto with = [&](double value) {
      return [&members, value](TextRequest& t) {
        t.sampling.*members.given = static_cast<Given>(value);
        t.sampling.top_k = t.sampling.top_k.value_or(1);  // no other default in between
      };
    };
    EXPECT_EQ(FieldAtFault(with(parameter.low - 1)), parameter.name);
    EXPECT_EQ(FieldAtFault(with(parameter.high + 1e9)), parameter.name);
    EXPECT_EQ(FieldAtFault(with(parameter.low)) == "nothing", !parameter.above_low);
    const Result<Request> built = Build(with(1));
    ASSERT_TRUE(built.ok()) << parameter.name;
    EXPECT_EQ(built->sampling.*members.value, 1) << parameter.name;
  });
}

TEST(RequestBuilderTest, NamesAFieldByTheProtocolsOwnWord) {
  const auto field = [](const std::function<void(TextRequest&)>& change) {
    return FieldAtFault([&](TextRequest& t) {
      t.names = {"text_input", "length", "min_length", "sequences", "stop_words", "bias"};
      change(t);
    });
  };
  EXPECT_EQ(field([](TextRequest& t) { t.text = ""; }), "text_input");
  EXPECT_EQ(field([](TextRequest& t) { t.text = std::string(95, 'a'); }), "text_input");
  EXPECT_EQ(field([](TextRequest& t) { t.text.reset(), t.tokens.emplace(1, 400); }), "text_input");
  EXPECT_EQ(field([](TextRequest& t) { t.max_tokens = 0; }), "length");
  EXPECT_EQ(field([](TextRequest& t) { t.max_tokens = 1000; }), "length");
  EXPECT_EQ(field([](TextRequest& t) { t.sampling.min_tokens = -1; }), "min_length");
  EXPECT_EQ(field([](TextRequest& t) { t.sampling.min_tokens = 9, t.max_tokens = 8; }),
            "min_length");
  EXPECT_EQ(field([](TextRequest& t) { t.num_choices = 0; }), "sequences");
  EXPECT_EQ(field([](TextRequest& t) { t.stop = {""}; }), "stop_words");
  EXPECT_EQ(field([](TextRequest& t) { t.logit_bias = {{1, 2e6}}; }), "bias");
}

TEST(RequestBuilderTest, SaysThatAPromptDoesNotFitTheContext) {
  const auto is_context_error = [](const std::function<void(TextRequest&)>& change) {
    return Build(change).status().reason() == Reason::kContextLength;
  };
  EXPECT_TRUE(is_context_error([](TextRequest& t) { t.max_tokens = 95; }));
  EXPECT_TRUE(is_context_error([](TextRequest& t) { t.text = std::string(150, 'a'); }));
  EXPECT_TRUE(is_context_error([](TextRequest& t) { t.text = std::string(5000, 'a'); }));
}

TEST(RequestBuilderTest, MaxTokensAreNotBlamedForAPromptThatLeavesNoRoom) {
  for (const int64_t max_tokens : {1, 16, 1000}) {
    const auto field = [&](size_t bytes) {
      return FieldAtFault([&](TextRequest& t) {
        t.text = std::string(bytes, 'a');
        t.max_tokens = max_tokens;
      });
    };
    EXPECT_EQ(field(150), "prompt");
    EXPECT_EQ(field(99), "prompt") << "100 tokens with the first";
    EXPECT_EQ(field(80), max_tokens > 19 ? "max_tokens" : "nothing");
  }
}

TEST(RequestBuilderTest, WithoutMaxTokensThePromptAloneIsTooLong) {
  const Status prompt = Build([](TextRequest& t) { t.text = std::string(150, 'a'); }).status();
  EXPECT_EQ(prompt.message(),
            "prompt: This model's maximum context length is 100 tokens. However, your prompt "
            "resulted in 151 tokens. Please reduce the length of the prompt.");
  EXPECT_EQ(prompt.field(), "prompt");
  EXPECT_EQ(prompt.reason(), Reason::kContextLength);
  const Status chat = Build([](TextRequest& t) {
                        t.text.reset();
                        t.messages =
                            R"([{"role": "user", "content": ")" + std::string(150, 'a') + "\"}]";
                      }).status();
  EXPECT_EQ(chat.field(), "messages");
  EXPECT_NE(chat.message().find("is 100 tokens. However, your messages resulted in "),
            std::string::npos)
      << chat.message();
  EXPECT_EQ(chat.reason(), Reason::kContextLength);
}

TEST(RequestBuilderTest, CountsThePromptHoweverManyTokensAreAskedFor) {
  for (const int64_t max_tokens : {int64_t{95}, int64_t{100}, int64_t{1} << 62}) {
    const Status status = Build([&](TextRequest& t) { t.max_tokens = max_tokens; }).status();
    EXPECT_NE(status.message().find("(6 in the prompt, "), std::string::npos) << status.message();
    EXPECT_EQ(status.reason(), Reason::kContextLength);
  }
}

// Counts the bytes it tokenizes. A token is `width` bytes.
class CountingCodec final : public ByteCodec {
 public:
  explicit CountingCodec(size_t width) : width_(width) {}
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special) const override {
    num_bytes += text.size();
    EXPECT_TRUE(text.empty() || (text.front() & 0xC0) != 0x80);
    EXPECT_EQ(text.size() % 2, 0u) << "half a character";
    return ByteCodec::Encode(text.substr(0, (text.size() + width_ - 1) / width_), add_special);
  }
  mutable size_t num_bytes = 0;

 private:
  const size_t width_;
};

TEST(RequestBuilderTest, APromptThatIsFarTooLongIsNotTokenizedWhole) {
  TextRequest text;
  text.text.emplace();
  while (text.text->size() < (8u << 20)) *text.text += "\xC3\xA9";
  const auto build = [&](const CountingCodec& codec) {
    return BuildRequest(text, codec, {}, kEngine, RequestLimits(), Nanos(0));
  };
  const CountingCodec hostile(1);
  const Status status = build(hostile).status();
  EXPECT_EQ(status.reason(), Reason::kContextLength);
  EXPECT_EQ(status.field(), "prompt");
  EXPECT_LE(hostile.num_bytes, 2000u);
  // The tokens decide: if each stands for 128 KiB, 8 MiB are a short prompt.
  const Result<BuiltRequest> wide = build(CountingCodec(128u << 10));
  ASSERT_TRUE(wide.ok()) << wide.status().message();
  EXPECT_EQ(wide->request.prompt.size(), 65u);
}

TEST(RequestBuilderTest, AStopStringThatNamesASpecialTokenIsAnEndId) {
  EXPECT_EQ(Build([](TextRequest& t) { t.stop = {"</s>", "\n"}; })->end_ids,
            std::vector<int32_t>{ByteCodec::kEnd});
  const Result<Request> ignoring = Build([](TextRequest& t) {
    t.stop = {"</s>"};
    t.ignore_eos = true;
  });
  EXPECT_EQ(ignoring->end_ids, std::vector<int32_t>{ByteCodec::kEnd});
  EXPECT_TRUE(Build([](TextRequest& t) { t.ignore_eos = true; })->end_ids.empty());
  const Result<Request> other_end = Build([](TextRequest& t) {
    t.stop = {"</s>"};
    t.end_id = 50;
  });
  EXPECT_EQ(other_end->end_ids, (std::vector<int32_t>{50, ByteCodec::kEnd}));
}

TEST(RequestBuilderTest, StopTokenIdsAreEndIdsWhateverIgnoreEosIs) {
  EXPECT_EQ(Build([](TextRequest& t) { t.stop_token_ids = {50, ByteCodec::kEnd, 50}; })->end_ids,
            (std::vector<int32_t>{ByteCodec::kEnd, 50}));
  const Result<Request> ignoring = Build([](TextRequest& t) {
    t.stop_token_ids = {50};
    t.ignore_eos = true;
  });
  EXPECT_EQ(ignoring->end_ids, std::vector<int32_t>{50});
  EXPECT_EQ(Build([](TextRequest& t) { t.stop_token_ids = {259}; }).status().field(),
            "stop_token_ids");
}

TEST(RequestBuilderTest, OfALongPromptTheLastTokensMayBeKept) {
  EXPECT_EQ(Build([](TextRequest& t) { t.keep_prompt_tokens = 2; })->prompt,
            (std::vector<int32_t>{ByteCodec::TokenOf('l'), ByteCodec::TokenOf('o')}));
  EXPECT_EQ(Build([](TextRequest& t) { t.keep_prompt_tokens = 100; })->prompt.size(), 6u);
}

TEST(RequestBuilderTest, OfAPromptOfAnyLengthTheLastTokensMayBeKept) {
  TextRequest text;
  text.text.emplace();
  while (text.text->size() < (8u << 20)) *text.text += "\xC3\xA9";
  text.keep_prompt_tokens = 5;
  const auto build = [&](const CountingCodec& codec) {
    return BuildRequest(text, codec, {}, kEngine, RequestLimits(), Nanos(0));
  };
  const CountingCodec narrow(1);
  const Result<BuiltRequest> built = build(narrow);
  ASSERT_TRUE(built.ok()) << built.status().message();
  EXPECT_EQ(built->request.prompt.size(), 5u);
  EXPECT_LE(narrow.num_bytes, 2000u);
  EXPECT_EQ(build(CountingCodec(128u << 10))->request.prompt.size(), 5u);
  const Result<BuiltRequest> bytes =
      BuildRequest(text, ByteCodec(), {}, kEngine, RequestLimits(), Nanos(0));
  const int32_t first = ByteCodec::TokenOf('\xC3');
  const int32_t second = ByteCodec::TokenOf('\xA9');
  EXPECT_EQ(bytes->request.prompt, (std::vector<int32_t>{second, first, second, first, second}));
  // Too many are too many.
  text.keep_prompt_tokens = kEngine.max_seq_len;
  EXPECT_EQ(build(narrow).status().reason(), Reason::kContextLength);
}

TEST(RequestBuilderTest, ABadWordThatNamesASpecialTokenIsBannedByItsId) {
  const Result<Request> built = Build([](TextRequest& t) { t.bad_words = {"no", "</s>"}; });
  EXPECT_EQ(built->banned_sequences, (std::vector<std::vector<int32_t>>{{ByteCodec::kEnd}}));
  EXPECT_TRUE(Build([](TextRequest& t) { t.bad_words = {"no"}; })->banned_sequences.empty());
}

TEST(RequestBuilderTest, SaysThatAPromptIsLongerThanPromptsMayBe) {
  const auto with_letters = [](size_t count) {
    return Build([count](TextRequest& t) { t.text = std::string(count, 'a'); });
  };
  EXPECT_TRUE(with_letters(89).ok());  // and the begin token
  const Status refused = with_letters(90).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "prompt: This model's maximum prompt length is 90 tokens (max_input_len). However, "
            "your prompt has 91 tokens. Please shorten it.");
  EXPECT_EQ(refused.reason(), Reason::kContextLength);
}

TEST(RequestBuilderTest, PassesBiasBadWordsAndEndThrough) {
  const Result<Request> built = Build([](TextRequest& t) {
    t.logit_bias = {{5, -100.0}};
    t.word_bias = {{"ab", 2.0}};
    t.bad_words = {"no"};
    t.end_id = -1;
    t.seed = 7;
    t.timeout = std::chrono::seconds(3);
  });
  ASSERT_TRUE(built.ok());
  ASSERT_EQ(built->logit_bias.size(), 3u);
  EXPECT_EQ(built->logit_bias[2].token, ByteCodec::TokenOf('b'));
  EXPECT_NE(built->constraint, nullptr);
  EXPECT_TRUE(built->end_ids.empty());
  EXPECT_EQ(built->seed, 7u);
  EXPECT_EQ(built->deadline, Nanos(std::chrono::seconds(3)));
}

std::shared_ptr<const OutputGrammar> OnlyText(std::string text) {
  return std::make_shared<const OutputGrammar>(OutputGrammar{
      .kind = GrammarKind::kChoice, .text = std::move(text), .field = "guided_choice"});
}

TEST(RequestBuilderTest, AGrammarAndBadWordsAreOneConstraint) {
  const Result<Request> built = Build([](TextRequest& t) {
    t.grammar = OnlyText("a");
    t.bad_words = {"xa"};
  });
  ASSERT_TRUE(built.ok()) << built.status().message();
  const auto mask_of = [](const Request& request) {
    std::vector<uint32_t> mask(9, ~0u);
    request.constraint->Clone()->FillMask({}, mask);
    return mask;
  };
  EXPECT_EQ(mask_of(*built), std::vector<uint32_t>(9));
  const Result<Request> grammar = Build([](TextRequest& t) { t.grammar = OnlyText("a"); });
  std::vector<uint32_t> only_a(9);
  only_a[static_cast<size_t>(ByteCodec::TokenOf('a') / 32)] |= 1u << (ByteCodec::TokenOf('a') % 32);
  EXPECT_EQ(mask_of(*grammar), only_a);
}

TEST(RequestBuilderTest, ARefusedGrammarIsNamedByItsField) {
  EXPECT_EQ(FieldAtFault([](TextRequest& t) { t.grammar = OnlyText("refused"); }), "guided_choice");
}

// Its control token is "</s>", and the template writes one at the end.
class ControlCodec final : public ByteCodec {
 public:
  Result<ChatText> RenderChat(std::string_view messages,
                              const ChatTemplate::RenderOptions& options) const override {
    TANDEM_ASSIGN_OR_RETURN(ChatText chat, ByteCodec::RenderChat(messages, options));
    chat.own = {static_cast<uint32_t>(chat.text.size()),
                static_cast<uint32_t>(chat.text.size()) + 4};
    chat.text += "</s>";
    return chat;
  }
  Result<std::vector<int32_t>> Encode(std::string_view, bool) const override {
    return std::vector<int32_t>{kEnd, kEnd};
  }
  Result<std::vector<int32_t>> EncodeChat(std::string_view, const ChatText& chat) const override {
    return std::vector<int32_t>(chat.own.size() / 2, kEnd);
  }
};

TEST(RequestBuilderTest, NamesOfControlTokensInMessagesAreTextUnlessAllowed) {
  TextRequest text;
  text.messages = R"([{"role": "user", "content": "</s>"}])";
  const auto prompt = [&](bool allowed) {
    RequestLimits limits;
    limits.allow_control_tokens = allowed;
    return BuildRequest(text, ControlCodec(), {}, kEngine, limits, Nanos(0))->request.prompt.size();
  };
  EXPECT_EQ(prompt(false), 1u);
  EXPECT_EQ(prompt(true), 2u);
}

TEST(RequestBuilderTest, AnAnswerContinuesTheLastMessage) {
  const auto prompt = [](const std::string& content) -> std::string {
    TextRequest text;
    text.messages = R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ")" +
                    content + R"("}])";
    text.chat.add_generation_prompt = false;
    text.chat.continued = content;
    const auto request = BuildRequest(text, ByteCodec(), {}, kEngine, RequestLimits(), Nanos(0));
    return request.ok() ? ByteCodec::TextOf(request->request.prompt) : request.status().message();
  };
  EXPECT_EQ(prompt("Once"), "user: Hi\nassistant: Once");
  EXPECT_EQ(prompt("Once "), "user: Hi\nassistant: Once ");
  EXPECT_EQ(prompt(" "), "messages: the message to continue is empty");
}

}  // namespace
}  // namespace tandem::serve
