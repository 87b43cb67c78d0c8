#include "serve/http/access.h"

#include <fmt/format.h>

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

Access::Access(std::vector<std::string> api_keys, std::optional<std::vector<std::string>> hosts)
    : api_keys_(std::move(api_keys)), hosts_(std::move(hosts)) {}

bool Access::HasKey(std::string_view authorization) const {
  return api_keys_.empty() || FindKey(authorization).has_value();
}

std::string Access::CallerOf(std::string_view authorization) const {
  if (api_keys_.size() < 2) return {};
  const std::optional<size_t> key = FindKey(authorization);
  return key ? fmt::format("key {}", *key) : std::string();
}

// Every key is compared, so that the time reveals nothing.
std::optional<size_t> Access::FindKey(std::string_view authorization) const {
  const std::string_view trimmed = Trim(authorization);
  const size_t space = std::min(trimmed.find_first_of(" \t"), trimmed.size());
  if (LowerCase(trimmed.substr(0, space)) != "bearer") return std::nullopt;
  const std::string_view given = Trim(trimmed.substr(space));
  std::optional<size_t> found;
  for (size_t i = 0; i < api_keys_.size(); ++i) {
    if (ConstantTimeEqual(given, api_keys_[i])) found = i;
  }
  return given.empty() ? std::nullopt : found;
}

bool Access::AllowsHost(std::string_view host) const {
  if (!hosts_ || host.empty() || IsLoopback(std::string(host))) return true;
  const std::string name = LowerCase(host);
  return std::any_of(hosts_->begin(), hosts_->end(), [&](const std::string& allowed) {
    return allowed == "*" || LowerCase(allowed) == name;
  });
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

bool ConstantTimeEqual(std::string_view a, std::string_view b) {
  size_t difference = a.size() ^ b.size();
  for (size_t i = 0; i < b.size(); ++i) {
    const char left = i < a.size() ? a[i] : '\0';
    difference |= static_cast<unsigned char>(left) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace tandem::serve
