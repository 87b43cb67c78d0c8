#include "serve/kserve/http/infer_json.h"

#include <gtest/gtest.h>

namespace tandem::serve::kserve {
namespace {

TEST(InferJsonTest, BinaryTensorsFollowTheJsonInTheirOrder) {
  const std::string json =
      R"({"id":"a","inputs":[{"name":"x","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}},)"
      R"({"name":"y","datatype":"BOOL","shape":[1],"data":[true]},)"
      R"({"name":"z","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}}]})";
  const std::string binary("\1\0\0\0\2\0\0\0\1\0\0\0w", 13);
  const Result<InferRequest> request = ParseInfer(json + binary, json.size());
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->id, "a");
  EXPECT_EQ(Integers(*request->Input("x")), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(Bools(*request->Input("y")), std::vector<bool>{true});
  EXPECT_EQ(Strings(*request->Input("z")).at(0), "w");
  // Too few and too many bytes.
  EXPECT_FALSE(ParseInfer(json + binary.substr(1), json.size()).ok());
  EXPECT_FALSE(ParseInfer(json + binary + "x", json.size()).ok());
}

TEST(InferJsonTest, NestedListsAreReadRowsFirst) {
  const Result<InferRequest> request = ParseInfer(
      R"({"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1,2.5],[3,4]]}]})", {});
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(Floats(*request->Input("x")), (std::vector<float>{1, 2.5, 3, 4}));
}

TEST(InferJsonTest, OutputsAreBinaryWhereTheClientAsksForIt) {
  InferRequest request;
  request.outputs = {{"a", {{"binary_data", true}}}, {"b", {}}};
  InferResponse response;
  response.model_name = "m";
  response.model_version = "1";
  response.outputs = {Int32Tensor("a", {1}, std::vector<int32_t>{7}),
                      Int32Tensor("b", {2}, std::vector<int32_t>{8, 9})};
  const InferBody body = FormatInfer(request, response);
  ASSERT_TRUE(body.json_bytes);
  EXPECT_EQ(
      body.bytes.substr(0, *body.json_bytes),
      R"({"model_name":"m","model_version":"1","outputs":[{"name":"a","datatype":"INT32","shape":[1],)"
      R"("parameters":{"binary_data_size":4}},{"name":"b","datatype":"INT32","shape":[2],"data":[8,9]}]})");
  EXPECT_EQ(body.bytes.substr(*body.json_bytes), std::string("\7\0\0\0", 4));
  // For all outputs, but for one.
  request.parameters = {{"binary_data_output", true}};
  request.outputs = {{"a", {}}, {"b", {{"binary_data", false}}}};
  const InferBody both = FormatInfer(request, response);
  EXPECT_EQ(both.bytes.substr(*both.json_bytes), std::string("\7\0\0\0", 4));
  request.parameters.clear();
  request.outputs.clear();
  EXPECT_FALSE(FormatInfer(request, response).json_bytes);
}

TEST(InferJsonTest, ParametersOfTensorsFollowTheProtocolsRules) {
  const auto refusal = [](const std::string& input, const std::string& output) {
    return ParseInfer(R"({"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[1])" +
                          input + R"(}],"outputs":[{"name":"y")" + output + "}]}",
                      {})
        .status();
  };
  EXPECT_TRUE(refusal(R"(,"parameters":{"content_type":"np"})", "").ok());
  for (const std::string parameters :
       {R"({"classification":1})", R"({"shared_memory_region":1})"}) {
    EXPECT_EQ(refusal(",\"parameters\":" + parameters, "").field(), "x") << parameters;
    EXPECT_EQ(refusal("", ",\"parameters\":" + parameters).field(), "y") << parameters;
  }
  EXPECT_EQ(refusal(R"(,"parameters":{"triton_x":1})", "").field(), "triton_x");
  EXPECT_EQ(refusal(R"(,"parameters":{"a":[1]})", "").field(), "a");
  EXPECT_EQ(refusal(R"(,"parameters":[])", "").field(), "parameters");
}

}  // namespace
}  // namespace tandem::serve::kserve
