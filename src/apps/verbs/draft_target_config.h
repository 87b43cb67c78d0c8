// The value of run.py's --draft_target_model_config, "[4,[0],[1],False]". A plain value.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::apps {

struct DraftTargetConfig {
  int draft_len = 0;
  std::vector<int> draft_devices;
  std::vector<int> target_devices;
  bool use_logits = false;  // the ratio rule instead of equal tokens
};

// INVALID_ARGUMENT shows the expected form.
Result<DraftTargetConfig> ParseDraftTargetConfig(std::string_view text);

}  // namespace tandem::apps
