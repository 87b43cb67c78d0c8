#include "serve/openai/front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "serve/openai/errors.h"
#include "serve/openai/request.h"
#include "serve/openai/response.h"

namespace tandem::serve::openai {
namespace {

constexpr size_t kPollBytes = 32 << 10;  // a poll stops formatting behind this

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string NewId(Endpoint endpoint) {
  thread_local std::mt19937_64 random(std::random_device{}());
  return fmt::format("{}-{:016x}{:016x}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl",
                     random(), random());
}

// One call: the streams of its prompts, and what has come of their choices.
class CallReply : public Reply {
 public:
  CallReply(GenerateService& service, Call call, ResponseHeader header,
            const std::function<void()>& wake)
      : codec_(service.codec()), header_(std::move(header)), logprobs_(call.logprobs) {
    // A number outside the limits is refused by the service.
    num_choices_ =
        static_cast<size_t>(std::clamp<int64_t>(call.prompts.front().num_choices, 1, 1024));
    for (TextRequest& prompt : call.prompts) {
      streams_.push_back(service.Start(std::move(prompt), wake));
    }
    usages_.resize(num_answers());
  }

 protected:
  // The next event of any prompt; its choice becomes the index among all. False when there is none.
  bool NextEvent(TextEvent& event) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (!streams_[i]->TryNext(event)) continue;
      event.choice += static_cast<int32_t>(i * num_choices_);
      if (event.error.ok()) usages_[static_cast<size_t>(event.choice)] = event.usage;
      if (event.finish != TextFinish::kNone) ++num_finished_;
      return true;
    }
    return false;
  }
  bool finished() const { return num_finished_ == streams_.size() * num_choices_; }
  size_t num_answers() const { return streams_.size() * num_choices_; }
  // As far as known.
  CallUsage SumUsage() const {
    CallUsage sum;
    for (size_t i = 0; i < usages_.size(); ++i) sum.Add(usages_[i], i % num_choices_ == 0);
    return sum;
  }

  const TextCodec& codec_;
  const ResponseHeader header_;
  const bool logprobs_;

 private:
  size_t num_choices_ = 1;  // of each prompt
  size_t num_finished_ = 0;
  std::vector<Usage> usages_;  // [answers]
  std::vector<std::unique_ptr<TextStream>> streams_;
};

class WholeReply final : public CallReply {
 public:
  using CallReply::CallReply;

  Progress Poll(HttpHead& head, std::string& out) override {
    TextEvent event;
    while (NextEvent(event)) {
      if (!event.error.ok()) {
        head = ErrorHead(event.error);
        out = FormatStatus(event.error);
        return Progress::kLast;
      }
      Add(event);
      event = TextEvent();
    }
    if (!finished()) return Progress::kPending;
    out = FormatResponse(header_, choices_, SumUsage(), logprobs_, codec_);
    return Progress::kLast;
  }

 private:
  void Add(TextEvent& event) {
    for (size_t i = choices_.size(); i < num_answers(); ++i) {
      choices_.emplace_back().index = static_cast<int64_t>(i);
    }
    Choice& choice = choices_[static_cast<size_t>(event.choice)];
    for (TokenPiece& piece : event.pieces) {
      choice.text += piece.text;
      if (logprobs_) choice.pieces.push_back(std::move(piece));
    }
    choice.finish = event.finish;
  }

  std::vector<Choice> choices_;
};

class StreamReply final : public CallReply {
 public:
  StreamReply(GenerateService& service, const Call& call, ResponseHeader header,
              const std::function<void()>& wake)
      : CallReply(service, call, std::move(header), wake),
        include_usage_(call.include_usage),
        continuous_usage_(call.continuous_usage) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    TextEvent event;
    while (out.size() < kPollBytes && NextEvent(event)) {
      if (!event.error.ok()) return Fail(event.error, head, out);
      Begin(head);
      AppendEvent(event, out);
      event = TextEvent();
    }
    if (!finished()) return out.empty() ? Progress::kPending : Progress::kMore;
    if (include_usage_) {
      const CallUsage usage = SumUsage();
      ChunkOptions options;
      options.usage = &usage;
      AppendData(FormatChunk(header_, nullptr, options, codec_), out);
    }
    AppendData("[DONE]", out);
    return Progress::kLast;
  }

 private:
  // Before the first byte an error has its own status; later it is an event, and no [DONE] follows.
  Progress Fail(const Status& error, HttpHead& head, std::string& out) const {
    if (begun_) {
      AppendData(FormatStatus(error), out);
    } else {
      head = ErrorHead(error);
      out = FormatStatus(error);
    }
    return Progress::kLast;
  }

  void Begin(HttpHead& head) {
    if (begun_) return;
    begun_ = true;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    text_bytes_.resize(num_answers());
    role_sent_.resize(num_answers());
  }

  static void AppendData(std::string_view data, std::string& out) {
    out += "data: ";
    out += data;
    out += "\n\n";
  }

  void AppendEvent(TextEvent& event, std::string& out) {
    const auto index = static_cast<size_t>(event.choice);
    Choice choice;
    choice.index = event.choice;
    choice.text_offset = text_bytes_[index];
    for (const TokenPiece& piece : event.pieces) choice.text += piece.text;
    text_bytes_[index] += choice.text.size();
    if (logprobs_) choice.pieces = std::move(event.pieces);
    if (!choice.text.empty() || !choice.pieces.empty()) AppendChoice(choice, out);
    if (event.finish == TextFinish::kNone) return;
    Choice last;
    last.index = event.choice;
    last.finish = event.finish;
    AppendChoice(last, out);
  }

  void AppendChoice(const Choice& choice, std::string& out) {
    ChunkOptions options;
    options.is_first = !role_sent_[static_cast<size_t>(choice.index)];
    role_sent_[static_cast<size_t>(choice.index)] = true;
    options.logprobs = logprobs_;
    const CallUsage usage = continuous_usage_ ? SumUsage() : CallUsage();
    options.usage = continuous_usage_ ? &usage : nullptr;
    options.null_usage = include_usage_;
    AppendData(FormatChunk(header_, &choice, options, codec_), out);
  }

  const bool include_usage_;
  const bool continuous_usage_;
  bool begun_ = false;
  std::vector<size_t> text_bytes_;  // [choices] shown so far
  std::vector<bool> role_sent_;     // [choices]
};

class Routes {
 public:
  Routes(GenerateService& service, std::string model)
      : service_(service), model_(std::move(model)), created_(UnixSeconds()) {}

  std::unique_ptr<Reply> Generate(Endpoint endpoint, const HttpRequest& request,
                                  const std::function<void()>& wake) const {
    Result<Call> call = ParseCall(endpoint, request.body);
    if (!call.ok()) return ErrorReply(call.status());
    if (!call->model.empty() && call->model != model_) return ErrorReply(UnknownModel(call->model));
    ResponseHeader header{endpoint, NewId(endpoint), model_, UnixSeconds()};
    if (call->stream) {
      return std::make_unique<StreamReply>(service_, *std::move(call), std::move(header), wake);
    }
    return std::make_unique<WholeReply>(service_, *std::move(call), std::move(header), wake);
  }

  std::unique_ptr<Reply> Models() const {
    return MakeReply(200, FormatModels(model_, created_, service_.engine_limits().max_seq_len));
  }

  std::unique_ptr<Reply> Model(const std::string& name) const {
    if (name != model_) return ErrorReply(UnknownModel(name));
    return MakeReply(200, FormatModel(model_, created_, service_.engine_limits().max_seq_len));
  }

 private:
  Status UnknownModel(const std::string& name) const {
    return NotFound(
        fmt::format("model: \"{}\" does not exist; this server has \"{}\"", name, model_));
  }

  GenerateService& service_;
  const std::string model_;
  const int64_t created_;
};

}  // namespace

FrontEnd MakeFrontEnd(GenerateService& service, std::string model, size_t body_limit) {
  const auto routes = std::make_shared<const Routes>(service, std::move(model));
  FrontEnd front_end;
  front_end.name = "openai";
  front_end.body_limit = body_limit;
  front_end.format_error = [](int status, std::string_view message) {
    return FormatError(status, message);
  };
  const auto generate = [routes](Endpoint endpoint) {
    return [routes, endpoint](const HttpRequest& request, const PathValues&,
                              const std::function<void()>& wake) {
      return routes->Generate(endpoint, request, wake);
    };
  };
  front_end.routes = {
      {"POST", "/v1/chat/completions", generate(Endpoint::kChat)},
      {"POST", "/v1/completions", generate(Endpoint::kCompletions)},
      {"GET", "/v1/models", [routes](auto&&...) { return routes->Models(); }},
      {"GET", "/v1/models/{*}",  // a name may hold a slash
       [routes](const HttpRequest&, const PathValues& values, const auto&) {
         return routes->Model(values[0]);
       }},
  };
  return front_end;
}

}  // namespace tandem::serve::openai
