#include "serve/http/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/ssl/context.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace tandem::serve {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

// The only protocol of this server, in the form of ALPN: a length and a name.
constexpr std::string_view kProtocols = "\x08http/1.1";

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, Free>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Free>;
using Certificate = std::unique_ptr<X509, Free>;

Status Bad(std::string_view what, const std::filesystem::path& file, std::string_view problem) {
  return InvalidArgument(fmt::format("the {} {}: {}", what, file.string(), problem));
}

// An encrypted key must not make OpenSSL ask the terminal for a passphrase.
int NoPassphrase(char*, int, int, void*) { return -1; }

int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  unsigned char* selected = nullptr;
  const int found = SSL_select_next_proto(
      &selected, out_size, reinterpret_cast<const unsigned char*>(kProtocols.data()),
      static_cast<unsigned int>(kProtocols.size()), offered, offered_size);
  *out = selected;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

std::string TimeText(const ASN1_TIME* time) {
  const Bio out(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(out.get(), time);
  const char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<size_t>(size)};
}

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Status CheckValidity(const std::filesystem::path& file, const X509* certificate) {
  const ASN1_TIME* from = X509_get0_notBefore(certificate);
  const ASN1_TIME* until = X509_get0_notAfter(certificate);
  if (X509_cmp_current_time(until) < 0) {
    return Bad("certificate", file, fmt::format("expired on {}", TimeText(until)));
  }
  if (X509_cmp_current_time(from) > 0) {
    return Bad("certificate", file, fmt::format("is valid only from {}", TimeText(from)));
  }
  return {};
}

void SetProtocol(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // Sessions are resumed from tickets that clients keep, so none are kept here.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_default_passwd_cb(context, NoPassphrase);
  SSL_CTX_set_alpn_select_cb(context, SelectProtocol, nullptr);
}

}  // namespace

TlsContext::TlsContext(std::unique_ptr<ssl::context> context) : context_(std::move(context)) {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<const TlsContext>> TlsContext::Load(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty()) {
    return InvalidArgument(
        "TLS needs both a certificate and its key: --tls_cert_file and --tls_key_file, or of gRPC "
        "--grpc_server_cert and --grpc_server_key");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string certificate, ReadTextFile(files.certificate));
  TANDEM_ASSIGN_OR_RETURN(const std::string key, ReadTextFile(files.key));
  const Certificate own(
      PEM_read_bio_X509(Reader(certificate).get(), nullptr, NoPassphrase, nullptr));
  const PrivateKey own_key(
      PEM_read_bio_PrivateKey(Reader(key).get(), nullptr, NoPassphrase, nullptr));
  const bool belongs = own && own_key && X509_check_private_key(own.get(), own_key.get()) == 1;
  ERR_clear_error();
  if (own == nullptr) return Bad("certificate", files.certificate, "is no certificate in PEM");
  if (own_key == nullptr) {
    return Bad("key", files.key, "is no private key in PEM, or needs a passphrase");
  }
  if (!belongs) {
    return Bad("key", files.key,
               fmt::format("does not belong to the certificate {}", files.certificate.string()));
  }
  TANDEM_RETURN_IF_ERROR(CheckValidity(files.certificate, own.get()));

  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  SetProtocol(context->native_handle());
  error_code ec;
  context->use_certificate_chain(boost::asio::buffer(certificate), ec);
  if (ec) return Bad("certificate", files.certificate, ec.message());
  if (SSL_CTX_use_PrivateKey(context->native_handle(), own_key.get()) != 1) {
    ERR_clear_error();
    return Bad("key", files.key, "is of a kind that OpenSSL does not serve");
  }
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(context)));
}

}  // namespace tandem::serve
