// IgnoredFields: the members of requests that the OpenAI routes do not know. A request with some is
// answered, and its response names them; each name is logged once. Owned by the front end; any
// thread.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"

namespace tandem::serve::openai {

class IgnoredFields {
 public:
  static constexpr std::string_view kHeader = "X-Tandem-Ignored";

  // The value of the response's header: the names, separated by commas. A character that a header
  // cannot hold, or that separates, becomes "?"; long names are cut. Logs names that are new.
  std::string Tell(const std::vector<std::string>& names, std::string_view request_id);

  size_t num_logged() const;

 private:
  mutable Mutex mutex_;
  // Bounded: once full, further names are not logged.
  std::set<std::string> logged_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::serve::openai
