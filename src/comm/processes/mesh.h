// Mesh: the connections of one process to all others of a model, and bytes over several of them at
// once. The communicators of the process share it; one thread exchanges.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "comm/processes/socket.h"

namespace tandem {

class Mesh {
 public:
  // `others`: by rank, its own one not open.
  Mesh(int rank, std::vector<Socket> others);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(sockets_.size()); }

  // What the next Exchange sends to a rank and receives from it. The bytes stay the caller's.
  void Send(int to, std::span<const std::byte> bytes);
  void Receive(int from, std::span<std::byte> bytes);
  // As Receive, into memory of the mesh, which is valid until the next one from that rank.
  const std::byte* Receive(int from, size_t bytes);
  // Runs what was added, all at once, and waits until it is done; false if a rank has failed.
  bool Exchange();

  // The first call counts; the others find the connections ended. Any thread.
  void Fail(const Status& why);
  // The first failure; a rank that has left is looked for. Any thread.
  Status Look();

 private:
  // Stands before the bytes of each transfer.
  struct Header {
    uint64_t number = 0;  // of the transfer, between the two and in this direction
    uint64_t bytes = 0;
  };
  // The bytes of one direction between two ranks, on their way.
  struct Transfer {
    int peer = 0;
    bool sends = false;
    Header header;  // of the other rank, as far as it has been received
    std::byte* data = nullptr;
    size_t bytes = 0;
    size_t done = 0;  // with the header

    bool complete() const { return done == sizeof(Header) + bytes; }
  };
  // Transfers so far, from which a rank sees that the other one is at another place.
  struct Counts {
    uint64_t sent = 0;
    uint64_t received = 0;
  };

  Counts& CountsOf(int peer) { return counts_[static_cast<size_t>(peer)]; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  bool Move(Transfer& transfer);
  void Check(const Transfer& received);
  void Sleep();

  const int rank_;
  const std::vector<Socket> sockets_;             // by rank
  std::vector<std::vector<std::byte>> received_;  // by rank; they grow to the largest tensor
  std::vector<Counts> counts_;                    // by rank
  std::vector<Transfer> transfers_;               // of the next exchange
  std::vector<pollfd> polled_;                    // scratch of Sleep
  const int wake_;                                // readable once a rank has failed
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  Status failure_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem
