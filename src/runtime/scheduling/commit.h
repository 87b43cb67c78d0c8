// Commit: applies a step's results to a sequence. No state of its own, no clock; engine thread
// only.
#pragma once

#include <cstdint>
#include <span>

#include "base/sampling.h"
#include "runtime/cache/kv_cache.h"
#include "runtime/scheduling/batch_plan.h"
#include "runtime/scheduling/sequence.h"

namespace tandem {

// Appends the step's tokens up to the sequence's end, sets `finish` when it is reached, and updates
// the sequence's figures. Returns how many of `tokens` (those of this result) the client sees: an
// end id is not shown.
int32_t CommitTokens(Sequence& sequence, const SequenceResult& result,
                     std::span<const SampledToken> tokens, Nanos now);

// Releases the block that a sequence's first step copied from, if it still holds it.
void ReleaseCopySource(Sequence& sequence, KvCache& kv);

// Releases the window blocks of all but the sequence's blocks [begin, end).
void KeepWindows(Sequence& sequence, int32_t begin, int32_t end, KvCache& kv);
// Releases the window blocks before those that tokens after the computed ones see, and those after
// the tokens that will be known when the steps in flight have ended: drafts that were rejected.
void TrimWindows(Sequence& sequence, KvCache& kv);
// Puts blocks that became full into the prefix tree, each with the computed lengths of both models.
void PublishBlocks(Sequence& sequence, KvCache& kv);

}  // namespace tandem
