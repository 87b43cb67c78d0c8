// Access: who may ask. The API keys, and the names under which clients may address the server.
// Immutable; safe on any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::serve {

class Access {
 public:
  // Without keys everyone has one. Without `hosts` every host is good; with them, they and the
  // names of this machine are ("localhost", 127.0.0.0/8, ::1); "*" stands for any.
  Access(std::vector<std::string> api_keys, std::optional<std::vector<std::string>> hosts);

  // The value of an Authorization header: "Bearer KEY".
  bool HasKey(std::string_view authorization) const;
  // Names the caller by its key, without telling it; empty where there is but one key or none, or
  // the header has none of them.
  std::string CallerOf(std::string_view authorization) const;
  // A web page can make a browser send requests to this machine under the page's own host name
  // (DNS rebinding); a server that asks for no key tells them by that name. An empty host is good:
  // no browser leaves it out.
  bool AllowsHost(std::string_view host) const;

 private:
  // The place of the header's key among the keys.
  std::optional<size_t> FindKey(std::string_view authorization) const;

  const std::vector<std::string> api_keys_;
  const std::optional<std::vector<std::string>> hosts_;
};

// The keys of a key file: one a line, without the spaces around it; empty lines and lines that
// begin with # hold none. INVALID_ARGUMENT when there is no key, or one that no client could send.
Result<std::vector<std::string>> ParseKeys(std::string_view text);

// True when both are equal; takes the same time wherever they differ.
bool ConstantTimeEqual(std::string_view a, std::string_view b);

}  // namespace tandem::serve
