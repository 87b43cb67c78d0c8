// Ranks that are threads of one process and compute on the host: they read each other's memory.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/stages.h"

namespace tandem {

// One for each rank. They may be destroyed in any order; a rank whose communicator is destroyed has
// left.
std::vector<std::unique_ptr<Communicator>> MakeInProcessRanks(int size, const Stages& stages = {});

}  // namespace tandem
