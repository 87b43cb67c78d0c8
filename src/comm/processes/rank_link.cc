#include "comm/processes/rank_link.h"

#include <span>
#include <string>

namespace tandem {

Status SendMessage(const Socket& socket, const RankMessage& message, Nanos timeout) {
  const uint64_t bytes = message.size();
  TANDEM_RETURN_IF_ERROR(SendAll(socket, std::as_bytes(std::span(&bytes, 1)), timeout));
  return SendAll(socket, message, timeout);
}

Status ReceiveMessage(const Socket& socket, RankMessage& message, uint64_t max_bytes,
                      Nanos timeout) {
  uint64_t bytes = 0;
  TANDEM_RETURN_IF_ERROR(ReceiveAll(socket, std::as_writable_bytes(std::span(&bytes, 1)), timeout));
  if (bytes > max_bytes) {
    return DataLoss("a message between ranks of " + std::to_string(bytes) + " bytes");
  }
  message.resize(bytes);
  return ReceiveAll(socket, message, timeout);
}

Status RankLink::Left() const { return Unavailable("rank " + std::to_string(peer_) + " has left"); }

Status RankLink::Send(const RankMessage& message) {
  return SendMessage(socket_, message).ok() ? Status() : Left();
}

Status RankLink::Receive(RankMessage& message) {
  const Status received = ReceiveMessage(socket_, message, kMaxBytes);
  return received.ok() || received.code() == Code::kDataLoss ? received : Left();
}

}  // namespace tandem
