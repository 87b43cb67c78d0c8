// What the kernels of GPU ranks work on: the memory that each rank's peers read and write. Used
// only in comm/cuda; exchange.cuh is its use on the device.
//
// Block b of a rank's kernel exchanges data with block b of its peers' kernels and with no other.
// The blocks work in rounds. The number of the round is in device memory, so a recorded graph can
// be launched again. When block b has received anything of round n from a peer, that peer's block b
// has finished round n - 1: across launches, because a kernel begins after the previous one has
// finished; within a launch, because the threads of a block wait for each other in every round. So
// in round n + 1 nobody reads the memory of round n - 1 any more. The areas that are written before
// a round's wait therefore exist twice, for odd and for even rounds, and need no second wait before
// they are used again. This does not depend on the sizes of the calls.
//
// What one rank sends to another goes through a channel, which has rounds of its own. A block of
// the receiver says which round it has copied last, and the sender's waits until the half of the
// channel that it is about to fill has been copied.
//
// All ranks launch the same kernels with the same grids, apart from those of a channel, which its
// two ranks launch. A grid has at most as many blocks as the SMs hold at once (kBlocksPerSm), so
// all run when the previous kernel has ended. Nothing else keeps them waiting: a kernel launched
// early (ops/cuda/device/dependent_launch.cuh) gets no SM before all blocks of the previous one
// have theirs.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

namespace tandem::cuda_ranks {

constexpr int kMaxRanks = 8;
constexpr int kMaxBlocks = 256;  // of a kernel
// While one block of an SM waits, the other one sends or adds up.
constexpr int kBlocksPerSm = 2;

// One-shot: a line is 8 bytes of data and the number of the round in which they were sent.
struct alignas(16) Line {
  uint64_t data;
  uint64_t round;
};
constexpr int kLineThreads = 256;   // of a block
constexpr int kLinesPerThread = 2;  // from each peer in a round, at most
constexpr int kLinesPerBlock = kLineThreads * kLinesPerThread;

// Staged: pieces of 16 bytes.
constexpr int kPieceThreads = 256;
constexpr int kPiecesPerBlock = 2048;  // of a rank in a round, at most: 32 KB

// A word of each peer's block.
struct alignas(64) Flags {
  uint64_t from[kMaxRanks];
};
enum Stage { kStaged, kSummed, kNumStages };

// From one rank to another; with the receiver.
constexpr int kChannelBlocks = 64;    // of a kernel that sends or receives
constexpr int kChannelPieces = 1024;  // of a block in a round, at most: 16 KB
struct Channel {
  uint64_t rounds[kChannelBlocks];   // the last round that has been copied; written by the receiver
  uint64_t arrived[kChannelBlocks];  // the last round that is there; written by the sender
  uint4 pieces[2][kChannelBlocks][kChannelPieces];
};
// The sender's side of it.
struct Sent {
  uint64_t rounds[kChannelBlocks];  // the last round that was sent
  uint64_t taken[kChannelBlocks];   // the last round that has been copied; written by the receiver
};

// A rank's memory. Zero at first, except the pieces.
struct RankMemory {
  // Of each block, the last round that it has finished; written by the rank itself.
  uint64_t line_rounds[kMaxBlocks];
  uint64_t piece_rounds[kMaxBlocks];
  // The last round in which a peer's block has come to a stage; written by that peer.
  Flags flags[kNumStages][kMaxBlocks];
  // Read by the peers, or written by them.
  uint4 staged[2][kMaxBlocks][kPiecesPerBlock];
  // Written by the peers.
  uint4 sums[kMaxBlocks][kPiecesPerBlock];
  Sent sent[kMaxRanks];
  // Followed by what the peers send: Line[2][ranks][kMaxBlocks][kLinesPerBlock], Channel[ranks].

  static size_t LineBytes(int ranks) {
    return sizeof(Line) * 2 * static_cast<size_t>(ranks) * kMaxBlocks * kLinesPerBlock;
  }
  static size_t Bytes(int ranks) {
    return sizeof(RankMemory) + LineBytes(ranks) + sizeof(Channel) * static_cast<size_t>(ranks);
  }
};
// Instead of a round: a wait of the block was given up, and it does nothing any more.
constexpr uint64_t kGivenUp = ~uint64_t{0};

// A rank's view of all ranks. The argument of every kernel.
struct Links {
  RankMemory* memory[kMaxRanks];
  const uint32_t* stop;  // in host memory: not 0 when a rank has failed
  int rank;
  int size;
  int max_blocks;  // of a kernel on any rank
};

}  // namespace tandem::cuda_ranks
