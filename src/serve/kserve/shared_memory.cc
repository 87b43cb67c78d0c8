#include "serve/kserve/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <variant>

#include "base/printable.h"
#include "base/reason.h"

namespace tandem::serve::kserve {
namespace {

constexpr std::string_view kRegion = "shared_memory_region";
constexpr std::string_view kOffset = "shared_memory_offset";
constexpr std::string_view kByteSize = "shared_memory_byte_size";

Status ParameterError(std::string_view tensor, std::string sentence) {
  return InvalidArgument(std::move(sentence)).WithField(tensor);
}

Status WrongType(std::string_view tensor, std::string_view parameter, std::string_view type) {
  return ParameterError(
      tensor, fmt::format("invalid value type for '{}' parameter for tensor '{}', expected {}.",
                          parameter, Printable(tensor), type));
}

// A number of bytes; none if the parameter is not there.
Result<std::optional<uint64_t>> BytesOf(std::string_view tensor, std::string_view name,
                                        const Parameters& parameters) {
  const auto found = parameters.find(name);
  if (found == parameters.end()) return std::optional<uint64_t>();
  if (const auto* number = std::get_if<int64_t>(&found->second)) {
    return std::optional(static_cast<uint64_t>(*number));
  }
  if (const auto* number = std::get_if<uint64_t>(&found->second)) return std::optional(*number);
  return WrongType(tensor, name, "int64_param");
}

bool IsPlainName(std::string_view key) {
  if (key.starts_with('/')) key.remove_prefix(1);
  constexpr std::string_view kNever("/\0", 2);
  return !key.empty() && key.find_first_of(kNever) == std::string_view::npos &&
         key.find("..") == std::string_view::npos;
}

Status CannotRegister(const SharedMemoryInfo& info, std::string_view why) {
  return InvalidArgument(
      fmt::format("failed to register shared memory region '{}': {}", Printable(info.name), why));
}

}  // namespace

// An open object, of which `info` is the registered part. Immutable.
class SharedMemoryRegion {
 public:
  SharedMemoryRegion(SharedMemoryInfo info, int fd) : info_(std::move(info)), fd_(fd) {}
  ~SharedMemoryRegion() { ::close(fd_); }
  SharedMemoryRegion(const SharedMemoryRegion&) = delete;
  SharedMemoryRegion& operator=(const SharedMemoryRegion&) = delete;

  const SharedMemoryInfo& info() const { return info_; }

  Status CheckObject() const {
    const std::optional<uint64_t> bytes = ObjectBytes();
    if (!bytes) {
      return Internal(fmt::format("Invalid shared memory region: '{}'", Printable(info_.key)));
    }
    const bool fits =
        info_.byte_size > 0 && info_.offset <= *bytes && info_.byte_size <= *bytes - info_.offset;
    return fits ? Status() : CannotRegister(info_, "invalid args");
  }

  Status CheckRange(const SharedMemoryRange& range) const {
    const auto refuse = [&](std::string_view what) {
      return InvalidArgument(
          fmt::format("Invalid {} for shared memory region: '{}'", what, Printable(info_.name)));
    };
    if (range.offset >= info_.byte_size) return refuse("offset");
    if (range.byte_size > info_.byte_size - range.offset) return refuse("offset + byte size");
    return {};
  }

  // The bytes of a range within the region.
  Result<std::string> Read(const SharedMemoryRange& range) const {
    std::string data(range.byte_size, '\0');
    for (size_t done = 0; done < data.size();) {
      const ssize_t got =
          ::pread(fd_, data.data() + done, data.size() - done, Position(range, done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed("read");
      if (got == 0) return Shortened();
      done += static_cast<size_t>(got);
    }
    return data;
  }

  // At the beginning of a range within the region that is at least as long. An object that has
  // become shorter is not made longer again.
  Status Write(const SharedMemoryRange& range, std::string_view data) const {
    if (ObjectBytes().value_or(0) < info_.offset + range.offset + data.size()) return Shortened();
    for (size_t done = 0; done < data.size();) {
      const ssize_t put =
          ::pwrite(fd_, data.data() + done, data.size() - done, Position(range, done));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return Failed("written");
      done += static_cast<size_t>(put);
    }
    return {};
  }

 private:
  // None if this is no memory but, say, a pipe.
  std::optional<uint64_t> ObjectBytes() const {
    struct stat status{};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    return static_cast<uint64_t>(status.st_size);
  }

  // Within an object's size as it was once, and so within off_t.
  off_t Position(const SharedMemoryRange& range, size_t done) const {
    return static_cast<off_t>(info_.offset + range.offset + done);
  }

  Status Failed(std::string_view what) const {
    return InvalidArgument(fmt::format("shared memory region '{}' cannot be {}: {}",
                                       Printable(info_.name), what,
                                       std::generic_category().message(errno)));
  }
  Status Shortened() const {
    return InvalidArgument(
        fmt::format("shared memory region '{}' is no longer backed by {} bytes of '{}': the object "
                    "has become shorter since it was registered",
                    Printable(info_.name), info_.byte_size, Printable(info_.key)));
  }

  const SharedMemoryInfo info_;
  const int fd_;
};

Result<std::optional<SharedMemoryRange>> SharedMemoryOf(std::string_view tensor,
                                                        const Parameters& parameters) {
  TANDEM_ASSIGN_OR_RETURN(const auto offset, BytesOf(tensor, kOffset, parameters));
  TANDEM_ASSIGN_OR_RETURN(const auto byte_size, BytesOf(tensor, kByteSize, parameters));
  const auto region = parameters.find(kRegion);
  if (region == parameters.end()) {
    if (!offset && !byte_size) return std::optional<SharedMemoryRange>();
    return ParameterError(tensor,
                          fmt::format("'{}' can not be specified without '{}' parameter for "
                                      "tensor '{}'",
                                      offset ? kOffset : kByteSize, kRegion, Printable(tensor)));
  }
  const auto* name = std::get_if<std::string>(&region->second);
  if (name == nullptr) return WrongType(tensor, kRegion, "string_param");
  if (!byte_size) {
    return ParameterError(tensor,
                          fmt::format("'{}' must be specified along with '{}' parameter for "
                                      "tensor '{}'",
                                      kByteSize, kRegion, Printable(tensor)));
  }
  return std::optional(SharedMemoryRange{*name, offset.value_or(0), *byte_size});
}

Status NoCudaSharedMemory() {
  return Unimplemented("CUDA shared memory is not supported by this server");
}

Status ListCudaRegions(std::string_view name) {
  if (name.empty()) return {};
  return NotFound(fmt::format("Unable to find cuda shared memory region: '{}'", Printable(name)));
}

Status SharedMemoryOutputs::Write(InferResponse& response) const {
  for (Tensor& tensor : response.outputs) {
    const auto found = std::find_if(outputs_.begin(), outputs_.end(), [&](const Output& output) {
      return output.name == tensor.name;
    });
    if (found == outputs_.end()) continue;
    if (tensor.data.size() > found->range.byte_size) {
      return Internal(
          fmt::format("shared memory size specified with the request for output '{}' "
                      "({} bytes) should be at least {} bytes to hold the results",
                      tensor.name, found->range.byte_size, tensor.data.size()));
    }
    TANDEM_RETURN_IF_ERROR(found->region->Write(found->range, tensor.data));
    tensor.data.clear();
  }
  return {};
}

SharedMemoryRegions::SharedMemoryRegions() = default;
SharedMemoryRegions::~SharedMemoryRegions() = default;

Status SharedMemoryRegions::CheckAllowed() const {
  if (is_allowed_) return {};
  return Unimplemented("shared memory is not allowed; start the server with --allow_shared_memory");
}

Status SharedMemoryRegions::Register(SharedMemoryInfo info) {
  TANDEM_RETURN_IF_ERROR(CheckAllowed());
  const MutexLock lock(mutex_);
  if (info.name.empty()) {
    return InvalidArgument("'region name' is necessary to register system shared memory region");
  }
  if (info.name.size() > kMostNameBytes) {
    return InvalidArgument(
        fmt::format("the name of a shared memory region has at most {} bytes", kMostNameBytes));
  }
  if (regions_.contains(info.name)) {
    return FailedPrecondition(
               fmt::format("shared memory region '{}' already in manager", Printable(info.name)))
        .WithReason(Reason::kAlreadyExists);
  }
  if (regions_.size() >= kMostRegions) {
    return ResourceExhausted(fmt::format(
        "at most {} shared memory regions can be registered; unregister one first", kMostRegions));
  }
  if (!IsPlainName(info.key)) {
    return CannotRegister(info,
                          "the key must be a name, which may begin with '/' and has no other '/' "
                          "and no '..'");
  }
  const int fd = ::shm_open(info.key.c_str(), O_RDWR, 0);
  if (fd < 0) {
    return Internal(fmt::format("Unable to open shared memory region: '{}'", Printable(info.key)));
  }
  auto region = std::make_shared<const SharedMemoryRegion>(std::move(info), fd);
  TANDEM_RETURN_IF_ERROR(region->CheckObject());
  regions_.emplace(region->info().name, std::move(region));
  return {};
}

void SharedMemoryRegions::Unregister(std::string_view name) {
  decltype(regions_) removed;  // closed after the lock
  const MutexLock lock(mutex_);
  if (name.empty()) {
    removed.swap(regions_);
  } else if (const auto found = regions_.find(name); found != regions_.end()) {
    removed.insert(regions_.extract(found));
  }
}

Result<std::vector<SharedMemoryInfo>> SharedMemoryRegions::List(std::string_view name) const {
  const MutexLock lock(mutex_);
  std::vector<SharedMemoryInfo> infos;
  if (name.empty()) {
    for (const auto& [key, region] : regions_) infos.push_back(region->info());
    return infos;
  }
  const auto found = regions_.find(name);
  if (found == regions_.end()) {
    return NotFound(
        fmt::format("Unable to find system shared memory region: '{}'", Printable(name)));
  }
  infos.push_back(found->second->info());
  return infos;
}

Result<SharedMemoryRegions::RegionPtr> SharedMemoryRegions::Find(
    const SharedMemoryRange& range) const {
  TANDEM_RETURN_IF_ERROR(CheckAllowed());
  RegionPtr region;
  {
    const MutexLock lock(mutex_);
    const auto found = regions_.find(range.region);
    if (found == regions_.end()) {
      return NotFound(
          fmt::format("Unable to find shared memory region: '{}'", Printable(range.region)));
    }
    region = found->second;
  }
  TANDEM_RETURN_IF_ERROR(region->CheckRange(range));
  return region;
}

Result<SharedMemoryOutputs> SharedMemoryRegions::Resolve(InferRequest& request) const {
  uint64_t left = kMostInputBytes;
  for (const SharedMemoryInput& input : request.shared_inputs) {
    TANDEM_ASSIGN_OR_RETURN(const RegionPtr region, Find(input.range));
    Tensor& tensor = request.inputs[input.index];
    if (input.range.byte_size > left) {
      return InvalidArgument(fmt::format("the inputs of a request have at most {} bytes in shared "
                                         "memory",
                                         kMostInputBytes))
          .WithField(tensor.name);
    }
    left -= input.range.byte_size;
    TANDEM_ASSIGN_OR_RETURN(tensor.data, region->Read(input.range));
  }
  SharedMemoryOutputs outputs;
  for (const RequestedOutput& asked : request.outputs) {
    if (!asked.shared_memory) continue;
    TANDEM_ASSIGN_OR_RETURN(RegionPtr region, Find(*asked.shared_memory));
    outputs.outputs_.push_back({asked.name, std::move(region), *asked.shared_memory});
  }
  return outputs;
}

}  // namespace tandem::serve::kserve
