#include "serve/kserve/front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/reason.h"
#include "serve/json.h"
#include "serve/kserve/request.h"

namespace tandem::serve::kserve {
namespace {

constexpr size_t kPollBytes = 32 << 10;  // a poll stops formatting behind this

std::string FormatError(std::string_view message) {
  std::string out;
  JsonWriter(out).BeginObject().Key("error").String(message).EndObject();
  return out;
}

// A full queue is 503 here, in words that clients of both protocols look for.
int StatusOf(const Status& error) {
  return error.code() == Code::kResourceExhausted ? 503 : HttpStatusOf(error.code());
}

std::string MessageOf(const Status& error) {
  const std::string_view prefix =
      error.reason() == Reason::kQueueFull ? "Exceeds maximum queue size. " : "";
  return std::string(prefix) + error.message();
}

HttpHead ErrorHead(const Status& error) {
  HttpHead head;
  head.status = StatusOf(error);
  if (head.status == 503) head.headers.emplace_back("Retry-After", "1");
  return head;
}

std::unique_ptr<Reply> ErrorReply(const Status& error) {
  return MakeReply(ErrorHead(error), FormatError(MessageOf(error)));
}

// What one response tells, of one choice or (in a whole answer) of all.
struct Response {
  std::vector<float> cum_log_probs;     // [choices]
  std::vector<float> output_log_probs;  // [tokens] of the choices, one behind the other
  std::vector<std::string> texts;       // [choices]
  int32_t sequence_index = -1;          // in a stream of several choices
};

// One element is written bare, several as an array.
template <typename T, typename Write>
void WriteElements(const std::vector<T>& elements, Write&& write, JsonWriter& writer) {
  if (elements.size() == 1) return write(elements[0]);
  writer.BeginArray();
  for (const T& element : elements) write(element);
  writer.EndArray();
}

// Keys in alphabetical order.
std::string FormatResponse(const Call& call, const Response& response) {
  std::string out;
  JsonWriter writer(out);
  const auto write_float = [&writer](float value) { writer.Float(value); };
  writer.BeginObject().Key("cum_log_probs");
  WriteElements(response.cum_log_probs, write_float, writer);
  if (!call.id.empty()) writer.Key("id").String(call.id);
  writer.Key("model_name").String(call.model).Key("model_version").String("1");
  writer.Key("output_log_probs");
  WriteElements(response.output_log_probs, write_float, writer);
  if (call.model == "ensemble") writer.Key("sequence_end").Bool(false).Key("sequence_id").Int(0);
  if (response.sequence_index >= 0) writer.Key("sequence_index").Int(response.sequence_index);
  if (call.model == "ensemble") writer.Key("sequence_start").Bool(false);
  writer.Key("text_output");
  WriteElements(
      response.texts, [&writer](const std::string& text) { writer.String(text); }, writer);
  writer.EndObject();
  return out;
}

// One choice as far as it has come. Log-probabilities that were not asked for are zeros.
struct ChoiceState {
  std::string text;
  float cum_log_prob = 0.0f;
  std::vector<float> log_probs;
  bool shown = false;  // an event of it has been written
};

class CallReply : public Reply {
 public:
  CallReply(GenerateService& service, Call call, const std::function<void()>& wake)
      : call_(std::move(call)) {
    // A number outside the limits is refused by the service.
    choices_.resize(static_cast<size_t>(std::clamp<int64_t>(call_.text.num_choices, 1, 1024)));
    TextRequest text = std::move(call_.text);
    if (call_.echo_prompt) prompt_ = *text.text;
    stream_ = service.Start(std::move(text), wake);
  }

 protected:
  float LogProb(const TokenPiece& piece) const {
    return call_.return_log_probs ? piece.logprob : 0.0f;
  }

  // Adds the event to its choice.
  void Collect(const TextEvent& event) {
    ChoiceState& choice = choices_[static_cast<size_t>(event.choice)];
    for (const TokenPiece& piece : event.pieces) {
      choice.text += piece.text;
      if (piece.token < 0) continue;
      choice.log_probs.push_back(LogProb(piece));
      choice.cum_log_prob += LogProb(piece);
    }
    if (event.finish != TextFinish::kNone) {
      ++num_finished_;
      seed_ = event.usage.seed;
    }
  }
  bool finished() const { return num_finished_ == choices_.size(); }

  std::string FormatWhole() const {
    Response response;
    for (const ChoiceState& choice : choices_) {
      response.cum_log_probs.push_back(choice.cum_log_prob);
      response.output_log_probs.insert(response.output_log_probs.end(), choice.log_probs.begin(),
                                       choice.log_probs.end());
      response.texts.push_back(prompt_ + choice.text);
    }
    return FormatResponse(call_, response);
  }

  Call call_;
  std::string prompt_;  // shown before each answer
  std::vector<ChoiceState> choices_;
  size_t num_finished_ = 0;
  uint64_t seed_ = 0;
  std::unique_ptr<TextStream> stream_;
};

class WholeReply final : public CallReply {
 public:
  using CallReply::CallReply;

  Progress Poll(HttpHead& head, std::string& out) override {
    TextEvent event;
    while (stream_->TryNext(event)) {
      if (!event.error.ok()) {
        head = ErrorHead(event.error);
        out = FormatError(MessageOf(event.error));
        return Progress::kLast;
      }
      Collect(event);
      event = TextEvent();
    }
    if (!finished()) return Progress::kPending;
    head.headers.emplace_back("X-Tandem-Seed", std::to_string(seed_));
    out = FormatWhole();
    return Progress::kLast;
  }
};

class StreamReply final : public CallReply {
 public:
  using CallReply::CallReply;

  Progress Poll(HttpHead& head, std::string& out) override {
    TextEvent event;
    while (out.size() < kPollBytes && stream_->TryNext(event)) {
      if (!event.error.ok()) return Fail(event.error, head, out);
      Begin(head);
      if (call_.stream_tokens) AppendEvent(event, out);
      Collect(event);
      event = TextEvent();
    }
    if (!finished()) return out.empty() ? Progress::kPending : Progress::kMore;
    if (!call_.stream_tokens) AppendData(FormatWhole(), out);
    return Progress::kLast;
  }

 private:
  void Begin(HttpHead& head) {
    if (begun_) return;
    begun_ = true;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  }

  Progress Fail(const Status& error, HttpHead& head, std::string& out) const {
    if (begun_) {
      AppendData(FormatError(MessageOf(error)), out);
    } else {
      head = ErrorHead(error);
      out = FormatError(MessageOf(error));
    }
    return Progress::kLast;
  }

  static void AppendData(std::string_view data, std::string& out) {
    out += "data: ";
    out += data;
    out += "\n\n";
  }

  // An event for each token; an answer without any token gets one too.
  void AppendEvent(const TextEvent& event, std::string& out) {
    ChoiceState& choice = choices_[static_cast<size_t>(event.choice)];
    float cum_log_prob = choice.cum_log_prob;
    for (const TokenPiece& piece : event.pieces) {
      cum_log_prob += LogProb(piece);
      AppendToken(event.choice, cum_log_prob, &piece, out);
      choice.shown = true;
    }
    if (event.finish != TextFinish::kNone && !choice.shown) {
      AppendToken(event.choice, cum_log_prob, nullptr, out);
    }
  }

  void AppendToken(int32_t choice, float cum_log_prob, const TokenPiece* piece,
                   std::string& out) const {
    Response response;
    response.cum_log_probs = {cum_log_prob};
    if (piece != nullptr && piece->token >= 0) response.output_log_probs = {LogProb(*piece)};
    response.texts = {piece == nullptr ? std::string() : piece->text};
    if (choices_.size() > 1) response.sequence_index = choice;
    AppendData(FormatResponse(call_, response), out);
  }

  bool begun_ = false;
};

std::unique_ptr<Reply> UnknownModel(const std::string& model) {
  return ErrorReply(NotFound(fmt::format("Request for unknown model: '{}' is not found", model)));
}

void WriteTensors(std::span<const TensorInfo> tensors, std::string_view model, JsonWriter& writer) {
  writer.BeginArray();
  for (const TensorInfo& info : tensors) {
    if (info.bls_only && model != "tensorrt_llm_bls") continue;
    writer.BeginObject().Key("name").String(info.name);
    writer.Key("datatype").String(DataTypeName(info.type)).Key("shape").BeginArray();
    writer.Int(-1).Int(info.is_list ? -1 : 1).EndArray().EndObject();
  }
  writer.EndArray();
}

// Name and version of the server whose protocol this is: clients decide by them what they may ask.
std::unique_ptr<Reply> DescribeServer() {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("name").String("triton").Key("version").String("2.56.0");
  writer.Key("extensions")
      .BeginArray()
      .String("parameters")
      .String("generate")
      .EndArray()
      .EndObject();
  return MakeReply(200, out);
}

std::unique_ptr<Reply> DescribeModel(const std::string& model) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject()
      .Key("name")
      .String(model)
      .Key("versions")
      .BeginArray()
      .String("1")
      .EndArray();
  writer.Key("platform").String(model == "ensemble" ? "ensemble" : "python");
  writer.Key("inputs");
  WriteTensors(Inputs(), model, writer);
  writer.Key("outputs");
  WriteTensors(Outputs(), model, writer);
  writer.EndObject();
  return MakeReply(200, out);
}

std::unique_ptr<Reply> Health(bool is_good, std::string_view otherwise) {
  HttpHead head;
  head.status = is_good ? 200 : 400;
  if (is_good) head.content_type.clear();
  return MakeReply(std::move(head), is_good ? "" : FormatError(otherwise));
}

}  // namespace

FrontEnd MakeFrontEnd(GenerateService& service, size_t body_limit, std::function<bool()> live,
                      const std::function<bool()>& ready) {
  FrontEnd front_end;
  front_end.name = "kserve";
  front_end.path_prefix = "/v2";
  front_end.body_limit = body_limit;
  front_end.format_error = [](int, std::string_view message) { return FormatError(message); };

  const auto generate = [&service](bool stream) -> RouteFunction {
    return [&service, stream](const HttpRequest& request, const PathValues& values,
                              const std::function<void()>& wake) -> std::unique_ptr<Reply> {
      if (!IsModel(values[0])) return UnknownModel(values[0]);
      if (values.size() > 1 && values[1] != "1") {
        return ErrorReply(NotFound(fmt::format(
            "Request for unknown model: '{}' version {} is not found", values[0], values[1])));
      }
      Result<Call> call = ParseGenerate(values[0], request.body);
      if (!call.ok()) return ErrorReply(call.status());
      call->text.stream = stream && call->stream_tokens;
      if (stream) return std::make_unique<StreamReply>(service, *std::move(call), wake);
      return std::make_unique<WholeReply>(service, *std::move(call), wake);
    };
  };
  const auto health = [](std::function<bool()> check, std::string otherwise) -> RouteFunction {
    return [check = std::move(check), otherwise = std::move(otherwise)](auto&&...) {
      return Health(check(), otherwise);
    };
  };
  const RouteFunction model_ready = [ready](const HttpRequest&, const PathValues& values,
                                            const auto&) {
    return Health(IsModel(values[0]) && ready(), "Model version not ready");
  };
  const RouteFunction describe = [](const HttpRequest&, const PathValues& values, const auto&) {
    return IsModel(values[0]) ? DescribeModel(values[0]) : UnknownModel(values[0]);
  };
  front_end.routes = {
      {"GET", "/v2/health/live", health(std::move(live), "Server is not live"), true},
      {"GET", "/v2/health/ready", health(ready, "Server is not ready"), true},
      {"GET", "/v2", [](auto&&...) { return DescribeServer(); }},
      {"GET", "/v2/models/{}", describe},
      {"GET", "/v2/models/{}/versions/{}", describe},
      {"GET", "/v2/models/{}/ready", model_ready},
      {"GET", "/v2/models/{}/versions/{}/ready", model_ready},
      {"POST", "/v2/models/{}/generate", generate(false)},
      {"POST", "/v2/models/{}/versions/{}/generate", generate(false)},
      {"POST", "/v2/models/{}/generate_stream", generate(true)},
      {"POST", "/v2/models/{}/versions/{}/generate_stream", generate(true)},
  };
  return front_end;
}

}  // namespace tandem::serve::kserve
