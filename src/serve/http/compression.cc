#include "serve/http/compression.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace tandem::serve {
namespace {

constexpr std::string_view kGzip = "gzip";
constexpr std::string_view kDeflate = "deflate";  // the format of zlib, as HTTP defines it
constexpr int kWindowBits = 15;
constexpr int kAsGzip = 16;    // added to the window bits: a gzip header
constexpr int kByHeader = 32;  // either header
constexpr size_t kPiece = 64 << 10;

// Ends an inflating stream.
struct Inflater {
  z_stream stream{};
  Inflater() { TANDEM_CHECK(inflateInit2(&stream, kWindowBits + kByHeader) == Z_OK, "zlib"); }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

Bytef* BytesOf(std::string_view text) {
  // zlib reads through a pointer that is not const.
  return reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
}

}  // namespace

Result<std::string> Decompress(std::string_view encoding, std::string body, size_t max_bytes) {
  if (encoding.empty() || encoding == "identity") return body;
  if (encoding != kGzip && encoding != kDeflate) {
    return Unimplemented(
        fmt::format("Content-Encoding {} is not supported; send gzip, deflate or "
                    "identity",
                    encoding));
  }
  TANDEM_CHECK(body.size() <= std::numeric_limits<uInt>::max(), "a body above 4 GiB");
  Inflater inflater;
  z_stream& stream = inflater.stream;
  stream.next_in = BytesOf(body);
  stream.avail_in = static_cast<uInt>(body.size());
  std::string out;
  int status = Z_OK;
  while (status != Z_STREAM_END) {
    const size_t before = out.size();
    out.resize(before + kPiece);
    stream.next_out = BytesOf(out) + before;
    stream.avail_out = static_cast<uInt>(kPiece);
    status = inflate(&stream, Z_NO_FLUSH);
    out.resize(out.size() - stream.avail_out);
    if (out.size() > max_bytes) {
      return InvalidArgument(
          fmt::format("the decompressed body has more than {} bytes", max_bytes));
    }
    const bool goes_on = status == Z_OK && (stream.avail_in > 0 || stream.avail_out == 0);
    if (status != Z_STREAM_END && !goes_on) {
      return InvalidArgument(fmt::format("the body is not {} data", encoding));
    }
  }
  return out;
}

std::string_view ChooseEncoding(std::string_view accepted) {
  for (const std::string_view encoding : {kGzip, kDeflate}) {
    std::string_view rest = accepted;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(','), rest.size());
      std::string_view item = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      item.remove_prefix(std::min(item.find_first_not_of(' '), item.size()));
      const std::string_view name = item.substr(0, item.find_first_of("; "));
      const bool is_refused =
          item.find("q=0") != std::string_view::npos && item.find("q=0.") == std::string_view::npos;
      if (name == encoding && !is_refused) return encoding;
    }
  }
  return {};
}

std::string Compress(std::string_view encoding, std::string_view body) {
  z_stream stream{};
  const int bits = kWindowBits + (encoding == kGzip ? kAsGzip : 0);
  TANDEM_CHECK(deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, bits, 8, Z_DEFAULT_STRATEGY) == Z_OK,
               "zlib");
  TANDEM_CHECK(body.size() <= std::numeric_limits<uInt>::max(), "a body above 4 GiB");
  std::string out(deflateBound(&stream, body.size()), '\0');
  stream.next_in = BytesOf(body);
  stream.avail_in = static_cast<uInt>(body.size());
  stream.next_out = BytesOf(out);
  stream.avail_out = static_cast<uInt>(out.size());
  TANDEM_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib's bound was too small");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace tandem::serve
