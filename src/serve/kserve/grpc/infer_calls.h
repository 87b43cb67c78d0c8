// The two RPCs that infer: one response, or a stream of requests and responses. Each is a reactor
// that gRPC calls and that the calls of the models wake. Private to this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <set>
#include <string>

#include "base/mutex.h"
#include "serve/grpc/poll_executor.h"
#include "serve/kserve/repository.h"

namespace grpc {
class ByteBuffer;
template <class Request, class Response>
class ServerBidiReactor;
class ServerUnaryReactor;
class Status;
}  // namespace grpc

namespace tandem::serve::kserve {

// Bounds of one stream: of the requests that run, beyond which none is read, and of the responses,
// beyond which none is taken from the models.
inline constexpr size_t kStreamRequests = 1024;
inline constexpr size_t kStreamPending = 16;            // responses that wait to be written
inline constexpr size_t kStreamPendingBytes = 1 << 20;  // of these; the last one may exceed it

class OpenStream;

// What the RPCs share. Outlives them.
class InferCalls {
 public:
  InferCalls(const Repository& models, int threads, int most_streams)
      : models(models), executor(threads), most_streams_(most_streams) {}

  const Repository& models;
  PollExecutor executor;
  std::atomic<int> active{0};  // requests that have not ended

  // False when there are too many streams, or no new ones are wanted.
  bool AddStream(OpenStream& stream);
  void RemoveStream(OpenStream& stream);
  int open_streams() const;
  bool leaving() const { return leaving_; }
  // Ends streams when their last request has ended, and refuses new requests.
  void Leave();

 private:
  const int most_streams_;
  std::atomic<bool> leaving_{false};
  mutable Mutex mutex_;
  std::set<OpenStream*> streams_ TANDEM_GUARDED_BY(mutex_);
};

::grpc::Status ToGrpc(const Status& status);

// Messages are raw bytes, because gRPC answers those that it cannot parse with a status of its own.
// `request` and `response` live until the RPC is done. `caller`: as in InferRequest.
::grpc::ServerUnaryReactor* StartInfer(const std::shared_ptr<InferCalls>& calls,
                                       const ::grpc::ByteBuffer& request,
                                       ::grpc::ByteBuffer& response, std::string caller);

// `errors_end`: an error ends the stream with its status; otherwise it is a response.
::grpc::ServerBidiReactor<::grpc::ByteBuffer, ::grpc::ByteBuffer>* StartStreamInfer(
    const std::shared_ptr<InferCalls>& calls, std::string caller, bool errors_end);

}  // namespace tandem::serve::kserve
