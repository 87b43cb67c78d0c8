#include "sources/digest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace tandem {
namespace {

std::string HexOf(std::span<const unsigned char> bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) fmt::format_to(std::back_inserter(hex), "{:02x}", byte);
  return hex;
}

class EvpDigest final : public Digest {
 public:
  explicit EvpDigest(const EVP_MD* algorithm) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    TANDEM_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), algorithm, nullptr) == 1,
                 "OpenSSL has no such digest");
  }
  void Update(std::span<const std::byte> bytes) override {
    TANDEM_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "a digest");
  }
  std::string Hex() override {
    std::array<unsigned char, EVP_MAX_MD_SIZE> value{};
    unsigned int size = 0;
    TANDEM_CHECK(EVP_DigestFinal_ex(context_.get(), value.data(), &size) == 1, "a digest");
    return HexOf({value.data(), size});
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// A CRC whose bits are reflected, as all of S3's are, with all ones at the start and at the end.
class Crc final : public Digest {
 public:
  Crc(uint64_t reflected_polynomial, int bits)
      : ones_(~uint64_t{0} >> (64 - bits)), digits_(bits / 4), value_(ones_) {
    for (uint64_t byte = 0; byte < table_.size(); ++byte) {
      uint64_t row = byte;
      for (int bit = 0; bit < 8; ++bit)
        row = (row >> 1) ^ ((row & 1) != 0 ? reflected_polynomial : 0);
      table_[byte] = row;
    }
  }
  void Update(std::span<const std::byte> bytes) override {
    for (const std::byte byte : bytes) {
      value_ = table_[(value_ ^ static_cast<uint64_t>(byte)) & 0xff] ^ (value_ >> 8);
    }
  }
  std::string Hex() override { return fmt::format("{:0{}x}", value_ ^ ones_, digits_); }

 private:
  const uint64_t ones_;
  const int digits_;
  uint64_t value_;
  std::array<uint64_t, 256> table_{};
};

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

std::string_view DigestName(DigestKind kind) {
  constexpr std::array<std::string_view, 7> kNames = {"SHA-256", "SHA-1",   "git blob SHA-1", "MD5",
                                                      "CRC-32",  "CRC-32C", "CRC-64/NVME"};
  return kNames[static_cast<size_t>(kind)];
}

std::unique_ptr<Digest> Digest::Make(DigestKind kind, int64_t size) {
  switch (kind) {
    case DigestKind::kSha256:
      return std::make_unique<EvpDigest>(EVP_sha256());
    case DigestKind::kSha1:
      return std::make_unique<EvpDigest>(EVP_sha1());
    case DigestKind::kGitBlob: {
      auto digest = std::make_unique<EvpDigest>(EVP_sha1());
      const std::string head = fmt::format("blob {}", size);
      digest->Update(BytesOf({head.c_str(), head.size() + 1}));
      return digest;
    }
    case DigestKind::kMd5:
      return std::make_unique<EvpDigest>(EVP_md5());
    case DigestKind::kCrc32:
      return std::make_unique<Crc>(0xedb88320u, 32);
    case DigestKind::kCrc32C:
      return std::make_unique<Crc>(0x82f63b78u, 32);
    case DigestKind::kCrc64Nvme:
      return std::make_unique<Crc>(0x9a6c9329ac4bc9b5u, 64);
  }
  TANDEM_CHECK(false, "no such digest");
}

Status CheckDigest(const std::filesystem::path& file, const ExpectedDigest& expected) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const auto failed = [&] {
    return FailedPrecondition(file.string() + ": cannot read: " + std::strerror(errno));
  };
  if (fd < 0) return failed();
  const auto digest = Digest::Make(expected.kind, ::lseek(fd, 0, SEEK_END));
  ::lseek(fd, 0, SEEK_SET);
  std::vector<std::byte> buffer(size_t{1} << 20);
  ssize_t size = 0;
  while ((size = ::read(fd, buffer.data(), buffer.size())) > 0) {
    digest->Update({buffer.data(), static_cast<size_t>(size)});
  }
  const Status status = size < 0 ? failed() : Status();
  ::close(fd);
  TANDEM_RETURN_IF_ERROR(status);
  const std::string hex = digest->Hex();
  if (hex == expected.hex) return {};
  return DataLoss(fmt::format("its {} is {}, and {} was announced", DigestName(expected.kind), hex,
                              expected.hex));
}

std::string Sha256Hex(std::string_view text) {
  const auto digest = Digest::Make(DigestKind::kSha256, 0);
  digest->Update(BytesOf(text));
  return digest->Hex();
}

std::string HexOfBase64(std::string_view base64) {
  if (base64.empty() || base64.size() % 4 != 0 || base64.size() > 128) return {};
  std::array<unsigned char, 96> bytes{};
  const int size =
      EVP_DecodeBlock(bytes.data(), reinterpret_cast<const unsigned char*>(base64.data()),
                      static_cast<int>(base64.size()));
  if (size < 0) return {};
  const auto padding = std::min<int64_t>(2, std::ranges::count(base64, '='));
  return HexOf({bytes.data(), static_cast<size_t>(size - padding)});
}

}  // namespace tandem
