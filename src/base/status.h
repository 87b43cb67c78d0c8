// The project's only error type: a Status is ok, or carries a code, a sentence that tells the
// reader how to fix the problem, and for programs the field at fault and a reason. A Result<T> is a
// value or such a Status. Exceptions never leave a folder. Both are plain values: copyable,
// movable, owned by whoever holds them, safe on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace tandem {

// Each code maps once to an HTTP status, a gRPC status and an exit code (serve/, apps/).
enum class Code {
  kOk,
  kInvalidArgument,     // wrong input from the caller; the message names the field and the fix
  kNotFound,            // a file, model or request that does not exist
  kFailedPrecondition,  // right input at the wrong time or on the wrong machine
  kResourceExhausted,   // a bounded queue, pool or memory is full
  kUnavailable,         // draining, or the device is lost; try elsewhere
  kDeadlineExceeded,
  kCancelled,
  kUnauthenticated,
  kUnimplemented,
  kDataLoss,  // a broken file; the message names the damaged section
  kInternal,  // our own fault
};

// "INVALID_ARGUMENT" and so on.
std::string_view CodeName(Code code);

enum class Reason : uint8_t;  // base/reason.h

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message);

  bool ok() const { return error_ == nullptr; }
  Code code() const { return error_ ? error_->code : Code::kOk; }
  const std::string& message() const;
  // The field at fault ("messages[0].role"); empty when no single field is. Programs read this and
  // never parse the message.
  const std::string& field() const;
  Reason reason() const;

  // The same error with a field or a reason; an ok status stays ok:
  // `InvalidArgument("the words are too long").WithField("bad_words")`.
  Status WithField(std::string_view field) const;
  Status WithReason(Reason reason) const;
  // The same error, its message prefixed: `Annotate("config.json")` → "config.json: ...".
  Status Annotate(std::string_view where) const;
  // "INVALID_ARGUMENT: ..." for logs.
  std::string ToString() const;

 private:
  struct Error {
    Code code = Code::kOk;
    std::string message;
    std::string field;
    Reason reason{};
  };
  template <typename Change>
  Status With(Change&& change) const;

  std::shared_ptr<const Error> error_;  // null means ok: one pointer wide on the good path
};

inline Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status NotFound(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status FailedPrecondition(std::string m) {
  return {Code::kFailedPrecondition, std::move(m)};
}
inline Status ResourceExhausted(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
inline Status Unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Status DeadlineExceeded(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
inline Status Cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
inline Status Unimplemented(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
inline Status DataLoss(std::string m) { return {Code::kDataLoss, std::move(m)}; }
inline Status Internal(std::string m) { return {Code::kInternal, std::move(m)}; }
// INVALID_ARGUMENT "max_tokens: must be at least 1", its field set.
Status FieldError(std::string_view field, std::string_view sentence);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    TANDEM_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // The value; the Result must be ok.
  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    TANDEM_CHECK(value_.has_value(), status_.message());
    return *value_;
  }
  std::optional<T> value_;
  Status status_;
};

#define TANDEM_RETURN_IF_ERROR(expr)                                      \
  do {                                                                    \
    if (::tandem::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

#define TANDEM_CONCAT_INNER_(a, b) a##b
#define TANDEM_CONCAT_(a, b) TANDEM_CONCAT_INNER_(a, b)
// `TANDEM_ASSIGN_OR_RETURN(auto spec, ReadSpec(path));`
#define TANDEM_ASSIGN_OR_RETURN(lhs, expr) \
  TANDEM_ASSIGN_OR_RETURN_IMPL_(TANDEM_CONCAT_(result_, __LINE__), lhs, expr)
#define TANDEM_ASSIGN_OR_RETURN_IMPL_(result, lhs, expr) \
  auto result = (expr);                                  \
  if (!result.ok()) return result.status();              \
  lhs = *std::move(result)

}  // namespace tandem
