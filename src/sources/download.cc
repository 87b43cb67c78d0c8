#include "sources/download.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/options.h"
#include "sources/partial_file.h"
#include "sources/transfer_report.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSpareDiskBytes = int64_t{16} << 20;
constexpr int64_t kLargestFileBytes = int64_t{1} << 46;  // of a model; more is no honest answer

struct Job {
  const RemoteFile* remote = nullptr;
  std::unique_ptr<PartialFile> file;
  int transfers = 0;  // that run now. With the downloader's mutex
  // The server answered a part's request with the whole file: all that is missing comes in one
  // transfer, once no other one runs.
  std::atomic<bool> ignores_ranges{false};
};

// Consecutive parts that one worker fetches.
struct Stretch {
  int begin = 0;
  int end = 0;
};

struct Work {
  Job* job = nullptr;
  Stretch parts;
};

int64_t BytesMissing(const PartialFile& file, const Stretch& parts) {
  int64_t missing = 0;
  for (int part = parts.begin; part < parts.end; ++part) {
    missing += file.PartSize(part) - file.PartDone(part);
  }
  return missing;
}

// The first byte that a response to a range holds, and the length of the whole file.
struct Extent {
  int64_t begin = 0;
  int64_t bytes = -1;  // unknown
};

bool ReadNumber(std::string_view text, int64_t& number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() && number >= 0;
}

// "bytes 0-99/1000"; a server that knows no ranges answers 200 with the whole file.
std::optional<Extent> ExtentOf(const HttpResponse& response) {
  Extent extent;
  if (response.status == 200) {
    const std::string_view length = response.Header("content-length");
    if (!length.empty() && !ReadNumber(length, extent.bytes)) return std::nullopt;
    return extent;
  }
  std::string_view range = response.Header("content-range");
  if (response.status != 206 || !range.starts_with("bytes ")) return std::nullopt;
  range.remove_prefix(6);
  const size_t dash = range.find('-');
  const size_t slash = range.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash ||
      !ReadNumber(range.substr(0, dash), extent.begin)) {
    return std::nullopt;
  }
  if (range.substr(slash + 1) != "*" && !ReadNumber(range.substr(slash + 1), extent.bytes)) {
    return std::nullopt;
  }
  return extent;
}

class Downloader {
 public:
  Downloader(std::string_view what, const ExplainStatus& explain, const SourceOptions& options)
      : explain_(explain), options_(options), report_(what, options.progress) {}

  Status Plan(std::span<const RemoteFile> files) {
    const MutexLock lock(mutex_);  // nobody else is there yet
    int64_t bytes = 0;
    int64_t missing = 0;
    for (const RemoteFile& remote : files) {
      if (remote.bytes > kLargestFileBytes) {
        return DataLoss(
            fmt::format("{}: the server says that it has {} bytes", remote.name, remote.bytes));
      }
      TANDEM_ASSIGN_OR_RETURN(auto file, PartialFile::Open(remote.destination, remote.identity,
                                                           remote.bytes, options_.part_bytes));
      bytes += remote.bytes;
      missing += file->BytesMissing();
      Job& job = jobs_.emplace_back();
      job.remote = &remote;
      job.file = std::move(file);
      for (int part = 0; part < job.file->num_parts(); ++part) {
        if (job.file->PartDone(part) == job.file->PartSize(part)) continue;
        work_.push_back({&job, {part, part + 1}});
      }
      if (job.file->BytesMissing() == 0) complete_.push_back(&job);
    }
    report_.Begin(bytes, bytes - missing);
    const Status room = CheckRoom(files.front().destination.parent_path(), missing);
    if (!room.ok()) {
      for (Job& job : jobs_) job.file->RemoveIfEmpty();
    }
    return room;
  }

  Status Run() {
    for (Job* job : complete_) TANDEM_RETURN_IF_ERROR(Finish(*job));
    std::vector<std::thread> workers;
    int count = 0;
    {
      const MutexLock lock(mutex_);
      count = static_cast<int>(
          std::min(work_.size(), static_cast<size_t>(std::max(options_.connections, 1))));
      running_ = count;
    }
    for (int i = 0; i < count; ++i) workers.emplace_back([this] { RunWorker(); });
    {
      MutexLock lock(mutex_);
      while (running_ > 0) {
        ended_.WaitFor(lock, std::chrono::milliseconds(200),
                       [this]() TANDEM_REQUIRES(mutex_) { return running_ == 0; });
        report_.Tell();
        const Status checked = options_.check ? options_.check() : Status();
        if (checked.ok() || !error_.ok()) continue;
        error_ = checked;
        stop_ = true;
      }
    }
    for (std::thread& worker : workers) worker.join();
    const MutexLock lock(mutex_);
    if (error_.ok()) report_.End();
    return error_;
  }

 private:
  Status CheckRoom(const fs::path& folder, int64_t missing) const {
    std::error_code error;
    const fs::space_info space = fs::space(folder, error);
    if (error || missing == 0) return {};
    const auto free = static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
    if (free >= missing + kSpareDiskBytes) return {};
    return ResourceExhausted(fmt::format(
        "{} are still to be downloaded, and {} has {} free, of which {} stay free; name a folder "
        "on a "
        "larger disk with --download_dir",
        FormatBytes(missing), folder.string(), FormatBytes(free), FormatBytes(kSpareDiskBytes)));
  }

  void RunWorker() {
    HttpSession session(options_.certificates);
    while (true) {
      Work next;
      {
        const MutexLock lock(mutex_);
        if (work_.empty() || !error_.ok()) break;
        next = work_.front();
        work_.pop_front();
        ++next.job->transfers;
      }
      Status status = Fetch(*next.job, next.parts, session);
      if (EndTransfer(*next.job) && status.ok()) status = Finish(*next.job);
      if (status.ok()) continue;
      const MutexLock lock(mutex_);
      if (error_.ok()) error_ = status.Annotate(next.job->remote->name);
      stop_ = true;
    }
    const MutexLock lock(mutex_);
    if (--running_ == 0) ended_.NotifyAll();
  }

  // Whether the file is complete.
  bool EndTransfer(Job& job) {
    const MutexLock lock(mutex_);
    if (--job.transfers > 0) return false;
    if (job.file->BytesMissing() == 0) return true;
    if (job.ignores_ranges) work_.push_front({&job, {0, job.file->num_parts()}});
    return false;
  }

  void StopAskingForParts(Job& job) {
    const MutexLock lock(mutex_);
    job.ignores_ranges = true;
    std::erase_if(work_, [&](const Work& work) { return work.job == &job; });
  }

  static Status Finish(Job& job) {
    TANDEM_RETURN_IF_ERROR(job.file->Commit(job.remote->digest));
    LogDebug("downloaded {}", job.remote->destination.string());
    return {};
  }

  Status Fetch(Job& job, const Stretch& parts, HttpSession& session) {
    PartialFile& file = *job.file;
    const bool is_whole = IsWhole(job, parts);
    Backoff backoff(options_.retry);
    for (int64_t missing = BytesMissing(file, parts); missing > 0;) {
      TANDEM_ASSIGN_OR_RETURN(HttpRequest request, job.remote->request());
      request.stall = options_.stall;
      request.ended = [this] { return stop_.load(); };
      const int last = parts.end - 1;
      request.range = {FirstMissing(file, parts), file.PartBegin(last) + file.PartSize(last) - 1};
      Status written;
      const Result<HttpResponse> response = session.Send(request, Taking(job, parts, written));
      TANDEM_RETURN_IF_ERROR(written);
      const int64_t before = std::exchange(missing, BytesMissing(file, parts));
      if (missing == 0) break;
      if (stop_) return Cancelled("another transfer failed");
      if (job.ignores_ranges && !is_whole) return {};  // the one transfer brings the rest
      // A transfer that only crawls is not new each time.
      constexpr int64_t kProgress = int64_t{64} << 10;
      if (before - missing >= std::min(kProgress, file.PartSize(parts.begin) / 20)) {
        backoff.Reset();
      }
      TANDEM_RETURN_IF_ERROR(PauseAfter(job, response, backoff));
    }
    return {};
  }

  static bool IsWhole(const Job& job, const Stretch& parts) {
    return parts.begin == 0 && parts.end == job.file->num_parts();
  }

  // Of parts of which at least one is not complete.
  static int64_t FirstMissing(const PartialFile& file, const Stretch& parts) {
    int part = parts.begin;
    while (file.PartDone(part) == file.PartSize(part)) ++part;
    return file.PartBegin(part) + file.PartDone(part);
  }

  // Writes what the parts lack, in their order, and passes over what they have.
  HttpSession::Sink Taking(Job& job, const Stretch& parts, Status& written) {
    const int64_t wanted = FirstMissing(*job.file, parts);
    return [&, wanted, part = parts.begin, at = int64_t{-1}](
               const HttpResponse& head, std::span<const std::byte> bytes) mutable {
      if (stop_) return false;
      if (at < 0) {
        const std::optional<Extent> extent = ExtentOf(head);
        if (!extent || extent->begin > wanted ||
            (extent->bytes >= 0 && extent->bytes != job.remote->bytes)) {
          written = DataLoss(
              fmt::format("the server sends another file than it announced ({} bytes); start again",
                          job.remote->bytes));
          return false;
        }
        if (head.status == 200 && !IsWhole(job, parts)) {
          StopAskingForParts(job);
          return false;
        }
        at = extent->begin;
      }
      written = Take(*job.file, parts.end, part, at, bytes);
      return written.ok() && bytes.empty();
    };
  }

  // `part` is the first that may lack something, `at` where `bytes` begin in the file: all three
  // move on. Bytes are left where no part lacks any.
  Status Take(PartialFile& file, int end, int& part, int64_t& at,
              std::span<const std::byte>& bytes) {
    while (!bytes.empty()) {
      while (part < end && file.PartDone(part) == file.PartSize(part)) ++part;
      if (part == end) break;
      const auto skip = std::min(file.PartBegin(part) + file.PartDone(part) - at,
                                 static_cast<int64_t>(bytes.size()));
      bytes = bytes.subspan(static_cast<size_t>(skip));
      const auto taken =
          std::min(file.PartSize(part) - file.PartDone(part), static_cast<int64_t>(bytes.size()));
      TANDEM_RETURN_IF_ERROR(file.Append(part, bytes.first(static_cast<size_t>(taken))));
      report_.Add(taken);
      bytes = bytes.subspan(static_cast<size_t>(taken));
      at += skip + taken;
    }
    return {};
  }

  // After an attempt that did not complete its parts.
  Status PauseAfter(const Job& job, const Result<HttpResponse>& response, Backoff& backoff) {
    const bool answered = response.ok();
    if (answered && !response->ok() && !MayTryAgain(response->status)) return explain_(*response);
    if (!answered && response.status().code() != Code::kUnavailable) return response.status();
    const auto pause = backoff.Fail(answered ? &response.value() : nullptr);
    const std::string why = !answered ? response.status().message()
                            : response->ok()
                                ? "the transfer ended early"
                                : fmt::format("the server answers {}", response->status);
    if (!pause) {
      return Unavailable(
          fmt::format("{}, {} times in a row. What has arrived is kept; start again to go on", why,
                      Backoff::kMaxFailures));
    }
    LogWarning("{}: {}; next attempt in {:.1f} s", job.remote->name, why,
               static_cast<double>(pause->count()) / 1000);
    const auto until = std::chrono::steady_clock::now() + *pause;
    while (!stop_ && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(
          std::chrono::milliseconds(50), until - std::chrono::steady_clock::now()));
    }
    return stop_ ? Cancelled("another transfer failed") : Status();
  }

  const ExplainStatus& explain_;
  const SourceOptions& options_;
  TransferReport report_;
  std::deque<Job> jobs_;        // jobs stay where they are
  std::vector<Job*> complete_;  // whose bytes were all there already
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  Condition ended_;
  std::deque<Work> work_ TANDEM_GUARDED_BY(mutex_);  // the parts that are missing
  int running_ TANDEM_GUARDED_BY(mutex_) = 0;        // workers
  Status error_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace

Status DownloadFiles(std::string_view what, std::span<const RemoteFile> files,
                     const ExplainStatus& explain, const SourceOptions& options) {
  if (files.empty()) return {};
  Downloader downloader(what, explain, options);
  TANDEM_RETURN_IF_ERROR(downloader.Plan(files));
  return downloader.Run();
}

}  // namespace tandem
