// A constraint that forces most tokens, for tests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/request/request.h"

namespace tandem {

// At every place a multiple of 4 any tokens, then the three after it in the vocabulary; it tells of
// them, but of the last one it gives another spelling, which is not drawn.
class Triples final : public TokenConstraint {
 public:
  explicit Triples(int32_t vocab) : vocab_(vocab) {}
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    Triples after = *this;
    for (const int32_t token : ahead) after.Commit(&token, 1);
    if (after.place_ % 4 == 0) return;
    for (uint32_t& word : allowed) word = 0;
    Allow((after.last_ + 1) % vocab_, allowed);
    if (after.place_ % 4 == 3) Allow((after.last_ + 2) % vocab_, allowed);
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    place_ += num_tokens;
    last_ = tokens[num_tokens - 1];
  }
  std::vector<int32_t> Forced() override {
    std::vector<int32_t> tokens;
    for (int32_t i = place_ % 4; i % 4 != 0; ++i) {
      tokens.push_back((tokens.empty() ? last_ : tokens.back()) + 1);
      tokens.back() %= vocab_;
    }
    return tokens;
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<Triples>(*this);
  }

 private:
  static void Allow(int32_t token, std::span<uint32_t> allowed) {
    allowed[static_cast<size_t>(token / 32)] |= 1u << (token % 32);
  }
  int32_t vocab_;
  int32_t place_ = 0;
  int32_t last_ = 0;
};

}  // namespace tandem
