// Ranks that are processes and compute on the host, of one machine or of several: each has a
// connection to every other one. Sums are those of in_process.h, bit for bit.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/processes/socket.h"
#include "comm/stages.h"

namespace tandem {

// `others`: connections by rank, its own one not open. A rank fails for the others when it is
// destroyed, when Fail is called there, when its process ends, and when its machine is silent for
// some seconds.
std::unique_ptr<Communicator> MakeProcessRank(int rank, std::vector<Socket> others,
                                              const Stages& stages = {});

}  // namespace tandem
