#include "serve/http/compression.h"

#include <gtest/gtest.h>

namespace tandem::serve {
namespace {

constexpr size_t kEnough = 1 << 20;

TEST(CompressionTest, WhatWasCompressedComesBack) {
  std::string body;
  for (int i = 0; i < 20000; ++i) body += "token " + std::to_string(i % 977) + "\n";
  for (const std::string_view encoding : {"gzip", "deflate"}) {
    const std::string packed = Compress(encoding, body);
    EXPECT_LT(packed.size(), body.size() / 2);
    EXPECT_EQ(*Decompress(encoding, packed, kEnough), body) << encoding;
    EXPECT_EQ(*Decompress(encoding, Compress(encoding, ""), kEnough), "") << encoding;
  }
  EXPECT_EQ(*Decompress("", body, kEnough), body);
  EXPECT_EQ(*Decompress("identity", body, kEnough), body);
}

TEST(CompressionTest, BrokenAndEndlessBodiesAreRefused) {
  const std::string packed = Compress("gzip", std::string(1 << 16, 'a'));
  EXPECT_EQ(Decompress("gzip", "no gzip", kEnough).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Decompress("gzip", "", kEnough).status().code(), Code::kInvalidArgument);
  const std::string cut = packed.substr(0, packed.size() / 2);
  EXPECT_EQ(Decompress("gzip", cut, kEnough).status().code(), Code::kInvalidArgument);
  // A few bytes that would become many.
  EXPECT_EQ(Decompress("gzip", packed, 1000).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Decompress("br", packed, kEnough).status().code(), Code::kUnimplemented);
}

TEST(CompressionTest, TheClientChoosesTheEncoding) {
  EXPECT_EQ(ChooseEncoding(""), "");
  EXPECT_EQ(ChooseEncoding("br, identity"), "");
  EXPECT_EQ(ChooseEncoding("deflate"), "deflate");
  EXPECT_EQ(ChooseEncoding("deflate, gzip;q=0.5"), "gzip");
  EXPECT_EQ(ChooseEncoding("gzip;q=0, deflate"), "deflate");
}

}  // namespace
}  // namespace tandem::serve
