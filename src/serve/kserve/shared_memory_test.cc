#include "serve/kserve/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "base/reason.h"
#include "serve/testing/shared_object.h"

namespace tandem::serve::kserve {
namespace {

using testing::HasSubstr;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

InferRequest InputAt(SharedMemoryRange range) {
  InferRequest request;
  request.inputs.push_back({"x", DataType::kUint8, {4}, {}});
  request.shared_inputs.push_back({0, std::move(range)});
  return request;
}

InferRequest OutputAt(SharedMemoryRange range) {
  InferRequest request;
  request.outputs.push_back({"y", {}, std::move(range)});
  return request;
}

InferResponse Answer(std::string data) {
  InferResponse response;
  response.outputs.push_back({"y", DataType::kUint8, {}, std::move(data)});
  return response;
}

class SharedMemoryTest : public testing::Test {
 protected:
  SharedMemoryTest() { regions_.Allow(); }

  // The data of an input; the error's message if it cannot be read.
  std::string Read(SharedMemoryRange range) const {
    InferRequest request = InputAt(std::move(range));
    const auto resolved = regions_.Resolve(request);
    return resolved.ok() ? request.inputs[0].data : resolved.status().message();
  }

  const SharedObject object_{"0123456789"};
  SharedMemoryRegions regions_;
};

TEST_F(SharedMemoryTest, RegionsAreListedUntilTheyAreUnregistered) {
  EXPECT_TRUE(regions_.List("")->empty());
  ASSERT_TRUE(regions_.Register({"b", object_.key(), 2, 8}).ok());
  ASSERT_TRUE(regions_.Register({"a", object_.key().substr(1), 0, 10}).ok());
  const auto all = regions_.List("");
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ(all->at(0).name, "a");
  const auto one = regions_.List("b");
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->at(0).key, object_.key());
  EXPECT_EQ(one->at(0).offset, 2u);
  EXPECT_EQ(one->at(0).byte_size, 8u);

  regions_.Unregister("nothing");
  regions_.Unregister("b");
  EXPECT_EQ(regions_.List("b").status().code(), Code::kNotFound);
  EXPECT_EQ(regions_.List("b").status().message(),
            "Unable to find system shared memory region: 'b'");
  EXPECT_EQ(regions_.List("")->size(), 1u);
  regions_.Unregister("");
  EXPECT_TRUE(regions_.List("")->empty());
}

TEST_F(SharedMemoryTest, ANameIsRegisteredOnce) {
  ASSERT_TRUE(regions_.Register({"a", object_.key(), 0, 10}).ok());
  const Status again = regions_.Register({"a", object_.key(), 0, 4});
  EXPECT_EQ(again.reason(), Reason::kAlreadyExists);
  EXPECT_EQ(again.message(), "shared memory region 'a' already in manager");
  EXPECT_EQ(regions_.List("a")->at(0).byte_size, 10u);
  const Status nameless = regions_.Register({"", object_.key(), 0, 4});
  EXPECT_EQ(nameless.message(),
            "'region name' is necessary to register system shared memory region");
  EXPECT_EQ(regions_.Register({std::string(256, 'x'), object_.key(), 0, 4}).code(),
            Code::kInvalidArgument);
}

TEST_F(SharedMemoryTest, ARegionLiesWithinItsObject) {
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 11}, {10, 1}, {11, 0}, {0, 0}, {kHuge, 1}, {1, kHuge}, {kHuge, kHuge}}) {
    const Status refused = regions_.Register({"a", object_.key(), offset, bytes});
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.message(), "failed to register shared memory region 'a': invalid args");
  }
  EXPECT_TRUE(regions_.Register({"a", object_.key(), 9, 1}).ok());
}

TEST_F(SharedMemoryTest, AKeyIsAPlainNameOfAnObject) {
  for (const std::string& key :
       {std::string(), std::string("/"), std::string("/../etc/passwd"), std::string("a/b"),
        std::string("//a"), std::string(".."), object_.key() + std::string("\0x", 2)}) {
    const Status refused = regions_.Register({"a", key, 0, 1});
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << key;
    EXPECT_THAT(refused.message(), HasSubstr("the key must be a name")) << key;
  }
  const Status missing = regions_.Register({"a", "/tandem_test_nothing", 0, 1});
  EXPECT_EQ(missing.code(), Code::kInternal);
  EXPECT_EQ(missing.message(), "Unable to open shared memory region: '/tandem_test_nothing'");
  EXPECT_TRUE(regions_.List("")->empty());
}

TEST_F(SharedMemoryTest, RegionsAreBounded) {
  for (size_t i = 0; i < 100; ++i) {  // refused ones leave nothing open
    EXPECT_FALSE(regions_.Register({"a", object_.key(), 0, 11}).ok());
  }
  const size_t most = SharedMemoryRegions::kMostRegions;
  Status last;
  size_t count = 0;
  for (; count <= most && last.ok(); ++count) {
    last = regions_.Register({std::to_string(count), object_.key(), 0, 1});
  }
  // A process may be allowed fewer files than that.
  EXPECT_TRUE(last.code() == Code::kResourceExhausted || last.code() == Code::kInternal);
  regions_.Unregister("0");
  EXPECT_TRUE(regions_.Register({"again", object_.key(), 0, 1}).ok());
}

TEST_F(SharedMemoryTest, InputsAreReadFromTheirRanges) {
  ASSERT_TRUE(regions_.Register({"a", object_.key(), 2, 6}).ok());
  EXPECT_EQ(Read({"a", 0, 6}), "234567");
  EXPECT_EQ(Read({"a", 5, 1}), "7");
  EXPECT_EQ(Read({"a", 5, 0}), "");
  EXPECT_EQ(Read({"b", 0, 1}), "Unable to find shared memory region: 'b'");
  EXPECT_EQ(Read({"a", 6, 0}), "Invalid offset for shared memory region: 'a'");
  EXPECT_EQ(Read({"a", kHuge - 31, 32}), "Invalid offset for shared memory region: 'a'");
  EXPECT_EQ(Read({"a", 0, 7}), "Invalid offset + byte size for shared memory region: 'a'");
  EXPECT_EQ(Read({"a", 1, kHuge}), "Invalid offset + byte size for shared memory region: 'a'");
}

TEST_F(SharedMemoryTest, TheInputsOfARequestAreBoundedTogether) {
  object_.Resize(SharedMemoryRegions::kMostInputBytes + 1);
  ASSERT_TRUE(
      regions_.Register({"a", object_.key(), 0, SharedMemoryRegions::kMostInputBytes + 1}).ok());
  InferRequest request = InputAt({"a", 0, 1});
  request.inputs.push_back({"z", DataType::kUint8, {4}, {}});
  request.shared_inputs.push_back({1, {"a", 0, SharedMemoryRegions::kMostInputBytes}});
  const Status refused = regions_.Resolve(request).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.field(), "z");
}

TEST_F(SharedMemoryTest, OutputsAreMovedToTheirRanges) {
  ASSERT_TRUE(regions_.Register({"a", object_.key(), 2, 6}).ok());
  InferRequest request = OutputAt({"a", 1, 4});
  const auto outputs = regions_.Resolve(request);
  ASSERT_TRUE(outputs.ok());
  InferResponse response = Answer("abc");
  response.outputs.push_back({"z", DataType::kUint8, {}, "kept"});
  ASSERT_TRUE(outputs->Write(response).ok());
  EXPECT_EQ(object_.Content(), "012abc6789");
  EXPECT_EQ(response.outputs[0].data, "");
  EXPECT_EQ(response.outputs[1].data, "kept");

  InferResponse large = Answer("abcde");
  const Status refused = outputs->Write(large);
  EXPECT_EQ(refused.code(), Code::kInternal);
  EXPECT_EQ(refused.message(),
            "shared memory size specified with the request for output 'y' (4 bytes) should be at "
            "least 5 bytes to hold the results");
  EXPECT_EQ(object_.Content(), "012abc6789");
}

TEST_F(SharedMemoryTest, AnObjectThatBecameShorterFailsTheRequestOnly) {
  ASSERT_TRUE(regions_.Register({"a", object_.key(), 0, 10}).ok());
  InferRequest request = OutputAt({"a", 0, 10});
  const auto outputs = regions_.Resolve(request);
  object_.Resize(5);
  EXPECT_EQ(Read({"a", 0, 5}), "01234");
  EXPECT_THAT(Read({"a", 0, 6}), HasSubstr("the object has become shorter"));
  InferResponse fits = Answer("abcde");
  EXPECT_TRUE(outputs->Write(fits).ok());
  InferResponse response = Answer("ABCDEF");
  EXPECT_EQ(outputs->Write(response).code(), Code::kInvalidArgument);
  EXPECT_EQ(object_.Content(), "abcde");  // and is not made longer again
}

TEST_F(SharedMemoryTest, ARequestKeepsTheRegionsThatItUses) {
  ASSERT_TRUE(regions_.Register({"a", object_.key(), 0, 10}).ok());
  InferRequest request = OutputAt({"a", 0, 10});
  const auto outputs = regions_.Resolve(request);
  regions_.Unregister("");
  InferResponse response = Answer("late");
  EXPECT_TRUE(outputs->Write(response).ok());
  EXPECT_EQ(object_.Content(), "late456789");
}

TEST_F(SharedMemoryTest, ThreadsRegisterUseAndUnregisterTogether) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, name = std::to_string(thread % 2)] {
      for (int i = 0; i < 200; ++i) {
        const Status added = regions_.Register({name, object_.key(), 0, 10});
        wrong += !added.ok() && added.reason() != Reason::kAlreadyExists;
        const std::string read = Read({name, 0, 10});
        wrong += read != "0123456789" && !read.starts_with("Unable to find");
        regions_.Unregister(i % 3 == 0 ? "" : name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(SharedMemory, NothingIsRegisteredOrUsedUntilItIsAllowed) {
  const SharedObject object("0123");
  SharedMemoryRegions regions;
  InferRequest input = InputAt({"a", 0, 4});
  InferRequest output = OutputAt({"a", 0, 4});
  for (const Status& refused :
       {regions.CheckAllowed(), regions.Register({"a", object.key(), 0, 4}),
        regions.Resolve(input).status(), regions.Resolve(output).status()}) {
    EXPECT_EQ(refused.code(), Code::kUnimplemented);
    EXPECT_THAT(refused.message(), HasSubstr("--allow_shared_memory"));
  }
  InferRequest plain;
  EXPECT_TRUE(regions.Resolve(plain).ok());
  EXPECT_TRUE(regions.List("")->empty());
}

TEST(SharedMemory, ParametersNameARange) {
  const auto range = SharedMemoryOf("x", {{"shared_memory_region", std::string("a")},
                                          {"shared_memory_offset", int64_t{-1}},
                                          {"shared_memory_byte_size", uint64_t{5}}});
  ASSERT_TRUE(range.ok());
  EXPECT_EQ((*range)->region, "a");
  EXPECT_EQ((*range)->offset, kHuge);  // beyond every region
  EXPECT_EQ((*range)->byte_size, 5u);
  EXPECT_FALSE(SharedMemoryOf("x", {{"binary_data", true}})->has_value());

  const auto refusal = [](const Parameters& parameters) {
    const Status refused = SharedMemoryOf("x", parameters).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.field(), "x");
    return refused.message();
  };
  EXPECT_EQ(refusal({{"shared_memory_region", std::string("a")}}),
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            "parameter for tensor 'x'");
  EXPECT_EQ(refusal({{"shared_memory_offset", int64_t{0}}}),
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter "
            "for tensor 'x'");
  EXPECT_EQ(refusal({{"shared_memory_region", true}, {"shared_memory_byte_size", int64_t{1}}}),
            "invalid value type for 'shared_memory_region' parameter for tensor 'x', expected "
            "string_param.");
  EXPECT_EQ(refusal({{"shared_memory_region", std::string("a")}, {"shared_memory_byte_size", 1.5}}),
            "invalid value type for 'shared_memory_byte_size' parameter for tensor 'x', expected "
            "int64_param.");
}

}  // namespace
}  // namespace tandem::serve::kserve
