// The bytes of answers to /invocations, by formatter, release and tgi_compat, over a scripted
// engine whose tokens are bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "serve/json.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using lmi::Generation;
using lmi::OutputFormatter;
using lmi::Settings;

Settings Of(Generation generation) {
  Settings settings;
  settings.generation = generation;
  return settings;
}

Settings Tgi(Generation generation = Generation::k027) {
  Settings settings = Of(generation);
  settings.tgi_compat = true;
  return settings;
}

ClientResponse Invoke(const Settings& settings, std::string_view body) {
  ServerOptions options;
  options.lmi = settings;
  const TestServer server({}, options);
  const Result<ClientResponse> response = server.Client().Post("/invocations", body);
  EXPECT_TRUE(response.ok()) << response.status().message();
  return response.ok() ? *response : ClientResponse();
}

// "One" of three tokens, of which the last is cut off by the length.
std::string Ask(std::string_view parameters, bool stream, std::string_view inputs = "tandem") {
  return fmt::format(R"({{"inputs": "{}", "parameters": {{"max_new_tokens": 3{}}}, "stream": {}}})",
                     inputs, parameters, stream);
}

constexpr std::string_view kDetails = R"(, "details": true)";

TEST(LmiFormattersTest, Json) {
  const ClientResponse plain = Invoke({}, Ask("", false));
  EXPECT_EQ(plain.status, 200);
  EXPECT_EQ(plain.Header("content-type"), "application/json");
  EXPECT_EQ(plain.body, R"({"generated_text": "One"})");
  EXPECT_EQ(
      Invoke({}, Ask(kDetails, false)).body,
      R"({"generated_text": "One", "details": {"finish_reason": "length", "generated_tokens": 3, )"
      R"("inputs": "tandem", "tokens": [{"id": 82, "text": "O", "log_prob": -0.25}, )"
      R"({"id": 113, "text": "n", "log_prob": -0.25}, )"
      R"({"id": 104, "text": "e", "log_prob": -0.25}]}})");
}

TEST(LmiFormattersTest, JsonOf026) {
  EXPECT_EQ(Invoke(Of(Generation::k026), Ask("", false)).body, R"({"generated_text": "One"})");
  EXPECT_EQ(Invoke(Of(Generation::k026), Ask(kDetails, false)).body,
            R"({"generated_text": "One", "details": {"finish_reason": "length", )"
            R"("tokens": [{"id": 82, "text": "O", "log_prob": -0.25}, )"
            R"({"id": 113, "text": "n", "log_prob": -0.25}, )"
            R"({"id": 104, "text": "e", "log_prob": -0.25}]}})");
}

TEST(LmiFormattersTest, JsonOf034) {
  EXPECT_EQ(Invoke(Of(Generation::k034), Ask(R"(, "details": true, "seed": 7)", false)).body,
            R"({"generated_text": "One", "details": {"finish_reason": "length", )"
            R"("generated_tokens": 3, "seed": 7}})");
}

TEST(LmiFormattersTest, JsonOfTgi) {
  EXPECT_EQ(
      Invoke(Tgi(), Ask("", false)).body,
      R"([{"generated_text": "One", "details": {"finish_reason": "length", "generated_tokens": 3, )"
      R"("inputs": "tandem", "tokens": [{"id": 82, "text": "O", "logprob": -0.25}, )"
      R"({"id": 113, "text": "n", "logprob": -0.25}, )"
      R"({"id": 104, "text": "e", "logprob": -0.25}]}}])");
  EXPECT_EQ(Invoke(Tgi(), Ask(R"(, "details": false)", false)).body,
            R"([{"generated_text": "One"}])");
}

TEST(LmiFormattersTest, JsonLines) {
  const ClientResponse plain = Invoke({}, Ask("", true));
  EXPECT_EQ(plain.Header("content-type"), "application/jsonlines");
  EXPECT_EQ(plain.body, R"({"token": {"id": 82, "text": "O", "log_prob": -0.25}}
{"token": {"id": 113, "text": "n", "log_prob": -0.25}}
{"token": {"id": 104, "text": "e", "log_prob": -0.25}, "generated_text": "One"}
)");
  EXPECT_EQ(Invoke({}, Ask(kDetails, true)).body,
            R"({"token": {"id": 82, "text": "O", "log_prob": -0.25}}
{"token": {"id": 113, "text": "n", "log_prob": -0.25}}
)"
            R"({"token": {"id": 104, "text": "e", "log_prob": -0.25}, "generated_text": "One", )"
            R"("details": {"finish_reason": "length", "generated_tokens": 3, "inputs": "tandem"}})"
            "\n");
}

TEST(LmiFormattersTest, JsonLinesOf026LeaveOutWhatIsEmpty) {
  EXPECT_EQ(Invoke(Of(Generation::k026), Ask(kDetails, true, "empty")).body,
            R"({"token": {"id": 2, "log_prob": -0.25, "special_token": true}, )"
            R"("generated_text": "", "details": {"finish_reason": "eos_token"}})"
            "\n");
}

TEST(LmiFormattersTest, JsonLinesOf034EndWithAnEmptyLine) {
  EXPECT_EQ(
      Invoke(Of(Generation::k034), Ask(R"(, "details": true, "seed": 7)", true)).body,
      R"({"index": 0, "token": {"id": null, "text": "O", "logprob": null}, "generated_text": null, "details": null}
{"index": 0, "token": {"id": null, "text": "n", "logprob": null}, "generated_text": null, "details": null}
)"
      R"({"index": 0, "token": {"id": null, "text": "e", "logprob": null}, "generated_text": "One", )"
      R"("details": {"finish_reason": "length", "seed": 7, "generated_tokens": 3, )"
      R"("input_length": 7}})"
      "\n\n");
}

TEST(LmiFormattersTest, Events) {
  const ClientResponse plain = Invoke({}, Ask(R"(, "output_formatter": "sse")", true));
  EXPECT_EQ(plain.Header("content-type"), "text/event-stream");
  EXPECT_EQ(plain.body, R"(data: {"token": {"id": 82, "text": "O", "log_prob": -0.25}}

data: {"token": {"id": 113, "text": "n", "log_prob": -0.25}}

data: {"token": {"id": 104, "text": "e", "log_prob": -0.25}, "generated_text": "One"}

)");
}

TEST(LmiFormattersTest, EventsOfTgi) {
  for (const Generation generation : {Generation::k027, Generation::k034}) {
    const ClientResponse stream = Invoke(Tgi(generation), Ask("", true));
    EXPECT_EQ(stream.Header("content-type"), "text/event-stream");
    EXPECT_EQ(stream.body, R"(data: {"token": {"id": 82, "text": "O", "logprob": -0.25}}

data: {"token": {"id": 113, "text": "n", "logprob": -0.25}}

)"
                           R"(data: {"token": {"id": 104, "text": "e", "logprob": -0.25}, )"
                           R"("generated_text": "One", "details": {"finish_reason": "length", )"
                           R"("generated_tokens": 3, "inputs": "tandem"}})"
                           "\n\n");
  }
}

TEST(LmiFormattersTest, TheTokenThatEndsAnAnswerIsItsLastLine) {
  EXPECT_EQ(Invoke({}, Ask(kDetails, true, "empty")).body,
            R"({"token": {"id": 2, "text": "", "log_prob": -0.25, "special_token": true}, )"
            R"("generated_text": "", "details": {"finish_reason": "eos_token", )"
            R"("generated_tokens": 1, "inputs": "empty"}})"
            "\n");
  EXPECT_EQ(Invoke(Tgi(), Ask("", true, "empty")).body,
            R"(data: {"token": {"id": 2, "text": "", "logprob": -0.25, "special": true}, )"
            R"("generated_text": "", "details": {"finish_reason": "eos_token", )"
            R"("generated_tokens": 1, "inputs": "empty"}})"
            "\n\n");
}

TEST(LmiFormattersTest, AStopStringIsToldApart) {
  EXPECT_EQ(Invoke({}, Ask(R"(, "details": true, "stop_sequences": ["n"])", false)).body,
            R"({"generated_text": "O", "details": {"finish_reason": "stop_sequence", )"
            R"("generated_tokens": 1, "inputs": "tandem", )"
            R"("tokens": [{"id": 82, "text": "O", "log_prob": -0.25}]}})");
}

TEST(LmiFormattersTest, TheObjectMayComeInPieces) {
  Settings settings;
  settings.output_formatter = OutputFormatter::kJson;
  const ClientResponse stream = Invoke(settings, Ask(kDetails, true));
  EXPECT_EQ(stream.Header("content-type"), "application/json");
  EXPECT_EQ(stream.body, Invoke(settings, Ask(kDetails, false)).body);
  EXPECT_EQ(Invoke(settings, Ask("", true, "emoji")).body,
            Invoke(settings, Ask("", false, "emoji")).body);
}

TEST(LmiFormattersTest, WithoutAFormatterThereIsTheTextAlone) {
  Settings settings;
  settings.output_formatter = OutputFormatter::kNone;
  for (const bool stream : {false, true}) {
    const ClientResponse response = Invoke(settings, Ask("", stream));
    EXPECT_EQ(response.Header("content-type"), "text/plain");
    EXPECT_EQ(response.body, "One");
  }
}

TEST(LmiFormattersTest, TheFullTextBeginsWithThePrompt) {
  constexpr std::string_view kFull = R"(, "return_full_text": true)";
  EXPECT_EQ(Invoke({}, Ask(kFull, false)).body, R"({"generated_text": "tandemOne"})");
  const std::string stream = Invoke({}, Ask(kFull, true)).body;
  EXPECT_NE(stream.find(R"("generated_text": "tandemOne"})"), std::string::npos) << stream;
}

TEST(LmiFormattersTest, DetailsMayHoldAlternativesAndThePrompt) {
  const std::string whole =
      Invoke({}, R"({"inputs": "tandem", "parameters": {"max_new_tokens": 1, "details": true, )"
                 R"("top_n_tokens": 2, "decoder_input_details": true}})")
          .body;
  EXPECT_NE(whole.find(R"("prefill": [{"id": 1, "text": )"), std::string::npos) << whole;
  EXPECT_NE(whole.find(R"("log_prob": null}, {"id": 119, "text": "t", "log_prob": -0.5})"),
            std::string::npos)
      << whole;
  EXPECT_NE(whole.find(R"("top_tokens": [[{"id": 82, "text": "O", "log_prob": -0.25}, )"
                       R"({"id": 83, "text": "P", "log_prob": -0.5}]])"),
            std::string::npos)
      << whole;
}

TEST(LmiFormattersTest, OneOfSeveralAnswersIsTheAnswer) {
  const std::string whole =
      Invoke({}, R"({"inputs": "tandem", "parameters": {"max_new_tokens": 1, "best_of": 2}})").body;
  EXPECT_EQ(whole.find(R"({"generated_text": "O", "details": {"finish_reason": "length")"), 0u);
  EXPECT_NE(whole.find(R"("best_of_sequences": [{"finish_reason": "length", )"
                       R"("generated_tokens": 1, )"),
            std::string::npos)
      << whole;
}

TEST(LmiFormattersTest, AListHasAnAnswerForEachInput) {
  const auto ask = [](bool stream) {
    return fmt::format(
        R"({{"inputs": ["tandem", "emoji"], "parameters": {{"max_new_tokens": 4}}, "stream": {}}})",
        stream);
  };
  EXPECT_EQ(Invoke({}, ask(false)).body,
            "[{\"generated_text\": \"One \"}, {\"generated_text\": \"h\xC3\xA9l\"}]");
  const ClientResponse stream = Invoke({}, ask(true));
  EXPECT_EQ(stream.Header("content-type"), "application/jsonlines");
  std::string first;
  std::string second;
  for (size_t at = 0; at < stream.body.size();) {
    const size_t end = stream.body.find('\n', at);
    const Result<Json> line = ParseJson(stream.body.substr(at, end - at));
    ASSERT_TRUE(line.ok()) << stream.body;
    const Json::Array& outputs = *line->Find("outputs")->AsArray();
    ASSERT_EQ(outputs.size(), 2u);
    first += *outputs[0].AsString();
    second += *outputs[1].AsString();
    at = end + 1;
  }
  EXPECT_EQ(first, "One ");
  EXPECT_EQ(second, "h\xC3\xA9l");
}

TEST(LmiFormattersTest, TheStreamOfAListHasLinesWhateverTheFormatter) {
  const auto ask = [](std::string_view formatter, std::string_view inputs) {
    return fmt::format(R"({{"inputs": [{}], "stream": true, )"
                       R"("parameters": {{"max_new_tokens": 9, "output_formatter": "{}"}}}})",
                       inputs, formatter);
  };
  for (const char* formatter : {"json", "jsonlines", "sse", "none", ""}) {
    const ClientResponse failed = Invoke({}, ask(formatter, R"("fail later")"));
    EXPECT_EQ(failed.Header("content-type"), "application/jsonlines");
    EXPECT_EQ(failed.body,
              "{\"outputs\": [\"a\"]}\n{\"outputs\": [\"b\"]}\n{\"outputs\": [\"c\"]}\n"
              "{\"code\": 424, \"error\": \"the device is lost\"}\n")
        << formatter;
    const ClientResponse empty = Invoke({}, ask(formatter, R"("empty", "empty")"));
    EXPECT_EQ(empty.body, "{\"outputs\": [\"\", \"\"]}\n") << formatter;
    const ClientResponse tgi = Invoke(Tgi(), ask(formatter, R"("empty")"));
    EXPECT_EQ(tgi.Header("content-type"), "application/jsonlines");
    EXPECT_EQ(tgi.body, "{\"outputs\": [\"\"]}\n") << formatter;
  }
}

TEST(LmiFormattersTest, ATextThatFailsLacksItsEnd) {
  const TestServer server;
  const Result<ClientResponse> response = server.Client().Post(
      "/invocations", R"({"inputs": "fail later", "stream": true, )"
                      R"("parameters": {"max_new_tokens": 9, "output_formatter": "none"}})");
  EXPECT_EQ(response.status().code(), Code::kUnavailable) << response.status().message();
}

TEST(LmiFormattersTest, FailuresBeforeTheFirstByteHaveAStatus) {
  const ClientResponse whole = Invoke({}, Ask("", false, "fail now"));
  EXPECT_EQ(whole.status, 424);
  EXPECT_EQ(whole.body, R"({"generated_text": null, "error": "the device is lost", "code": 400, )"
                        R"("details": {"finish_reason": "error"}})");
  EXPECT_EQ(Invoke(Of(Generation::k026), Ask("", false, "fail now")).body,
            R"({"generated_text": "", "details": {"finish_reason": "error", )"
            R"("generated_tokens": null, "inputs": null, "tokens": null}})");
  const ClientResponse stream = Invoke({}, Ask("", true, "fail now"));
  EXPECT_EQ(stream.status, 424);
  EXPECT_EQ(stream.body, R"({"code": 424, "error": "the device is lost"})");
}

TEST(LmiFormattersTest, FailuresAfterItAreTheLastLine) {
  const auto ask = [](std::string_view parameters) {
    return fmt::format(
        R"({{"inputs": "fail later", "parameters": {{"max_new_tokens": 9{}}}, "stream": true}})",
        parameters);
  };
  const ClientResponse lines = Invoke({}, ask(""));
  EXPECT_EQ(lines.status, 200);
  EXPECT_TRUE(lines.body.ends_with(
      R"({"token": {"id": -1, "text": "", "log_prob": -1, "special_token": true, )"
      R"("error_msg": "the device is lost"}, "generated_text": "abc", )"
      R"("details": {"finish_reason": "error"}})"
      "\n"))
      << lines.body;
  const ClientResponse events = Invoke(Tgi(), ask(""));
  EXPECT_TRUE(events.body.ends_with(
      R"(data: {"token": {"id": -1, "text": "", "logprob": -1, "special": true}, )"
      R"("generated_text": "abc", "details": {"finish_reason": "error", "generated_tokens": 3, )"
      R"("inputs": "fail later"}})"
      "\n\n"))
      << events.body;
  Settings json;
  json.output_formatter = OutputFormatter::kJson;
  EXPECT_EQ(Invoke(json, ask("")).body,
            R"({"generated_text": "abc", "details": {"finish_reason": "error"}})");
}

TEST(LmiFormattersTest, ChatsAreOpenAisWithOtherWords) {
  const auto ask = [](bool stream) {
    return fmt::format(R"({{"messages": [{{"role": "user", "content": "tandem"}}], "stream": {}}})",
                       stream);
  };
  const std::string whole = Invoke({}, ask(false)).body;
  EXPECT_NE(whole.find(R"("object":"chat.completion")"), std::string::npos);
  EXPECT_NE(whole.find(R"("content":"One behind the other.")"), std::string::npos);
  EXPECT_NE(whole.find(R"("finish_reason":"eos_token")"), std::string::npos) << whole;
  const ClientResponse lines = Invoke({}, ask(true));
  EXPECT_EQ(lines.Header("content-type"), "application/jsonlines");
  EXPECT_TRUE(lines.body.starts_with(R"({"id":"chatcmpl-)")) << lines.body;
  EXPECT_TRUE(lines.body.ends_with("}\n")) << lines.body;
  EXPECT_EQ(lines.body.find("[DONE]"), std::string::npos);
  Settings events;
  events.output_formatter = OutputFormatter::kSse;
  EXPECT_TRUE(Invoke(events, ask(true)).body.ends_with("data: [DONE]\n\n"));
  const ClientResponse newer = Invoke(Of(Generation::k034), ask(true));
  EXPECT_NE(newer.body.find(R"("finish_reason":"stop")"), std::string::npos);
  EXPECT_TRUE(newer.body.ends_with("}\n\n")) << newer.body;
}

TEST(LmiFormattersTest, AChatsDefaultLengthIsThatOfTheRelease) {
  const std::string cut =
      Invoke({}, R"({"messages": [{"role": "user", "content": "endless"}]})").body;
  EXPECT_NE(cut.find(R"("completion_tokens":30)"), std::string::npos) << cut;
  EXPECT_NE(cut.find(R"("finish_reason":"length")"), std::string::npos) << cut;
}

TEST(LmiFormattersTest, ALogprobsListOfAChunkIsDjls) {
  const std::string lines =
      Invoke({}, R"({"messages": [{"role": "user", "content": "tandem"}], "max_tokens": 1, )"
                 R"("stream": true, "logprobs": true, "top_logprobs": 1})")
          .body;
  EXPECT_NE(lines.find(R"("logprobs":[{"content":[{"token":"O")"), std::string::npos) << lines;
}

TEST(LmiFormattersTest, CompletionsAreOpenAis) {
  const std::string whole =
      Invoke(Of(Generation::k034), R"({"prompt": "tandem", "max_tokens": 3})").body;
  EXPECT_NE(whole.find(R"("object":"text_completion")"), std::string::npos);
  EXPECT_NE(whole.find(R"("text":"One","logprobs":null,"finish_reason":"length")"),
            std::string::npos)
      << whole;
}

}  // namespace
}  // namespace tandem::serve
