#include "serve/engine_client.h"

#include <utility>

namespace tandem::serve {
namespace {

class DirectEngineClient final : public EngineClient {
 public:
  explicit DirectEngineClient(Replicas& engine) : engine_(engine) {}

  Result<RequestId> Submit(Request request) override { return engine_.Submit(std::move(request)); }
  void Cancel(RequestId request, int32_t choice) override { engine_.Cancel(request, choice); }
  bool PopEvent(Event& event, Nanos timeout) override { return engine_.PopEvent(event, timeout); }
  EngineStats Stats() const override { return engine_.Stats(); }
  Result<KvEventBatch> TakeKvEvents(size_t most) override { return engine_.TakeKvEvents(most); }
  EngineLimits limits() const override { return engine_.limits(); }

 private:
  Replicas& engine_;
};

}  // namespace

std::unique_ptr<EngineClient> MakeEngineClient(Replicas& engine) {
  return std::make_unique<DirectEngineClient>(engine);
}

}  // namespace tandem::serve
