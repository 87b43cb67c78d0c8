#include "comm/in_process.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// Ranks meet several times in a layer: sleeping in between would cost more than the layer.
constexpr auto kSpin = std::chrono::microseconds(50);

// What the ranks share.
class Meeting {
 public:
  explicit Meeting(int size) : tensors_(static_cast<size_t>(size)) {}

  int size() const { return static_cast<int>(tensors_.size()); }
  // Of the other ranks: read between two meetings.
  Tensor& tensor(int rank) { return tensors_[static_cast<size_t>(rank)]; }

  // Returns when all ranks have called it; false if one has failed.
  bool Meet() {
    const uint64_t round = round_.load(std::memory_order_relaxed);
    if (failed()) return false;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
      arrived_.store(0, std::memory_order_relaxed);
      const MutexLock lock(mutex_);
      round_.store(round + 1, std::memory_order_release);
      moved_.NotifyAll();
      return !failed();
    }
    Await(round);
    return !failed();
  }

  void Fail(const Status& why) {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    failed_.store(true, std::memory_order_release);
    moved_.NotifyAll();
  }
  Status failure() const {
    const MutexLock lock(mutex_);
    return failure_;
  }

 private:
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool Over(uint64_t round) const {
    return round_.load(std::memory_order_acquire) != round || failed();
  }

  void Await(uint64_t round) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    int spins = 0;
    while (!Over(round)) {
      _mm_pause();
      if (++spins < 64) continue;
      spins = 0;
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() < until) continue;
      MutexLock lock(mutex_);
      moved_.Wait(lock, [this, round] { return Over(round); });
    }
  }

  std::vector<Tensor> tensors_;
  alignas(64) std::atomic<int> arrived_ = 0;
  alignas(64) std::atomic<uint64_t> round_ = 0;
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  Condition moved_;  // round_ or failed_
  Status failure_ TANDEM_GUARDED_BY(mutex_);
};

constexpr int64_t kPiece = 1024;  // elements that are added up at a time
using Floats = std::array<float, kPiece>;

// Elements begin .. begin + count, as a vector.
Tensor Piece(const Tensor& tensor, int64_t begin, int64_t count) {
  std::byte* const data =
      static_cast<std::byte*>(tensor.data) + begin * static_cast<int64_t>(SizeOf(tensor.dtype));
  return {data, tensor.dtype, {count}, tensor.device};
}

class InProcessRank final : public Communicator {
 public:
  InProcessRank(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}
  ~InProcessRank() override {
    meeting_->Fail(Unavailable("rank " + std::to_string(rank_) + " has left"));
  }

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }

  // Each rank adds up a share of the elements and writes it to all ranks.
  void AllReduce(const Tensor& rows) override {
    if (size() == 1) return;
    meeting_->tensor(rank_) = rows;
    if (!meeting_->Meet()) return;
    const int64_t pieces = (rows.NumElements() + kPiece - 1) / kPiece;
    for (int64_t piece = pieces * rank_ / size(); piece < pieces * (rank_ + 1) / size(); ++piece) {
      const int64_t begin = piece * kPiece;
      AddUp(begin, std::min(kPiece, rows.NumElements() - begin));
    }
    meeting_->Meet();
  }

  void GatherColumns(const Tensor& part, const Tensor& all) override {
    meeting_->tensor(rank_) = part;
    if (!meeting_->Meet()) return;
    const auto element = static_cast<int64_t>(SizeOf(all.dtype));
    for (int from = 0; from < size(); ++from) {
      const int64_t begin = from * part.dim(1);
      const int64_t count = std::min(part.dim(1), all.dim(1) - begin);
      if (count <= 0) break;
      const auto* const source = static_cast<const std::byte*>(meeting_->tensor(from).data);
      auto* const target = static_cast<std::byte*>(all.data) + begin * element;
      for (int64_t row = 0; row < part.dim(0); ++row) {
        std::memcpy(target + row * all.dim(1) * element, source + row * part.dim(1) * element,
                    static_cast<size_t>(count * element));
      }
    }
    meeting_->Meet();
  }

  void Broadcast(std::span<std::byte> bytes) override {
    const Shape shape{static_cast<int64_t>(bytes.size())};
    meeting_->tensor(rank_) = {bytes.data(), DType::kU8, shape, {}};
    if (!meeting_->Meet()) return;
    if (rank_ != 0) std::memcpy(bytes.data(), meeting_->tensor(0).data, bytes.size());
    meeting_->Meet();
  }

  void Fail(const Status& why) override { meeting_->Fail(why); }
  Status status() const override { return meeting_->failure(); }

 private:
  void AddUp(int64_t begin, int64_t count) {
    Floats sum, next;
    const auto floats = [count](Floats& values) {
      return Tensor{values.data(), DType::kF32, {count}, {}};
    };
    ConvertElements(Piece(meeting_->tensor(0), begin, count), floats(sum));
    for (int from = 1; from < size(); ++from) {
      ConvertElements(Piece(meeting_->tensor(from), begin, count), floats(next));
      for (int64_t i = 0; i < count; ++i)
        sum[static_cast<size_t>(i)] += next[static_cast<size_t>(i)];
    }
    for (int to = 0; to < size(); ++to) {
      ConvertElements(floats(sum), Piece(meeting_->tensor(to), begin, count));
    }
  }

  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeInProcessRanks(int size) {
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<InProcessRank>(meeting, rank));
  }
  return ranks;
}

}  // namespace tandem
