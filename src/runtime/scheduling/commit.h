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

// Puts blocks that became full into the prefix tree, each with the computed lengths of both models.
// Releases the first `count` window blocks of the sequence.
void ReleaseWindows(Sequence& sequence, size_t count, KvCache& kv);
// Releases the window blocks before those that tokens after the computed ones see.
void TrimWindows(Sequence& sequence, KvCache& kv);
void PublishBlocks(Sequence& sequence, KvCache& kv);

}  // namespace tandem
