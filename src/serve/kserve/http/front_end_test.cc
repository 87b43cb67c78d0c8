// The routes of shared memory, and inference with it, through a server without an engine.
#include "serve/kserve/http/front_end.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <model_config.pb.h>

#include <string>

#include "serve/kserve/config_file.h"
#include "serve/kserve/models/builtin_models.h"
#include "serve/testing/shared_object.h"
#include "serve/testing/test_server.h"

namespace tandem::serve::kserve {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kConfig = R"(
  name: "echo" backend: "identity"
  input { name: "N" data_type: TYPE_INT32 dims: -1 optional: true }
  input { name: "S" data_type: TYPE_STRING dims: -1 optional: true }
  output { name: "N_OUT" data_type: TYPE_INT32 dims: -1 }
  output { name: "S_OUT" data_type: TYPE_STRING dims: -1 })";

class SharedMemoryRoutesTest : public testing::Test {
 protected:
  SharedMemoryRoutesTest() {
    inference::ModelConfig config;
    std::vector<Unfilled> unfilled;
    TANDEM_CHECK(ReadConfigText(kConfig, "config.pbtxt", config, unfilled).ok(), "the config");
    models_.Add(MakeBuiltinModel(config).value());
    ServerOptions options;
    options.http.port = 0;
    server_ = Server::Start(options, engines_, models_, metrics_).value();
  }

  HttpClient Client() const { return HttpClient("127.0.0.1", server_->port()); }
  // "200 BODY".
  std::string Get(const std::string& path) const {
    const ClientResponse response = Client().Get(path).value();
    return fmt::format("{} {}", response.status, response.body);
  }
  std::string Post(const std::string& path, const std::string& body) const {
    const ClientResponse response = Client().Post(path, body).value();
    return fmt::format("{} {}", response.status, response.body);
  }
  std::string Register(const std::string& name, const SharedObject& object, size_t bytes) const {
    return Post(fmt::format("/v2/systemsharedmemory/region/{}/register", name),
                fmt::format(R"({{"key":"{}","offset":0,"byte_size":{}}})", object.key(), bytes));
  }
  std::string Infer(const std::string& inputs, const std::string& outputs) const {
    return Post("/v2/models/echo/infer",
                fmt::format(R"({{"inputs":[{}],"outputs":[{}]}})", inputs, outputs));
  }

  SteadyClock clock_;
  Metrics metrics_;
  ModelRegistry engines_;
  Repository models_{clock_};
  std::unique_ptr<Server> server_;
};

// The parameters of a tensor in a region.
std::string In(const std::string& region, uint64_t offset, uint64_t bytes) {
  return fmt::format(
      R"("parameters":{{"shared_memory_region":"{}","shared_memory_offset":{},"shared_memory_byte_size":{}}})",
      region, offset, bytes);
}

TEST_F(SharedMemoryRoutesTest, RegionsAreRegisteredListedAndUnregistered) {
  models_.shared_memory().Allow();
  const SharedObject object("01234567");
  const std::string path = "/v2/systemsharedmemory";
  EXPECT_EQ(Get(path + "/status"), "200 []");
  EXPECT_EQ(Register("a%20b", object, 8), "200 ");
  const std::string row =
      fmt::format(R"(200 [{{"name":"a b","key":"{}","offset":0,"byte_size":8}}])", object.key());
  EXPECT_EQ(Get(path + "/status"), row);
  EXPECT_EQ(Get(path + "/region/a%20b/status"), row);
  EXPECT_EQ(Register("a%20b", object, 8),
            R"(400 {"error":"shared memory region 'a b' already in manager"})");
  EXPECT_EQ(Register("c", object, 9),
            R"(400 {"error":"failed to register shared memory region 'c': invalid args"})");
  EXPECT_EQ(Post(path + "/region/c/register", R"({"key":"/tandem_test_nothing","byte_size":1})"),
            R"(500 {"error":"Unable to open shared memory region: '/tandem_test_nothing'"})");
  EXPECT_EQ(Post(path + "/region/c/register", R"({"byte_size":1})"),
            R"(400 {"error":"Shared memory register request has no 'key' field"})");
  EXPECT_EQ(Post(path + "/region/c/register", R"({"key":"/x"})"),
            R"(400 {"error":"Shared memory register request has no 'byte_size' field"})");
  EXPECT_EQ(Post(path + "/region/c/register", R"({"key":"/x","byte_size":-1})"),
            R"(400 {"error":"attempt to access JSON non-unsigned-integer as unsigned-integer"})");
  EXPECT_EQ(Get(path + "/region/c/status"),
            R"(404 {"error":"Unable to find system shared memory region: 'c'"})");
  EXPECT_EQ(Post(path + "/region/c/unregister", ""), "200 ");
  EXPECT_EQ(Post(path + "/region/a%20b/unregister", ""), "200 ");
  EXPECT_EQ(Get(path + "/status"), "200 []");
  ASSERT_EQ(Register("d", object, 8), "200 ");
  EXPECT_EQ(Post(path + "/unregister", ""), "200 ");
  EXPECT_EQ(Get(path + "/status"), "200 []");
}

TEST_F(SharedMemoryRoutesTest, TheExtensionIsNamedAndUsedOnlyWhereItIsAllowed) {
  const SharedObject object("01234567");
  EXPECT_THAT(Get("/v2"), Not(HasSubstr("shared_memory")));
  const std::string refusal =
      R"(501 {"error":"shared memory is not allowed; start the server with --allow_shared_memory"})";
  EXPECT_EQ(Register("a", object, 8), refusal);
  EXPECT_EQ(Infer(R"({"name":"N","datatype":"INT32","shape":[2],)" + In("a", 0, 8) + "}",
                  R"({"name":"N_OUT"})"),
            refusal);
  EXPECT_EQ(Infer(R"({"name":"N","datatype":"INT32","shape":[1],"data":[1]})",
                  R"({"name":"N_OUT",)" + In("a", 0, 8) + "}"),
            refusal);
  models_.shared_memory().Allow();
  EXPECT_THAT(Get("/v2"), HasSubstr(R"("system_shared_memory")"));
  EXPECT_THAT(Get("/v2"), Not(HasSubstr("cuda_shared_memory")));
}

TEST_F(SharedMemoryRoutesTest, TensorsAreReadFromAndWrittenToRegions) {
  models_.shared_memory().Allow();
  // Two numbers, then the strings "ab" and "".
  const SharedObject in(std::string("\7\0\0\0\10\0\0\0\2\0\0\0ab\0\0\0\0", 18));
  const SharedObject out(std::string(20, '.'));
  ASSERT_EQ(Register("in", in, 18), "200 ");
  ASSERT_EQ(Register("out", out, 20), "200 ");
  const std::string inputs = R"({"name":"N","datatype":"INT32","shape":[2],)" + In("in", 0, 8) +
                             R"(},{"name":"S","datatype":"BYTES","shape":[2],)" + In("in", 8, 10) +
                             "}";
  EXPECT_EQ(
      Infer(inputs, R"({"name":"N_OUT",)" + In("out", 0, 9) + R"(},{"name":"S_OUT",)" +
                        In("out", 9, 11) + "}"),
      R"(200 {"model_name":"echo","model_version":"1","outputs":[{"name":"N_OUT","datatype":"INT32",)"
      R"("shape":[2]},{"name":"S_OUT","datatype":"BYTES","shape":[2]}]})");
  EXPECT_EQ(out.Content(), std::string("\7\0\0\0\10\0\0\0.\2\0\0\0ab\0\0\0\0.", 20));
  // One tensor in memory, the other in the body.
  EXPECT_THAT(Infer(inputs, R"({"name":"N_OUT"},{"name":"S_OUT",)" + In("out", 0, 20) + "}"),
              HasSubstr(R"("shape":[2],"data":[7,8]},{"name":"S_OUT","datatype":"BYTES","shape")"));

  EXPECT_EQ(Infer(inputs, R"({"name":"N_OUT",)" + In("out", 0, 7) + "}"),
            R"(500 {"error":"shared memory size specified with the request for output 'N_OUT' )"
            R"((7 bytes) should be at least 8 bytes to hold the results"})");
  EXPECT_EQ(Infer(inputs, R"({"name":"N_OUT",)" + In("out", 18446744073709551584u, 8) + "}"),
            R"(400 {"error":"Invalid offset for shared memory region: 'out'"})");
  EXPECT_EQ(Infer(R"({"name":"N","datatype":"INT32","shape":[2],)" + In("in", 0, 9) + "}", ""),
            R"(400 {"error":"input 'N': got 9 bytes, expected 8 for 2 elements of INT32"})");
  EXPECT_EQ(
      Infer(R"({"name":"N","datatype":"INT32","shape":[2],"data":[1,2],)" + In("in", 0, 8) + "}",
            ""),
      R"(400 {"error":"Input must set only one of the following fields: 'data', )"
      R"('binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But set )"
      R"('data' 'shared_memory_region'"})");
  in.Resize(4);
  EXPECT_THAT(Infer(inputs, ""), HasSubstr("the object has become shorter"));
}

TEST_F(SharedMemoryRoutesTest, CudaSharedMemoryHasNoRegions) {
  models_.shared_memory().Allow();
  EXPECT_EQ(Get("/v2/cudasharedmemory/status"), "200 []");
  EXPECT_EQ(Get("/v2/cudasharedmemory/region/a/status"),
            R"(404 {"error":"Unable to find cuda shared memory region: 'a'"})");
  EXPECT_EQ(Post("/v2/cudasharedmemory/region/a/register", "{}"),
            R"(501 {"error":"CUDA shared memory is not supported by this server"})");
  EXPECT_EQ(Post("/v2/cudasharedmemory/region/a/unregister", ""), "200 ");
}

}  // namespace
}  // namespace tandem::serve::kserve
