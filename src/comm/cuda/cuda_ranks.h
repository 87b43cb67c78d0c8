// Ranks that are GPUs of one process, one host thread each: they read and write each other's
// memory over NVLink or PCIe. A function enqueues one kernel on the backend's stream; it allocates
// nothing and does not wait. A graph that contains such calls can be launched any number of times,
// as long as all ranks launch theirs.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/stages.h"
#include "ops/backend.h"

namespace tandem {

// One for each backend, in their order, for one to eight different GPUs. AllReduce takes fp32, bf16
// and fp16, GatherColumns fp32, of any size; the other functions rows of an even number of bytes.
// They may be destroyed in any order, each before its backend and from any thread; a rank whose
// communicator is destroyed has left.
//
// FAILED_PRECONDITION when two of the GPUs cannot read each other's memory, INVALID_ARGUMENT for
// other backends, RESOURCE_EXHAUSTED without the memory (30 to 72 MiB on each GPU), UNAVAILABLE
// when a GPU has failed or this program was built without CUDA.
Result<std::vector<std::unique_ptr<Communicator>>> MakeCudaRanks(
    std::span<ops::Backend* const> backends, const Stages& stages = {});

// Likewise where the GPUs belong to several processes, of one machine or of several: NCCL, which is
// loaded then, carries what they send. `processes`: this process among them. All call this with
// equally many backends; those of process p are the ranks from p times their number on. A stage has
// ranks of one process, or all ranks of equally many: `processes` has as many stages then. The
// ranks of a stage in one process work as those of MakeCudaRanks, and all sums have the same bits.
// A rank also fails when `processes` does, and when another process has left; what is enqueued then
// may end with an error of its GPU, because NCCL frees what its kernels read. The last
// communicator of a process is destroyed after all graphs that contain calls of its ranks.
//
// Errors as above, and FAILED_PRECONDITION without NCCL. 64 MiB more on each GPU, and as much again
// where a stage has ranks of several processes.
Result<std::vector<std::unique_ptr<Communicator>>> MakeCudaRanksOfProcesses(
    std::span<ops::Backend* const> backends, const std::shared_ptr<Communicator>& processes,
    int stages = 1);

}  // namespace tandem
