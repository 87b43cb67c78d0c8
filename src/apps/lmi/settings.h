// LmiSettings: what the keys of SageMaker's LMI containers ask for, of one model or of the server.
// A plain value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "serve/lmi/settings.h"

namespace tandem::apps {

// Limits of which several together make one of ours (SettleLmiLimits).
struct LmiLimits {
  std::optional<int64_t> max_rolling_batch_size;
  std::optional<int64_t> max_num_sequences;
  std::optional<int64_t> max_batch_size;
  std::optional<int64_t> max_input_len;
  std::optional<int64_t> max_output_len;
  std::optional<int64_t> max_seq_len;
  std::optional<int64_t> max_num_tokens;
  std::optional<int64_t> max_prefill_tokens;
};

// Where models come from, as it was given.
struct LmiSources {
  std::string model_id;
  std::string revision;
  std::string draft_model_id;
  std::string tokenizer;
  std::string tokenizer_revision;
  std::string entry_point;
};

struct LmiSettings {
  std::map<std::string, std::string, std::less<>> options;  // of the option table: name, value
  LmiLimits limits;
  LmiSources sources;
  serve::lmi::Settings http;

  // Of the server alone.
  std::string inference_address;
  std::optional<int64_t> port;
  std::string certificate_file;
  std::string private_key_file;
  std::string model_store;
  std::string load_models;
};

}  // namespace tandem::apps
