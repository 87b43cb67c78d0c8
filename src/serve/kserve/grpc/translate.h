// Between the messages of the inference protocol's gRPC service and the values that models take and
// give. Pure functions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "serve/kserve/inference.h"
#include "serve/kserve/model_statistics.h"

namespace inference {  // <grpc_service.pb.h>
class LogSettingsRequest;
class ModelInferRequest;
class ModelInferResponse;
class ModelMetadataResponse;
class ModelStatistics;
class RepositoryModelLoadRequest;
class RepositoryModelUnloadRequest;
}  // namespace inference

namespace tandem::serve::kserve {

// Whether a stream reports the end of a request by a response of its own, without outputs, if
// nothing else carries it.
inline constexpr std::string_view kEmptyFinalParameter = "triton_enable_empty_final_response";
inline constexpr std::string_view kFinalParameter = "triton_final_response";

struct ReceivedRequest {
  InferRequest request;
  bool wants_empty_final = false;
};

// Every tensor of the request that is not in shared memory has exactly the bytes of its shape.
// INVALID_ARGUMENT with the tensor or parameter as field for one that has not, for a type or
// parameter that the protocol does not have, and for contents given in two ways; UNIMPLEMENTED for
// classification.
Result<ReceivedRequest> FromMessage(const inference::ModelInferRequest& message);

// INVALID_ARGUMENT with the parameter as field for one without a value, and for one of bytes.
Result<Parameters> ParametersOf(const inference::RepositoryModelLoadRequest& message);
Result<Parameters> ParametersOf(const inference::RepositoryModelUnloadRequest& message);
Result<Parameters> ParametersOf(const inference::LogSettingsRequest& message);

// Outputs are raw bytes, one entry for each of them; an empty one for those in shared memory.
void ToMessage(const InferResponse& response, inference::ModelInferResponse& message);

void DescribeModel(const inference::ModelConfig& config, std::string_view version,
                   inference::ModelMetadataResponse& message);
void DescribeStatistics(std::string_view name, std::string_view version,
                        const StatisticsSnapshot& figures, inference::ModelStatistics& message);

// The number of a status of gRPC. A full queue is UNAVAILABLE, so that clients try again.
int GrpcCodeOf(const Status& status);

}  // namespace tandem::serve::kserve
