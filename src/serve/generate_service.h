// GenerateService: text in, text events out; the only caller of the engine. One pump thread takes
// the engine's events, turns tokens into text, matches stop strings and passes events to the
// streams; it never waits for a client. Long prompts are tokenized on one worker, requests with a
// grammar begin on another, and wait for two more only if it was not compiled lately: so a request
// may overtake others. The queues take as many requests as the engine's. Every method may be
// called on any thread. The engine, the codec and the clock outlive the service; the service
// outlives its streams.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "serve/engine_client.h"
#include "serve/generation_defaults.h"
#include "serve/metrics.h"
#include "serve/request_builder.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"
#include "serve/text_stream.h"
#include "serve/token_lengths.h"

namespace tandem::serve {

struct ServiceOptions {
  RequestLimits limits;
  size_t stream_bytes = 256 << 10;       // of text that a stream's reader has not taken yet
  size_t inline_prompt_bytes = 2 << 10;  // longer prompts are tokenized on the worker
  Nanos liveness_timeout = std::chrono::seconds(30);  // without progress of the engine
};

class GenerateService {
 public:
  // `metrics` may be null.
  GenerateService(EngineClient& engine, const TextCodec& codec, GenerationDefaults defaults,
                  const Clock& clock, ServiceOptions options = {}, Metrics* metrics = nullptr);
  ~GenerateService();
  GenerateService(const GenerateService&) = delete;
  GenerateService& operator=(const GenerateService&) = delete;

  // Never blocks and never fails: a refusal is the stream's first event. `wake` is called on any
  // thread when there is something to take, possibly before Start returns and possibly once too
  // often.
  std::unique_ptr<TextStream> Start(TextRequest text, std::function<void()> wake = {});
  // For programs: waits for the complete answer.
  Result<TextResult> Generate(TextRequest text);

  // Ends every open request with UNAVAILABLE and refuses new ones.
  void Close();

  // The engine has not failed, and has made progress within liveness_timeout; the chat template can
  // still be rendered.
  bool Alive() const;
  EngineStats Stats() const { return engine_.Stats(); }
  Result<KvEventBatch> TakeKvEvents(size_t most) const { return engine_.TakeKvEvents(most); }
  EngineLimits engine_limits() const { return engine_.limits(); }
  const RequestLimits& request_limits() const;
  TokenLengths token_lengths() const;  // of the answers that were completed
  const TextCodec& codec() const { return codec_; }

 private:
  struct Impl;

  EngineClient& engine_;
  const TextCodec& codec_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
