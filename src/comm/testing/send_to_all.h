// What a model's ranks do with its logits, for tests.
#pragma once

#include "comm/communicator.h"

namespace tandem {

// The rows of one rank, at all others.
inline void SendToAll(Communicator& comm, const Tensor& rows, int from) {
  if (comm.rank() != from) return comm.Receive(rows, from);
  for (int to = 0; to < comm.size(); ++to) {
    if (to != from) comm.Send(rows, to);
  }
}

}  // namespace tandem
