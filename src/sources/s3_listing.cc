#include "sources/s3_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/printable.h"

namespace tandem {
namespace {

// The text of the first <name> in `xml`, which is cut off up to its end; nothing without one. S3's
// answers have neither attributes on these elements nor others of the same name within.
std::optional<std::string_view> TakeElement(std::string_view& xml, std::string_view name) {
  const std::string open = fmt::format("<{}>", name);
  const std::string close = fmt::format("</{}>", name);
  const size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t end = xml.find(close, begin + open.size());
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view text = xml.substr(begin + open.size(), end - begin - open.size());
  xml.remove_prefix(end + close.size());
  return text;
}

std::string WithoutEntities(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, char>, 8> kEntities = {{{"&quot;", '"'},
                                                                           {"&#34;", '"'},
                                                                           {"&#x22;", '"'},
                                                                           {"&amp;", '&'},
                                                                           {"&#38;", '&'},
                                                                           {"&lt;", '<'},
                                                                           {"&gt;", '>'},
                                                                           {"&apos;", '\''}}};
  std::string plain;
  while (!text.empty()) {
    const auto entity = std::ranges::find_if(
        kEntities, [&](const auto& known) { return text.starts_with(known.first); });
    const bool found = entity != kEntities.end();
    plain += found ? entity->second : text.front();
    text.remove_prefix(found ? entity->first.size() : 1);
  }
  return plain;
}

std::string TextOf(std::string_view xml, std::string_view name) {
  const auto text = TakeElement(xml, name);
  return text ? WithoutEntities(*text) : std::string();
}

// %41 and + of a URL.
std::string UrlDecoded(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr ==
            text.data() + i + 3) {
      plain += static_cast<char>(byte);
      i += 2;
    } else {
      plain += text[i] == '+' ? ' ' : text[i];
    }
  }
  return plain;
}

std::string Unquoted(std::string etag) {
  std::erase(etag, '"');
  return etag;
}

}  // namespace

Result<S3Address> ReadS3Address(std::string_view text) {
  constexpr std::string_view kScheme = "s3://";
  const auto refuse = [&](std::string_view why) {
    return InvalidArgument(
        fmt::format("{}: {}; an address is s3://BUCKET/PATH", Printable(text), why));
  };
  if (!text.starts_with(kScheme)) return refuse("is no address in S3");
  const std::string_view rest = text.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  S3Address address{.bucket = std::string(rest.substr(0, slash)),
                    .key = std::string(rest.substr(std::min(slash + 1, rest.size())))};
  const auto allowed = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  };
  if (address.bucket.size() < 3 || address.bucket.size() > 255 ||
      !std::ranges::all_of(address.bucket, allowed)) {
    return refuse("its bucket has no name that S3 allows");
  }
  if (Printable(address.key) != address.key) return refuse("holds control characters");
  return address;
}

Result<S3Page> ReadS3Page(std::string_view xml) {
  if (xml.find("<ListBucketResult") == std::string_view::npos) {
    return DataLoss("the answer is no list of objects; is AWS_ENDPOINT_URL that of an S3 server?");
  }
  S3Page page;
  if (TextOf(xml, "IsTruncated") == "true") page.next = TextOf(xml, "NextContinuationToken");
  while (const auto contents = TakeElement(xml, "Contents")) {
    S3Object object{.key = UrlDecoded(TextOf(*contents, "Key")),
                    .etag = Unquoted(TextOf(*contents, "ETag"))};
    const std::string size = TextOf(*contents, "Size");
    const auto read = std::from_chars(size.data(), size.data() + size.size(), object.bytes);
    if (read.ec != std::errc() || object.bytes < 0 || object.key.empty()) {
      return DataLoss("the list has an object without name or size");
    }
    page.objects.push_back(std::move(object));
  }
  return page;
}

std::optional<ExpectedDigest> DigestOfS3Object(const HttpResponse& head) {
  constexpr std::array<std::pair<const char*, DigestKind>, 5> kChecksums = {
      {{"x-amz-checksum-sha256", DigestKind::kSha256},
       {"x-amz-checksum-crc64nvme", DigestKind::kCrc64Nvme},
       {"x-amz-checksum-sha1", DigestKind::kSha1},
       {"x-amz-checksum-crc32c", DigestKind::kCrc32C},
       {"x-amz-checksum-crc32", DigestKind::kCrc32}}};
  if (head.Header("x-amz-checksum-type") != "COMPOSITE") {
    for (const auto& [header, kind] : kChecksums) {
      // One of parts ends in their number: "…-12".
      const std::string hex = HexOfBase64(head.Header(header));
      if (!hex.empty()) return ExpectedDigest{kind, hex};
    }
  }
  const std::string etag = Unquoted(std::string(head.Header("etag")));
  const bool is_md5 = etag.size() == 32 &&
                      etag.find_first_not_of("0123456789abcdef") == std::string::npos &&
                      !head.Header("x-amz-server-side-encryption").starts_with("aws:kms") &&
                      head.Header("x-amz-server-side-encryption-customer-algorithm").empty();
  if (!is_md5) return std::nullopt;
  return ExpectedDigest{DigestKind::kMd5, etag};
}

std::string DescribeS3Error(const HttpResponse& response) {
  const std::string code = TextOf(response.body, "Code");
  const std::string message = TextOf(response.body, "Message");
  if (code.empty()) return fmt::format("the server answers {}", response.status);
  return Printable(fmt::format("{}{}{}", code, message.empty() ? "" : ": ", message));
}

}  // namespace tandem
