// The body of /v2/models/{m}/generate → text request, by Triton's rule: members with the name of a
// model input become that input, at top level or inside "parameters"; others become request
// parameters. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/model_registry.h"
#include "serve/text_request.h"

namespace tandem::serve::kserve {

enum class DataType : uint8_t { kString, kInt32, kUint64, kFp32, kBool, kFp16, kUint8 };
std::string_view DataTypeName(DataType type);  // as the protocol writes it: "BYTES"

// An input or output of the text-level models.
struct TensorInfo {
  std::string_view name;
  DataType type;
  bool is_list = false;      // shape [-1], else [1]
  bool is_required = false;  // inputs
  bool bls_only = false;
};
std::span<const TensorInfo> Inputs();
std::span<const TensorInfo> Outputs();

struct Call {
  std::string id;  // empty: none
  TextRequest text;
  bool return_log_probs = false;
  bool echo_prompt = false;   // exclude_input_in_output is false
  bool stream_tokens = true;  // in a stream: one event per token; else one with everything
};

Result<Call> ParseGenerate(const Model& model, std::string_view body);

}  // namespace tandem::serve::kserve
