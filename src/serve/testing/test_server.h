// TestServer: a whole server on a free port over a FakeEngine, with everything a test may need to
// access.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "serve/http/client.h"
#include "serve/kserve/models/engine_models.h"
#include "serve/server/server.h"
#include "serve/testing/byte_codec.h"
#include "serve/testing/fake_engine.h"

namespace tandem::serve {

class TestServer {
 public:
  explicit TestServer(FakeEngineOptions engine_options = {}, ServerOptions options = {},
                      ServiceOptions service_options = {},
                      std::unique_ptr<TextCodec> text_codec = std::make_unique<ByteCodec>())
      : engine(std::move(engine_options)),
        codec(std::move(text_codec)),
        service(std::make_shared<GenerateService>(engine, *codec, GenerationDefaults(), clock,
                                                  service_options, &metrics)) {
    const Status added = engines.Add("tandem", service, kserve::TextModelNames());
    TANDEM_CHECK(added.ok(), added.message());
    kserve::AddEngineModels(models, *engines.Find("tandem"), /*max_batch_size=*/64);
    options.http.port = 0;
    Result<std::unique_ptr<Server>> started = Server::Start(options, engines, models, metrics);
    TANDEM_CHECK(started.ok(), started.status().message());
    server = *std::move(started);
  }

  HttpClient Client(Nanos timeout = std::chrono::seconds(20)) const {
    return HttpClient("127.0.0.1", server->port(), timeout);
  }

  FakeEngine engine;
  const std::unique_ptr<TextCodec> codec;
  SteadyClock clock;
  Metrics metrics;
  std::shared_ptr<GenerateService> service;
  ModelRegistry engines;
  kserve::Repository models{clock};
  std::unique_ptr<Server> server;
};

// Waits until `condition` is true, with enough patience for a busy machine; false if it never is.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tandem::serve
