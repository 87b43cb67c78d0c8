#include "serve/lmi/body.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace tandem::serve::lmi {
namespace {

// The JSON of the body, or its error.
std::string Decoded(std::string_view content_type, std::string_view body) {
  const Result<Json> json = DecodeBody(content_type, body);
  return json.ok() ? json->Dump() : json.status().message();
}

TEST(LmiBodyTest, JsonNeedsNoType) {
  for (const char* type : {"", "application/json", "Application/JSON; charset=utf-8",
                           "application/octet-stream", "application/x-www-form-urlencoded"}) {
    EXPECT_EQ(Decoded(type, R"({"inputs": "a"})"), R"({"inputs":"a"})") << type;
  }
  EXPECT_EQ(Decoded("", R"(["a"])"), "the body must be a JSON object, not an array");
  EXPECT_EQ(DecodeBody("", "{").status().code(), Code::kInvalidArgument);
}

TEST(LmiBodyTest, ACsvsColumnIsAList) {
  EXPECT_EQ(Decoded("text/csv", "id,inputs\r\n1,\"a, \"\"b\"\"\n c\"\r\n2,d\r\n"),
            R"({"inputs":["a, \"b\"\n c","d"]})");
  EXPECT_EQ(Decoded("text/csv", "inputs\nx"), R"({"inputs":["x"]})");
  EXPECT_EQ(Decoded("text/csv", "question\nx"),
            "inputs: text/csv needs a header row with a column inputs");
  EXPECT_EQ(Decoded("text/csv", ""), "inputs: text/csv needs a header row with a column inputs");
  EXPECT_EQ(Decoded("text/csv", "id,inputs\n1"),
            "inputs: row 1 of the text/csv has no such column");
}

TEST(LmiBodyTest, PlainTextIsAListOfOne) {
  EXPECT_EQ(Decoded("text/plain; charset=utf-8", "a\nb"), R"({"inputs":["a\nb"]})");
}

TEST(LmiBodyTest, AFormsPartMayBeTheBody) {
  const std::string type = "multipart/form-data; boundary=\"x-y\"";
  EXPECT_EQ(Decoded(type,
                    "--x-y\r\nContent-Disposition: form-data; name=\"data\"\r\n\r\n"
                    "{\"inputs\": \"a\"}\r\n--x-y--\r\n"),
            R"({"inputs":"a"})");
  EXPECT_EQ(Decoded(type,
                    "--x-y\r\nContent-Disposition: form-data; name=\"json\"\r\n"
                    "Content-Type: application/json\r\n\r\n{\"inputs\": \"a\"}\r\n--x-y--"),
            R"({"inputs":"a"})");
  EXPECT_EQ(
      Decoded(type, "--x-y\r\nContent-Disposition: form-data; name=\"data\"\r\n\r\nabc\r\n--x-y--"),
      R"({"inputs":"abc"})");
  EXPECT_EQ(Decoded(type,
                    "--x-y\r\nContent-Disposition: form-data; name=\"inputs\"\r\n\r\nabc\r\n"
                    "--x-y\r\nContent-Disposition: form-data; name=\"parameters\"\r\n\r\n"
                    "{\"max_new_tokens\": 3}\r\n--x-y--"),
            R"({"inputs":"abc","parameters":{"max_new_tokens":3}})");
  EXPECT_EQ(Decoded("application/x-www-form-urlencoded", "inputs=a+b%21&other=1"),
            R"({"inputs":"a b!"})");
}

TEST(LmiBodyTest, BrokenFormsAreRefused) {
  EXPECT_EQ(Decoded("multipart/form-data", "x"), "Content-Type: multipart needs a boundary");
  EXPECT_EQ(Decoded("multipart/form-data; boundary=b", "--b\r\n\r\nx"),
            "the multipart body has no end");
  EXPECT_EQ(Decoded("multipart/form-data; boundary=b", ""), "the multipart body has no end");
  EXPECT_EQ(Decoded("multipart/form-data; boundary=b", "--b--"),
            "inputs: is required: the form has no field of this name, and none data");
  EXPECT_EQ(Decoded("multipart/form-data; boundary=b",
                    "--b\r\nContent-Disposition: form-data; name=\"data\"\r\n"
                    "Content-Type: image/png\r\n\r\nx\r\n--b--"),
            "Content-Type: image/png is not supported by this server; send application/json, "
            "text/csv, text/plain or multipart/form-data");
}

}  // namespace
}  // namespace tandem::serve::lmi
