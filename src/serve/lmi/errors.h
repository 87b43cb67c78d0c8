// Errors as djl-serving writes them: those of its server, {"code","type","message"}, and those of
// its handler, {"code","error"}, for requests that cannot be answered as they are. Pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/http/message.h"
#include "serve/lmi/settings.h"

namespace tandem::serve::lmi {

// What operators set statuses and limits for.
enum class Fault : uint8_t {
  kRequest,     // what the client sent cannot be answered
  kModel,       // there is no such model
  kQueueFull,   // beyond job_queue_size
  kNoWorker,    // the model takes no request now
  kTimeout,     // predict_timeout
  kGeneration,  // the model failed
  kGone,        // the client
};
Fault FaultOf(const Status& error);

std::string FormatServerError(int status, std::string_view message);
// Of any invocation: by the server or by the handler.
HttpHead ErrorHead(const Status& error, const Settings& settings);
std::string FormatFault(const Status& error, const Settings& settings);
std::unique_ptr<Reply> FaultReply(const Status& error, const Settings& settings);
// Of the routes that manage models.
std::unique_ptr<Reply> ServerErrorReply(int status, std::string_view message);

}  // namespace tandem::serve::lmi
