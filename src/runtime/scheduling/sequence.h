// Sequence: the mutable progress of one choice of one request. Engine thread only. Results of
// finished steps are exact; the effect of a step in flight is known as an interval.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/request/prompt_layouts.h"
#include "runtime/request/request.h"
#include "runtime/scheduling/batch_plan.h"
#include "runtime/speculation/acceptance.h"

namespace tandem {

// A submitted request, shared by its choices.
struct OpenRequest {
  // Constant after Submit.
  RequestId id = 0;
  Request request;
  PromptLayouts layouts = {};
  uint64_t seed = 0;
  Nanos submitted{0};
  // Engine thread only.
  int32_t open_choices = 0;
  bool started = false;  // a choice of it has been scheduled
  bool failed = false;
  // Set by the scheduler.
  int32_t sequences = 0;  // of its choices, those that wait or hold a slot
  int32_t slots = 0;      // held by its choices
  int32_t staying = 0;    // of those, without the choices that are about to leave
  uint64_t turn = 0;      // its place in the queue among requests with as many slots
};

enum class Phase : uint8_t {
  kWaiting,   // holds no slot and no block
  kActive,    // holds both; planned when there is room
  kPausing,   // preempted while a step in flight still names it
  kFinished,  // its last event is out or about to be; a step in flight may still name it
};

struct Sequence {
  // Set at admission, constant.
  std::shared_ptr<OpenRequest> open;
  int32_t choice = 0;
  int32_t max_length = 0;                       // prompt + output
  int32_t sent_drafts = 0;                      // of the request, verified after the prompt
  int32_t mailbox = -1;                         // of the event queue
  std::shared_ptr<TokenConstraint> constraint;  // committed to by the executor

  // Set by the scheduler; released by the engine when the sequence ends.
  Phase phase = Phase::kWaiting;
  int32_t slot = -1;
  std::vector<BlockId> blocks;
  // Of the blocks from first_window on, those that later tokens see; trimmed by Commit.
  std::vector<WindowBlockId> windows;
  int32_t first_window = 0;
  int32_t blocks_told = 0;   // of those, the number that plans have named to the executor
  BlockId copy_source = -1;  // referenced until the step that copies from it has ended
  WindowBlockId copy_source_window = -1;  // likewise
  uint64_t started = 0;                   // order of taking a slot; 0: it has held none
  int32_t started_with = 0;               // tokens known at that time
  bool ever_started = false;

  // The effect of launched steps. Set by the scheduler, cleared when the step's results are
  // committed.
  struct InFlight {
    bool planned = false;
    bool samples = false;
    int32_t target_tokens = 0;
    int32_t num_drafts = 0;
    int32_t draft_tokens = 0;
  };
  std::vector<InFlight> in_flight;  // a ring: one entry for each step that may be launched at once
  InFlight& WorkOf(uint64_t step) { return in_flight[step % in_flight.size()]; }

  // Set by Commit with a step's results.
  std::vector<int32_t> tokens;  // prompt, then output
  ComputedLengths computed{0, 0};
  ComputedLengths published{0, 0};  // computed lengths at the last Publish, in whole blocks
  Acceptance acceptance;
  ProbeState probe;
  FinishReason finish = FinishReason::kNone;
  SampledToken end;  // the end id; with kEnd
  Status error;      // with kFailed
  Usage usage;
  // Logits for the client that no event has yet: of the prompt, complete before the first token's
  // event takes them, and of the step's tokens.
  std::vector<LogitsRow> context_logits;
  std::vector<LogitsRow> drawn_logits;
  std::vector<SampledToken> prompt_logprobs;  // likewise of the prompt's tokens

  const Request& request() const { return open->request; }
  int32_t prompt_tokens() const { return static_cast<int32_t>(request().prompt.size()); }
  int32_t output_tokens() const { return static_cast<int32_t>(tokens.size()) - prompt_tokens(); }

  // Of the tokens from `start` on, how many a step of the model computes at least: those of a
  // prefix see each other.
  int32_t LeastRows(ModelIndex model, int32_t start) const {
    return std::max(open->layouts[static_cast<size_t>(model)].prefix_len - start, 0);
  }

  // No token has been drawn or is being drawn: the next one follows the prompt.
  bool DrawsFirst() const { return KnownLow() == prompt_tokens(); }
  // Drafts that the client sent and that are to be verified with the next token.
  int32_t SentDrafts() const { return DrawsFirst() ? sent_drafts : 0; }
  // The logits of the prompt tokens computed from now on are read: all of them, because this
  // sequence takes none from the cache.
  bool KeepsContext() const { return request().reads_context() && choice == 0 && DrawsFirst(); }

  bool InFlightAny() const { return std::ranges::any_of(in_flight, &InFlight::planned); }
  bool DraftsInFlight() const {
    return std::ranges::any_of(in_flight, [](const InFlight& step) { return step.num_drafts > 0; });
  }

  // Known tokens once all steps in flight have ended: at least, at most.
  int32_t KnownLow() const {
    auto known = static_cast<int32_t>(tokens.size());
    for (const InFlight& step : in_flight) known += step.samples ? 1 : 0;
    return std::min(known, max_length);
  }
  int32_t KnownHigh() const {
    auto known = static_cast<int32_t>(tokens.size());
    for (const InFlight& step : in_flight) known += step.samples ? 1 + step.num_drafts : 0;
    return std::min(known, max_length);
  }

  // Known tokens the target has yet to compute by then. Exact: a step that samples leaves one,
  // whatever the number of accepted drafts.
  int32_t Remaining() const {
    int32_t remaining = static_cast<int32_t>(tokens.size()) - computed[0];
    for (const InFlight& step : in_flight) {
      if (step.samples) return 1;
      remaining -= step.target_tokens;
    }
    return remaining;
  }
  // A step is a decode step when one token is left to compute; this includes a prompt's last token.
  bool Decoding() const { return Remaining() == 1; }

  // Most known tokens that the draft will have to compute by then. A draft's length never shrinks,
  // and a catch-up without drafts is exact.
  int32_t DraftLagHigh() const {
    int32_t computed_draft = computed[1];
    for (const InFlight& step : in_flight) {
      if (step.num_drafts == 0) computed_draft += step.draft_tokens;
    }
    return KnownHigh() - computed_draft;
  }
};

}  // namespace tandem
