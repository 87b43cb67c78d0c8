// GrammarConstraint: a text::GrammarState as an engine's constraint. Drafts are walked and taken
// back: consecutive calls with longer drafts cost one token each. Owned and called as every
// TokenConstraint.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/request/request.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace tandem::serve {

class GrammarConstraint final : public TokenConstraint {
 public:
  // `start`: the beginning of the grammar. `end_ids` end the output: they are allowed where the
  // grammar may end, or names them. `tokenizer` spells forced text. `field`: the client's word for
  // the grammar, which errors name; may be empty.
  static Result<std::unique_ptr<GrammarConstraint>> Create(
      std::shared_ptr<const GrammarState> start,
      std::shared_ptr<const std::vector<int32_t>> end_ids,
      std::shared_ptr<const Tokenizer> tokenizer, std::string field = {});

  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override;
  void Commit(const int32_t* tokens, int32_t num_tokens) override;
  std::vector<int32_t> Forced() override;
  Status AtDeadEnd() override;
  std::unique_ptr<TokenConstraint> Clone() const override;

 private:
  GrammarConstraint(std::shared_ptr<const GrammarState> start, GrammarState state,
                    std::shared_ptr<const std::vector<int32_t>> end_ids,
                    std::shared_ptr<const Tokenizer> tokenizer, std::string field);

  std::span<const int32_t> Ahead() const { return std::span(taken_).subspan(committed_); }
  bool Knows(std::span<const int32_t> ahead, size_t words) const;
  Status MakeMask(std::span<const int32_t> ahead, size_t words);
  Status MoveTo(std::span<const int32_t> ahead);
  Status Take(std::span<const int32_t> tokens);
  Status Restart();
  std::vector<int32_t> Spell(std::string_view text) const;

  std::shared_ptr<const GrammarState> start_;
  std::shared_ptr<const std::vector<int32_t>> end_ids_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // null: nothing is forced
  GrammarState state_;                          // after taken_
  std::vector<int32_t> taken_;                  // the committed tokens, then drafts
  size_t committed_ = 0;
  // Of taken_: the masks after the committed tokens and 0, 1, ... drafts, as far as they were asked
  // for; on a CPU drafts are drawn under the masks that their verification needs again.
  std::vector<std::vector<uint32_t>> masks_;
  size_t num_masks_ = 0;  // valid ones
  bool broken_ = false;   // state_ is unusable: made anew before its next use
  Status failure_;        // of the last call
  std::string field_;
};

}  // namespace tandem::serve
