// Access: who may send requests: the API keys, and the names under which clients may address the
// server. Immutable; safe on any thread.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::serve {

class Access {
 public:
  // Without keys everyone has access. An empty `hosts` allows every host; otherwise only the listed
  // ones and the names of this machine ("localhost", 127.0.0.0/8, ::1) are allowed; "*" stands for
  // any.
  Access(const std::vector<std::string>& api_keys, std::optional<std::vector<std::string>> hosts);

  // The value of an Authorization header, "Bearer KEY", or that of Azure's api-key, KEY.
  bool HasKey(std::string_view authorization, std::string_view api_key = {}) const;
  // A name for the caller, made from its key, that does not reveal the key. Empty if the server has
  // fewer than two keys, or if the headers hold none of them.
  std::string CallerOf(std::string_view authorization, std::string_view api_key = {}) const;
  // Whether requests may call the server by this name. Refuses DNS rebinding, where a web page has
  // a browser send requests to this machine under the page's own host name. An empty host is
  // allowed: browsers always send one.
  bool AllowsHost(std::string_view host) const;
  // Whether a page with this Origin may send requests, also such as browsers send without asking
  // first: a page of an allowed host may, and every client that is no browser (empty origin).
  bool AllowsOrigin(std::string_view origin) const;

 private:
  // Index of the headers' key in the list of keys.
  std::optional<size_t> FindKey(std::string_view authorization, std::string_view api_key) const;

  // Of equal size, so that comparing them takes the same time for every key.
  using Digest = std::array<unsigned char, 32>;
  static Digest DigestOf(std::string_view key);

  std::vector<Digest> keys_;
  const std::optional<std::vector<std::string>> hosts_;
};

// The keys of a key file: one per line, without surrounding spaces; empty lines and lines that
// begin with # are skipped. INVALID_ARGUMENT when there is no key, or one that no client could
// send.
Result<std::vector<std::string>> ParseKeys(std::string_view text);

}  // namespace tandem::serve
