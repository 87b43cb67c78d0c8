#include "base/status.h"

namespace tandem {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kUnauthenticated:
      return "UNAUTHENTICATED";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kDataLoss:
      return "DATA_LOSS";
    case Code::kInternal:
      return "INTERNAL";
  }
  return "UNKNOWN";
}

Status::Status(Code code, std::string message) {
  if (code != Code::kOk) error_ = std::make_shared<const Error>(Error{code, std::move(message)});
}

const std::string& Status::message() const {
  static const std::string empty;
  return error_ ? error_->message : empty;
}

Status Status::Annotate(std::string_view where) const {
  if (ok()) return *this;
  return {code(), std::string(where) + ": " + message()};
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(CodeName(code())) + ": " + message();
}

}  // namespace tandem
