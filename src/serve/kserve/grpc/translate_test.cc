#include "serve/kserve/grpc/translate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <grpc_service.pb.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "base/reason.h"

namespace tandem::serve::kserve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

inference::ModelInferRequest Message(const std::string& text) {
  inference::ModelInferRequest message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}
InferRequest Received(const std::string& text) {
  return FromMessage(Message(text)).value().request;
}
Status Refusal(const std::string& text) {
  const auto received = FromMessage(Message(text));
  return received.ok() ? Status() : received.status();
}

TEST(Translate, ReadsNamesParametersAndOutputs) {
  const InferRequest request = Received(R"(
    model_name: "m" model_version: "1" id: "7"
    parameters { key: "a" value { bool_param: true } }
    parameters { key: "b" value { int64_param: -1 } }
    parameters { key: "c" value { uint64_param: 18446744073709551615 } }
    parameters { key: "d" value { double_param: 0.5 } }
    parameters { key: "e" value { string_param: "x" } }
    outputs { name: "o" parameters { key: "p" value { bool_param: false } } })");
  EXPECT_EQ(request.model_name, "m");
  EXPECT_EQ(request.model_version, "1");
  EXPECT_EQ(request.id, "7");
  EXPECT_EQ(request.parameters.at("a"), Parameter(true));
  EXPECT_EQ(request.parameters.at("b"), Parameter(int64_t{-1}));
  EXPECT_EQ(request.parameters.at("c"), Parameter(~uint64_t{0}));
  EXPECT_EQ(request.parameters.at("d"), Parameter(0.5));
  EXPECT_EQ(request.parameters.at("e"), Parameter(std::string("x")));
  ASSERT_EQ(request.outputs.size(), 1u);
  EXPECT_EQ(request.outputs[0].name, "o");
}

TEST(Translate, RawContentsBelongToTheInputsInOrder) {
  const InferRequest request = Received(R"(
    inputs { name: "a" datatype: "INT32" shape: 1 shape: 2 }
    inputs { name: "empty" datatype: "INT32" shape: 1 shape: 2 shape: 0 }
    inputs { name: "t" datatype: "BYTES" shape: 2 }
    raw_input_contents: "\1\0\0\0\2\0\0\0" raw_input_contents: ""
    raw_input_contents: "\2\0\0\0hi\0\0\0\0")");
  ASSERT_EQ(request.inputs.size(), 3u);
  EXPECT_THAT(request.inputs[0].shape, ElementsAre(1, 2));
  EXPECT_THAT(Integers(request.inputs[0]), ElementsAre(1, 2));
  EXPECT_EQ(request.inputs[1].data, "");
  EXPECT_THAT(Strings(request.inputs[2]), ElementsAre("hi", ""));
}

TEST(Translate, TypedContentsHaveTheFieldOfTheirType) {
  const InferRequest request = Received(R"(
    inputs { name: "a" datatype: "BOOL" shape: 2 contents { bool_contents: [true, false] } }
    inputs { name: "b" datatype: "INT8" shape: 1 contents { int_contents: -3 } }
    inputs { name: "c" datatype: "UINT16" shape: 1 contents { uint_contents: 65535 } }
    inputs { name: "d" datatype: "INT64" shape: 1 contents { int64_contents: -5 } }
    inputs { name: "e" datatype: "FP32" shape: 1 contents { fp32_contents: 0.5 } }
    inputs { name: "f" datatype: "BYTES" shape: 2 contents { bytes_contents: ["x", ""] } }
    inputs { name: "g" datatype: "INT32" shape: 0 })");
  EXPECT_THAT(Bools(request.inputs[0]), ElementsAre(true, false));
  EXPECT_THAT(Integers(request.inputs[1]), ElementsAre(-3));
  EXPECT_THAT(Integers(request.inputs[2]), ElementsAre(65535));
  EXPECT_THAT(Integers(request.inputs[3]), ElementsAre(-5));
  EXPECT_THAT(Floats(request.inputs[4]), ElementsAre(0.5f));
  EXPECT_THAT(Strings(request.inputs[5]), ElementsAre("x", ""));
  EXPECT_EQ(request.inputs[6].data, "");
}

TEST(Translate, ContentsThatDoNotFitAreRefusedByName) {
  for (const std::string input : {
           R"(datatype: "INT33" shape: 1 contents { int_contents: 1 })",
           R"(datatype: "INT32" shape: 2 contents { int_contents: 1 })",
           R"(datatype: "INT32" shape: 1 contents { int64_contents: 1 })",
           R"(datatype: "INT32" shape: 1 contents { int_contents: 1 fp32_contents: 1 })",
           R"(datatype: "BYTES" shape: 1 contents { int_contents: 1 })",
           R"(datatype: "INT8" shape: 1 contents { int_contents: 128 })",
           R"(datatype: "UINT8" shape: 1 contents { uint_contents: 256 })",
           R"(datatype: "FP16" shape: 1 contents { fp32_contents: 1 })",
           R"(datatype: "INT32" shape: -1)",
           R"(datatype: "INT32" shape: 2147483648 shape: 2147483648 shape: 2147483648)",
           R"(datatype: "INT32" shape: 2147483648)",
           R"(datatype: "BYTES" shape: 2147483648)",
       }) {
    const Status refusal = Refusal("inputs { name: \"x\" " + input + " }");
    EXPECT_EQ(refusal.code(), Code::kInvalidArgument) << input;
    EXPECT_EQ(refusal.field(), "x") << input << ": " << refusal.message();
  }
}

TEST(Translate, RawContentsThatDoNotFitAreRefusedByName) {
  const std::string input = "inputs { name: \"x\" datatype: \"INT32\" shape: 1 }";
  EXPECT_EQ(Refusal(input + "raw_input_contents: \"abc\"").field(), "x");
  EXPECT_EQ(Refusal(input + "raw_input_contents: \"abcdefgh\"").field(), "x");
  EXPECT_EQ(Refusal(input + "raw_input_contents: \"abcd\" raw_input_contents: \"\"").field(),
            "raw_input_contents");
  EXPECT_EQ(Refusal(input + input + "raw_input_contents: \"abcd\"").field(), "raw_input_contents");
  EXPECT_THAT(
      Refusal("inputs { name: \"x\" datatype: \"INT32\" shape: 1 contents { int_contents: 1 "
              "} } raw_input_contents: \"abcd\"")
          .message(),
      HasSubstr("contents field must not be specified when using raw_input_contents"));
  EXPECT_EQ(Refusal("inputs { name: \"x\" datatype: \"BYTES\" shape: 1 } raw_input_contents: "
                    "\"\\377\\377\\377\\377\"")
                .field(),
            "x");
}

TEST(Translate, TheProtocolsOwnParametersAreNotTheModels) {
  const auto received = FromMessage(
      Message("parameters { key: \"triton_enable_empty_final_response\" value { bool_param: true } "
              "}"));
  EXPECT_TRUE(received->wants_empty_final);
  EXPECT_TRUE(received->request.parameters.empty());
  EXPECT_EQ(Refusal("parameters { key: \"triton_x\" value { bool_param: true } }").field(),
            "triton_x");
  EXPECT_EQ(Refusal("parameters { key: \"x\" value { } }").field(), "x");
}

constexpr const char* kRange =
    "parameters { key: \"shared_memory_region\" value { string_param: \"r\" } } "
    "parameters { key: \"shared_memory_byte_size\" value { int64_param: 4 } } ";

TEST(Translate, TensorsInSharedMemoryComeWithoutData) {
  const std::string one = "name: \"x\" datatype: \"INT32\" shape: 1 ";
  const std::string two = "name: \"y\" datatype: \"INT32\" shape: 1 ";
  // Raw contents are those of the other inputs.
  const InferRequest request =
      Received(fmt::format("inputs {{ {} {} }} inputs {{ {} }} raw_input_contents: \"abcd\" "
                           "outputs {{ name: \"z\" {} }}",
                           one, kRange, two, kRange));
  EXPECT_EQ(request.inputs[0].data, "");
  EXPECT_EQ(request.inputs[1].data, "abcd");
  ASSERT_EQ(request.shared_inputs.size(), 1u);
  EXPECT_EQ(request.shared_inputs[0].index, 0u);
  EXPECT_EQ(request.shared_inputs[0].range.region, "r");
  EXPECT_EQ(request.shared_inputs[0].range.byte_size, 4u);
  EXPECT_EQ(request.outputs[0].shared_memory->region, "r");

  EXPECT_EQ(
      Refusal(fmt::format("inputs {{ {} {} }} raw_input_contents: \"abcd\"", one, kRange)).field(),
      "raw_input_contents");
  EXPECT_THAT(Refusal(fmt::format("inputs {{ {} {} contents {{ int_contents: 1 }} }}", one, kRange))
                  .message(),
              HasSubstr("unexpected 'content' provided when using shared memory"));
}

TEST(Translate, ParametersOfTensorsFollowTheProtocolsRules) {
  const auto refusal = [](const std::string& kind, const std::string& parameter) {
    return Refusal(
        fmt::format("{} {{ name: \"x\" {} parameters {{ key: \"{}\" value {{ int64_param: "
                    "1 }} }} }}",
                    kind, kind == "inputs" ? "datatype: \"INT32\" shape: 0" : "", parameter));
  };
  for (const std::string kind : {"inputs", "outputs"}) {
    EXPECT_TRUE(refusal(kind, "a").ok());
    EXPECT_EQ(refusal(kind, "classification").code(), Code::kUnimplemented);
    EXPECT_EQ(refusal(kind, "classification").field(), "x");
    EXPECT_EQ(refusal(kind, "shared_memory_region").field(), "x");
    EXPECT_EQ(refusal(kind, "triton_x").field(), "triton_x");
  }
}

TEST(Translate, ParametersWithoutAValueAndFilesAreRefusedByName) {
  inference::RepositoryModelLoadRequest load;
  (*load.mutable_parameters())["config"].set_string_param("{}");
  EXPECT_EQ(ParametersOf(load)->at("config"), Parameter(std::string("{}")));
  (*load.mutable_parameters())["file:1/x"].set_bytes_param("x");
  EXPECT_EQ(ParametersOf(load).status().field(), "file:1/x");
  inference::RepositoryModelUnloadRequest unload;
  (*unload.mutable_parameters())["unload_dependents"];
  EXPECT_EQ(ParametersOf(unload).status().field(), "unload_dependents");
  inference::LogSettingsRequest log;
  (*log.mutable_settings())["log_verbose_level"].set_uint32_param(2);
  EXPECT_EQ(ParametersOf(log)->at("log_verbose_level"), Parameter(int64_t{2}));
  (*log.mutable_settings())["log_info"];
  EXPECT_EQ(ParametersOf(log).status().field(), "log_info");
}

TEST(Translate, ResponsesAreRawWithOneEntryForEachOutput) {
  InferResponse response;
  response.model_name = "m";
  response.model_version = "1";
  response.id = "7";
  response.parameters["sequence_id"] = int64_t{0};
  response.outputs.push_back(Int32Tensor("a", {1, 2}, std::vector<int32_t>{1, 2}));
  response.outputs.push_back(Int32Tensor("b", {1, 0}, {}));
  inference::ModelInferResponse message;
  ToMessage(response, message);
  EXPECT_EQ(message.model_name(), "m");
  EXPECT_EQ(message.id(), "7");
  EXPECT_EQ(message.parameters().at("sequence_id").int64_param(), 0);
  ASSERT_EQ(message.outputs_size(), 2);
  EXPECT_EQ(message.outputs(0).datatype(), "INT32");
  EXPECT_THAT(message.outputs(0).shape(), ElementsAre(1, 2));
  EXPECT_THAT(message.raw_output_contents(), ElementsAre(std::string("\1\0\0\0\2\0\0\0", 8), ""));
}

TEST(Translate, AFullQueueIsUnavailableSoThatClientsTryAgain) {
  EXPECT_EQ(GrpcCodeOf(ResourceExhausted("full").WithReason(Reason::kQueueFull)),
            ::grpc::UNAVAILABLE);
  EXPECT_EQ(GrpcCodeOf(ResourceExhausted("too much")), ::grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(GrpcCodeOf(InvalidArgument("x")), ::grpc::INVALID_ARGUMENT);
  EXPECT_EQ(GrpcCodeOf(Status()), ::grpc::OK);
}

}  // namespace
}  // namespace tandem::serve::kserve
