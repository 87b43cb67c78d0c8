#include "text/grammar.h"

#include <algorithm>
#include <utility>

#include "text/rust_bridge.h"

namespace tandem {
namespace {

using rust_bridge::OwnedBuffer;
using rust_bridge::ToStatus;
using rust_bridge::View;

// Of recent grammars that are kept; at most this many, however small.
constexpr size_t kKeptBytes = 64u << 20;
constexpr size_t kKeptGrammars = 256;

// Ids are never negative here.
const uint32_t* Ids(std::span<const int32_t> ids) {
  return reinterpret_cast<const uint32_t*>(ids.data());
}

}  // namespace

// ---- GrammarState ----

GrammarState::~GrammarState() { tandem_text_matcher_free(handle_); }

GrammarState::GrammarState(GrammarState&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)) {}

GrammarState& GrammarState::operator=(GrammarState&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Result<GrammarState> GrammarState::Clone() const {
  ::GrammarMatcher* copy = nullptr;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(ToStatus(tandem_text_matcher_clone(handle_, &copy, error.out()), error));
  return GrammarState(copy);
}

Status GrammarState::FillMask(std::span<uint32_t> allowed, std::span<const int32_t> end_ids) {
  OwnedBuffer error;
  return ToStatus(tandem_text_matcher_fill_mask(handle_, allowed.data(), allowed.size(),
                                                Ids(end_ids), end_ids.size(), error.out()),
                  error);
}

Result<size_t> GrammarState::Advance(std::span<const int32_t> tokens) {
  size_t taken = 0;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_matcher_advance(handle_, Ids(tokens), tokens.size(), &taken, error.out()),
      error));
  return taken;
}

Status GrammarState::RollBack(size_t count) {
  OwnedBuffer error;
  return ToStatus(tandem_text_matcher_roll_back(handle_, count, error.out()), error);
}

Result<std::string> GrammarState::Forced() {
  OwnedBuffer bytes;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(
      ToStatus(tandem_text_matcher_forced(handle_, bytes.out(), error.out()), error));
  return bytes.ToString();
}

bool GrammarState::IsAccepting() { return tandem_text_matcher_is_accepting(handle_); }

size_t GrammarState::Bytes() const { return tandem_text_matcher_bytes(handle_); }

// ---- GrammarSet ----

Result<std::shared_ptr<GrammarSet>> GrammarSet::Create(const Tokenizer& tokenizer,
                                                       int64_t model_vocab,
                                                       const GrammarLimits& limits) {
  const TandemTextGrammarLimits given{.max_text_bytes = limits.max_text_bytes,
                                      .max_items_in_row = limits.max_items_in_row,
                                      .initial_lexer_fuel = limits.initial_lexer_fuel,
                                      .step_lexer_fuel = limits.step_lexer_fuel,
                                      .step_max_items = limits.step_max_items,
                                      .max_lexer_states = limits.max_lexer_states,
                                      .max_grammar_size = limits.max_grammar_size,
                                      .log_level = limits.log_level};
  ::GrammarCompiler* handle = nullptr;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(ToStatus(
      tandem_text_grammar_compiler_new(tokenizer.handle(), static_cast<size_t>(model_vocab), &given,
                                       &handle, error.out()),
      error));
  return std::shared_ptr<GrammarSet>(new GrammarSet(handle));
}

GrammarSet::~GrammarSet() { tandem_text_grammar_compiler_free(handle_); }

Result<std::shared_ptr<const GrammarState>> GrammarSet::Compile(GrammarKind kind,
                                                                std::string_view text,
                                                                std::string_view thought) {
  if (auto found = Find(kind, text, thought)) return found;
  ::GrammarMatcher* handle = nullptr;
  OwnedBuffer error;
  TANDEM_RETURN_IF_ERROR(
      ToStatus(tandem_text_grammar_compile(handle_, static_cast<uint32_t>(kind), View(text),
                                           View(thought), &handle, error.out()),
               error));
  auto start = std::make_shared<const GrammarState>(handle);
  Keep({.kind = kind, .text = std::string(text), .thought = std::string(thought), .start = start});
  return start;
}

bool GrammarSet::Stopped() const { return tandem_text_grammar_compiler_stopped(handle_); }

std::shared_ptr<const GrammarState> GrammarSet::Find(GrammarKind kind, std::string_view text,
                                                     std::string_view thought) {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(recent_, [&](const Entry& entry) {
    return entry.kind == kind && entry.text == text && entry.thought == thought;
  });
  if (found == recent_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found);
  return found->start;
}

// One that fills the room alone is not kept.
void GrammarSet::Keep(Entry entry) {
  const MutexLock lock(mutex_);
  recent_.push_front(std::move(entry));
  size_t bytes = 0;
  size_t count = 0;
  for (auto it = recent_.begin(); it != recent_.end(); ++it) {
    bytes += it->text.size() + it->start->Bytes();
    if (bytes > kKeptBytes || ++count > kKeptGrammars) {
      recent_.erase(it, recent_.end());
      return;
    }
  }
}

}  // namespace tandem
