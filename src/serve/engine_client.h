// EngineClient: the service's interface to an engine or its replicas, so that a test can put a
// scripted one in its place. The promises are Engine's (runtime/engine.h): Submit, Cancel and the
// getters on any thread, PopEvent on one.
#pragma once

#include <memory>

#include "runtime/replicas.h"
#include "runtime/request/validate_request.h"

namespace tandem::serve {

class EngineClient {
 public:
  virtual ~EngineClient() = default;
  virtual Result<RequestId> Submit(Request request) = 0;
  virtual void Cancel(RequestId request, int32_t choice) = 0;  // or kAllChoices
  virtual bool PopEvent(Event& event, Nanos timeout) = 0;
  virtual EngineStats Stats() const = 0;
  virtual Result<KvEventBatch> TakeKvEvents(size_t most) = 0;
  virtual EngineLimits limits() const = 0;
};

// `engine` outlives the client.
std::unique_ptr<EngineClient> MakeEngineClient(Replicas& engine);

}  // namespace tandem::serve
