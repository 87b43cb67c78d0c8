#include "serve/grammar_constraint.h"

#include <algorithm>
#include <utility>

namespace tandem::serve {
namespace {

Status NotAdmitted() { return InvalidArgument("the grammar does not admit the output"); }

}  // namespace

Result<std::unique_ptr<GrammarConstraint>> GrammarConstraint::Create(
    std::shared_ptr<const GrammarState> start, std::shared_ptr<const std::vector<int32_t>> end_ids,
    std::shared_ptr<const Tokenizer> tokenizer, std::string field) {
  TANDEM_ASSIGN_OR_RETURN(GrammarState state, start->Clone());
  return std::unique_ptr<GrammarConstraint>(
      new GrammarConstraint(std::move(start), std::move(state), std::move(end_ids),
                            std::move(tokenizer), std::move(field)));
}

GrammarConstraint::GrammarConstraint(std::shared_ptr<const GrammarState> start, GrammarState state,
                                     std::shared_ptr<const std::vector<int32_t>> end_ids,
                                     std::shared_ptr<const Tokenizer> tokenizer, std::string field)
    : start_(std::move(start)),
      end_ids_(std::move(end_ids)),
      tokenizer_(std::move(tokenizer)),
      state_(std::move(state)),
      field_(std::move(field)) {}

void GrammarConstraint::FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) {
  const size_t at = ahead.size();
  failure_ = Knows(ahead, allowed.size()) ? Status() : MakeMask(ahead, allowed.size());
  if (!failure_.ok()) {
    std::ranges::fill(allowed, 0u);
    return;
  }
  for (size_t i = 0; i < allowed.size(); ++i) allowed[i] &= masks_[at][i];
}

// Whether the mask after `ahead` has been made. state_ then stays where it is: the masks of longer
// drafts may be asked for next.
bool GrammarConstraint::Knows(std::span<const int32_t> ahead, size_t words) const {
  const std::span<const int32_t> taken = Ahead();
  return ahead.size() < num_masks_ && ahead.size() <= taken.size() &&
         std::ranges::equal(ahead, taken.first(ahead.size())) &&
         masks_[ahead.size()].size() == words;
}

Status GrammarConstraint::MakeMask(std::span<const int32_t> ahead, size_t words) {
  TANDEM_RETURN_IF_ERROR(MoveTo(ahead));
  const size_t at = ahead.size();
  if (masks_.size() <= at) masks_.resize(at + 1);
  masks_[at].assign(words, ~0u);
  const Status status = state_.FillMask(masks_[at], *end_ids_);
  broken_ = !status.ok();
  // Known are those of all shorter drafts too.
  const bool is_next = status.ok() && num_masks_ >= at;
  num_masks_ = is_next ? at + 1 : std::min(num_masks_, at);
  return status;
}

void GrammarConstraint::Commit(const int32_t* tokens, int32_t num_tokens) {
  failure_ = MoveTo({tokens, static_cast<size_t>(num_tokens)});
  // A token that is refused stays part of the output, and every later mask is empty.
  if (!failure_.ok()) {
    taken_.resize(committed_);
    taken_.insert(taken_.end(), tokens, tokens + num_tokens);
    broken_ = true;
  }
  committed_ += static_cast<size_t>(num_tokens);
  num_masks_ = 0;
}

std::vector<int32_t> GrammarConstraint::Forced() {
  if (tokenizer_ == nullptr || !MoveTo({}).ok()) return {};
  const Result<std::string> forced = state_.Forced();
  if (!forced.ok()) {
    broken_ = true;
    return {};
  }
  return forced->empty() ? std::vector<int32_t>() : Spell(*forced);
}

// The tokens of a text that follows those that are taken, as the tokenizer makes them of the last
// token's text and this one together, because models prefer these. Where the text goes on within a
// word, the last token may differ from the one that the whole word would have.
std::vector<int32_t> GrammarConstraint::Spell(std::string_view text) const {
  std::string whole;
  if (!taken_.empty()) whole = tokenizer_->TokenBytes(taken_.back());
  const size_t begin = whole.size();
  whole += text;
  const Result<std::vector<int32_t>> tokens = tokenizer_->Encode(whole, false);
  std::vector<int32_t> spelled;
  if (!tokens.ok()) return spelled;  // not whole characters
  size_t at = 0;
  for (const int32_t token : *tokens) {
    // A space that the tokenizer puts before a text belongs to the last token.
    const bool is_first = at == 0 && begin > 0;
    const std::string_view bytes =
        is_first ? tokenizer_->FirstBytes(token) : tokenizer_->TokenBytes(token);
    const bool fits = !bytes.empty() && std::string_view(whole).substr(at).starts_with(bytes);
    if (!fits || (at < begin && at + bytes.size() > begin)) break;
    if (at >= begin) spelled.push_back(token);
    at += bytes.size();
  }
  return spelled;
}

Status GrammarConstraint::AtDeadEnd() {
  const Status failure = failure_.ok() ? MoveTo({}) : failure_;
  const bool names_field = !field_.empty() && failure.code() == Code::kInvalidArgument;
  if (!failure.ok()) return names_field ? FieldError(field_, failure.message()) : failure;
  return state_.IsAccepting() ? Status() : TokenConstraint::AtDeadEnd();
}

std::unique_ptr<TokenConstraint> GrammarConstraint::Clone() const {
  Result<GrammarState> state = broken_ ? Result<GrammarState>(NotAdmitted()) : state_.Clone();
  // Without a state of its own the copy makes one from the start.
  const bool broken = !state.ok();
  std::unique_ptr<GrammarConstraint> copy(new GrammarConstraint(
      start_, broken ? GrammarState(nullptr) : *std::move(state), end_ids_, tokenizer_, field_));
  copy->taken_ = taken_;
  copy->committed_ = committed_;
  copy->broken_ = broken;
  return copy;
}

// Puts state_ after the committed tokens and then `ahead`.
Status GrammarConstraint::MoveTo(std::span<const int32_t> ahead) {
  if (broken_) TANDEM_RETURN_IF_ERROR(Restart());
  const std::span<const int32_t> before = Ahead();
  const auto kept = static_cast<size_t>(std::ranges::mismatch(before, ahead).in1 - before.begin());
  if (const size_t back = before.size() - kept; back > 0) {
    num_masks_ = std::min(num_masks_, kept + 1);
    if (!state_.RollBack(back).ok()) {
      TANDEM_RETURN_IF_ERROR(Restart());
    } else {
      taken_.resize(taken_.size() - back);
    }
  }
  return Take(ahead.subspan(Ahead().size()));
}

// Appends what the grammar admits of `tokens`; an error if that is not all.
Status GrammarConstraint::Take(std::span<const int32_t> tokens) {
  if (tokens.empty()) return {};
  const Result<size_t> count = state_.Advance(tokens);
  if (!count.ok()) {
    broken_ = true;
    return count.status();
  }
  taken_.insert(taken_.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(*count));
  return *count == tokens.size() ? Status() : NotAdmitted();
}

// The committed tokens once more: a draft beyond a limit must not end what the output may reach.
Status GrammarConstraint::Restart() {
  broken_ = true;
  taken_.resize(committed_);
  TANDEM_ASSIGN_OR_RETURN(GrammarState state, start_->Clone());
  TANDEM_ASSIGN_OR_RETURN(const size_t count, state.Advance(taken_));
  if (count < committed_) return NotAdmitted();
  state_ = std::move(state);
  broken_ = false;
  return {};
}

}  // namespace tandem::serve
