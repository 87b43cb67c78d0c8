#include "serve/chat_prompt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json.h"
#include "serve/testing/byte_codec.h"

namespace tandem::serve {
namespace {

constexpr ReasoningMarks kThink{"<think>", "</think>"};

// Renders as `write` says: from the last message's content.
class LastMessageCodec final : public ByteCodec {
 public:
  explicit LastMessageCodec(std::function<std::string(const std::string&)> write)
      : write_(std::move(write)) {}
  Result<ChatText> RenderChat(std::string_view messages,
                              const ChatTemplate::RenderOptions&) const override {
    TANDEM_ASSIGN_OR_RETURN(const ChatText plain, ByteCodec::RenderChat(messages, {false, {}, {}}));
    const size_t colon = plain.text.rfind(": ");
    return ChatText{write_(plain.text.substr(colon + 2, plain.text.size() - colon - 3)), {}};
  }

 private:
  const std::function<std::string(const std::string&)> write_;
};

// The prompt that the answer continues, or the field at fault.
std::string Continued(const std::string& content, const TextCodec& codec, bool in_parts = false) {
  TextRequest text;
  text.messages = R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": )" +
                  (in_parts ? R"([{"type": "text", "text": ")" + content + R"("}]}])"
                            : "\"" + content + "\"}]");
  text.chat.add_generation_prompt = false;
  text.chat.continued = content;
  const Result<ChatPrompt> prompt = RenderPrompt(text, codec);
  return prompt.ok() ? prompt->chat.text : prompt.status().field();
}

TEST(ChatPromptTest, AContinuedMessageIsNotCutInsideTheTokenThatEndsIt) {
  const LastMessageCodec codec([](const std::string& s) { return "<|assistant|>" + s + "</s>"; });
  for (const char* content : {"s", "/s", "</s", "</s>", "a", "assistant", "continued", "Once "}) {
    for (const bool in_parts : {false, true}) {
      EXPECT_EQ(Continued(content, codec, in_parts), std::string("<|assistant|>") + content);
    }
  }
}

TEST(ChatPromptTest, AContinuedMessageIsShownAsTheTemplateHasIt) {
  const LastMessageCodec trims([](const std::string& s) {
    const size_t first = s.find_first_not_of(' ');
    return "A: " + s.substr(first, s.find_last_not_of(' ') + 1 - first) + "<end>\n";
  });
  EXPECT_EQ(Continued(" Once ", trims), "A: Once");
  const LastMessageCodec drops(
      [](const std::string& s) { return "A: " + s.substr(s.find('>') + 1) + "<end>\n"; });
  EXPECT_EQ(Continued("Once", drops), "A: Once");
  EXPECT_EQ(Continued("<b>Once", drops), "continue_final_message");
  const LastMessageCodec twice([](const std::string& s) { return s + "|" + s + "x"; });
  EXPECT_EQ(Continued("Once", twice), "Once|Once");
  const LastMessageCodec counts([](const std::string& s) { return s + std::to_string(s.size()); });
  EXPECT_EQ(Continued("Once", counts), "continue_final_message");
  EXPECT_EQ(Continued(" ", twice), "messages");
}

// Far more words than could be looked for one after another.
TEST(ChatPromptTest, AContinuedMessageMayHoldTheWordsThatTakeItsPlace) {
  const LastMessageCodec codec([](const std::string& s) { return "A: " + s + "</s>"; });
  std::string content = "continued";
  for (int i = 0; i < 200'000; ++i) content += " continued" + std::to_string(i);
  EXPECT_EQ(Continued(content, codec), "A: " + content);
}

TEST(ChatPromptTest, TheEndOfThePromptTellsWhereItsReasoningIs) {
  using enum ReasoningStart;
  for (const auto& [text, start] : {
           std::pair("<|assistant|>", kUnopened),
           std::pair("what is <think>? <|assistant|>", kUnopened),
           std::pair("<think>Hm.</think>It is.<|end|><|assistant|>\n", kUnopened),
           std::pair("<|assistant|><think>", kOpen),
           std::pair("<|assistant|><think>\n", kOpen),
           std::pair("<|assistant|></think>", kClosed),
           std::pair("<|assistant|><think>\n\n</think>\n\n", kClosed),
           std::pair("", kUnopened),
       }) {
    EXPECT_EQ(FindReasoningStart(kThink, text), start) << text;
  }
}

TEST(ChatPromptTest, TheRenderedPromptDecidesNotTheTemplatesText) {
  ByteCodec codec;
  const auto start = [&](const std::string& turn, std::optional<std::string> continued = {}) {
    codec.chat_turn = turn;
    TextRequest text;
    const std::string last = continued ? *continued : "Hi";
    text.messages = R"([{"role": "user", "content": ")" + last + "\"}]";
    text.reasoning = kThink;
    text.chat.add_generation_prompt = !continued;
    text.chat.continued = std::move(continued);
    return RenderPrompt(text, codec)->reasoning;
  };
  EXPECT_EQ(start("A: "), ReasoningStart::kUnopened);
  EXPECT_EQ(start("A: <think>\n"), ReasoningStart::kOpen);
  EXPECT_EQ(start("A: </think>"), ReasoningStart::kClosed);
  EXPECT_EQ(start("", "<think>Let me"), ReasoningStart::kOpen);
  EXPECT_EQ(start("", "<think>Let me</think> see"), ReasoningStart::kClosed);
  EXPECT_EQ(start("", "Once"), ReasoningStart::kClosed);
}

// Refuses the role tool, and a role twice in a row; and everything if it is told to.
class RefusingCodec final : public ByteCodec {
 public:
  Result<ChatText> RenderChat(std::string_view messages,
                              const ChatTemplate::RenderOptions& options) const override {
    const Json list = *ParseJson(messages);
    std::string before;
    for (const Json& message : *list.AsArray()) {
      const std::string role = *message.Find("role")->AsString();
      if (role == "tool") return Raise("no tools");
      if (role == before) return Raise("roles must alternate");
      before = role;
    }
    if (refuses_all) return Raise("no chats");
    return ByteCodec::RenderChat(messages, options);
  }
  bool refuses_all = false;

 private:
  static Status Raise(std::string_view sentence) {
    return InvalidArgument(fmt::format("chat template: invalid operation: {}", sentence));
  }
};

TEST(ChatPromptTest, ARefusalNamesTheMessageAndWhatToSendInstead) {
  RefusingCodec codec;
  const auto refusal = [&](const std::vector<std::string>& roles) {
    std::string messages;
    for (const std::string& role : roles) {
      messages += messages.empty() ? "[" : ", ";
      messages += fmt::format(R"({{"role": "{}", "content": "x"}})", role);
    }
    TextRequest text;
    text.messages = messages + "]";
    return RenderPrompt(text, codec).status();
  };
  EXPECT_TRUE(refusal({"user", "assistant"}).ok());
  const Status tool = refusal({"user", "assistant", "tool", "assistant", "user"});
  EXPECT_EQ(tool.field(), "messages[2]");
  EXPECT_EQ(tool.message(),
            "messages[2]: the model's chat template refuses the message with the role \"tool\": no "
            "tools; this model has no such role here: send the text as a message of the user");
  const Status twice = refusal({"user", "user", "assistant"});
  EXPECT_EQ(twice.message(),
            "messages[1]: the model's chat template refuses the message with the role \"user\": "
            "roles must alternate");
  codec.refuses_all = true;
  EXPECT_EQ(refusal({"user"}).message(), "chat template: invalid operation: no chats");
}

}  // namespace
}  // namespace tandem::serve
