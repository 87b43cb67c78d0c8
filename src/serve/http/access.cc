#include "serve/http/access.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "serve/http/listen.h"
#include "serve/http/wire.h"

namespace tandem::serve {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool IsKey(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

Access::Access(const std::vector<std::string>& api_keys,
               std::optional<std::vector<std::string>> hosts)
    : hosts_(std::move(hosts)) {
  for (const std::string& key : api_keys) keys_.push_back(DigestOf(key));
}

// The time depends on the length alone.
Access::Digest Access::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

bool Access::HasKey(std::string_view authorization, std::string_view api_key) const {
  return keys_.empty() || FindKey(authorization, api_key).has_value();
}

std::string Access::CallerOf(std::string_view authorization, std::string_view api_key) const {
  if (keys_.size() < 2) return {};
  const std::optional<size_t> key = FindKey(authorization, api_key);
  return key ? fmt::format("key {}", *key) : std::string();
}

// Every key is compared, whole, so that the time reveals nothing of the keys.
std::optional<size_t> Access::FindKey(std::string_view authorization,
                                      std::string_view api_key) const {
  const std::string_view trimmed = Trim(authorization);
  const size_t space = std::min(trimmed.find_first_of(" \t"), trimmed.size());
  const bool is_bearer = LowerCase(trimmed.substr(0, space)) == "bearer";
  const std::string_view given = is_bearer ? Trim(trimmed.substr(space)) : Trim(api_key);
  if (given.empty()) return std::nullopt;
  const Digest digest = DigestOf(given);
  std::optional<size_t> found;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (CRYPTO_memcmp(digest.data(), keys_[i].data(), digest.size()) == 0) found = i;
  }
  return found;
}

bool Access::AllowsHost(std::string_view host) const {
  if (!hosts_ || host.empty() || IsLoopback(std::string(host))) return true;
  const std::string name = LowerCase(host);
  return std::any_of(hosts_->begin(), hosts_->end(), [&](const std::string& allowed) {
    return allowed == "*" || LowerCase(allowed) == name;
  });
}

bool Access::AllowsOrigin(std::string_view origin) const {
  if (!hosts_ || origin.empty()) return true;
  const std::string host = HostOfOrigin(origin);
  return !host.empty() && AllowsHost(host);
}

Result<std::vector<std::string>> ParseKeys(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<std::string> keys;
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view key = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (key.empty() || key.starts_with('#')) continue;
    if (!IsKey(key)) {
      return InvalidArgument(fmt::format(
          "line {}: a key is visible ASCII without spaces; comments need a separate line", line));
    }
    keys.emplace_back(key);
  }
  if (keys.empty()) return InvalidArgument("holds no key");
  return keys;
}

}  // namespace tandem::serve
