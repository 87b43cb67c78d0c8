// Credentials for S3, from where AWS's own tools take them, in their order: the environment, the
// files ~/.aws/credentials and ~/.aws/config, the service of the container, that of the machine.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/status.h"
#include "sources/http.h"
#include "sources/model_source.h"

namespace tandem {

// The keys of a section of such a file, or nothing. `name`: "default", "profile x".
std::map<std::string, std::string> ReadIniSection(std::string_view text, std::string_view name);

class AwsCredentials {
 public:
  // `options` outlives it.
  explicit AwsCredentials(const SourceOptions& options);

  // Without a region. Nothing: there are none, and requests go unsigned. Those of a service are
  // asked for again before they expire. Any thread.
  Result<std::optional<AwsSignature>> Get();

  // Of the environment or the files; empty: they name none.
  std::string Region() const;

 private:
  struct Kept {
    std::optional<AwsSignature> signature;
    std::optional<std::chrono::system_clock::time_point> expires;
  };
  std::optional<AwsSignature> FromFiles() const;
  Result<Kept> FromContainer();
  Result<Kept> FromMachine();
  Result<Kept> Find();

  const SourceOptions& options_;
  Mutex mutex_;
  HttpSession session_ TANDEM_GUARDED_BY(mutex_);
  std::optional<Kept> kept_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem
