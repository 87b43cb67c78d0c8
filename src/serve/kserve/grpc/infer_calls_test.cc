// The calls of inference over gRPC, unary and on streams.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "serve/kserve/grpc/testing/grpc_fixture.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class InferCallsTest : public GrpcFixture {};

TEST_F(InferCallsTest, OneRequestHasOneRawResponse) {
  Serve();
  ASSERT_TRUE(Infer(InferMessage("one", "7", 1)).ok());
  EXPECT_EQ(answer_.model_name(), "one");
  EXPECT_EQ(answer_.model_version(), "1");
  EXPECT_EQ(answer_.id(), "7");
  ASSERT_EQ(answer_.outputs_size(), 1);
  EXPECT_EQ(answer_.outputs(0).name(), "OUT");
  EXPECT_THAT(answer_.outputs(0).shape(), ElementsAre(1));
  EXPECT_THAT(answer_.raw_output_contents(), ElementsAre(std::string(4, '\0')));
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(InferCallsTest, ErrorsHaveTheStatusOfTheirCode) {
  Serve();
  const ::grpc::Status decoupled = Infer(InferMessage("many", "", 1));
  EXPECT_EQ(decoupled.error_code(), ::grpc::UNIMPLEMENTED);
  EXPECT_EQ(decoupled.error_message(),
            "ModelInfer RPC doesn't support models with decoupled transaction policy: use "
            "ModelStreamInfer, or serve the model with --decoupled false (in a repository: "
            "decoupled: false in its config.pbtxt)");
  const ::grpc::Status unknown = Infer(InferMessage("../two", "", 1));
  EXPECT_EQ(unknown.error_code(), ::grpc::NOT_FOUND);
  EXPECT_EQ(unknown.error_message(), "Request for unknown model: '../two' is not found");
  const ::grpc::Status full = Infer(InferMessage("one", "", 0, {"fail"}));
  EXPECT_EQ(full.error_code(), ::grpc::UNAVAILABLE);
  EXPECT_THAT(full.error_message(), HasSubstr("Exceeds maximum queue size"));
  EXPECT_EQ(Infer(InferMessage("one", "", 2)).error_code(), ::grpc::INTERNAL);
  EXPECT_EQ(Infer(InferMessage("one", "", 0)).error_code(), ::grpc::INTERNAL);
}

TEST_F(InferCallsTest, RepeatHasAResponseForEachElementAndThenAnEmptyFinalOne) {
  models_.Add(RepeatModel());
  Serve();
  const std::unique_ptr<Stream> stream = Open();
  ASSERT_TRUE(stream->Write(Repeat("a", {5, 6, 7}, {2, 0, 1})));
  EXPECT_THAT(Read(*stream, 3), ElementsAre("a:5", "a:6", "a:7"));
  inference::ModelInferRequest marked = Repeat("b", {8}, {0});
  (*marked.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  ASSERT_TRUE(stream->Write(marked));
  EXPECT_THAT(Read(*stream, 2), ElementsAre("b:8", "b:-1 final"));
  marked = Repeat("c", {}, {});
  (*marked.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  ASSERT_TRUE(stream->Write(marked));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("c:-1 final"));
  ASSERT_TRUE(stream->Write(Repeat("d", {1, 2}, {0})));
  EXPECT_THAT(Read(*stream, 1), ElementsAre(HasSubstr("expected IN and DELAY shape to match")));
  stream->WritesDone();
  EXPECT_THAT(Read(*stream), IsEmpty());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(AwaitIdle());
  EXPECT_EQ(Infer(Repeat("", {1}, {0})).error_code(), ::grpc::UNIMPLEMENTED);
}

TEST_F(InferCallsTest, RepeatNumbersItsResponses) {
  models_.Add(RepeatModel());
  Serve();
  const std::unique_ptr<Stream> stream = Open();
  ASSERT_TRUE(stream->Write(Repeat("", {9, 9}, {0, 0})));
  for (const char number : {'\0', '\1'}) {
    inference::ModelStreamInferResponse message;
    ASSERT_TRUE(stream->Read(&message));
    const inference::ModelInferResponse& response = message.infer_response();
    ASSERT_EQ(response.outputs_size(), 2);
    EXPECT_EQ(response.outputs(1).name(), "IDX");
    EXPECT_EQ(response.outputs(1).datatype(), "UINT32");
    EXPECT_EQ(response.raw_output_contents(1), std::string(1, number) + std::string(3, '\0'));
  }
}

TEST_F(InferCallsTest, ACancelledRepeatWaitsForNoDelay) {
  models_.Add(RepeatModel());
  Serve();
  const std::unique_ptr<Stream> stream = Open();
  ASSERT_TRUE(stream->Write(Repeat("", {1, 2}, {0, 3'600'000})));
  EXPECT_THAT(Read(*stream, 1), ElementsAre(":1"));
  context_->TryCancel();
  EXPECT_TRUE(AwaitIdle());
  EXPECT_EQ(models_.Statistics("repeat_int32")->pending, 0u);
  EXPECT_EQ(models_.Statistics("repeat_int32")->failure.count, 1u);
}

TEST_F(InferCallsTest, MalformedTensorsAreInvalidArguments) {
  Serve();
  std::vector<inference::ModelInferRequest> malformed;
  malformed.push_back(InferMessage("one", "", 1));
  malformed.back().add_raw_input_contents("abcd");  // and typed contents
  malformed.push_back(InferMessage("one", "", 1));
  malformed.back().mutable_inputs(0)->set_shape(0, -1);
  malformed.push_back(InferMessage("one", "", 1));
  malformed.back().mutable_inputs(0)->set_shape(0, int64_t{1} << 31);
  malformed.push_back(InferMessage("one", "", 1));
  malformed.back().mutable_inputs(0)->set_datatype("INT31");
  malformed.push_back(InferMessage("one", "", 1));
  malformed.back().mutable_inputs(0)->set_name("COUNTS");
  malformed.push_back(InferMessage("one", "", 1));
  malformed.back().mutable_inputs(0)->clear_contents();
  malformed.back().add_raw_input_contents("ab");
  malformed.push_back(InferMessage("one", "", 1));
  malformed.back().clear_inputs();
  for (const inference::ModelInferRequest& request : malformed) {
    EXPECT_EQ(Infer(request).error_code(), ::grpc::INVALID_ARGUMENT) << request.ShortDebugString();
  }
  EXPECT_TRUE(Infer(InferMessage("one", "", 1)).ok());
}

TEST_F(InferCallsTest, BytesThatAreNoMessageGetAStatus) {
  Serve();
  const ::grpc::Slice slice("\x0a\xff\xff\xff\xff");
  const ::grpc::ByteBuffer bytes(&slice, 1);
  ::grpc::GenericStub generic(channel_);
  const auto finish = [](auto&& start) {
    std::promise<::grpc::Status> done;
    start([&](::grpc::Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  };
  ::grpc::ClientContext context;
  SetDeadline(context);
  ::grpc::ByteBuffer answer;
  const ::grpc::Status unary = finish([&](auto end) {
    generic.UnaryCall(&context, "/inference.GRPCInferenceService/ModelInfer", {}, &bytes, &answer,
                      end);
  });
  EXPECT_EQ(unary.error_code(), ::grpc::INVALID_ARGUMENT) << unary.error_message();

  // A stream's client that sends them and waits.
  class Sender final : public ::grpc::ClientBidiReactor<::grpc::ByteBuffer, ::grpc::ByteBuffer> {
   public:
    void OnDone(const ::grpc::Status& status) override { end.set_value(status); }
    std::promise<::grpc::Status> end;
  } sender;
  ::grpc::ClientContext stream_context;
  SetDeadline(stream_context);
  generic.PrepareBidiStreamingCall(&stream_context,
                                   "/inference.GRPCInferenceService/ModelStreamInfer", {}, &sender);
  sender.StartWrite(&bytes);
  sender.StartCall();
  EXPECT_EQ(sender.end.get_future().get().error_code(), ::grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(InferCallsTest, AStreamMarksTheLastResponse) {
  Serve();
  const auto stream = Open();
  stream->Write(InferMessage("many", "7", 3, {"mark"}));
  EXPECT_THAT(Read(*stream, 3), ElementsAre("7:0", "7:1", "7:2 final"));
  stream->Write(InferMessage("one", "8", 1));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("8:0 final"));
  stream->WritesDone();
  EXPECT_THAT(Read(*stream), IsEmpty());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(InferCallsTest, AnEmptyFinalResponseComesWhenItIsAskedFor) {
  Serve();
  const std::string ask = "triton_enable_empty_final_response";
  const auto told = [&](const std::vector<std::string>& flags, int count) {
    const auto stream = Open();
    stream->Write(InferMessage("many", "7", count, flags));
    stream->WritesDone();
    std::vector<std::string> lines = Read(*stream);
    EXPECT_TRUE(stream->Finish().ok());
    return lines;
  };
  EXPECT_THAT(told({}, 2), ElementsAre("7:0", "7:1"));
  EXPECT_THAT(told({ask}, 2), ElementsAre("7:0", "7:1", "7:-1 final"));
  EXPECT_THAT(told({ask, "mark"}, 2), ElementsAre("7:0", "7:1 final")) << "it is known already";
  EXPECT_THAT(told({"end"}, 1), ElementsAre("7:0"));
  EXPECT_THAT(told({"end", ask}, 1), ElementsAre("7:0", "7:-1 final"));
  EXPECT_THAT(told({"end"}, 0), ElementsAre("7:-1 final")) << "the only answer of a request";
}

TEST_F(InferCallsTest, ResponsesOfOneResponseModelsKeepTheOrderOfRequests) {
  Serve();
  const auto stream = Open();
  stream->Write(InferMessage("one", "first", 1, {"hold"}));
  stream->Write(InferMessage("one", "second", 1));
  stream->Write(InferMessage("many", "third", 1));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("third:0")) << "others are not in line";
  world_.Release();
  EXPECT_THAT(Read(*stream, 2), ElementsAre("first:0 final", "second:0 final"));
}

TEST_F(InferCallsTest, AnErrorInAStreamNamesTheRequestAndTheStreamGoesOn) {
  Serve();
  const auto stream = Open();
  stream->Write(InferMessage("none", "1", 1));
  inference::ModelStreamInferResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.error_message(), "Request for unknown model: 'none' is not found");
  EXPECT_EQ(message.infer_response().id(), "1");
  EXPECT_EQ(message.infer_response().model_name(), "");
  EXPECT_EQ(message.infer_response().parameters_size(), 0);
  stream->Write(InferMessage("many", "2", 1, {"fail"}));
  EXPECT_THAT(Read(*stream, 2),
              ElementsAre("2:0", "2: Exceeds maximum queue size. the queue is full"));
  stream->Write(InferMessage("many", "3", 1));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("3:0"));
}

TEST_F(InferCallsTest, AClientMayWantErrorsToEndTheStream) {
  Serve();
  context_ = std::make_unique<::grpc::ClientContext>();
  SetDeadline(*context_);
  context_->AddMetadata("triton_grpc_error", "true");
  const auto stream = client_->ModelStreamInfer(context_.get());
  stream->Write(InferMessage("many", "1", 1, {"hold"}));
  stream->Write(InferMessage("none", "2", 1));
  EXPECT_THAT(Read(*stream), IsEmpty());
  EXPECT_EQ(stream->Finish().error_code(), ::grpc::NOT_FOUND);
  EXPECT_TRUE(AwaitIdle()) << "its other requests are cancelled";
}

TEST_F(InferCallsTest, CancellingAnRpcCancelsItsRequests) {
  Serve();
  const auto stream = Open();
  stream->Write(InferMessage("many", "1", 1, {"hold"}));
  stream->Write(InferMessage("one", "2", 1, {"hold"}));
  ASSERT_TRUE(world_.AwaitBegun(2));
  context_->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), ::grpc::CANCELLED);
  EXPECT_TRUE(AwaitIdle());

  ::grpc::ClientContext unary;
  std::thread canceller([&] {
    world_.AwaitBegun(3);
    unary.TryCancel();
  });
  EXPECT_EQ(
      client_->ModelInfer(&unary, InferMessage("one", "3", 1, {"hold"}), &answer_).error_code(),
      ::grpc::CANCELLED);
  canceller.join();
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(InferCallsTest, AClosedHalfLetsRequestsEnd) {
  Serve();
  const auto stream = Open();
  stream->Write(InferMessage("many", "1", 2, {"hold"}));
  stream->WritesDone();
  ASSERT_TRUE(world_.AwaitBegun(1));
  world_.Release();
  EXPECT_THAT(Read(*stream), ElementsAre("1:0", "1:1"));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(InferCallsTest, ASlowReaderMakesTheModelWait) {
  Serve();
  constexpr int kCount = 20'000;
  const auto stream = Open();
  stream->Write(LargeResponses("1", kCount));
  // A second request begins, and is answered, although the first fills all that there is room for.
  stream->Write(InferMessage("many", "2", 1));
  ASSERT_TRUE(world_.AwaitBegun(2));
  inference::ModelStreamInferResponse message;
  int read = 0;
  do {
    ASSERT_TRUE(stream->Read(&message));
    ++read;
  } while (message.infer_response().id() != "2");
  EXPECT_LT(read, kCount);
  const MutexLock lock(world_.mutex);
  // What is on its way is in the buffers of gRPC and of the system.
  EXPECT_LT(world_.taken - read, 1000) << "64 KiB each";
}

TEST_F(InferCallsTest, RequestsOfAStreamTakeTurnsAtASlowReader) {
  Serve();
  constexpr int kCount = 2000;
  const auto stream = Open();
  stream->Write(LargeResponses("1", kCount, {"hold"}));
  stream->Write(LargeResponses("2", kCount, {"hold"}));
  ASSERT_TRUE(world_.AwaitBegun(2));
  world_.Release();
  inference::ModelStreamInferResponse message;
  std::string next = "1";
  do {
    ASSERT_TRUE(stream->Read(&message));
  } while (message.infer_response().id() == next);
  EXPECT_LT(NumberIn(message.infer_response()), kCount);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(stream->Read(&message));
    EXPECT_EQ(message.infer_response().id(), next) << i;
    next = next == "1" ? "2" : "1";
  }
}

TEST_F(InferCallsTest, ManyStreamsEachGetTheirOwnResponses) {
  Serve();
  constexpr int kStreams = 16;
  constexpr int kResponses = 50;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] {
      ::grpc::ClientContext context;
      SetDeadline(context);
      const auto stream = client_->ModelStreamInfer(&context);
      const std::string id = std::to_string(i);
      stream->Write(InferMessage("many", id, kResponses, {"mark"}));
      stream->WritesDone();
      inference::ModelStreamInferResponse message;
      int next = 0;
      while (stream->Read(&message)) {
        if (message.infer_response().id() == id && NumberIn(message.infer_response()) == next) {
          ++next;
        }
      }
      if (stream->Finish().ok() && next == kResponses) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kStreams);
  EXPECT_TRUE(AwaitIdle());
}

}  // namespace
}  // namespace tandem::serve
