// The services that the gRPC server offers. Private to this folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/http/access.h"
#include "serve/kserve/grpc/infer_calls.h"
#include "serve/kserve/repository.h"

namespace grpc {
class Service;
}

namespace tandem::serve::kserve {

// What the services use; outlives them.
struct ServiceParts {
  Repository& models;
  const Access& access;
  std::shared_ptr<InferCalls> calls;
};

std::unique_ptr<::grpc::Service> MakeInferenceService(ServiceParts parts);
std::unique_ptr<::grpc::Service> MakeHealthService(const Repository& models);

}  // namespace tandem::serve::kserve
