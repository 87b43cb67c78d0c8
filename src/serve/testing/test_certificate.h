// Certificates that sign themselves, made and written to files by the tests that need them.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "base/check.h"
#include "serve/http/tls.h"

namespace tandem::serve {

struct CertificateDays {
  int from = -1;  // relative to now
  int until = 1;
};

// Writes NAME.crt and NAME.key to the folder. With a passphrase the key is encrypted.
inline TlsFiles WriteCertificate(const std::filesystem::path& folder, const std::string& name,
                                 CertificateDays days = {}, const char* passphrase = nullptr) {
  constexpr long kDay = 86400;
  const TlsFiles files{folder / (name + ".crt"), folder / (name + ".key")};
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
  TANDEM_CHECK(key != nullptr && certificate != nullptr, "OpenSSL makes no certificate");
  X509_set_version(certificate.get(), X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), days.from * kDay);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), days.until * kDay);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const auto open = [](const std::filesystem::path& path) {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"),
                                                         std::fclose);
    TANDEM_CHECK(file != nullptr, path.string());
    return file;
  };
  PEM_write_X509(open(files.certificate).get(), certificate.get());
  PEM_write_PrivateKey(open(files.key).get(), key.get(),
                       passphrase == nullptr ? nullptr : EVP_aes_128_cbc(), nullptr, 0, nullptr,
                       const_cast<char*>(passphrase));
  return files;
}

}  // namespace tandem::serve
