// SharedMemoryRegions: the parts of POSIX shared memory objects that clients on this machine
// registered to pass tensors in, by name. Nothing is mapped: a client may shorten its object at any
// time, and a mapped page beyond the end would end this process, whereas reading there only gives
// an error for the one request. Owned by the repository and shared by all transports; any thread.
//
//   regions.Register({"in", "/in", 0, 64});                       // on the client's request
//   auto range = SharedMemoryOf("INPUT0", parameters);            // while a request is parsed
//   auto outputs = regions.Resolve(request);                      // reads the inputs
//   outputs->Write(response);                                     // then only the outputs' names,
//                                                                 // types and shapes are sent
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "serve/kserve/inference.h"

namespace tandem::serve::kserve {

// As a client describes a region.
struct SharedMemoryInfo {
  std::string name;
  std::string key;  // of the object: "/x" is /dev/shm/x
  uint64_t offset = 0;
  uint64_t byte_size = 0;
};

// The range that the parameters of an input or of a requested output name; none without the
// protocol's parameters for it. INVALID_ARGUMENT, with the tensor as field, for one of a wrong type
// and for an incomplete set. A negative number is beyond every region. A pure function.
Result<std::optional<SharedMemoryRange>> SharedMemoryOf(std::string_view tensor,
                                                        const Parameters& parameters);

// CUDA shared memory has the same calls, but no region can be registered.
Status NoCudaSharedMemory();
// Lists nothing: NOT_FOUND unless the name is empty, which stands for all.
Status ListCudaRegions(std::string_view name);

class SharedMemoryRegion;

// The ranges for the outputs of one request. Keeps their regions open, registered or not.
class SharedMemoryOutputs {
 public:
  // Moves the data of the outputs that have a range into it, and leaves them without data. INTERNAL
  // when a range is too small; INVALID_ARGUMENT when the object cannot be written.
  Status Write(InferResponse& response) const;

 private:
  friend class SharedMemoryRegions;
  struct Output {
    std::string name;
    std::shared_ptr<const SharedMemoryRegion> region;
    SharedMemoryRange range;
  };
  std::vector<Output> outputs_;
};

class SharedMemoryRegions {
 public:
  static constexpr size_t kMostRegions = 1024;  // each keeps a file open
  static constexpr size_t kMostNameBytes = 255;
  static constexpr uint64_t kMostInputBytes = 64 << 20;  // of one request, as in a message

  SharedMemoryRegions();
  ~SharedMemoryRegions();
  SharedMemoryRegions(const SharedMemoryRegions&) = delete;
  SharedMemoryRegions& operator=(const SharedMemoryRegions&) = delete;

  // Until then no region can be registered, and no request can use one.
  void Allow() { is_allowed_ = true; }
  // UNIMPLEMENTED, with the option that allows it.
  Status CheckAllowed() const;

  // CheckAllowed; FAILED_PRECONDITION (kAlreadyExists) when the name is taken; INVALID_ARGUMENT for
  // a key that is no plain name and for a range beyond the object's end; INTERNAL when there is no
  // such object, as clients expect; RESOURCE_EXHAUSTED when there are too many.
  Status Register(SharedMemoryInfo info);
  // Requests that use the region keep it. An unknown name is ignored; the empty one stands for all.
  void Unregister(std::string_view name);
  // In the order of names. The empty name stands for all; NOT_FOUND for another unknown one.
  Result<std::vector<SharedMemoryInfo>> List(std::string_view name) const;

  // Reads the inputs of the request that are in regions, and finds the ranges of its outputs.
  // CheckAllowed; NOT_FOUND for an unknown region; INVALID_ARGUMENT for a range beyond its region,
  // an object that has become shorter, and more bytes than a request may have.
  Result<SharedMemoryOutputs> Resolve(InferRequest& request) const;

 private:
  using RegionPtr = std::shared_ptr<const SharedMemoryRegion>;

  // The region, which holds the whole range.
  Result<RegionPtr> Find(const SharedMemoryRange& range) const;

  std::atomic<bool> is_allowed_{false};
  mutable Mutex mutex_;
  std::map<std::string, RegionPtr, std::less<>> regions_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::serve::kserve
