#include "runtime/execution/mask_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/execution/mask_threads.h"

namespace tandem {
namespace {

using testing::ElementsAre;

// What a constraint was asked and told. It outlives the constraint.
struct Heard {
  std::atomic<bool> closed = false;  // the mask after `closed_after` drafts waits
  size_t closed_after = 0;
  std::atomic<int> masks = 0;
  std::vector<int32_t> tokens;

  void Open() {
    closed = false;
    closed.notify_all();
  }
};

class Listener final : public TokenConstraint {
 public:
  explicit Listener(std::shared_ptr<Heard> heard) : heard_(std::move(heard)) {}
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t>) override {
    ++heard_->masks;
    if (ahead.size() == heard_->closed_after) heard_->closed.wait(true);
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    heard_->tokens.insert(heard_->tokens.end(), tokens, tokens + num_tokens);
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<Listener>(*this);
  }

 private:
  std::shared_ptr<Heard> heard_;
};

class MaskJobTest : public testing::Test {
 protected:
  static constexpr int64_t kVocab = 64;

  // Asks for the masks after none, one, ... and all of the drafts.
  void Ask(MaskJob& job, std::span<const int32_t> drafts) {
    masks_ = {};
    job.Ask({.ahead = drafts, .masks = &masks_, .bits = bits_.data(), .stride = kVocab / 32});
  }
  // Waits until a thread is at the closed mask.
  void AwaitMask(int count) const {
    while (heard_->masks < count) std::this_thread::yield();
  }

  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  std::shared_ptr<TokenConstraint> constraint_ = std::make_shared<Listener>(heard_);
  std::shared_ptr<MaskJob> job_ = std::make_shared<MaskJob>(constraint_, kVocab, 8);
  ops::ItemMasks masks_;
  std::vector<uint32_t> bits_ = std::vector<uint32_t>(9 * kVocab / 32);
  MaskThreads threads_{8};
};

TEST_F(MaskJobTest, TokensAreHeardInOrderAlsoIfAThreadEndsBetweenThem) {
  const std::vector<int32_t> drafts = {10, 11};
  heard_->closed = true;
  heard_->closed_after = 2;
  Ask(*job_, drafts);
  threads_.Start({&job_, 1});
  AwaitMask(3);
  EXPECT_FALSE(job_->Close());
  EXPECT_EQ(masks_.count, 2);
  job_->Commit(10);
  heard_->Open();
  threads_.WaitForAll({&job_, 1}, std::chrono::minutes(1));
  job_->Commit(11);
  EXPECT_THAT(heard_->tokens, ElementsAre(10, 11));
}

TEST_F(MaskJobTest, OneThatIsLeftLetsGoOfItsConstraintAtOnce) {
  Ask(*job_, {});
  threads_.Start({&job_, 1});
  threads_.WaitForAll({&job_, 1}, std::chrono::minutes(1));
  EXPECT_TRUE(job_->Close());
  job_->Leave();
  EXPECT_EQ(constraint_.use_count(), 1);
  EXPECT_FALSE(job_->Return(constraint_.get()));
}

TEST_F(MaskJobTest, OneThatIsLeftWhileAThreadIsAtItLetsGoAfterwardsAndHasHeardAll) {
  heard_->closed = true;
  Ask(*job_, {});
  threads_.Start({&job_, 1});
  AwaitMask(1);
  EXPECT_FALSE(job_->Close());
  job_->Commit(12);
  job_->Leave();
  EXPECT_EQ(constraint_.use_count(), 2);
  heard_->Open();
  threads_.WaitForAll({&job_, 1}, std::chrono::minutes(1));
  EXPECT_EQ(constraint_.use_count(), 1);
  EXPECT_THAT(heard_->tokens, ElementsAre(12));
  EXPECT_FALSE(job_->Return(constraint_.get()));
}

TEST_F(MaskJobTest, ASequenceThatReturnsGoesOnWithItsJob) {
  heard_->closed = true;
  Ask(*job_, {});
  threads_.Start({&job_, 1});
  AwaitMask(1);
  EXPECT_FALSE(job_->Close());
  job_->Leave();
  EXPECT_FALSE(job_->Return(nullptr));
  EXPECT_TRUE(job_->Return(constraint_.get()));
  heard_->Open();
  threads_.WaitForAll({&job_, 1}, std::chrono::minutes(1));
  EXPECT_EQ(constraint_.use_count(), 2);
  job_->Commit(13);
  EXPECT_THAT(heard_->tokens, ElementsAre(13));
}

// A queue of masks that nobody wants any more would hold up everybody else's.
TEST_F(MaskJobTest, MasksOfASequenceThatHasLeftAreNotMade) {
  Ask(*job_, {});
  EXPECT_FALSE(job_->Close());
  job_->Leave();
  EXPECT_EQ(constraint_.use_count(), 2);
  threads_.Start({&job_, 1});
  threads_.WaitForAll({&job_, 1}, std::chrono::minutes(1));
  EXPECT_EQ(heard_->masks, 0);
  EXPECT_EQ(constraint_.use_count(), 1);
}

}  // namespace
}  // namespace tandem
