#include "serve/openai/request/ignored_fields.h"

#include <algorithm>

#include "base/log.h"

namespace tandem::serve::openai {
namespace {

constexpr size_t kMaxLogged = 256;
constexpr size_t kMaxNameBytes = 64;

std::string Plain(std::string_view name) {
  std::string plain(name.substr(0, kMaxNameBytes));
  std::ranges::replace_if(
      plain, [](char c) { return c <= 0x20 || c >= 0x7f || c == ',' || c == '"'; }, '?');
  return plain;
}

}  // namespace

std::string IgnoredFields::Tell(const std::vector<std::string>& names,
                                std::string_view request_id) {
  std::string value;
  for (const std::string& name : names) {
    const std::string plain = Plain(name);
    value += (value.empty() ? "" : ", ") + plain;
    {
      const MutexLock lock(mutex_);
      if (logged_.size() == kMaxLogged || !logged_.insert(plain).second) continue;
    }
    LogWarning("request {}: the field {} is unknown and has no effect (logged once)", request_id,
               plain);
  }
  return value;
}

size_t IgnoredFields::num_logged() const {
  const MutexLock lock(mutex_);
  return logged_.size();
}

}  // namespace tandem::serve::openai
