#include "runtime/scheduling/commit.h"

#include <algorithm>

namespace tandem {
namespace {

bool EndsWith(std::span<const int32_t> output, std::span<const int32_t> stop) {
  return output.size() >= stop.size() &&
         std::equal(stop.begin(), stop.end(), output.end() - static_cast<ptrdiff_t>(stop.size()));
}

bool HitsStopSequence(const Sequence& sequence) {
  const Request& request = sequence.request();
  if (sequence.output_tokens() < request.sampling.min_tokens) return false;
  const auto output = std::span(sequence.tokens).subspan(request.prompt.size());
  return std::any_of(request.stop_sequences.begin(), request.stop_sequences.end(),
                     [&](const std::vector<int32_t>& stop) { return EndsWith(output, stop); });
}

// Why the sequence ends after its newest token, if it does.
FinishReason ReasonToEnd(const Sequence& sequence) {
  if (HitsStopSequence(sequence)) return FinishReason::kStop;
  const bool full = static_cast<int32_t>(sequence.tokens.size()) >= sequence.max_length;
  return full ? FinishReason::kLength : FinishReason::kNone;
}

// Nothing can be drawn. The constraint may say that nothing has to be.
void EndAtFault(Sequence& sequence, StepFault fault) {
  if (fault == StepFault::kNoTokenAllowed) {
    sequence.error = sequence.constraint->AtDeadEnd();
  } else {
    sequence.error =
        Internal("the model's logits are not finite; the weights or the prompt are out of range");
  }
  sequence.finish = sequence.error.ok() ? FinishReason::kStop : FinishReason::kFailed;
}

void CountDrafts(Sequence& sequence, const SequenceResult& result, int32_t shown, bool sent) {
  if (!sent) {
    sequence.acceptance.Observe(result.proposed, result.accepted);
    sequence.probe.AfterRound(result.proposed, result.accepted);
  }
  if (result.proposed == 0) return;
  ++sequence.usage.draft_rounds;
  sequence.usage.drafts_proposed += result.proposed;
  sequence.usage.drafts_accepted += std::min(result.accepted, shown);
}

}  // namespace

int32_t CommitTokens(Sequence& sequence, const SequenceResult& result,
                     std::span<const SampledToken> tokens, Nanos now) {
  int32_t shown = 0;
  // A client's drafts say nothing of the engine's own.
  const bool sent = sequence.output_tokens() == 0 && sequence.sent_drafts > 0;
  for (const SampledToken& token : tokens.first(tokens.size() - (result.end_id ? 1 : 0))) {
    sequence.tokens.push_back(token.token);
    ++shown;
    sequence.finish = ReasonToEnd(sequence);
    if (sequence.finish != FinishReason::kNone) break;
  }
  if (result.end_id && sequence.finish == FinishReason::kNone) {
    sequence.finish = FinishReason::kEnd;
    sequence.end = tokens.back();
  }
  if (result.fault != StepFault::kNone && sequence.finish == FinishReason::kNone) {
    EndAtFault(sequence, result.fault);
  }
  // Discards the tokens computed after the end.
  const auto known = static_cast<int32_t>(sequence.tokens.size());
  sequence.computed = {std::min(result.computed[0], known), std::min(result.computed[1], known)};
  if (sequence.output_tokens() == shown && !tokens.empty()) {
    sequence.usage.first_token = now - sequence.open->submitted;
  }
  if (shown > 0) sequence.usage.last_token = now - sequence.open->submitted;
  sequence.usage.output_tokens = sequence.output_tokens();
  if (!tokens.empty()) CountDrafts(sequence, result, shown, sent);
  return shown;
}

void ReleaseCopySource(Sequence& sequence, KvCache& kv) {
  const std::span source(&sequence.copy_source, 1);
  if (sequence.copy_source_window >= 0) {
    kv.ReleaseWindows(source, std::span(&sequence.copy_source_window, 1));
  }
  if (sequence.copy_source >= 0) kv.Release(source);
  sequence.copy_source = sequence.copy_source_window = -1;
}

void KeepWindows(Sequence& sequence, int32_t begin, int32_t end, KvCache& kv) {
  const int32_t held = static_cast<int32_t>(sequence.windows.size());
  const int32_t first = std::clamp(begin - sequence.first_window, 0, held);
  const int32_t last = std::clamp(end - sequence.first_window, first, held);
  const auto release = [&](int32_t from, int32_t to) {
    const auto count = static_cast<size_t>(to - from);
    kv.ReleaseWindows(std::span(sequence.blocks)
                          .subspan(static_cast<size_t>(sequence.first_window + from), count),
                      std::span(sequence.windows).subspan(static_cast<size_t>(from), count));
    sequence.windows.erase(sequence.windows.begin() + from, sequence.windows.begin() + to);
  };
  release(last, held);
  release(0, first);
  sequence.first_window += first;
}

void TrimWindows(Sequence& sequence, KvCache& kv) {
  if (!kv.has_windows()) return;
  const int32_t end = (sequence.KnownHigh() + kv.block_tokens() - 1) / kv.block_tokens();
  KeepWindows(sequence, kv.FirstWindowBlock(sequence.computed[0]), end, kv);
}

void PublishBlocks(Sequence& sequence, KvCache& kv) {
  const int32_t size = kv.block_tokens();
  const auto more_blocks = [&](int model) {
    return sequence.computed[static_cast<size_t>(model)] / size >
           sequence.published[static_cast<size_t>(model)] / size;
  };
  if (!more_blocks(0) && !more_blocks(1)) return;
  kv.Publish(std::span(sequence.tokens).first(static_cast<size_t>(sequence.computed[0])),
             sequence.blocks, sequence.computed, sequence.published, sequence.request().cache_key);
  sequence.published = sequence.computed;
}

}  // namespace tandem
