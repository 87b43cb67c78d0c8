#include "comm/in_process.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "comm/host_parts.h"
#include "comm/meeting.h"

namespace tandem {
namespace {

// Where some ranks meet: all together, and each two for what one sends to the other.
class Group {
 public:
  Group(int size, const std::shared_ptr<SharedFailure>& failure) : together_(size, failure) {
    for (int i = 0; i < size * size; ++i) {
      pairs_.push_back(std::make_unique<Meeting>(2, failure));
    }
  }

  Meeting& together() { return together_; }
  // The sender is rank 0 of the meeting.
  Meeting& pair(int from, int to) {
    const int index = from * together_.size() + to;
    return *pairs_[static_cast<size_t>(index)];
  }

 private:
  Meeting together_;
  std::vector<std::unique_ptr<Meeting>> pairs_;
};

class InProcessRank final : public Communicator {
 public:
  // `stage`: the same rank among those of its stage; null where there is one.
  InProcessRank(std::shared_ptr<Group> group, int rank,
                std::unique_ptr<Communicator> stage = nullptr)
      : group_(std::move(group)),
        meeting_(group_->together()),
        rank_(rank),
        stage_(std::move(stage)) {}
  ~InProcessRank() override { Fail(Unavailable("rank " + std::to_string(rank_) + " has left")); }

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }
  Communicator& stage() override { return stage_ == nullptr ? *this : *stage_; }

  // Each rank adds up a share of the elements and writes it to all ranks.
  void AllReduce(const Tensor& rows) override {
    if (size() == 1) return;
    meeting_.tensor(rank_) = rows;
    if (!meeting_.Meet()) return;
    const int64_t pieces = (rows.NumElements() + kSumPiece - 1) / kSumPiece;
    for (int64_t piece = pieces * rank_ / size(); piece < pieces * (rank_ + 1) / size(); ++piece) {
      const int64_t begin = piece * kSumPiece;
      AddUp(meeting_.tensors(), begin, std::min(kSumPiece, rows.NumElements() - begin),
            meeting_.tensors());
    }
    meeting_.Meet();
  }

  void GatherColumns(const Tensor& part, const Tensor& all) override {
    meeting_.tensor(rank_) = part;
    if (!meeting_.Meet()) return;
    for (int from = 0; from < size(); ++from) {
      PutColumns(meeting_.tensor(from), from * part.dim(1), all);
    }
    meeting_.Meet();
  }

  void Broadcast(std::span<std::byte> bytes) override {
    const Shape shape{static_cast<int64_t>(bytes.size())};
    meeting_.tensor(rank_) = {bytes.data(), DType::kU8, shape, {}};
    if (!meeting_.Meet()) return;
    if (rank_ != 0) Copy(meeting_.tensor(0), meeting_.tensor(rank_));
    meeting_.Meet();
  }

  // Returns when the other one has copied the rows.
  void Send(const Tensor& rows, int to) override {
    Meeting& pair = group_->pair(rank_, to);
    pair.tensor(0) = rows;
    if (pair.Meet()) pair.Meet();
  }
  void Receive(const Tensor& rows, int from) override {
    Meeting& pair = group_->pair(from, rank_);
    if (!pair.Meet()) return;
    Copy(pair.tensor(0), rows);
    pair.Meet();
  }

  void Fail(const Status& why) override { meeting_.failure().Fail(why); }
  Status status() const override { return meeting_.failure().status(); }

 private:
  static void Copy(const Tensor& from, const Tensor& to) {
    TANDEM_CHECK(from.NumBytes() == to.NumBytes(), "ranks with rows of other sizes");
    std::memcpy(to.data, from.data, static_cast<size_t>(to.NumBytes()));
  }

  const std::shared_ptr<Group> group_;
  Meeting& meeting_;  // of all ranks of the group
  const int rank_;
  const std::unique_ptr<Communicator> stage_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeInProcessRanks(int size, const Stages& stages) {
  TANDEM_CHECK(stages.Divide(size), "stages with different numbers of ranks");
  const auto failure = std::make_shared<SharedFailure>();
  const auto all = std::make_shared<Group>(size, failure);
  std::vector<std::unique_ptr<Communicator>> ranks;
  std::shared_ptr<Group> group;
  for (int rank = 0; rank < size; ++rank) {
    const Stages::Range own = stages.Of(rank, size);
    if (rank == own.first) group = std::make_shared<Group>(own.size, failure);
    auto stage =
        stages.IsOne() ? nullptr : std::make_unique<InProcessRank>(group, rank - own.first);
    ranks.push_back(std::make_unique<InProcessRank>(all, rank, std::move(stage)));
  }
  return ranks;
}

}  // namespace tandem
