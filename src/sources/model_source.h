// Where models come from: FetchModel turns what a user names (a folder, an archive, a model of a
// hub, an address in S3) into a local folder. Downloads go through a cache: an interrupted one goes
// on where it ended, and no file has its final name before it is complete and its checksum is
// right. Two processes that want the same model share one download. Nothing of a model is executed.
// Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem {

// A hub with the interface of huggingface.co.
struct HubAccess {
  std::string endpoint = "https://huggingface.co";
  std::string token;            // empty: none. Sent to the endpoint's own host only
  std::filesystem::path cache;  // in the layout of huggingface_hub, which may share it
};

struct S3Access {
  std::string endpoint;       // empty: Amazon's; another is asked with the bucket in the path
  std::string region;         // empty: us-east-1, until Amazon names the bucket's
  std::string access_key_id;  // with the next one: used before the files and services below
  std::string secret_access_key;
  std::string session_token;
  std::string profile = "default";         // section of the files
  std::filesystem::path credentials_file;  // ~/.aws/credentials
  std::filesystem::path config_file;       // ~/.aws/config
  std::string container_url;               // of the credentials of a container's role; empty: none
  std::string container_token;
  std::filesystem::path container_token_file;
  std::string metadata_endpoint = "http://169.254.169.254";  // of the machine; empty: not asked
  bool sign = true;  // false: requests without credentials, for public buckets
};

struct SourceOptions {
  // As the environment says: HF_TOKEN (or the file that `hf auth login` wrote), HF_HOME,
  // HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT, AWS_…, DJL_CACHE_DIR,
  // XDG_CACHE_HOME, and for certificates CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE, SSL_CERT_FILE and
  // AWS_CA_BUNDLE.
  static SourceOptions FromEnvironment();

  std::string revision;             // branch, tag or commit of a hub's model; empty: main
  std::filesystem::path cache_dir;  // of all downloads, instead of hub.cache and own_cache
  bool offline = false;             // use what is in the cache, or say what is missing
  bool with_weights = true;         // false: only configuration and tokenizer, of a hub's model

  HubAccess hub;
  S3Access s3;
  std::filesystem::path own_cache;       // of S3 and archives: …/download/HASH, …/archives/HASH
  std::filesystem::path certificates;    // a file of trusted ones; empty: the system's
  std::chrono::seconds stall{30};        // a transfer that moves nothing for this long starts again
  std::chrono::milliseconds retry{500};  // pause before the second attempt; doubles from there
  int connections = 8;                   // at most this many transfers at a time
  int64_t part_bytes = int64_t{64} << 20;         // a file is fetched in parts of this size
  int64_t max_unpacked_bytes = int64_t{2} << 40;  // of an archive
  int64_t max_archive_entries = 20'000;
  // Called now and then while files are fetched, by the thread that called FetchModel: what is
  // done, and which share of it, from 0 to 1.
  std::function<void(std::string_view what, double done)> progress;
  // Looked at by the same thread while it works and waits: an error ends the call, and the next one
  // goes on where this one was. Null: never.
  std::function<Status()> check;
};

// Whether a name is not a local path but one to download: `s3://BUCKET/PATH`, or the id of a
// model on a hub, `OWNER/MODEL` or `MODEL`. A path that exists is never remote, and neither is one
// whose folder exists: `models/lama` beside `models/llama` is a slip of the pen.
bool IsRemoteSource(std::string_view source);

// The name of an archive without its ending: .tar, .tar.gz, .tgz, .tar.bz2, .tbz2, .tar.xz, .txz,
// .tar.zst or .zip. Empty for a name that is no archive's.
std::string_view ArchiveStem(std::string_view name);
bool IsArchiveName(std::string_view name);

// The local folder of a model:
//   a folder           as it is
//   an archive         unpacked into the cache
//   OWNER/MODEL        the files that an engine reads, in the hub's cache
//   s3://BUCKET/PATH   the files below PATH, or the archive PATH unpacked, in the cache
// An archive may hold the model one folder down; whoever opens the folder looks there. NOT_FOUND,
// UNAUTHENTICATED, UNAVAILABLE, RESOURCE_EXHAUSTED (a full disk) and DATA_LOSS (a wrong checksum,
// an archive that is not safe to unpack) come with a sentence that says what to do.
Result<std::filesystem::path> FetchModel(std::string_view source, const SourceOptions& options);

}  // namespace tandem
