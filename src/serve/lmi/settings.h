// Settings: what an operator of djl-serving (SageMaker's LMI containers) may set about its HTTP
// API. Whoever starts the server fills it from serving.properties, the environment or options; it
// is constant from then on. Plain values; any thread. The defaults are the container's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace tandem::serve::lmi {

// Releases differ in defaults and in the JSON of answers; these are the points where they changed.
enum class Generation : uint8_t {
  k026,  // 128 new tokens; the fields of a token that are empty or zero are left out
  k027,  // 0.27 to 0.33: 30 new tokens; details with counts and the prompt
  k034,  // 0.34 and later: the asynchronous handler
};

// option.output_formatter. A request may name another one.
enum class OutputFormatter : uint8_t {
  kByStream,   // not set: kJson, or for a stream kJsonLines (kSse with tgi_compat)
  kJson,       // one object, application/json
  kJsonLines,  // a line for each token, application/jsonlines
  kSse,        // an event for each token, text/event-stream
  kNone,       // the text alone, text/plain
};

// *_http_code: the status that a kind of error gets.
struct HttpCodes {
  int bad_request = 400;
  int wlm_error = 503;       // the model cannot take the request
  int throttle_error = 503;  // the queue is full
  int timeout = 400;         // predict_timeout has passed
  int server_error = 500;
};

// error_rate_*: after `errors` errors within this time /ping answers 503 for good.
struct ErrorRate {
  int64_t errors = 0;
  Nanos within{0};
};

struct ErrorRates {
  std::optional<ErrorRate> wlm;     // requests that found no room or no model that is ready
  std::optional<ErrorRate> server;  // failures of the server itself
  std::optional<ErrorRate> model;   // failures of generation
  std::optional<ErrorRate> any;
};

// What each model may have of its own.
struct ModelSettings {
  OutputFormatter output_formatter = OutputFormatter::kByStream;
  bool tgi_compat = false;  // answers as text-generation-inference writes them
  // How long a request waits for a place in the batch, and for its first token after that.
  Nanos predict_timeout = std::chrono::seconds(120);
  int64_t job_queue_size = 1000;  // requests of these routes in progress

  // What GET /models/NAME tells; nothing acts on them.
  int64_t batch_size = 1;
  int64_t max_batch_delay_ms = 100;
  int64_t max_idle_s = 60;
};

// Of the server, and of the models that have none of their own.
struct Settings : ModelSettings {
  bool enabled = true;  // false: none of these routes is there

  Generation generation = Generation::k027;
  // New tokens of a request that asks for no number; not set: 128 in 0.26, 30 later.
  std::optional<int64_t> max_new_tokens;
  // A request that samples and sets none of temperature, top_k and top_p gets those of the
  // TensorRT-LLM handler (0.8, 5, 0.85), not 1, all and 1.
  bool trtllm_sampling = true;

  // Between two parts of a stream; then the connection ends. 0: no limit.
  Nanos chunked_read_timeout = std::chrono::seconds(120);
  size_t max_request_size = 64u << 20;  // bytes of a body
  HttpCodes http_codes;
  // The header whose value becomes the request's id; lower case.
  std::string request_id_header = "x-amzn-sagemaker-inference-id";

  // /ping.
  bool allow_multi_status = false;  // 207, not 200, while a model is being loaded
  bool keep_healthy =
      false;  // SERVING_HEALTH_CHECK_OVERRIDE: a model that failed counts as healthy
  bool needs_all_ready = false;  // SAGEMAKER_HEALTH_CHECK_OVERRIDE: 503 until every model is ready
  ErrorRates error_rates;

  // SAGEMAKER_MULTI_MODEL: models are loaded and unloaded by request, and one that does not fit
  // gets 507.
  bool multi_model = false;
};

}  // namespace tandem::serve::lmi
