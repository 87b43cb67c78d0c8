#include "serve/lmi/errors.h"

#include <fmt/format.h>

#include "base/reason.h"
#include "serve/json.h"

namespace tandem::serve::lmi {
namespace {

constexpr int kHandlerError = 424;

// The names of djl-serving's exceptions, which its clients may look at.
std::string_view TypeOf(int status) {
  switch (status) {
    case 400:
      return "BadRequestException";
    case 404:
      return "ResourceNotFoundException";
    case 405:
      return "MethodNotAllowedException";
    case 409:
      return "ConflictStatusException";
    case 503:
      return "ServiceUnavailableException";
    case 507:
      return "EngineException";
    default:
      return status >= 500 ? "InternalServerException" : "BadRequestException";
  }
}

// The exception that a fault is there.
std::string_view TypeOf(Fault fault, int status) {
  switch (fault) {
    case Fault::kModel:
      return "ModelNotFoundException";
    case Fault::kQueueFull:
      return "WlmCapacityException";
    case Fault::kNoWorker:
      return "WlmException";
    case Fault::kTimeout:
      return "TranslateException";
    default:
      return TypeOf(status);
  }
}

int StatusOf(Fault fault, const HttpCodes& codes) {
  switch (fault) {
    case Fault::kRequest:
    case Fault::kGeneration:
      return kHandlerError;
    case Fault::kModel:
      return 404;
    case Fault::kQueueFull:
      return codes.throttle_error;
    case Fault::kNoWorker:
      return codes.wlm_error;
    case Fault::kTimeout:
      return codes.timeout;
    case Fault::kGone:
      return 499;
  }
  return codes.server_error;
}

std::string Format(int status, std::string_view type, std::string_view message) {
  std::string out;
  JsonWriter writer(out, /*spaces=*/true);
  writer.BeginObject().Key("code").Int(status).Key("type").String(type);
  writer.Key("message").String(message).EndObject();
  return out;
}

std::string FormatHandlerError(std::string_view message) {
  std::string out;
  JsonWriter writer(out, /*spaces=*/true);
  writer.BeginObject().Key("code").Int(kHandlerError).Key("error").String(message).EndObject();
  return out;
}

}  // namespace

Fault FaultOf(const Status& error) {
  switch (error.code()) {
    case Code::kNotFound:
      return error.reason() == Reason::kModelNotFound ? Fault::kModel : Fault::kRequest;
    case Code::kResourceExhausted:
      return error.reason() == Reason::kQueueWait ? Fault::kTimeout : Fault::kQueueFull;
    case Code::kDeadlineExceeded:
      return Fault::kTimeout;
    case Code::kUnavailable:
      return Fault::kNoWorker;
    case Code::kCancelled:
      return Fault::kGone;
    case Code::kDataLoss:
    case Code::kInternal:
      return Fault::kGeneration;
    default:
      return Fault::kRequest;
  }
}

std::string FormatServerError(int status, std::string_view message) {
  return Format(status, TypeOf(status), message);
}

HttpHead ErrorHead(const Status& error, const Settings& settings) {
  HttpHead head;
  head.status = StatusOf(FaultOf(error), settings.http_codes);
  if (head.status == 429 || head.status == 503) head.headers.emplace_back("Retry-After", "1");
  return head;
}

std::string FormatFault(const Status& error, const Settings& settings) {
  const Fault fault = FaultOf(error);
  const int status = StatusOf(fault, settings.http_codes);
  if (status == kHandlerError) return FormatHandlerError(error.message());
  const std::string_view type = TypeOf(fault, status);
  if (fault != Fault::kTimeout) return Format(status, type, error.message());
  return Format(status, type, fmt::format("Time out in: {}", InSeconds(settings.predict_timeout)));
}

std::unique_ptr<Reply> FaultReply(const Status& error, const Settings& settings) {
  return MakeReply(ErrorHead(error, settings), FormatFault(error, settings));
}

std::unique_ptr<Reply> ServerErrorReply(int status, std::string_view message) {
  return MakeReply(status, FormatServerError(status, message));
}

}  // namespace tandem::serve::lmi
