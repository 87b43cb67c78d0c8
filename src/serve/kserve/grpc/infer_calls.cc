#include "serve/kserve/grpc/infer_calls.h"

#include <fmt/format.h>
#include <grpc_service.pb.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <model_config.pb.h>

#include <deque>
#include <list>
#include <memory>
#include <utility>

#include "serve/kserve/error_text.h"
#include "serve/kserve/grpc/translate.h"

namespace tandem::serve::kserve {

// A stream as those see it who close all of them.
class OpenStream {
 public:
  virtual ~OpenStream() = default;
  // Ends the stream if it is idle. Never blocks for long.
  virtual void EndIfIdle() = 0;
};

bool InferCalls::AddStream(OpenStream& stream) {
  const MutexLock lock(mutex_);
  if (leaving_ || streams_.size() >= static_cast<size_t>(most_streams_)) return false;
  streams_.insert(&stream);
  return true;
}

void InferCalls::RemoveStream(OpenStream& stream) {
  const MutexLock lock(mutex_);
  streams_.erase(&stream);
}

int InferCalls::open_streams() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(streams_.size());
}

// A stream removes itself before it is destroyed, and waits for this lock to do so.
void InferCalls::Leave() {
  leaving_ = true;
  const MutexLock lock(mutex_);
  for (OpenStream* stream : streams_) stream->EndIfIdle();
}

namespace {

using ::grpc::ByteBuffer;
using StreamReactor = ::grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>;

Status ParseMessage(const ByteBuffer& bytes, inference::ModelInferRequest& message) {
  ByteBuffer copy(bytes);  // of the references
  using Traits = ::grpc::SerializationTraits<inference::ModelInferRequest>;
  if (Traits::Deserialize(&copy, &message).ok()) return {};
  return InvalidArgument("the message is no ModelInferRequest");
}

template <typename Message>
Status Serialize(const Message& message, ByteBuffer& bytes) {
  bool own_buffer = false;
  if (::grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer).ok()) return {};
  return ResourceExhausted("the response is larger than a message can be");
}

const Status& Leaving() {
  static const Status leaving = Unavailable("the server is about to end");
  return leaving;
}

// Counts a request while it lives.
class ActiveMark {
 public:
  explicit ActiveMark(const std::shared_ptr<InferCalls>& calls) : calls_(calls) {
    ++calls_->active;
  }
  ~ActiveMark() { --calls_->active; }
  ActiveMark(const ActiveMark&) = delete;
  ActiveMark& operator=(const ActiveMark&) = delete;

 private:
  const std::shared_ptr<InferCalls> calls_;
};

class OneInfer final : public ::grpc::ServerUnaryReactor,
                       public Polled,
                       public std::enable_shared_from_this<OneInfer> {
 public:
  OneInfer(std::shared_ptr<InferCalls> calls, ByteBuffer& response)
      : calls_(std::move(calls)), active_(calls_), response_(response) {}

  void Start(const ByteBuffer& request, std::string caller) {
    const MutexLock lock(mutex_);
    self_ = shared_from_this();
    const Status started = StartCall(request, std::move(caller));
    if (!started.ok()) End(started);
    calls_->executor.Schedule(self_);
  }

  void Poll() override {
    const MutexLock lock(mutex_);
    while (call_ != nullptr) {
      InferResponse response;
      Status error;
      switch (call_->Next(response, error)) {
        case CallNews::kNone:
          return;
        case CallNews::kEvent:
          if (has_response_) {
            return End(Internal("the model gave more than one response; use ModelStreamInfer"));
          }
          has_response_ = true;
          if (const Status sent = Write(response); !sent.ok()) return End(sent);
          break;
        case CallNews::kDone:
          return End(has_response_ ? Status() : Internal("the model gave no response"));
        case CallNews::kFailed:
          return End(error);
      }
    }
  }

  void OnCancel() override {
    const MutexLock lock(mutex_);
    End(Cancelled("the client cancelled the request"));
  }

  void OnDone() override { const std::shared_ptr<OneInfer> last = std::move(self_); }

 private:
  Status StartCall(const ByteBuffer& bytes, std::string caller) TANDEM_REQUIRES(mutex_) {
    if (calls_->leaving()) return Leaving();
    inference::ModelInferRequest message;
    TANDEM_RETURN_IF_ERROR(ParseMessage(bytes, message));
    TANDEM_ASSIGN_OR_RETURN(const InferModelPtr model,
                            calls_->models.Find(message.model_name(), message.model_version()));
    if (model->config().model_transaction_policy().decoupled()) {
      return RefuseDecoupled("ModelInfer RPC", "ModelStreamInfer");
    }
    TANDEM_ASSIGN_OR_RETURN(ReceivedRequest received, FromMessage(message));
    received.request.caller = std::move(caller);
    received.request.one_response = true;
    call_ = calls_->models.Infer(model, std::move(received.request),
                                 [weak = weak_from_this(), calls = calls_] {
                                   if (auto self = weak.lock()) {
                                     calls->executor.Schedule(std::move(self));
                                   }
                                 });
    return {};
  }

  Status Write(const InferResponse& response) {
    inference::ModelInferResponse message;
    ToMessage(response, message);
    return Serialize(message, response_);
  }

  void End(const Status& status) TANDEM_REQUIRES(mutex_) {
    call_.reset();
    if (!std::exchange(finished_, true)) Finish(ToGrpc(status));
  }

  const std::shared_ptr<InferCalls> calls_;
  const ActiveMark active_;
  ByteBuffer& response_;
  std::shared_ptr<OneInfer> self_;  // until gRPC is done with this
  Mutex mutex_;
  std::unique_ptr<InferCall> call_ TANDEM_GUARDED_BY(mutex_);
  bool has_response_ TANDEM_GUARDED_BY(mutex_) = false;
  bool finished_ TANDEM_GUARDED_BY(mutex_) = false;
};

// A request of a stream.
struct StreamRequest {
  explicit StreamRequest(const std::shared_ptr<InferCalls>& calls) : active(calls) {}

  const ActiveMark active;
  const std::shared_ptr<std::atomic<bool>> has_news = std::make_shared<std::atomic<bool>>(true);
  std::string id;
  std::string model;
  Status refusal;  // why there is no call
  std::unique_ptr<InferCall> call;
  bool is_decoupled = false;  // else its response waits for those of earlier requests
  bool wants_empty_final = false;
  bool has_responded = false;
  bool was_final = false;  // the last response sent was marked as such
};

class StreamInfer final : public StreamReactor,
                          public OpenStream,
                          public Polled,
                          public std::enable_shared_from_this<StreamInfer> {
 public:
  StreamInfer(std::shared_ptr<InferCalls> calls, std::string caller, bool errors_end)
      : calls_(std::move(calls)), caller_(std::move(caller)), errors_end_(errors_end) {}

  void Start() {
    const bool is_welcome = calls_->AddStream(*this);
    const MutexLock lock(mutex_);
    self_ = shared_from_this();
    if (!is_welcome) {
      return End(calls_->leaving() ? Leaving() : ResourceExhausted("too many streams are open"));
    }
    Advance();
  }

  void Poll() override {
    const MutexLock lock(mutex_);
    Advance();
  }

  void OnReadDone(bool ok) override {
    const MutexLock lock(mutex_);
    is_reading_ = false;
    if (ok && !finished_) {
      Accept();
    } else {
      half_closed_ = true;
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    is_writing_ = false;
    if (!pending_.empty()) {
      pending_bytes_ -= pending_.front().Length();
      pending_.pop_front();
    }
    if (!ok) End(Cancelled("the client left"));
    Advance();
  }

  void OnCancel() override {
    const MutexLock lock(mutex_);
    End(Cancelled("the client cancelled the stream"));
  }

  void OnDone() override {
    calls_->RemoveStream(*this);
    const std::shared_ptr<StreamInfer> last = std::move(self_);
  }

  // Through the executor: the caller holds the lock that OnDone takes.
  void EndIfIdle() override { calls_->executor.Schedule(shared_from_this()); }

 private:
  // Starts the request that was read.
  void Accept() TANDEM_REQUIRES(mutex_) {
    inference::ModelInferRequest message;
    const Status parsed = ParseMessage(received_, message);
    received_.Clear();
    if (!parsed.ok()) return End(parsed);  // there is no id to answer to
    StreamRequest& request = requests_.emplace_back(calls_);
    request.id = message.id();
    request.refusal = StartCall(message, request);
  }

  Status StartCall(const inference::ModelInferRequest& message, StreamRequest& request)
      TANDEM_REQUIRES(mutex_) {
    if (calls_->leaving()) return Leaving();
    TANDEM_ASSIGN_OR_RETURN(const InferModelPtr model,
                            calls_->models.Find(message.model_name(), message.model_version()));
    request.model = model->config().name();
    request.is_decoupled = model->config().model_transaction_policy().decoupled();
    TANDEM_ASSIGN_OR_RETURN(ReceivedRequest received, FromMessage(message));
    request.wants_empty_final = received.wants_empty_final;
    received.request.caller = caller_;
    request.call = calls_->models.Infer(
        model, std::move(received.request),
        [weak = weak_from_this(), calls = calls_, has_news = request.has_news] {
          *has_news = true;
          if (auto self = weak.lock()) calls->executor.Schedule(std::move(self));
        });
    return {};
  }

  // Does whatever can be done now: takes news, writes, reads, ends.
  void Advance() TANDEM_REQUIRES(mutex_) {
    TakeNews();
    if (!finished_ && !is_writing_ && !pending_.empty()) {
      is_writing_ = true;
      StartWrite(&pending_.front());
    }
    if (!finished_ && requests_.empty() && pending_.empty()) {
      if (half_closed_) End({});
      if (calls_->leaving()) End(Leaving());
    }
    // Also while there is no room for responses: the other requests would keep a new one out.
    if (!finished_ && !is_reading_ && !half_closed_ && requests_.size() < kStreamRequests) {
      is_reading_ = true;
      StartRead(&received_);
    }
    FinishIfEnded();
  }

  bool IsFull() const TANDEM_REQUIRES(mutex_) {
    return pending_.size() >= kStreamPending || pending_bytes_ >= kStreamPendingBytes;
  }

  // One response of each request in turn, until there is no news or no room. Whose turn it was goes
  // to the end, so that each place that becomes free is another request's.
  void TakeNews() TANDEM_REQUIRES(mutex_) {
    for (bool is_news = true; is_news;) {
      is_news = false;
      bool others_wait = false;  // an earlier request has to end before those of its kind
      for (auto next = requests_.begin(); next != requests_.end();) {
        if (IsFull()) return;
        const auto request = next++;
        if (!request->is_decoupled && std::exchange(others_wait, true)) continue;
        if (!request->has_news->exchange(false)) continue;
        is_news |= TakeOne(request);
        if (finished_) return;  // `next` is invalid
      }
    }
  }

  bool TakeOne(std::list<StreamRequest>::iterator request) TANDEM_REQUIRES(mutex_) {
    InferResponse response;
    Status error = request->refusal;
    const CallNews news = error.ok() ? request->call->Next(response, error) : CallNews::kFailed;
    switch (news) {
      case CallNews::kNone:
        return false;
      case CallNews::kEvent:
        *request->has_news = true;  // there may be more
        if (request->is_decoupled) requests_.splice(requests_.end(), requests_, request);
        Respond(*request, response);
        return true;
      case CallNews::kDone:
        if (request->wants_empty_final && !request->was_final) {
          InferResponse last;
          last.model_name = request->model;
          last.model_version = std::string(kModelVersion);
          last.id = request->id;
          last.is_final = true;
          Queue(last);
        }
        break;
      case CallNews::kFailed:
        Fail(*request, error);
        break;
    }
    if (!finished_) requests_.erase(request);
    return true;
  }

  void Respond(StreamRequest& request, InferResponse& response) TANDEM_REQUIRES(mutex_) {
    if (!request.is_decoupled) response.is_final = true;  // there is one
    // Says only that the earlier ones were all.
    const bool is_end_mark = response.is_final && response.outputs.empty() && request.has_responded;
    request.has_responded = true;
    if (is_end_mark && !request.wants_empty_final) return;
    request.was_final = response.is_final;
    Queue(response);
  }

  void Queue(const InferResponse& response) TANDEM_REQUIRES(mutex_) {
    inference::ModelStreamInferResponse message;
    ToMessage(response, *message.mutable_infer_response());
    (*message.mutable_infer_response()->mutable_parameters())[std::string(kFinalParameter)]
        .set_bool_param(response.is_final);
    Queue(message);
  }

  void Fail(const StreamRequest& request, const Status& error) TANDEM_REQUIRES(mutex_) {
    if (errors_end_) return End(error);
    inference::ModelStreamInferResponse message;
    message.set_error_message(ErrorText(error));
    message.mutable_infer_response()->set_id(request.id);
    Queue(message);
  }

  void Queue(const inference::ModelStreamInferResponse& message) TANDEM_REQUIRES(mutex_) {
    ByteBuffer& bytes = pending_.emplace_back();
    if (const Status sent = Serialize(message, bytes); !sent.ok()) return End(sent);
    pending_bytes_ += bytes.Length();
  }

  // No request goes on, and nothing is written any more.
  void End(const Status& status) TANDEM_REQUIRES(mutex_) {
    if (std::exchange(finished_, true)) return;
    end_ = ToGrpc(status);
    requests_.clear();
    FinishIfEnded();
  }

  // A message that is being written has to stay, and the status comes after it.
  void FinishIfEnded() TANDEM_REQUIRES(mutex_) {
    if (!finished_ || is_writing_ || std::exchange(told_grpc_, true)) return;
    pending_.clear();
    Finish(end_);
  }

  const std::shared_ptr<InferCalls> calls_;
  const std::string caller_;
  const bool errors_end_;
  std::shared_ptr<StreamInfer> self_;  // until gRPC is done with this
  Mutex mutex_;
  // In the order of their turns. Those with one response keep the order of their arrival.
  std::list<StreamRequest> requests_ TANDEM_GUARDED_BY(mutex_);
  ByteBuffer received_ TANDEM_GUARDED_BY(mutex_);
  // The first is being written if is_writing_.
  std::deque<ByteBuffer> pending_ TANDEM_GUARDED_BY(mutex_);
  size_t pending_bytes_ TANDEM_GUARDED_BY(mutex_) = 0;
  bool is_reading_ TANDEM_GUARDED_BY(mutex_) = false;
  bool is_writing_ TANDEM_GUARDED_BY(mutex_) = false;
  bool half_closed_ TANDEM_GUARDED_BY(mutex_) = false;
  bool finished_ TANDEM_GUARDED_BY(mutex_) = false;  // `end_` is set
  bool told_grpc_ TANDEM_GUARDED_BY(mutex_) = false;
  ::grpc::Status end_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace

::grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return ::grpc::Status::OK;
  return {static_cast<::grpc::StatusCode>(GrpcCodeOf(status)), ErrorText(status)};
}

::grpc::ServerUnaryReactor* StartInfer(const std::shared_ptr<InferCalls>& calls,
                                       const ByteBuffer& request, ByteBuffer& response,
                                       std::string caller) {
  const auto infer = std::make_shared<OneInfer>(calls, response);
  infer->Start(request, std::move(caller));
  return infer.get();
}

StreamReactor* StartStreamInfer(const std::shared_ptr<InferCalls>& calls, std::string caller,
                                bool errors_end) {
  const auto infer = std::make_shared<StreamInfer>(calls, std::move(caller), errors_end);
  infer->Start();
  return infer.get();
}

}  // namespace tandem::serve::kserve
