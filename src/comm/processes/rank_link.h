// RankLink: whole messages between two processes of a model, in their order: from the rank that
// leads to one that follows, and back.
#pragma once

#include "comm/processes/socket.h"
#include "comm/wire.h"

namespace tandem {

// A message with its length before it. Receiving, DATA_LOSS for one of more than `max_bytes`; the
// vector's memory is used again. Other errors, and `timeout`, as of SendAll and ReceiveAll.
Status SendMessage(const Socket& socket, const RankMessage& message, Nanos timeout = Nanos::max());
Status ReceiveMessage(const Socket& socket, RankMessage& message, uint64_t max_bytes,
                      Nanos timeout = Nanos::max());

class RankLink {
 public:
  // Longer messages are a fault of the other side.
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 32;

  // `peer`: the rank on the other side.
  RankLink(Socket socket, int peer) : socket_(std::move(socket)), peer_(peer) {}

  int peer() const { return peer_; }
  // One thread sends, one receives. UNAVAILABLE names the rank when it has left or the link has
  // been ended. Receive waits for a message and keeps the vector's memory.
  Status Send(const RankMessage& message);
  Status Receive(RankMessage& message);
  // Whether the other side has left.
  bool HasEnded() const { return socket_.HasEnded(); }
  // Any thread: ends what either side waits for.
  void End() { socket_.Shutdown(); }

 private:
  Status Left() const;

  const Socket socket_;
  const int peer_;
};

}  // namespace tandem
