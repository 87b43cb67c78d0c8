#include "runtime/execution/slot_init.h"

#include <bit>

namespace tandem {

void SlotInit::SetLists(const Request& request) {
  lists.clear();
  if (!request.ignore_eos) lists = request.end_ids;
  num_end_ids = static_cast<int32_t>(lists.size());
  num_bias = static_cast<int32_t>(request.logit_bias.size());
  for (const LogitBias& bias : request.logit_bias) lists.push_back(bias.token);
  for (const LogitBias& bias : request.logit_bias) {
    lists.push_back(std::bit_cast<int32_t>(bias.value));
  }
  const size_t first_ban = lists.size();
  for (const std::vector<int32_t>& banned : request.banned_sequences) {
    lists.insert(lists.end(), banned.begin(), banned.end());
  }
  num_ban_tokens = static_cast<int32_t>(lists.size() - first_ban);
  num_bans = static_cast<int32_t>(request.banned_sequences.size());
  int32_t end = 0;
  for (const std::vector<int32_t>& banned : request.banned_sequences) {
    end += static_cast<int32_t>(banned.size());
    lists.push_back(end);
  }
}

void SlotInit::SetSent(const Request& request, int32_t count) {
  const ExternalDraft& draft = request.draft;
  sent_drafts.assign(draft.tokens.begin(), draft.tokens.begin() + count);
  sent_by_probability = draft.by_probability();
  sent_threshold = draft.threshold.value_or(-1.0f);
  sent_logits = {};
  if (draft.by_ratio()) sent_logits = draft.logits;
}

}  // namespace tandem
