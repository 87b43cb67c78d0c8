#include "comm/processes/rank_link.h"

#include <span>
#include <string>

namespace tandem {

Status RankLink::Left() const { return Unavailable("rank " + std::to_string(peer_) + " has left"); }

Status RankLink::Send(const RankMessage& message) {
  const uint64_t bytes = message.size();
  if (!SendAll(socket_, std::as_bytes(std::span(&bytes, 1))).ok()) return Left();
  return SendAll(socket_, message).ok() ? Status() : Left();
}

Status RankLink::Receive(RankMessage& message) {
  uint64_t bytes = 0;
  if (!ReceiveAll(socket_, std::as_writable_bytes(std::span(&bytes, 1))).ok()) return Left();
  if (bytes > kMaxBytes)
    return DataLoss("a message between ranks of " + std::to_string(bytes) + " bytes");
  message.resize(bytes);
  return ReceiveAll(socket_, message).ok() ? Status() : Left();
}

}  // namespace tandem
