// CalibratedQuantization: what `option.quantize` and the options beside it ask for. A plain value;
// the defaults are those of LMI 0.26.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::apps {

struct CalibratedQuantization {
  enum class Scheme : uint8_t { kSmoothQuant, kAwq, kFp8 };

  Scheme scheme = Scheme::kSmoothQuant;
  // Of smoothquant: the share of the range that moves from the activations into the weights, from 0
  // to 1; activations with a scale for each token instead of one for all; weights with a scale for
  // each output instead of one for all.
  double alpha = 0.8;
  bool per_token = false;
  bool per_channel = false;
  bool multi_query_mode = false;  // the operator says that heads share keys and values
  // Of all schemes: sequences that are run to calibrate, and how many in one pass.
  int32_t calib_size = 32;
  int32_t calib_batch_size = 32;
  // Of awq: inputs that share a scale; the name of the format, always "int4_awq".
  int32_t block_size = 128;
  std::string awq_format = "int4_awq";
  // Of fp8: prompts' attention computes in fp8.
  bool use_fp8_context_fmha = false;

  bool operator==(const CalibratedQuantization&) const = default;
};

}  // namespace tandem::apps
