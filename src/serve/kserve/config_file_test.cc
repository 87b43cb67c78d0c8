#include "serve/kserve/config_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <model_config.pb.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/testing/source_dir.h"
#include "serve/kserve/model_parameters.h"

namespace tandem::serve::kserve {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A read config, or the error's message in `error`.
struct Read {
  inference::ModelConfig config;
  std::vector<Unfilled> unfilled;
  std::string error;
  std::string field;
};

Read ReadText(std::string_view text) {
  Read read;
  const Status status = ReadConfigText(text, "m/config.pbtxt", read.config, read.unfilled);
  if (!status.ok()) {
    read.error = status.message();
    read.field = status.field();
  }
  return read;
}

std::vector<std::string> Keys(const Read& read) {
  std::vector<std::string> keys;
  for (const Unfilled& field : read.unfilled) {
    keys.push_back(fmt::format("{}:{}={}", field.line, field.key, field.variable));
  }
  return keys;
}

TEST(ConfigFile, ReadsTheFieldsThatRepositoriesUse) {
  const Read read = ReadText(R"(
    name: "preprocessing"  # a comment with ${braces} and "quotes
    backend: 'python'
    max_batch_size: 8
    model_transaction_policy { decoupled: True }
    input [
      { name: "QUERY" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "END_ID", data_type: TYPE_INT32, dims: [ 1 ] reshape: { shape: [ ] } optional: true }
    ]
    output { name: "INPUT_ID" data_type: TYPE_INT32 dims: -1 }
    parameters { key: "tokenizer_dir" value: { string_value: "/models/x" } }
    instance_group [ { count: 2 kind : KIND_CPU } ]
  )");
  EXPECT_EQ(read.error, "");
  EXPECT_THAT(read.unfilled, IsEmpty());
  EXPECT_EQ(read.config.name(), "preprocessing");
  EXPECT_TRUE(read.config.model_transaction_policy().decoupled());
  ASSERT_EQ(read.config.input_size(), 2);
  EXPECT_TRUE(read.config.input(1).optional());
  EXPECT_EQ(read.config.parameters().at("tokenizer_dir").string_value(), "/models/x");
  EXPECT_EQ(read.config.instance_group(0).count(), 2);
}

TEST(ConfigFile, AVariableInATextMeansThatNothingWasSaid) {
  const Read read = ReadText(
      "backend: \"${triton_backend}\"\n"
      "parameters { key: \"max_beam_width\" value: {\n"
      "  string_value: \"${max_beam_width}\" } }\n"
      "parameters { key: \"gpt_model_path\" value: {\n"
      "  string_value: \"/engines/${name}/1\" } }\n"
      "parameters { key: \"price\" value: { string_value: \"$5 {x}\" } }\n");
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.config.backend(), "");
  EXPECT_EQ(read.config.parameters().at("max_beam_width").string_value(), "");
  EXPECT_EQ(read.config.parameters().at("gpt_model_path").string_value(), "");
  EXPECT_EQ(read.config.parameters().at("price").string_value(), "$5 {x}");
  EXPECT_THAT(Keys(read), testing::UnorderedElementsAre("1:backend=triton_backend",
                                                        "3:max_beam_width=max_beam_width",
                                                        "5:gpt_model_path=name"));
}

TEST(ConfigFile, AVariableInAnotherPlaceGivesTheDefault) {
  const Read read = ReadText(
      "max_batch_size: ${triton_max_batch_size}\n"
      "model_transaction_policy { decoupled: ${decoupled_mode} }\n"
      "dynamic_batching {\n"
      "  preferred_batch_size: [ ${triton_max_batch_size} ]\n"
      "  max_queue_delay_microseconds: $delay,\n"
      "  default_queue_policy: { max_queue_size: ${max_queue_size} }\n"
      "}\n"
      "output { name: \"context_logits\" data_type: ${logits_datatype} }\n"
      "instance_group [ { count: ${n}; kind: KIND_CPU } ]\n");
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.config.max_batch_size(), 64) << "0 would leave out the batch dimension";
  EXPECT_TRUE(read.config.model_transaction_policy().decoupled());
  EXPECT_THAT(read.config.dynamic_batching().preferred_batch_size(), ElementsAre(64));
  EXPECT_EQ(read.config.output(0).data_type(), inference::TYPE_FP32);
  EXPECT_EQ(read.config.instance_group(0).kind(), inference::ModelInstanceGroup::KIND_CPU);
  EXPECT_THAT(Keys(read),
              ElementsAre("1:max_batch_size=triton_max_batch_size", "2:decoupled=decoupled_mode",
                          "4:preferred_batch_size=triton_max_batch_size",
                          "5:max_queue_delay_microseconds=delay", "6:max_queue_size=max_queue_size",
                          "8:data_type=logits_datatype", "9:count=n"));
}

TEST(ConfigFile, AVariableLeavesNoEmptyPlaceInAList) {
  for (const std::string_view list :
       {"[${a}]", "[1, ${a}]", "[${a}, 1]", "[1, ${a} , 2]", "[${a},${b}]", "[${a},${b},3]"}) {
    const Read read =
        ReadText(fmt::format("input {{ name: \"x\" data_type: TYPE_INT8 dims: {} }}", list));
    EXPECT_EQ(read.error, "") << list;
    ASSERT_FALSE(read.unfilled.empty()) << list;
    EXPECT_EQ(read.unfilled[0].key, "dims") << list;
  }
}

TEST(ConfigFile, ReadsOurTemplatesUnfilledAndFilled) {
  for (const std::string_view folder : {"all_models/inflight_batcher_llm", "triton_model_repo"}) {
    for (const std::string_view model :
         {"ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"}) {
      const auto path = SourceDir() / "compat" / folder / model / "config.pbtxt";
      const Read read = ReadText(ReadTextFile(path).value());
      EXPECT_EQ(read.error, "") << path;
      EXPECT_EQ(read.config.name(), model);
      EXPECT_GT(read.config.max_batch_size(), 0) << path;
      const auto parameters = ReadModelParameters(read.config, "model");
      ASSERT_TRUE(parameters.ok()) << parameters.status().message();
      EXPECT_THAT(parameters->warnings, IsEmpty()) << path;
    }
  }
}

TEST(ConfigFile, NamesEveryUnfilledFieldInOneLine) {
  const Read read = ReadText("max_batch_size: ${triton_max_batch_size}\nbackend: \"${b}\"");
  EXPECT_EQ(DescribeUnfilled("m/config.pbtxt", read.unfilled),
            "m/config.pbtxt: variables of the template are not filled in, defaults are used: "
            "max_batch_size (line 1, ${triton_max_batch_size}: 64), backend (line 2, ${b})");
}

TEST(ConfigFile, ErrorsNameFileLineAndKey) {
  EXPECT_EQ(ReadText("name: \"x\"\nmax_batchsize: 8\n").error,
            "m/config.pbtxt:2: max_batchsize: there is no field \"max_batchsize\" (did you mean "
            "\"max_batch_size\"?)");
  const Read word = ReadText("name: \"x\"\n\n  max_batch_size: many\n");
  EXPECT_THAT(word.error, AllOf(HasSubstr("m/config.pbtxt:3: max_batch_size: "),
                                HasSubstr("Expected integer")));
  EXPECT_EQ(word.field, "max_batch_size");
  EXPECT_THAT(ReadText("input { name: \"x\"\n data_type: TYPE_TEXT }").error,
              AllOf(HasSubstr("m/config.pbtxt:2: data_type: "), HasSubstr("TYPE_TEXT")));
  EXPECT_THAT(ReadText("max_batch_size: -${x}").error, HasSubstr("m/config.pbtxt:1: max_batch"));
  EXPECT_THAT(ReadText("name: \"x").error, HasSubstr("m/config.pbtxt:1: "));
  EXPECT_THAT(ReadText("input { data_type: TYPE_INT8 }").error, HasSubstr("an input needs a name"));
  EXPECT_THAT(ReadText("output { name: \"y\" }").error,
              HasSubstr("output \"y\" needs a data_type"));
}

TEST(ConfigFile, RefusesDeepNesting) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "unknown { ";
  EXPECT_NE(ReadText(text).error, "");
}

}  // namespace
}  // namespace tandem::serve::kserve
