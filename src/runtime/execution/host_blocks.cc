#include "runtime/execution/host_blocks.h"

#include "base/check.h"

namespace tandem {

Result<std::unique_ptr<HostBlocks>> HostBlocks::Create(int32_t num_host_blocks,
                                                       const ops::KvPool& target,
                                                       const ops::KvPool& draft,
                                                       ops::Backend& backend) {
  std::unique_ptr<HostBlocks> made(new HostBlocks(backend));
  for (const ops::KvPool* pool : {&target, &draft}) {
    for (const ops::KvGroup& group : pool->groups) {
      TANDEM_CHECK(!group.windowed, "window blocks are not offloaded");
      const auto bytes =
          group.elements_per_block() * static_cast<int64_t>(SizeOf(group.data.dtype));
      made->parts_.push_back(
          {static_cast<std::byte*>(group.data.data), static_cast<size_t>(bytes)});
      made->block_bytes_ += static_cast<size_t>(bytes);
    }
  }
  const auto blocks = static_cast<size_t>(num_host_blocks);
  TANDEM_ASSIGN_OR_RETURN(made->memory_, backend.AllocatePinned(blocks * made->block_bytes_));
  return made;
}

void HostBlocks::Enqueue(std::span<const HostCopy> copies) {
  if (copies.empty()) return;
  for (const HostCopy& copy : copies) {
    std::byte* host = memory_.As<std::byte>() + static_cast<size_t>(copy.host) * block_bytes_;
    for (const Part& part : parts_) {
      std::byte* const block = part.blocks + static_cast<size_t>(copy.block) * part.bytes;
      if (copy.to_host) {
        backend_.EnqueueSideCopyToHost(host, block, part.bytes);
      } else {
        backend_.EnqueueSideCopyToDevice(block, host, part.bytes);
      }
      host += part.bytes;
    }
  }
  backend_.JoinSideCopies();
}

}  // namespace tandem
