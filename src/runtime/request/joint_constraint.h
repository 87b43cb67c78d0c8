// JointConstraint: several constraints of one choice as one. A token may be drawn if all of them
// allow it. Owned and called as every TokenConstraint.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/request/request.h"

namespace tandem {

class JointConstraint final : public TokenConstraint {
 public:
  // At least one; none is null. The first that has a reason for a dead end gives it.
  explicit JointConstraint(std::vector<std::unique_ptr<TokenConstraint>> parts);

  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override;
  void Commit(const int32_t* tokens, int32_t num_tokens) override;
  std::vector<int32_t> Forced() override;
  Status AtDeadEnd() override;
  std::unique_ptr<TokenConstraint> Clone() const override;

 private:
  std::vector<std::unique_ptr<TokenConstraint>> parts_;
};

// The constraint that both make; either may be null.
std::shared_ptr<const TokenConstraint> Join(std::shared_ptr<const TokenConstraint> a,
                                            std::shared_ptr<const TokenConstraint> b);

}  // namespace tandem
