// TlsContext: a certificate and its private key, with which connections are served over TLS 1.2 and
// 1.3. Immutable; shared by the connections that were accepted with it; safe on any thread.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"

namespace boost::asio::ssl {
class context;  // NOLINT(readability-identifier-naming): Boost's name
}

namespace tandem::serve {

// Files in PEM. Both empty: no TLS.
struct TlsFiles {
  std::filesystem::path certificate;  // the server's own first, then those that signed it
  std::filesystem::path key;          // not encrypted

  bool is_set() const { return !certificate.empty() || !key.empty(); }
};

class TlsContext {
 public:
  // INVALID_ARGUMENT that names the file when it is no PEM, when the certificate has expired or is
  // not valid yet, and when the key is not the certificate's; files that cannot be read have the
  // errors of ReadTextFile.
  static Result<std::shared_ptr<const TlsContext>> Load(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // OpenSSL counts the references to its contexts atomically, so threads may share one.
  boost::asio::ssl::context& asio() const { return *context_; }

 private:
  explicit TlsContext(std::unique_ptr<boost::asio::ssl::context> context);
  const std::unique_ptr<boost::asio::ssl::context> context_;
};

}  // namespace tandem::serve
