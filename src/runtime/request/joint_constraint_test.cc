#include "runtime/request/joint_constraint.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tandem {
namespace {

// Forbids one token, and after `committed` tokens is whole.
class Forbids final : public TokenConstraint {
 public:
  Forbids(int32_t token, int32_t whole_after, std::vector<int32_t> forced = {})
      : token_(token), whole_after_(whole_after), forced_(std::move(forced)) {}
  void FillMask(std::span<const int32_t>, std::span<uint32_t> allowed) override {
    allowed[0] &= ~(1u << token_);
  }
  void Commit(const int32_t*, int32_t num_tokens) override { committed_ += num_tokens; }
  std::vector<int32_t> Forced() override { return forced_; }
  Status AtDeadEnd() override {
    return committed_ >= whole_after_ ? Status() : TokenConstraint::AtDeadEnd();
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<Forbids>(*this);
  }

 private:
  int32_t token_;
  int32_t whole_after_;
  std::vector<int32_t> forced_;
  int32_t committed_ = 0;
};

TEST(JointConstraint, AllowsWhatAllAllow) {
  const auto joint =
      Join(std::make_shared<Forbids>(1, 9), std::make_shared<Forbids>(4, 9))->Clone();
  uint32_t mask = ~0u;
  joint->FillMask({}, {&mask, 1});
  EXPECT_EQ(mask, ~0b10010u);
}

TEST(JointConstraint, IsWholeWhereAPartIs) {
  const auto joint =
      Join(std::make_shared<Forbids>(1, 9), std::make_shared<Forbids>(4, 1))->Clone();
  EXPECT_EQ(joint->AtDeadEnd().code(), Code::kInvalidArgument);
  const int32_t token = 7;
  joint->Commit(&token, 1);
  EXPECT_TRUE(joint->AtDeadEnd().ok());
}

TEST(JointConstraint, CopiesKeepTheirOwnState) {
  const auto joint =
      Join(std::make_shared<Forbids>(1, 9), std::make_shared<Forbids>(4, 1))->Clone();
  const auto copy = joint->Clone();
  const int32_t token = 7;
  joint->Commit(&token, 1);
  EXPECT_FALSE(copy->AtDeadEnd().ok());
}

TEST(JointConstraint, ForcesWhatAPartForces) {
  const auto free = std::make_shared<Forbids>(1, 9);
  const auto forces = std::make_shared<Forbids>(4, 9, std::vector{7, 8});
  EXPECT_EQ(Join(free, forces)->Clone()->Forced(), std::vector({7, 8}));
  EXPECT_TRUE(Join(free, free)->Clone()->Forced().empty());
}

TEST(JointConstraint, OneConstraintNeedsNoJoint) {
  const auto one = std::make_shared<Forbids>(1, 9);
  EXPECT_EQ(Join(one, nullptr), one);
  EXPECT_EQ(Join(nullptr, one), one);
  EXPECT_EQ(Join(nullptr, nullptr), nullptr);
}

}  // namespace
}  // namespace tandem
