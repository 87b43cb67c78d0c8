#include "comm/processes/process_ranks.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "comm/host_parts.h"
#include "comm/processes/mesh.h"

namespace tandem {
namespace {

std::span<std::byte> BytesOf(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data), static_cast<size_t>(tensor.NumBytes())};
}

// Ranks first .. first + size - 1 of the mesh, as rank 0, 1 ... of this communicator.
class ProcessRank final : public Communicator {
 public:
  // `stage`: the same rank among those of its stage; null where there is one.
  ProcessRank(std::shared_ptr<Mesh> mesh, int first, int size,
              std::unique_ptr<Communicator> stage = nullptr)
      : mesh_(std::move(mesh)), first_(first), size_(size), stage_(std::move(stage)) {}
  ~ProcessRank() override {
    Fail(Unavailable("rank " + std::to_string(mesh_->rank()) + " has left"));
  }

  int rank() const override { return mesh_->rank() - first_; }
  int size() const override { return size_; }
  Communicator& stage() override { return stage_ == nullptr ? *this : *stage_; }

  // Every rank gets the rows of all others and adds them up itself: one exchange, where sharing out
  // the sums would take two.
  void AllReduce(const Tensor& rows) override {
    if (!GatherParts(rows)) return;
    for (int64_t begin = 0; begin < rows.NumElements(); begin += kSumPiece) {
      AddUp(parts_, begin, std::min(kSumPiece, rows.NumElements() - begin), {&rows, 1});
    }
  }

  void GatherColumns(const Tensor& part, const Tensor& all) override {
    if (!GatherParts(part)) return;
    for (int from = 0; from < size_; ++from) {
      PutColumns(parts_[static_cast<size_t>(from)], from * part.dim(1), all);
    }
  }

  void Broadcast(std::span<std::byte> bytes) override {
    if (rank() != 0) {
      mesh_->Receive(first_, bytes);
    } else {
      for (int peer = 1; peer < size_; ++peer) mesh_->Send(first_ + peer, bytes);
    }
    mesh_->Exchange();
  }

  void Send(const Tensor& rows, int to) override {
    mesh_->Send(first_ + to, BytesOf(rows));
    mesh_->Exchange();
  }
  void Receive(const Tensor& rows, int from) override {
    mesh_->Receive(first_ + from, BytesOf(rows));
    mesh_->Exchange();
  }

  void Fail(const Status& why) override { mesh_->Fail(why); }
  Status status() const override { return mesh_->Look(); }

 private:
  // Sends a tensor to all others; parts_ are then those of all ranks.
  bool GatherParts(const Tensor& own) {
    parts_.assign(static_cast<size_t>(size_), own);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank()) continue;
      mesh_->Send(first_ + peer, BytesOf(own));
      parts_[static_cast<size_t>(peer)].data = const_cast<std::byte*>(
          mesh_->Receive(first_ + peer, static_cast<size_t>(own.NumBytes())));
    }
    return mesh_->Exchange();
  }

  const std::shared_ptr<Mesh> mesh_;
  const int first_;
  const int size_;
  const std::unique_ptr<Communicator> stage_;
  std::vector<Tensor> parts_;  // by rank, of the current call
};

}  // namespace

std::unique_ptr<Communicator> MakeProcessRank(int rank, std::vector<Socket> others,
                                              const Stages& stages) {
  const auto mesh = std::make_shared<Mesh>(rank, std::move(others));
  TANDEM_CHECK(stages.Divide(mesh->size()), "stages with different numbers of ranks");
  const Stages::Range own = stages.Of(rank, mesh->size());
  auto stage = stages.IsOne() ? nullptr : std::make_unique<ProcessRank>(mesh, own.first, own.size);
  return std::make_unique<ProcessRank>(mesh, 0, mesh->size(), std::move(stage));
}

}  // namespace tandem
