// The options of `tandem serve` besides those of the models and the engine, and the server's own
// options made of them. Constants and pure functions, but for the file of keys, which is read.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bound_options.h"
#include "base/clock.h"
#include "serve/generate_service.h"
#include "serve/server/server.h"

namespace tandem::apps {

enum class ModelControl : uint8_t { kNone, kExplicit, kPoll };

struct ServeOptions {
  std::string served_model_name = "tandem";
  std::string model_repo;
  ModelControl model_control = ModelControl::kNone;
  std::vector<std::string> load_models;
  bool decoupled = true;
  bool exit_on_error = true;
  bool strict_readiness = true;
  bool allow_grpc = true;
  bool allow_metrics = true;
  bool allow_shared_memory = false;
  bool allow_gpu_metrics = true;
  int32_t grpc_port = -1;            // none, but with a repository 8001
  int32_t metrics_port = -1;         // none, but with a repository 8002
  std::optional<bool> grpc_use_ssl;  // unless given: where there is a certificate
  bool grpc_use_ssl_mutual = false;
  std::string grpc_certificate;
  std::string grpc_key;
  std::string grpc_client_ca;
  std::string cors_origins;
  std::string log_file;
  std::string api_key;
  std::string api_key_file;
  Nanos max_queue_wait = std::chrono::seconds(60);  // an engine without clients sets no limit
};

// The options of `tandem serve`, in the order in which its help shows them.
std::vector<OptionSpec> ServeOptionRows();

ServeOptions ServeOptionsFrom(const OptionValues& values);
serve::ServiceOptions ServiceOptionsFrom(const OptionValues& values);
// Refuses options that contradict each other or would have no effect, and what the server would
// refuse, before any model is loaded.
Result<serve::ServerOptions> ServerOptionsFrom(const OptionValues& values,
                                               const ServeOptions& options);

}  // namespace tandem::apps
