#include "serve/kserve/models/engine_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/reason.h"
#include "serve/kserve/models/generation_request.h"
#include "serve/testing/test_server.h"

namespace tandem::serve::kserve {
namespace {

// Counts the bytes it tokenizes.
class CountingCodec final : public ByteCodec {
 public:
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special) const override {
    num_bytes += text.size();
    return ByteCodec::Encode(text, add_special);
  }
  mutable std::atomic<size_t> num_bytes{0};
};

Tensor Text(std::string name, const std::string& text) {
  return StringTensor(std::move(name), {1, 1}, std::span(&text, 1));
}

Tensor Ints(std::string name, const std::vector<int32_t>& row) {
  return Int32Tensor(std::move(name), {1, static_cast<int64_t>(row.size())}, row);
}

Tensor Flag(std::string name) { return {std::move(name), DataType::kBool, {1, 1}, "\1"}; }

// A prompt of token ids, under an id by which it can be stopped.
InferRequest Prompt(const std::string& text, std::vector<Tensor> others = {}) {
  const std::vector<int32_t> tokens = ByteCodec().Encode(text, false).value();
  InferRequest request;
  request.id = "id";
  request.inputs = std::move(others);
  request.inputs.push_back(Ints("input_ids", tokens));
  request.inputs.push_back(Ints("input_lengths", {static_cast<int32_t>(tokens.size())}));
  request.inputs.push_back(Ints("request_output_len", {4}));
  return request;
}

class EngineModelsTest : public testing::Test {
 protected:
  EngineModelsTest() { AddModels(); }

  // Models over the same engine in the place of those of their names, as after a reload.
  void AddModels() { AddEngineModels(models_, engine_model_, /*max_batch_size=*/4); }

  std::unique_ptr<InferCall> Start(std::string_view model, InferRequest request) const {
    return models_.Infer(models_.Find(model).value(), std::move(request), [] {});
  }
  // Waits for the next news of a call.
  CallNews Wait(InferCall& call) {
    CallNews news = CallNews::kNone;
    EXPECT_TRUE(Eventually([&] {
      news = call.Next(response_, error_);
      return news != CallNews::kNone;
    }));
    return news;
  }
  // The first news of a request with these inputs; its error.
  Status ErrorOf(std::string_view model, std::vector<Tensor> inputs) {
    InferRequest request;
    request.inputs = std::move(inputs);
    const auto call = Start(model, std::move(request));
    error_ = {};
    Wait(*call);
    return error_;
  }

  // Stops the requests of Prompt.
  void Stop() {
    const auto stop = Start("tensorrt_llm", Prompt("x", {Flag("stop")}));
    EXPECT_EQ(Wait(*stop), CallNews::kEvent);
  }

  FakeEngine engine_;
  CountingCodec codec_;
  SteadyClock clock_;
  const ModelPtr engine_model_ = std::make_shared<const Model>(Model{
      .name = "engine",
      .service = std::make_shared<GenerateService>(engine_, codec_, GenerationDefaults(), clock_)});
  Repository models_{clock_};
  InferResponse response_;
  Status error_;
};

// The engine takes 2048 tokens, one for each byte.
TEST_F(EngineModelsTest, PreprocessingDoesNotTokenizeATextThatIsFarTooLong) {
  const auto preprocess = [&](const std::string& query, std::vector<Tensor> others = {}) {
    codec_.num_bytes = 0;
    others.push_back(Text("QUERY", query));
    others.push_back(Ints("REQUEST_OUTPUT_LEN", {5}));
    return ErrorOf("preprocessing", std::move(others));
  };
  const std::string large(4 << 20, 'x');
  const Status query = preprocess(large);
  EXPECT_EQ(query.code(), Code::kInvalidArgument);
  EXPECT_EQ(query.field(), "QUERY");
  EXPECT_EQ(query.reason(), Reason::kContextLength);
  EXPECT_LE(codec_.num_bytes, 32u << 10);
  for (const char* words : {"BAD_WORDS_DICT", "STOP_WORDS_DICT"}) {
    EXPECT_EQ(preprocess("x", {Text(words, large)}).field(), words);
    EXPECT_LE(codec_.num_bytes, 32u << 10);
  }
  EXPECT_EQ(preprocess("x", {Text("EMBEDDING_BIAS_WORDS", large),
                             FloatTensor("EMBEDDING_BIAS_WEIGHTS", {1, 1}, std::vector{1.0f})})
                .field(),
            "EMBEDDING_BIAS_WORDS");
  EXPECT_LE(codec_.num_bytes, 32u << 10);
  // Whether a prompt fits is for the model that generates to say.
  EXPECT_TRUE(preprocess(std::string(3000, 'x')).ok()) << error_.message();
  EXPECT_TRUE(preprocess("").ok()) << error_.message();
}

TEST_F(EngineModelsTest, AStopReachesARequestThatBeganBeforeAReload) {
  engine_.Pause();
  const auto call = Start("tensorrt_llm", Prompt("tandem", {Flag("streaming")}));
  AddModels();
  Stop();
  ASSERT_EQ(Wait(*call), CallNews::kEvent);
  EXPECT_TRUE(response_.is_final);
  EXPECT_EQ(Wait(*call), CallNews::kDone);
  EXPECT_EQ(engine_.num_cancelled(), 1);
}

TEST_F(EngineModelsTest, AStopAfterTheLastResponseAddsNone) {
  for (const bool is_streamed : {false, true}) {
    const auto call = Start(
        "tensorrt_llm",
        Prompt("tandem", is_streamed ? std::vector{Flag("streaming")} : std::vector<Tensor>()));
    do {
      ASSERT_EQ(Wait(*call), CallNews::kEvent) << error_.message();
    } while (!response_.is_final);
    Stop();
    EXPECT_EQ(Wait(*call), CallNews::kDone) << "streamed: " << is_streamed;
  }
}

// A number of answers that no request may have is refused when the engine gets the request.
TEST_F(EngineModelsTest, AStopEndsARequestThatWasToBeRefused) {
  const auto call = Start(
      "tensorrt_llm", Prompt("tandem", {Flag("streaming"), Ints("num_return_sequences", {-1})}));
  Stop();
  EXPECT_EQ(Wait(*call), CallNews::kEvent);
  EXPECT_TRUE(response_.is_final);
}

TEST_F(EngineModelsTest, ErrorsNameTheInputsOfTheModel) {
  const auto refused = [&](std::vector<Tensor> inputs) {
    InferRequest request = Prompt("tandem", std::move(inputs));
    return ErrorOf("tensorrt_llm", std::move(request.inputs));
  };
  EXPECT_EQ(refused({Ints("runtime_top_k", {-5})}).field(), "runtime_top_k");
  EXPECT_TRUE(error_.message().starts_with("runtime_top_k")) << error_.message();
  EXPECT_EQ(refused({Ints("min_length", {-5})}).field(), "min_length");
  // Of the engine, which has words of its own.
  const FieldNames names = {
      .prompt = "input_ids", .num_choices = "num_return_sequences", .stop = "stop_words_list"};
  const auto named = [&](const std::string& field, ModelKind kind = ModelKind::kTensorrtLlm) {
    const Status error =
        InvalidArgument(field + " must be there").WithField(field).WithReason(Reason::kQueueFull);
    const Status in_words = NamingInputs(kind, names, error);
    EXPECT_EQ(in_words.message(), in_words.field() + " must be there");
    EXPECT_EQ(in_words.reason(), Reason::kQueueFull);
    return in_words.field();
  };
  EXPECT_EQ(named("prompt"), "input_ids");
  EXPECT_EQ(named("stop"), "stop_words_list");
  EXPECT_EQ(named("n"), "num_return_sequences");
  EXPECT_EQ(named("bad_words"), "bad_words_list");
  EXPECT_EQ(named("bad_words", ModelKind::kEnsemble), "bad_words");
  EXPECT_EQ(named("draft"), "draft_input_ids");
  EXPECT_EQ(named("draft.logits"), "draft_logits");
  EXPECT_EQ(named("draft.threshold"), "draft_acceptance_threshold");
  EXPECT_EQ(named("top_p_reset_id"), "runtime_top_p_reset_ids");
  EXPECT_EQ(named("top_k", ModelKind::kBls), "top_k");
  EXPECT_EQ(named("temperature"), "temperature");
  EXPECT_EQ(named("end_ids"), "end_id");
}

TEST_F(EngineModelsTest, GuidesBecomeConstraints) {
  const auto guide = [](const std::string& type, const std::string& text) {
    return std::vector<Tensor>{Text("guided_decoding_guide_type", type),
                               Text("guided_decoding_guide", text)};
  };
  for (const char* type : {"json", "json_schema", "regex", "ebnf_grammar", "choice"}) {
    const auto call = Start("tensorrt_llm", Prompt("tandem", guide(type, "abc")));
    Wait(*call);
    EXPECT_NE(engine_.last_request().constraint, nullptr) << type;
  }
  const auto plain = Start("tensorrt_llm", Prompt("tandem", guide("", "")));
  Wait(*plain);
  EXPECT_EQ(engine_.last_request().constraint, nullptr);
  const auto refused = [&](const std::string& type, const std::string& text) {
    InferRequest request = Prompt("tandem", guide(type, text));
    return ErrorOf("tensorrt_llm", std::move(request.inputs)).field();
  };
  EXPECT_EQ(refused("structural_tag", "{}"), "guided_decoding_guide_type");
  EXPECT_EQ(refused("regex", ""), "guided_decoding_guide");
  EXPECT_EQ(refused("", "a+"), "guided_decoding_guide");
  EXPECT_EQ(refused("regex", "refused"), "guided_decoding_guide");
}

// As rows of a batch whose drafts differ in length.
TEST_F(EngineModelsTest, ThePaddingOfADraftHasNoLogits) {
  InferRequest request = Prompt("tandem", {Ints("draft_input_ids", {5, 6, -1})});
  const std::vector<float> logits = {1, 2, 3, 4, 0, 0};
  request.inputs.push_back(FloatTensor("draft_logits", {1, 3, 2}, logits));
  const auto padded = Start("tensorrt_llm", request);
  EXPECT_THAT(engine_.last_request().draft.tokens, testing::ElementsAre(5, 6));
  EXPECT_THAT(engine_.last_request().draft.logits, testing::ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace tandem::serve::kserve
