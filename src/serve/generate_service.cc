#include "serve/generate_service.h"

#include <atomic>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/mutex.h"
#include "serve/active_request.h"
#include "serve/worker.h"

namespace tandem::serve {
namespace {

constexpr Nanos kPumpWait = std::chrono::milliseconds(50);
// Each grammar takes up to 2 s of processor time and 256 MiB, and engines on a CPU want it too.
constexpr int kCompileThreads = 2;

Status TimedOut() {
  return DeadlineExceeded("timeout: the request's time has passed").WithField("timeout");
}

Status TooManyGrammars() {
  return ResourceExhausted(
      "too many requests with a grammar wait for it to be compiled, please try again later");
}

Status ShuttingDown() { return Unavailable("the server is shutting down"); }

size_t PromptBytes(const TextRequest& text) {
  if (text.messages) return text.messages->size();
  return text.text ? text.text->size() : 0;
}

}  // namespace

std::string_view TextFinishName(TextFinish finish) {
  switch (finish) {
    case TextFinish::kStop:
      return "stop";
    case TextFinish::kLength:
      return "length";
    case TextFinish::kNone:
      break;
  }
  return "";
}

struct GenerateService::Impl {
  using RequestPtr = std::shared_ptr<ActiveRequest>;

  Impl(EngineClient& engine_client, const TextCodec& text_codec, GenerationDefaults model_defaults,
       const Clock& service_clock, const ServiceOptions& service_options, Metrics* service_metrics)
      : engine(engine_client),
        codec(text_codec),
        defaults(std::move(model_defaults)),
        clock(service_clock),
        options(service_options),
        metrics(service_metrics),
        limits(engine_client.limits()),
        to_tokenize(static_cast<size_t>(limits.max_queue_size)),
        compilers(static_cast<size_t>(limits.max_queue_size), kCompileThreads),
        grammars(static_cast<size_t>(limits.max_queue_size)) {
    pump = std::thread([this] { Pump(); });
    tokenizer = std::thread([this] { Tokenize(); });
  }

  ~Impl() {
    Close();
    stop = true;
    to_tokenize.Close();
    tokenizer.join();
    pump.join();
  }

  // Whether a request that has waited for a thread is still worth its time: its client may have
  // left, and it is refused when its time has passed and while the service closes.
  bool StillWanted(ActiveRequest& request) {
    bool refused = false;
    {
      const MutexLock lock(mutex);
      if (request.cancelled) return false;
      refused = closing;
    }
    const std::optional<Nanos>& timeout = request.text.timeout;
    if (refused) {
      Refuse(request, ShuttingDown());
    } else if (timeout && clock.Now() - request.started >= *timeout) {
      refused = true;
      Refuse(request, TimedOut());
    }
    return !refused;
  }

  // Tokenizes and submits; a grammar that has to be compiled first waits for the threads that do.
  void Begin(const RequestPtr& request) {
    if (!StillWanted(*request)) return;
    Result<BuiltRequest> built =
        BuildRequest(request->text, codec, defaults, limits, options.limits, request->started);
    if (!built.ok()) return Refuse(*request, built.status());
    request->reasoning = built->reasoning;
    const Result<bool> is_known = FollowKnownGrammar(codec, *built);
    if (!is_known.ok()) return Refuse(*request, is_known.status());
    if (*is_known) return Finish(request, std::move(built->request));
    auto waiting = std::make_shared<BuiltRequest>(*std::move(built));
    if (!compilers.TryRun([this, request, waiting] { Compile(request, *waiting); })) {
      Refuse(*request, TooManyGrammars());
    }
  }

  void Compile(const RequestPtr& request, BuiltRequest& built) {
    const auto is_wanted = [this, &request] { return StillWanted(*request); };
    if (!is_wanted()) return;
    const Status followed = FollowGrammar(codec, is_wanted, built);
    if (!followed.ok()) return Refuse(*request, followed);
    Finish(request, std::move(built.request));
  }

  // Makes what reads the answers, and submits.
  void Finish(const RequestPtr& request, Request built) {
    std::shared_ptr<const StopStrings> stops;
    if (!request->text.stop.empty()) {
      Result<std::shared_ptr<const StopStrings>> compiled =
          StopStrings::Compile(std::move(request->text.stop));
      if (!compiled.ok()) return Refuse(*request, compiled.status());
      stops = *std::move(compiled);
    }
    const auto read_first = request->text.continues_prompt ? std::span<const int32_t>(built.prompt)
                                                           : std::span<const int32_t>();
    const std::unique_ptr<TextCodec::Decoder> decoder =
        request->text.wants_text ? codec.NewDecoder(read_first, request->text.skip_special_tokens)
                                 : nullptr;
    if (request->text.return_prompt) request->prompt = DecodePrompt(request->text, built);
    request->text = TextRequest();
    for (int i = 0; i < request->num_choices; ++i) {
      auto own = decoder == nullptr ? nullptr : decoder->Clone();
      request->choices.push_back({.decoder = ChoiceDecoder(std::move(own), stops)});
    }
    Submit(request, std::move(built));
  }

  // The lock is not held while the engine takes the request, which copies the grammar for each
  // choice: the pump needs it for the events of all others.
  void Submit(const RequestPtr& request, Request built) {
    bool is_refused = false;
    {
      const MutexLock lock(mutex);
      if (request->cancelled) return;
      is_refused = closing;
      if (!is_refused) ++num_submitting;
    }
    if (is_refused) return Refuse(*request, ShuttingDown());
    const Result<RequestId> id = engine.Submit(std::move(built));
    bool is_late = false;  // the client has left meanwhile, or the service closes
    bool is_closing = false;
    {
      const MutexLock lock(mutex);
      --num_submitting;
      is_closing = closing;
      is_late = closing || request->cancelled;
      if (id.ok() && !is_late) {
        request->id = *id;
        active.emplace(*id, request);
      }
    }
    submitted.NotifyAll();
    if (!id.ok()) return Refuse(*request, id.status());
    if (is_late) engine.Cancel(*id, kAllChoices);
    if (is_closing) Refuse(*request, ShuttingDown());
  }

  // The prompt's text and tokens; its log-probabilities come with the first token.
  std::shared_ptr<PromptText> DecodePrompt(TextRequest& text, const Request& built) const {
    auto prompt = std::make_shared<PromptText>();
    // A chat's prompt shows the control tokens that the template wrote.
    const bool skip_special = text.skip_special_tokens && !text.messages;
    const auto decoder = codec.NewDecoder({}, skip_special);
    prompt->pieces.reserve(built.prompt.size());
    for (const int32_t token : built.prompt) {
      SampledToken unscored;
      unscored.token = token;
      prompt->pieces.push_back(PieceOf(unscored, decoder->Push(token)));
      if (!text.text) prompt->text += prompt->pieces.back().text;
    }
    if (text.text) prompt->text = *std::move(text.text);
    return prompt;
  }

  // The client's stream is gone.
  void Leave(ActiveRequest& request) {
    bool is_open = false;
    RequestId id = 0;
    {
      const MutexLock lock(mutex);
      request.cancelled = true;
      id = request.id;
      is_open = id != 0 && active.contains(id);
    }
    if (request.Abandon() && metrics != nullptr) metrics->CountCancelled();
    if (is_open) engine.Cancel(id, kAllChoices);
  }

  void Refuse(ActiveRequest& request, const Status& why) const {
    const bool is_news = request.Fail(why);
    if (is_news && metrics != nullptr) metrics->CountFailed(why.code());
  }

  void Tokenize() {
    while (!stop) {
      if (std::optional<RequestPtr> request = to_tokenize.Pop()) Begin(*request);
    }
  }

  void Pump() {
    Event event;
    while (!stop) {
      if (engine.PopEvent(event, kPumpWait)) Handle(event);
    }
  }

  // An event may be here before its request: it waits until none is being submitted.
  RequestPtr Find(RequestId id) {
    MutexLock lock(mutex);
    submitted.Wait(
        lock, [&]() TANDEM_REQUIRES(mutex) { return num_submitting == 0 || active.contains(id); });
    const auto it = active.find(id);
    return it == active.end() ? nullptr : it->second;
  }

  void Handle(Event& event) {
    const RequestPtr request = Find(event.request);
    if (request == nullptr || event.choice < 0 || event.choice >= request->num_choices) return;
    ActiveRequest::Choice& choice = request->choices[static_cast<size_t>(event.choice)];
    if (event.finish != FinishReason::kNone && !choice.landed) {
      choice.landed = true;
      ++request->num_landed;
    }
    ObserveTokens(*request, choice, event);
    if (!choice.ended) Translate(*request, choice, event);
    if (request->num_landed == request->num_choices) {
      const MutexLock lock(mutex);
      active.erase(event.request);
    }
  }

  // Engine event → text event.
  void Translate(ActiveRequest& request, ActiveRequest::Choice& choice, Event& event) {
    TextEvent out;
    out.choice = event.choice;
    out.reasoning = request.reasoning;
    if (!event.context_logits.empty()) choice.context_logits = std::move(event.context_logits);
    for (size_t i = 0; i < event.prompt_logprobs.size() && request.prompt != nullptr; ++i) {
      TokenPiece& piece = request.prompt->pieces[i];
      piece = PieceOf(event.prompt_logprobs[i], std::move(piece.text));
    }
    event.generation_logits.resize(event.tokens.size());  // empty rows where none were asked for
    for (size_t i = 0; i < event.tokens.size(); ++i) {
      LogitsRow& logits = event.generation_logits[i];
      if (!choice.decoder.Push(event.tokens[i], std::move(logits), out.pieces)) continue;
      out.finish = TextFinish::kStop;
      break;
    }
    if (out.finish == TextFinish::kNone && event.finish != FinishReason::kNone) {
      if (Status error = FailureOf(event); !error.ok()) {
        choice.ended = true;
        // The request has failed: nobody reads its other choices.
        if (request.num_landed < request.num_choices) engine.Cancel(event.request, kAllChoices);
        return Refuse(request, error);
      }
      choice.decoder.Flush(out.pieces);
      out.finish = event.finish == FinishReason::kLength ? TextFinish::kLength : TextFinish::kStop;
      if (event.finish == FinishReason::kEnd) out.end = PieceOf(event.end, {});
    }
    out.usage = event.usage;
    out.usage.output_tokens = choice.decoder.num_tokens();
    if (out.finish != TextFinish::kNone) {
      choice.ended = true;
      {
        const MutexLock lock(lengths_mutex);
        lengths.input.Add(out.usage.prompt_tokens);
        lengths.output.Add(out.usage.output_tokens);
      }
      if (metrics != nullptr) {
        metrics->CountFinished(out.finish, out.usage);
        metrics->ObserveEndToEnd(clock.Now() - request.started);
      }
      // The engine continues after a stop string until it is told to cancel.
      if (!choice.landed) engine.Cancel(event.request, event.choice);
    }
    if (out.pieces.empty() && out.finish == TextFinish::kNone) return;
    out.context_logits = std::exchange(choice.context_logits, {});
    if (event.choice == 0) out.prompt = std::exchange(request.prompt, nullptr);
    if (request.Deliver(std::move(out))) return;
    if (metrics != nullptr) metrics->CountFailed(Code::kResourceExhausted);
    engine.Cancel(event.request, kAllChoices);
  }

  static Status FailureOf(const Event& event) {
    switch (event.finish) {
      case FinishReason::kFailed:
        return event.error.ok() ? Internal("the request failed") : event.error;
      case FinishReason::kTimedOut:
        return TimedOut();
      case FinishReason::kCancelled:
        return Unavailable("the request was cancelled: the server is shutting down");
      default:
        return {};
    }
  }

  void ObserveTokens(const ActiveRequest& request, ActiveRequest::Choice& choice,
                     const Event& event) {
    if (metrics == nullptr || event.tokens.empty() || choice.ended) return;
    const Nanos now = clock.Now();
    size_t later_tokens = event.tokens.size();
    if (choice.last_token == Nanos(0)) {
      metrics->ObserveFirstToken(now - request.started);
      --later_tokens;
    }
    // Tokens of one step reach the client together: their wait is divided among them.
    const Nanos since = choice.last_token == Nanos(0) ? Nanos(0) : now - choice.last_token;
    for (size_t i = 0; i < later_tokens; ++i) {
      metrics->ObserveInterToken(since / static_cast<int64_t>(event.tokens.size()));
    }
    choice.last_token = now;
  }

  void Close() {
    std::vector<RequestPtr> open;
    {
      const MutexLock lock(mutex);
      closing = true;
      for (const auto& [id, request] : active) open.push_back(request);
    }
    for (const RequestPtr& request : open) {
      Refuse(*request, ShuttingDown());
      engine.Cancel(request->id, kAllChoices);
    }
  }

  EngineClient& engine;
  const TextCodec& codec;
  const GenerationDefaults defaults;
  const Clock& clock;
  const ServiceOptions options;
  Metrics* const metrics;
  const EngineLimits limits;

  Mutex mutex;
  // Until the engine's last event.
  std::unordered_map<RequestId, RequestPtr> active TANDEM_GUARDED_BY(mutex);
  bool closing TANDEM_GUARDED_BY(mutex) = false;
  int num_submitting TANDEM_GUARDED_BY(mutex) = 0;
  Condition submitted;  // num_submitting has gone down

  Mutex lengths_mutex;
  TokenLengths lengths TANDEM_GUARDED_BY(lengths_mutex);

  BoundedQueue<RequestPtr> to_tokenize;
  std::atomic<bool> stop{false};
  std::thread pump;
  std::thread tokenizer;
  Worker compilers;  // compile grammars: their requests delay no others
  Worker grammars;   // begins requests with a grammar, whose copies take time; uses `compilers`
};

GenerateService::GenerateService(EngineClient& engine, const TextCodec& codec,
                                 GenerationDefaults defaults, const Clock& clock,
                                 ServiceOptions options, Metrics* metrics)
    : engine_(engine),
      codec_(codec),
      impl_(std::make_unique<Impl>(engine, codec, std::move(defaults), clock, options, metrics)) {}

GenerateService::~GenerateService() = default;

TokenLengths GenerateService::token_lengths() const {
  const MutexLock lock(impl_->lengths_mutex);
  return impl_->lengths;
}

std::unique_ptr<TextStream> GenerateService::Start(TextRequest text, std::function<void()> wake) {
  auto request = std::make_shared<ActiveRequest>();
  request->wake = std::move(wake);
  request->max_bytes = text.stream ? impl_->options.stream_bytes : 0;
  // A number outside the limits is refused by BuildRequest, before anything is made for each
  // choice.
  request->num_choices = static_cast<int>(text.num_choices);
  request->started = impl_->clock.Now();
  const bool is_quick =
      PromptBytes(text) <= impl_->options.inline_prompt_bytes && text.bad_words.empty();
  const bool has_grammar = text.grammar != nullptr || text.grammar_after != nullptr;
  request->text = std::move(text);
  auto stream = std::make_unique<TextStream>(
      request, [impl = impl_.get(), request] { impl->Leave(*request); });
  if (has_grammar) {
    if (!impl_->grammars.TryRun([impl = impl_.get(), request] { impl->Begin(request); })) {
      impl_->Refuse(*request, TooManyGrammars());
    }
  } else if (is_quick) {
    impl_->Begin(request);
  } else if (std::shared_ptr<ActiveRequest> queued = request;
             !impl_->to_tokenize.TryPush(std::move(queued))) {
    impl_->Refuse(*request,
                  ResourceExhausted("too many prompts wait for the tokenizer, please try again "
                                    "later"));
  }
  return stream;
}

Result<TextResult> GenerateService::Generate(TextRequest text) {
  const std::unique_ptr<TextStream> stream = Start(std::move(text));
  TextResult result;
  TextEvent event;
  while (stream->Next(event)) {
    if (!event.error.ok()) return event.error;
    const auto index = static_cast<size_t>(event.choice);
    if (result.choices.size() <= index) result.choices.resize(index + 1);
    result.choices[index].Add(std::move(event));
    event = TextEvent();
  }
  return result;
}

void GenerateService::Close() { impl_->Close(); }

const RequestLimits& GenerateService::request_limits() const { return impl_->options.limits; }

bool GenerateService::Alive() const {
  const EngineStats stats = engine_.Stats();
  return stats.failure.ok() && !codec_.ChatHasStopped() && !codec_.GrammarsHaveStopped() &&
         stats.seconds_since_progress < InSeconds(impl_->options.liveness_timeout);
}

}  // namespace tandem::serve
