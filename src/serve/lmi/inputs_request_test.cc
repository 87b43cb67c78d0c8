#include "serve/lmi/inputs_request.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace tandem::serve::lmi {
namespace {

Result<InputsCall> Read(std::string_view body, const Settings& settings = {}) {
  const Result<Json> json = ParseJson(body);
  EXPECT_TRUE(json.ok()) << body;
  return ParseInputs(*json, settings);
}

TextRequest Prompt(std::string_view parameters, const Settings& settings = {}) {
  const auto call =
      Read(R"({"inputs": "a", "parameters": )" + std::string(parameters) + "}", settings);
  EXPECT_TRUE(call.ok()) << call.status().message();
  return call.ok() ? call->prompts.front() : TextRequest();
}

std::string FieldAtFault(std::string_view parameters) {
  return Read(R"({"inputs": "a", "parameters": )" + std::string(parameters) + "}").status().field();
}

Settings Of(Generation generation) {
  Settings settings;
  settings.generation = generation;
  return settings;
}

TEST(LmiInputsRequestTest, TheNumberOfNewTokensIsThatOfTheRelease) {
  EXPECT_EQ(Prompt("{}", Of(Generation::k026)).default_max_tokens, 128);
  EXPECT_EQ(Prompt("{}", Of(Generation::k027)).default_max_tokens, 30);
  EXPECT_EQ(Prompt("{}", Of(Generation::k034)).default_max_tokens, 30);
  Settings settings;
  settings.max_new_tokens = 7;
  EXPECT_EQ(Prompt("{}", settings).default_max_tokens, 7);
  EXPECT_EQ(Prompt(R"({"max_new_tokens": 5})", settings).max_tokens, 5);
  EXPECT_EQ(Prompt(R"({"request_output_len": 6})").max_tokens, 6);
}

TEST(LmiInputsRequestTest, TheHandlerSamplesByItsOwnValues) {
  const TextRequest plain = Prompt("{}");
  EXPECT_EQ(plain.defaults, SamplingDefaults::kGreedy);
  EXPECT_FALSE(plain.sampling.top_k || plain.sampling.top_p);
  const SamplingFields drawn = Prompt(R"({"do_sample": true})").sampling;
  EXPECT_EQ(drawn.temperature, 0.8);
  EXPECT_EQ(drawn.top_k, 5);
  EXPECT_EQ(drawn.top_p, 0.85);
  const SamplingFields named =
      Prompt(R"({"do_sample": true, "temperature": 0.5, "top_k": 9, "runtime_top_p": 0.7})")
          .sampling;
  EXPECT_EQ(named.temperature, 0.5);
  EXPECT_EQ(named.top_k, 9);
  EXPECT_EQ(named.top_p, 0.7);
}

TEST(LmiInputsRequestTest, OtherHandlersSampleOnlyWhenAsked) {
  Settings settings;
  settings.trtllm_sampling = false;
  EXPECT_EQ(Prompt(R"({"top_k": 9})", settings).sampling.temperature, 0.0);
  const SamplingFields drawn = Prompt(R"({"do_sample": true})", settings).sampling;
  EXPECT_EQ(drawn.top_p, 1.0);
  EXPECT_FALSE(drawn.temperature.has_value());
}

TEST(LmiInputsRequestTest, TheAsynchronousHandlerSamplesUnlessToldNotTo) {
  const Settings settings = Of(Generation::k034);
  EXPECT_EQ(Prompt("{}", settings).sampling.top_p, 1.0);
  EXPECT_EQ(Prompt(R"({"do_sample": false})", settings).sampling.temperature, 0.0);
}

TEST(LmiInputsRequestTest, ATemperatureAsksTgiToSample) {
  Settings settings;
  settings.tgi_compat = true;
  EXPECT_EQ(Prompt(R"({"temperature": 0.5})", settings).sampling.top_p, 1.0);
  EXPECT_FALSE(Prompt("{}", settings).sampling.top_p.has_value());
}

TEST(LmiInputsRequestTest, EveryParameterReachesItsField) {
  const TextRequest text = Prompt(R"({
    "min_length": 3, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25,
    "min_p": 0.1, "seed": "12", "stop_sequences": ["x"], "stop": "y", "bad_sequences": ["z"],
    "stop_token_ids": [7], "truncate": 4, "ignore_eos_token": true, "skip_special_tokens": false,
    "use_draft": false, "length_penalty": 2, "early_stopping": true})");
  EXPECT_EQ(text.sampling.min_tokens, 3);
  EXPECT_EQ(text.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(text.sampling.presence_penalty, 0.5);
  EXPECT_EQ(text.sampling.frequency_penalty, 0.25);
  EXPECT_EQ(text.sampling.min_p, 0.1);
  EXPECT_EQ(text.seed, 12u);
  EXPECT_EQ(text.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(text.bad_words, std::vector<std::string>{"z"});
  EXPECT_EQ(text.stop_token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(text.keep_prompt_tokens, 4);
  EXPECT_TRUE(text.ignore_eos);
  EXPECT_FALSE(text.skip_special_tokens);
  EXPECT_EQ(text.max_draft_tokens, 0);
}

TEST(LmiInputsRequestTest, WhatCannotBeDoneIsRefusedByItsName) {
  EXPECT_EQ(FieldAtFault(R"({"num_beams": 2})"), "num_beams");
  EXPECT_EQ(FieldAtFault(R"({"use_beam_search": true})"), "use_beam_search");
  EXPECT_EQ(FieldAtFault(R"({"include_stop_str_in_output": true})"), "include_stop_str_in_output");
  EXPECT_EQ(FieldAtFault(R"({"adapters": "mine"})"), "adapters");
  EXPECT_EQ(FieldAtFault(R"({"top_n_tokens": 21})"), "top_n_tokens");
  EXPECT_EQ(FieldAtFault(R"({"truncate": 0})"), "truncate");
  EXPECT_EQ(FieldAtFault(R"({"seed": "twelve"})"), "seed");
  EXPECT_EQ(FieldAtFault(R"({"grammar": {"type": "lark", "value": "x"}})"), "grammar");
  EXPECT_EQ(FieldAtFault(R"({"best_of": 0})"), "best_of");
  EXPECT_EQ(FieldAtFault(R"("x")"), "parameters");
}

TEST(LmiInputsRequestTest, UnknownParametersAreToldAndNotRefused) {
  const auto call = Read(
      R"({"inputs": "a", "cached_prompt": "b", "parameters": {"watermark": true, "stop": false}})");
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->ignored, (std::vector<std::string>{"cached_prompt", "stop", "watermark"}));
}

TEST(LmiInputsRequestTest, InputsAreOneTextOrSeveral) {
  EXPECT_FALSE(Read(R"({"inputs": "a"})")->is_list);
  const auto list = Read(R"({"inputs": ["a", "b"]})");
  ASSERT_TRUE(list.ok());
  EXPECT_TRUE(list->is_list);
  EXPECT_EQ(list->prompts.size(), 2u);
  EXPECT_EQ(list->prompts[1].text, "b");
  for (const char* bad : {"{}", R"({"inputs": ""})", R"({"inputs": []})", R"({"inputs": ["a", 1]})",
                          R"({"inputs": {"text": "a"}})", R"({"inputs": null})"}) {
    EXPECT_EQ(Read(bad).status().field(), "inputs") << bad;
  }
  EXPECT_EQ(Read(R"({"inputs": ["a", "b"], "parameters": {"n": 2}})").status().field(),
            "parameters.n");
  EXPECT_EQ(Read(R"({"inputs": "a", "stream": true, "parameters": {"n": 2}})").status().field(),
            "parameters.n");
}

TEST(LmiInputsRequestTest, TheFormatterFollowsTheStreamUnlessItIsNamed) {
  const auto formatter = [](std::string_view body, const Settings& settings = {}) {
    return Read(body, settings)->formatter;
  };
  Settings settings;
  EXPECT_EQ(formatter(R"({"inputs": "a"})"), OutputFormatter::kJson);
  EXPECT_EQ(formatter(R"({"inputs": "a", "stream": true})"), OutputFormatter::kJsonLines);
  EXPECT_EQ(formatter(R"({"inputs": "a", "parameters": {"output_formatter": "sse"}})"),
            OutputFormatter::kSse);
  const auto unknown =
      Read(R"({"inputs": "a", "parameters": {"output_formatter": "my_formatter"}})");
  EXPECT_EQ(unknown->formatter, OutputFormatter::kJson);
  EXPECT_EQ(unknown->ignored, std::vector<std::string>{"output_formatter"});
  settings.output_formatter = OutputFormatter::kJsonLines;
  const auto lines = Read(R"({"inputs": "a"})", settings);
  EXPECT_EQ(lines->formatter, OutputFormatter::kJsonLines);
  EXPECT_TRUE(lines->stream);
  settings.output_formatter = OutputFormatter::kByStream;
  settings.tgi_compat = true;
  EXPECT_EQ(formatter(R"({"inputs": "a", "stream": true})", settings), OutputFormatter::kSse);
}

}  // namespace
}  // namespace tandem::serve::lmi
