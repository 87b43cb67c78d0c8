// ActiveRequest: one request as shared by the service, its pump thread and the client's stream.
// Private to the service's files; each group of members says who may touch it.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "runtime/request/request.h"
#include "serve/choice_decoder.h"
#include "serve/text_request.h"

namespace tandem::serve {

struct ActiveRequest {
  struct Choice {
    ChoiceDecoder decoder;
    bool ended = false;   // its finish has been delivered; later engine events are dropped
    bool landed = false;  // the engine's last event has arrived
    Nanos last_token{0};
    std::vector<LogitsRow> context_logits = {};  // wait for the first event that is delivered
  };

  // Adds an event to the mailbox and wakes the reader. False when the reader is more than
  // `max_bytes` behind: the mailbox then ends with an error. Pump and tokenizer threads.
  bool Deliver(TextEvent event);
  // The oldest event of the mailbox; false if it is empty. The reader's thread.
  bool TakeLocked(TextEvent& event) TANDEM_REQUIRES(mutex);
  // Ends the mailbox with an error; false if it had already ended.
  bool Fail(Status error);
  // The reader is gone. True when it left before the end.
  bool Abandon();

  // Constant after Start.
  std::function<void()> wake;
  size_t max_bytes = 0;  // 0: no bound (the reader wants the whole answer anyway)
  int num_choices = 1;
  Nanos started{0};

  TextRequest text;  // set by the thread that tokenizes, until the engine has the request

  // Guarded by the service's mutex.
  RequestId id = 0;        // 0: not submitted
  bool cancelled = false;  // its stream is gone

  // Constant once submitted.
  ReasoningStart reasoning = ReasoningStart::kUnopened;

  // Pump thread, once submitted.
  std::vector<Choice> choices;
  int num_landed = 0;
  std::shared_ptr<PromptText> prompt;  // waits for the first event of choice 0; null: not asked for

  // Mailbox.
  mutable Mutex mutex;
  Condition ready;
  // At most one unfinished event for each choice: later pieces join it.
  std::deque<TextEvent> pending TANDEM_GUARDED_BY(mutex);
  size_t pending_bytes TANDEM_GUARDED_BY(mutex) = 0;
  // choices whose finish is in the mailbox or was taken
  int num_finished TANDEM_GUARDED_BY(mutex) = 0;
  bool ended TANDEM_GUARDED_BY(mutex) = false;  // nothing will be added

 private:
  void AddLocked(TextEvent event) TANDEM_REQUIRES(mutex);
};

}  // namespace tandem::serve
