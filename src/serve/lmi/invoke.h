// Invoker: invocations of djl-serving's routes, from the request to a reply in progress. Shared by
// the routes; any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "serve/http/message.h"
#include "serve/lmi/async_results.h"
#include "serve/lmi/chat.h"
#include "serve/lmi/counters.h"
#include "serve/lmi/jobs.h"
#include "serve/lmi/model_list.h"
#include "serve/lmi/settings.h"
#include "serve/openai/request/ignored_fields.h"

namespace tandem::serve::lmi {

class Invoker {
 public:
  // `host`, `settings`, `counters` and `clock` outlive the invoker and its replies.
  Invoker(const Host& host, const Settings& settings, openai::AnswerFormatNames formats,
          Counters& counters, const Clock& clock);

  // `model` may be empty: the request's query or properties name it, or there is one alone.
  std::unique_ptr<Reply> Invoke(const HttpRequest& request, std::string model, std::string version,
                                const std::function<void()>& wake);
  // Whether it fetches what an earlier invocation makes (`x-starting-token`).
  static bool IsFetch(const HttpRequest& request);
  // Asynchronous invocations whose answer is not complete.
  int num_asynchronous() const { return results_.num_running(); }

 private:
  std::unique_ptr<Reply> Begin(const HttpRequest& request, const ModelPtr& model,
                               const std::function<void()>& wake);
  Result<Invocation> Read(const HttpRequest& request, const ModelPtr& model,
                          const Settings& settings, const std::function<void()>& wake) const;
  std::unique_ptr<Reply> BeginAsync(const HttpRequest& request, const ModelPtr& model);
  std::unique_ptr<Reply> FetchAsync(const HttpRequest& request, const std::string& token);
  std::unique_ptr<Reply> Refuse(const Status& error) const;

  const Host host_;
  const Settings& settings_;
  const OpenAiParts openai_;
  Counters& counters_;
  const std::shared_ptr<Jobs> jobs_ = std::make_shared<Jobs>();
  openai::IgnoredFields ignored_;
  AsyncResults results_;  // last: its replies use the other members
};

}  // namespace tandem::serve::lmi
