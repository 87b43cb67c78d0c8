#include "sources/transfer_report.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/options.h"

namespace tandem {
namespace {

std::string DescribeSeconds(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace

std::string DescribeTransfer(int64_t done, int64_t bytes, int64_t fetched, Nanos time) {
  std::string text = fmt::format("{} of {} ({} %)", FormatBytes(done), FormatBytes(bytes),
                                 bytes > 0 ? done * 100 / bytes : 100);
  const double seconds = InSeconds(time);
  if (fetched <= 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(fetched) / seconds;
  return text + fmt::format(", {}/s, {} left", FormatBytes(static_cast<int64_t>(rate)),
                            DescribeSeconds(static_cast<double>(bytes - done) / rate));
}

TransferReport::TransferReport(std::string_view what, const Progress& progress)
    : what_(what), progress_(progress) {}

void TransferReport::Begin(int64_t bytes, int64_t done) {
  bytes_ = bytes;
  at_begin_ = done;
  done_ = done;
  begun_ = told_ = clock_.Now();
  LogInfo("downloading {}: {}{}", what_, FormatBytes(bytes),
          done > 0 ? fmt::format(", of which {} are there", FormatBytes(done)) : "");
}

void TransferReport::Tell() {
  constexpr Nanos kPause = std::chrono::seconds(5);
  const int64_t done = done_;
  if (progress_ && bytes_ > 0) {
    progress_("downloading " + what_, static_cast<double>(done) / static_cast<double>(bytes_));
  }
  const Nanos now = clock_.Now();
  if (now - told_ < kPause) return;
  told_ = now;
  LogInfo("downloading {}: {}", what_,
          DescribeTransfer(done, bytes_, done - at_begin_, now - begun_));
}

void TransferReport::End() {
  if (progress_ && bytes_ > 0) progress_("downloading " + what_, 1.0);
  const double seconds = InSeconds(clock_.Now() - begun_);
  LogInfo("downloaded {}: {} in {:.1f} s", what_, FormatBytes(done_ - at_begin_), seconds);
}

}  // namespace tandem
