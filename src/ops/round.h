// RoundOps: the part of a round between the models' passes, with the state of the sequences in
// backend memory: it turns a plan into rows, drawn tokens into drafts, and verification results
// into lengths. Every function enqueues its work and returns; the host knows upper bounds of the
// counts and never reads one back. Owned by the backend; called by the executor's thread. Allocates
// nothing and never waits, so that it can be captured.
//
// A step enqueues ApplyPlan; then, where a client sent drafts with their logits, LaySentRows and
// Ops::Sample, which makes distributions of them; then, where sequences draft, LookUpDrafts,
// LayDraftRows and for each draft a pass of the draft model, LayDraftSamples, Ops::Sample and
// KeepDrafts; then LayTargetRows, the target's pass, LayTargetSamples, Ops::Sample and Accept
// (where drafts are accepted by probability with LayVerifyRows, Ops::VerifyAndAccept, LayChosenRows
// and another Sample before it).
#pragma once

#include <cstdint>

#include "ops/ops.h"
#include "ops/sampling.h"

namespace tandem::ops {

// Why a sequence cannot go on.
enum RoundFault : int32_t { kFaultNone = 0, kFaultNoTokenAllowed = 1, kFaultBadLogits = 2 };

// How the tokens of one prompt see each other and where they stand, for one model. The initial
// values: each sees what is before it and stands where it is.
struct PromptLayout {
  // Of a prefix mask: all tokens see the first prefix_len ones; those after them stand at
  // mask_position and are counted by their second positions.
  int32_t prefix_len = 0;
  int32_t mask_position = 0;
  // Row of the rotary tables for position 0, where prompts of different lengths turn differently.
  int32_t first_turn = 0;
  bool operator==(const PromptLayout&) const = default;
};

// A slot's progress. Index 0 of `computed` is the target's length, 1 the draft's.
struct SlotRecord {
  // Constant while the sequence holds its slot.
  int32_t prompt_tokens = 0;
  int32_t max_length = 0;
  int32_t counted = 0;  // 1 if the slot counts tokens
  PromptLayout layouts[2];
  // Advanced by the rounds.
  int32_t known = 0;  // tokens: prompt, then output
  int32_t computed[2] = {0, 0};
  int32_t num_blocks = 0;
  int32_t ended = 1;  // emitted an end id, reached its longest length, faulted, or empty
  int32_t fault = kFaultNone;
  // Of the current round: drafts after the known tokens, and the draft model's computed length
  // including them.
  int32_t num_drafts = 0;
  int32_t draft_reach = 0;
};

// The state of every slot.
struct SlotArrays {
  int32_t max_slots = 0;
  int32_t max_seq_len = 0;
  int32_t max_blocks = 0;
  int32_t max_draft_len = 0;               // the engine's own or a client's
  int64_t vocab = 0;                       // the target's
  SlotRecord* records = nullptr;           // [max_slots]
  int32_t* tokens = nullptr;               // [max_slots, max_seq_len]
  int32_t* blocks = nullptr;               // [max_slots, max_blocks]
  int32_t* window_of = nullptr;            // as KvPool::window_of, of the target; null: none
  int32_t* drafts = nullptr;               // [max_slots, max_draft_len]
  int32_t* counts = nullptr;               // [max_slots, vocab]
  SlotSampling* sampling = nullptr;        // [max_slots]
  SlotSampling* draft_sampling = nullptr;  // [max_slots] the same without log-probabilities
};

// The initial contents of a slot. In backend memory, followed by [record.known] tokens, [num_sent]
// drafts that the client sent, which stay after the known tokens until the first one is drawn, and
// [num_values] values of its lists, which go to `lists` (the sampling record points there).
struct SlotPatch {
  int32_t slot = 0;
  int32_t num_sent = 0;
  int32_t num_values = 0;
  int32_t* lists = nullptr;
  SlotRecord record;
  SlotSampling sampling;
};

// A sequence's part of a step: SequencePlan of runtime/scheduling/batch_plan.h, for a device.
struct RoundItem {
  int32_t slot = 0;
  int32_t target_tokens = 0;
  int32_t samples = 0;
  int32_t num_drafts = 0;
  int32_t draft_tokens = 0;
  int32_t first_new_block = 0;
  int32_t num_new_blocks = 0;
  int32_t constrained = 0;  // its rows are drawn under masks
  int32_t sent = 0;         // 1: the client sent its drafts
  // 1: drafts are accepted by their probabilities, by VerifyRow's rules. Then row i from
  // first_prob_row on has the distributions of draft i and of the target there; num_drafts + 1
  // rows.
  int32_t by_probability = 0;
  float threshold = -1.0f;
  int32_t first_prob_row = 0;
  int32_t first_sent_row = -1;  // of the logits that the client sent; -1: none
  // Logits for the client, kept from row first_kept on (-1: none): of every target token, then of
  // the tokens drawn after the last one.
  int32_t first_kept = -1;
  int32_t keeps_context = 0;
  int32_t keeps_drawn = 0;
};

// The masks of a constrained item, made when its drafts are known: row i of the rows that it draws
// from has mask first + i. Rows from `count` on have no mask: they follow a draft that ends the
// output or violates the constraint, so their draws are never used; or no token may be drawn there.
struct ItemMasks {
  int32_t first = 0;
  int32_t count = 0;
  int32_t dead_end = 0;  // no token may be drawn in row `count`
  // 1: the masks from row `count` on are not ready. The rows before it are drawn; if there are none
  // nothing is, and the next step computes the last known token once more.
  int32_t late = 0;
};

struct RoundHeader {
  int32_t num_items = 0;
  // Changes of SlotArrays::window_of: pairs of a block and its window block, in Round::new_blocks
  // from first_mapping on; later ones hold.
  int32_t num_mappings = 0;
  int32_t first_mapping = 0;
};

// Rows of one sequence in a pass: consecutive positions from `start` on, known tokens and then
// drafts. Tokens are drawn from the logits of the last num_logits rows; the client wants those of
// the num_context rows before them, which lie before first_logits.
struct RowRange {
  int32_t slot = -1;  // -1: after the last sequence
  int32_t item = 0;   // of the plan
  int32_t start = 0;
  int32_t num_rows = 0;
  int32_t first_row = 0;
  int32_t num_logits = 0;
  int32_t first_logits = 0;
  int32_t num_context = 0;
  int32_t wanted = 0;  // a drafting sequence: drafts it wants in all
};

// The rows of one model's pass: the arrays of a BatchView, the ranges that the rows come from, and
// the draws from their logits.
struct PassArrays {
  int32_t model = 0;                // index into SlotRecord::layouts
  int64_t vocab = 0;                // a token outside the model's vocabulary is replaced by token 0
  int32_t* tokens = nullptr;        // [max_rows]
  int32_t* positions = nullptr;     // [max_rows]
  int32_t* row_seq = nullptr;       // [max_rows]
  int32_t* query_start = nullptr;   // [max_seqs + 1]
  int32_t* context_len = nullptr;   // [max_seqs]
  int32_t* block_table = nullptr;   // [max_seqs, max_blocks]
  int32_t* window_table = nullptr;  // the same, of window blocks; null: none
  int32_t* logits_rows = nullptr;   // [max_logits]
  // Of models whose prompts have layouts; else null.
  int32_t* prefix_len = nullptr;        // [max_seqs]
  int32_t* turns = nullptr;             // [max_rows]
  int32_t* second_positions = nullptr;  // [max_rows]
  RowRange* ranges = nullptr;           // [max_seqs]
  SampleRow* samples = nullptr;         // [max_logits]
  SampledToken* drawn = nullptr;        // [max_logits]
};

// The result of a sequence's step, at the sequence's place in the plan; its tokens are the target
// pass's draws from first_token on.
struct RoundResult {
  int32_t slot = 0;
  int32_t proposed = 0;
  int32_t accepted = 0;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  int32_t end_id = 0;  // the last of these tokens is an end id: not part of the output
  int32_t computed[2] = {0, 0};
  int32_t fault = kFaultNone;
};

// Not zero: the plan and the state contradict each other, a defect; the results are void from then
// on.
struct RoundStatus {
  int32_t broken = 0;
};
enum RoundBroken : int32_t {
  kBrokenRows = 1,     // more rows, logits or sequences than the bounds
  kBrokenBlocks = 2,   // more blocks than a sequence can have
  kBrokenSamples = 4,  // a step samples after the last known token, and only there
  kBrokenLag = 8,      // the draft lags more than the plan's bound
};

// All data of a round. Plain pointers into backend memory, constant once made: graphs hold copies.
struct Round {
  SlotArrays slots;
  // The step's plan.
  const RoundHeader* header = nullptr;
  const RoundItem* items = nullptr;       // [max_slots]
  const int32_t* new_blocks = nullptr;    // of all items, back to back
  const ItemMasks* item_masks = nullptr;  // [max_slots] of the constrained items
  const uint32_t* masks = nullptr;        // [max_logits, mask_words]
  int64_t mask_words = 0;
  int32_t lookup_ngram = 0;
  bool ratio = false;  // the engine's own drafts: ratio acceptance instead of token match

  PassArrays draft;
  PassArrays target;
  int64_t draw_vocab = 0;  // tokens both models know

  // Items whose drafts are accepted by probability.
  float* draft_probs = nullptr;    // [prob rows, vocab]
  float* target_probs = nullptr;   // [prob rows, vocab]
  VerifyRow* verify = nullptr;     // [max_slots] at the sequence's place in the plan
  int32_t* held = nullptr;         // [max_slots]
  int32_t* next = nullptr;         // [max_slots]
  SampledToken* chosen = nullptr;  // [max_logits]
  // Draws of which only the distribution is wanted: that of a sent draft.
  SampleRow* sent_samples = nullptr;   // [max_sent]
  SampledToken* sent_drawn = nullptr;  // [max_sent]

  RoundStatus* status = nullptr;
  RoundResult* results = nullptr;  // [max_slots]
};

// Upper bounds of one pass. Entries between the real counts and these bounds are made inert: rows
// with row_seq -1 and token 0, empty sequences, logits of row 0, sample rows without logits.
struct PassBounds {
  int32_t num_rows = 0;
  int32_t num_seqs = 0;
  int32_t num_logits = 0;
};

class RoundOps {
 public:
  virtual ~RoundOps() = default;

  // Fills a slot from its patch (backend memory).
  virtual void StartSlot(const SlotArrays& slots, const SlotPatch* patch) = 0;
  virtual void EndSlot(const SlotArrays& slots, int32_t slot) = 0;

  // Appends the plan's new blocks, maps window blocks, forgets the drafts of the round before and
  // takes those sent.
  virtual void ApplyPlan(const Round& round, int32_t max_items) = 0;
  // Fills sent_samples: rows [0, num_rows) of `logits`, [num_rows, vocab] in pinned host memory,
  // were sent with the drafts of items.
  virtual void LaySentRows(const Round& round, int32_t max_items, int32_t num_rows,
                           const float* logits) = 0;
  // Drafts from the sequences' own history: finds the longest run of the last tokens, at most
  // lookup_ngram long, that occurs earlier (of several, the latest) and proposes the tokens that
  // followed it. A run of one token counts only if lookup_ngram is 1.
  virtual void LookUpDrafts(const Round& round, int32_t max_items) = 0;
  // The draft model's first pass: the tokens that it has yet to compute of each sequence that
  // drafts or catches up.
  virtual void LayDraftRows(const Round& round, const PassBounds& bounds) = 0;
  // logits: [num_logits, draft vocab], stride in elements.
  virtual void LayDraftSamples(const Round& round, const PassBounds& bounds, const float* logits,
                               int64_t stride) = 0;
  // Takes the drawn tokens as drafts and adds one row for each sequence that wants another.
  virtual void KeepDrafts(const Round& round, const PassBounds& bounds) = 0;
  // The target's pass: the planned known tokens and the drafts; sequence s is item s of the plan.
  virtual void LayTargetRows(const Round& round, const PassBounds& bounds) = 0;
  // logits: [num_logits, vocab].
  virtual void LayTargetSamples(const Round& round, const PassBounds& bounds,
                                const float* logits) = 0;
  // The sequences whose drafts are accepted by probability.
  virtual void LayVerifyRows(const Round& round, const PassBounds& bounds) = 0;
  // Fills the sample rows again for those, to get the log-probabilities of the chosen tokens;
  // results go to `chosen`.
  virtual void LayChosenRows(const Round& round, const PassBounds& bounds) = 0;
  // Emits tokens, moves lengths, keeps counts, writes the results.
  virtual void Accept(const Round& round, const PassBounds& bounds, const float* logits) = 0;
  // After Accept: copies the rows that items keep to `kept`, [rows, vocab] in pinned host memory.
  virtual void KeepLogits(const Round& round, const PassBounds& bounds, const float* logits,
                          float* kept) = 0;
};

}  // namespace tandem::ops
