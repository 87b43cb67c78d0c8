// Inference independent of the transport: a request and its responses as values, a call in
// progress, and the interface of a served model. HTTP and gRPC translate between these and their
// wire formats and do nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "serve/call_news.h"
#include "serve/kserve/tensor.h"

namespace inference {
class ModelConfig;  // proto/model_config.proto
}

namespace tandem::serve::kserve {

using Parameter = std::variant<bool, int64_t, uint64_t, double, std::string>;
using Parameters = std::map<std::string, Parameter, std::less<>>;

// Bytes of a shared memory region that a client registered.
struct SharedMemoryRange {
  std::string region;
  uint64_t offset = 0;  // from the region's beginning
  uint64_t byte_size = 0;
};

struct RequestedOutput {
  std::string name;
  Parameters parameters;
  std::optional<SharedMemoryRange> shared_memory = std::nullopt;  // where its data is to go
};

struct SharedMemoryInput {
  size_t index = 0;  // into InferRequest::inputs
  SharedMemoryRange range;
};

class RunningRequests;

struct InferRequest {
  std::string model_name;
  std::string model_version;  // empty: the newest
  std::string id;             // empty: none
  Parameters parameters;
  std::vector<Tensor> inputs;
  std::vector<SharedMemoryInput> shared_inputs;  // inputs without data, which the repository reads
  std::vector<RequestedOutput> outputs;          // empty: all that the model gives
  std::string caller;  // identifies the client's API key if there are several
  // The transport can carry one response only: batch entries and sequences come together in it,
  // and nothing is streamed.
  bool one_response = false;
  // Those of the model's name, from the repository.
  std::shared_ptr<RunningRequests> running = nullptr;

  // The input of that name; null if it was not given.
  const Tensor* Input(std::string_view input) const;
  // Whether the client wants the output: it named it, or it named none.
  bool Wants(std::string_view output) const;
  // Whether the client named the output.
  bool Names(std::string_view output) const { return Asked(output) != nullptr; }
  // The output as the client named it; null if it did not.
  const RequestedOutput* Asked(std::string_view output) const;
};

struct InferResponse {
  std::string model_name;
  std::string model_version;
  std::string id;
  Parameters parameters;
  std::vector<Tensor> outputs;
  bool is_final = false;  // the last response of its request

  // With the final response, not part of the protocol's own fields.
  Nanos queued{0};               // before the first step
  std::optional<uint64_t> seed;  // that the answers were drawn with
};

// A request that runs. It is polled after each `wake`. Owned by the transport's call, one thread at
// a time; destroying it cancels what still runs.
class InferCall {
 public:
  virtual ~InferCall() = default;
  // Never blocks. kEvent fills `response`, and kFailed `error`.
  virtual CallNews Next(InferResponse& response, Status& error) = 0;
  // True if the request was refused before any work began; constant.
  virtual bool is_refused() const { return false; }
  // What the log says of it once it is over, as GenerateCall::Summary; empty: nothing.
  virtual std::string Summary() const { return {}; }
};

// May be called on any thread, before the call exists, and without news.
using Wake = std::function<void()>;

// A model of the protocol. Immutable: any thread may use it.
class InferModel {
 public:
  virtual ~InferModel() = default;
  virtual const inference::ModelConfig& config() const = 0;
  // Models that a request passes through inside this one; statistics count them too.
  virtual std::vector<std::string> members() const { return {}; }
  virtual bool Ready() const { return true; }
  // `request` has been checked against the config: every input is one of the model's, with its type
  // and a shape that the config allows. Never blocks and never fails: a refusal is the call's first
  // news. Outputs that the client did not ask for may be given: the repository leaves them out.
  virtual std::unique_ptr<InferCall> Infer(InferRequest request, Wake wake) const = 0;
};

}  // namespace tandem::serve::kserve
