// Checksums that hubs and S3 give for their files. A Digest takes the bytes in order and is used by
// one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem {

enum class DigestKind : uint8_t {
  kSha256,
  kSha1,
  kGitBlob,  // SHA-1 of "blob SIZE\0" and the bytes: how git names a file
  kMd5,
  kCrc32,
  kCrc32C,
  kCrc64Nvme,
};

// "SHA-256"
std::string_view DigestName(DigestKind kind);

// What a file has to have, in hex digits (big-endian for a CRC).
struct ExpectedDigest {
  DigestKind kind = DigestKind::kSha256;
  std::string hex;
};

class Digest {
 public:
  virtual ~Digest() = default;
  virtual void Update(std::span<const std::byte> bytes) = 0;
  virtual std::string Hex() = 0;  // ends the digest

  // `size` of the whole file, which kGitBlob begins with.
  static std::unique_ptr<Digest> Make(DigestKind kind, int64_t size);
};

// Reads the whole file. DATA_LOSS when it has another digest.
Status CheckDigest(const std::filesystem::path& file, const ExpectedDigest& expected);

// SHA-256 of a text, in hex digits.
std::string Sha256Hex(std::string_view text);

// The bytes of base64 in hex digits; empty when it is not base64.
std::string HexOfBase64(std::string_view base64);

}  // namespace tandem
