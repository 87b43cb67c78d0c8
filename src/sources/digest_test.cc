#include "sources/digest.h"

#include <gtest/gtest.h>

#include <string_view>

namespace tandem {
namespace {

std::string HexOf(DigestKind kind, std::string_view text) {
  const auto digest = Digest::Make(kind, static_cast<int64_t>(text.size()));
  // In two pieces, as files come.
  digest->Update(std::as_bytes(std::span(text.substr(0, text.size() / 2))));
  digest->Update(std::as_bytes(std::span(text.substr(text.size() / 2))));
  return digest->Hex();
}

// The check values that the standards print for these nine digits.
TEST(DigestTest, AgreesWithTheStandards) {
  constexpr std::string_view kDigits = "123456789";
  EXPECT_EQ(HexOf(DigestKind::kCrc32, kDigits), "cbf43926");
  EXPECT_EQ(HexOf(DigestKind::kCrc32C, kDigits), "e3069283");
  EXPECT_EQ(HexOf(DigestKind::kCrc64Nvme, kDigits), "ae8b14860a799888");
  EXPECT_EQ(HexOf(DigestKind::kMd5, "abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(HexOf(DigestKind::kSha1, "abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(HexOf(DigestKind::kSha256, "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // `printf 'hello\n' | git hash-object --stdin`
  EXPECT_EQ(HexOf(DigestKind::kGitBlob, "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
}

TEST(DigestTest, Base64BecomesHex) {
  EXPECT_EQ(HexOfBase64("y/Q5Jg=="), "cbf43926");
  EXPECT_EQ(HexOfBase64("rosUhgp5mIg="), "ae8b14860a799888");
  EXPECT_EQ(HexOfBase64("y/Q5Jg==-3"), "");
  EXPECT_EQ(HexOfBase64("abc"), "");
  EXPECT_EQ(HexOfBase64(""), "");
}

}  // namespace
}  // namespace tandem
