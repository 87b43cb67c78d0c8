#include "runtime/request/joint_constraint.h"

#include <utility>

#include "base/check.h"

namespace tandem {

JointConstraint::JointConstraint(std::vector<std::unique_ptr<TokenConstraint>> parts)
    : parts_(std::move(parts)) {
  TANDEM_CHECK(!parts_.empty(), "no constraint");
}

void JointConstraint::FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) {
  for (const auto& part : parts_) part->FillMask(ahead, allowed);
}

void JointConstraint::Commit(const int32_t* tokens, int32_t num_tokens) {
  for (const auto& part : parts_) part->Commit(tokens, num_tokens);
}

std::vector<int32_t> JointConstraint::Forced() {
  for (const auto& part : parts_) {
    if (std::vector<int32_t> tokens = part->Forced(); !tokens.empty()) return tokens;
  }
  return {};
}

// A whole output for one part that another one forbids to continue is whole.
Status JointConstraint::AtDeadEnd() {
  Status first;
  for (const auto& part : parts_) {
    Status status = part->AtDeadEnd();
    if (status.ok()) return status;
    if (first.ok()) first = std::move(status);
  }
  return first;
}

std::unique_ptr<TokenConstraint> JointConstraint::Clone() const {
  std::vector<std::unique_ptr<TokenConstraint>> parts;
  for (const auto& part : parts_) parts.push_back(part->Clone());
  return std::make_unique<JointConstraint>(std::move(parts));
}

std::shared_ptr<const TokenConstraint> Join(std::shared_ptr<const TokenConstraint> a,
                                            std::shared_ptr<const TokenConstraint> b) {
  if (a == nullptr) return b;
  if (b == nullptr) return a;
  std::vector<std::unique_ptr<TokenConstraint>> parts;
  parts.push_back(a->Clone());
  parts.push_back(b->Clone());
  return std::make_shared<JointConstraint>(std::move(parts));
}

}  // namespace tandem
