#include "base/status.h"

#include "base/reason.h"

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
  if (code == Code::kOk) return;
  error_ = std::make_shared<const Error>(Error{code, std::move(message), {}, {}});
}

const std::string& Status::message() const {
  static const std::string empty;
  return error_ ? error_->message : empty;
}

const std::string& Status::field() const {
  static const std::string empty;
  return error_ ? error_->field : empty;
}

Reason Status::reason() const { return error_ ? error_->reason : Reason::kNone; }

template <typename Change>
Status Status::With(Change&& change) const {
  if (ok()) return *this;
  Error error = *error_;
  change(error);
  Status changed;
  changed.error_ = std::make_shared<const Error>(std::move(error));
  return changed;
}

Status Status::WithField(std::string_view field) const {
  return With([field](Error& error) { error.field = field; });
}

Status Status::WithReason(Reason reason) const {
  return With([reason](Error& error) { error.reason = reason; });
}

Status Status::Annotate(std::string_view where) const {
  return With([where](Error& error) { error.message = std::string(where) + ": " + error.message; });
}

Status FieldError(std::string_view field, std::string_view sentence) {
  return InvalidArgument(std::string(field) + ": " + std::string(sentence)).WithField(field);
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(CodeName(code())) + ": " + message();
}

}  // namespace tandem
