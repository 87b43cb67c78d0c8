#include "sources/hub_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/printable.h"
#include "sources/model_files.h"

namespace tandem {
namespace {

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string TextIn(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int64_t BytesIn(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<int64_t>() : -1;
}

HubFile FileOf(const nlohmann::json& sibling) {
  HubFile file{.name = TextIn(sibling, "rfilename"),
               .etag = TextIn(sibling, "blobId"),
               .bytes = BytesIn(sibling, "size")};
  if (const auto lfs = sibling.find("lfs"); lfs != sibling.end() && lfs->is_object()) {
    file.etag = TextIn(*lfs, "sha256");
    if (const int64_t bytes = BytesIn(*lfs, "size"); bytes >= 0) file.bytes = bytes;
  }
  if (!DigestOfEtag(file.etag)) file.etag.clear();
  return file;
}

// W/"abc" → abc
std::string_view Unquoted(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return etag;
}

}  // namespace

bool IsCommit(std::string_view revision) { return IsHex(revision, 40); }

std::optional<ExpectedDigest> DigestOfEtag(std::string_view etag) {
  if (IsHex(etag, 64)) return ExpectedDigest{DigestKind::kSha256, std::string(etag)};
  if (IsHex(etag, 40)) return ExpectedDigest{DigestKind::kGitBlob, std::string(etag)};
  return std::nullopt;
}

Result<HubListing> ReadHubListing(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  HubListing listing;
  if (json.is_object()) listing.commit = TextIn(json, "sha");
  const auto siblings = json.is_object() ? json.find("siblings") : json.end();
  if (!IsCommit(listing.commit) || siblings == json.end() || !siblings->is_array()) {
    return DataLoss("the hub's answer names no commit and no files; is HF_ENDPOINT a hub?");
  }
  for (const auto& sibling : *siblings) {
    if (!sibling.is_object()) continue;
    HubFile file = FileOf(sibling);
    if (IsSafeRelativePath(file.name)) listing.files.push_back(std::move(file));
  }
  return listing;
}

void TakeFileHeaders(const HttpResponse& response, HubFile& file) {
  const std::string_view linked = response.Header("x-linked-etag");
  const std::string_view etag = Unquoted(linked.empty() ? response.Header("etag") : linked);
  if (IsSafeRelativePath(etag) && etag.find('/') == std::string_view::npos) file.etag = etag;
  std::string_view size = response.Header("x-linked-size");
  if (size.empty() && linked.empty()) size = response.Header("content-length");
  int64_t bytes = 0;
  const auto read = std::from_chars(size.data(), size.data() + size.size(), bytes);
  if (!size.empty() && read.ec == std::errc() && bytes >= 0) file.bytes = bytes;
}

Status ExplainHubStatus(const HubQuestion& question, const HttpResponse& response) {
  const auto& [id, revision, endpoint, with_token] = question;
  const std::string_view reason = response.Header("x-error-code");
  const std::string page = endpoint + "/" + id;
  if (reason == "GatedRepo" || (response.status == 403 && reason.empty())) {
    return {Code::kUnauthenticated,
            fmt::format("{} is gated: accept its terms on {}, and set HF_TOKEN to a token of that "
                        "account{}",
                        id, page, with_token ? ", whose present one may not read it" : "")};
  }
  if (response.status == 401 || response.status == 403) {
    return {Code::kUnauthenticated,
            with_token
                ? fmt::format("the hub refuses the token in HF_TOKEN for {} ({}): it is not valid, "
                              "or may not read this model, or there is no such model",
                              id, response.status)
                : fmt::format("{} is gated or private, or there is no such model: if the name is "
                              "right, accept its terms on {}, and set HF_TOKEN to a token that may "
                              "read it",
                              id, page)};
  }
  if (reason == "RevisionNotFound") {
    return NotFound(fmt::format("{} has no revision {}: see {}/tree/main for those that it has", id,
                                revision, page));
  }
  if (response.status == 404) {
    return NotFound(
        fmt::format("there is no folder {0}, and {1} has no model of that name, or none "
                    "that may be read without HF_TOKEN",
                    id, endpoint));
  }
  return Unavailable(fmt::format("{} answers {}: {}", AuthorityOf(endpoint), response.status,
                                 Printable(std::string_view(response.body).substr(0, 200))));
}

}  // namespace tandem
