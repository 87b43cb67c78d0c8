#include "serve/kserve/models/generation_models.h"

#include <model_config.pb.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "serve/generate_call.h"
#include "serve/kserve/models/generation_response.h"
#include "serve/kserve/running_requests.h"
#include "serve/unix_time.h"

namespace tandem::serve::kserve {
namespace {

// Everything that the calls of a model share.
struct Shared {
  ModelKind kind = ModelKind::kEnsemble;
  ModelPtr engine;
};

class GenerationCall final : public InferCall {
 public:
  GenerationCall(std::shared_ptr<Shared> shared, InferRequest request, GenerationRequest asked,
                 const Wake& wake)
      : shared_(std::move(shared)),
        request_(std::move(request)),
        asked_(std::move(asked)),
        num_choices_(asked_.prompts.front().num_choices),
        is_joined_(!asked_.is_streamed && request_.one_response),
        formatter_(shared_->kind, request_, asked_, UnixNanoseconds()),
        stop_(std::make_shared<Stop>(wake)) {
    std::vector<TextRequest> prompts = asked_.prompts;
    for (TextRequest& prompt : prompts) prompt.stream = asked_.is_streamed;
    call_ = std::make_unique<GenerateCall>(shared_->engine, std::move(prompts), wake);
    request_.running->Add(request_, stop_);
  }
  ~GenerationCall() override { request_.running->Remove(request_, stop_.get()); }

  std::string Summary() const override { return call_->Summary(); }

  CallNews Next(InferResponse& response, Status& error) override {
    while (true) {
      if (!responses_.empty()) {
        response = std::move(responses_.front());
        responses_.pop_front();
        return CallNews::kEvent;
      }
      if (is_over_) return CallNews::kDone;
      if (stop_->asked) {
        EndEarly();
        continue;
      }
      TextEvent event;
      switch (call_->Next(event)) {
        case CallNews::kNone:
          return CallNews::kNone;
        case CallNews::kEvent:
          if (asked_.is_streamed) {
            AddStreamed(std::move(event));
          } else if (!is_joined_) {
            AddComplete(event.choice);
          }
          break;
        case CallNews::kDone:
          if (is_joined_) AddJoined();
          is_over_ = true;
          break;
        case CallNews::kFailed:
          error = NamingInputs(shared_->kind, asked_.prompts.front().names, event.error);
          return CallNews::kFailed;
      }
    }
  }

 private:
  bool is_text() const { return RowOf(shared_->kind).role == EngineRole::kText; }
  size_t num_answers() const { return asked_.prompts.size() * static_cast<size_t>(num_choices_); }
  const TextRequest& PromptOf(size_t answer) const {
    return asked_.prompts[answer / static_cast<size_t>(num_choices_)];
  }

  float LogProb(const TokenPiece& piece) const {
    return asked_.return_log_probs ? piece.logprob : 0.0f;
  }

  // Responses for an event: one for each token of a text, one for all new tokens without text.
  void AddStreamed(TextEvent event) {
    streamed_.resize(num_answers());
    const auto answer = static_cast<size_t>(event.choice);
    Streamed& before = streamed_[answer];
    const bool ends = event.finish != TextFinish::kNone;
    if (ends) before.ended = true;
    std::vector<Shown> shown;
    for (TokenPiece& piece : event.pieces) {
      if (shown.empty() || is_text()) shown.emplace_back();
      shown.back().text += piece.text;
      if (piece.token >= 0) {
        before.cum_log_prob += LogProb(piece);
        shown.back().Append(piece, LogProb(piece));
      }
      shown.back().cum_log_prob = before.cum_log_prob;
    }
    // The last response of an answer says that it is the last: one that ends without a token is
    // reported too.
    if (ends && shown.empty()) shown.push_back({.cum_log_prob = before.cum_log_prob});
    for (size_t i = 0; i < shown.size(); ++i) {
      InferResponse response = formatter_.Make({&shown[i], 1}, {&answer, 1});
      const std::vector<LogitsRow>* context = &event.context_logits;
      if (i == 0) formatter_.AddContextLogits({&context, 1}, response);
      if (ends && i + 1 == shown.size()) formatter_.AddFigures({&event.usage, 1}, response);
      responses_.push_back(std::move(response));
    }
    MarkFinal(std::all_of(streamed_.begin(), streamed_.end(),
                          [](const Streamed& one) { return one.ended; }));
  }

  // The response for an answer that is complete.
  void AddComplete(int32_t choice) {
    const auto answer = static_cast<size_t>(choice);
    const Shown shown = WholeAnswer(answer);
    InferResponse response = formatter_.Make({&shown, 1}, {&answer, 1});
    const std::vector<LogitsRow>* context = &call_->answers()[answer].context_logits;
    formatter_.AddContextLogits({&context, 1}, response);
    formatter_.AddFigures({&call_->answers()[answer].usage, 1}, response);
    responses_.push_back(std::move(response));
    MarkFinal(++num_complete_ == num_answers());
  }

  // The only response of a call whose transport takes no more.
  void AddJoined() {
    std::vector<Shown> shown;
    std::vector<size_t> indices;
    for (size_t i = 0; i < call_->answers().size(); ++i) {
      shown.push_back(WholeAnswer(i));
      indices.push_back(i);
    }
    InferResponse response = formatter_.Make(shown, indices);
    std::vector<Usage> usages;
    std::vector<const std::vector<LogitsRow>*> contexts;
    for (size_t i = 0; i < call_->answers().size(); ++i) {
      usages.push_back(call_->answers()[i].usage);
      // With the first answer of each prompt.
      if (i % static_cast<size_t>(num_choices_) == 0) {
        contexts.push_back(&call_->answers()[i].context_logits);
      }
    }
    formatter_.AddContextLogits(contexts, response);
    formatter_.AddFigures(usages, response);
    responses_.push_back(std::move(response));
    MarkFinal(true);
  }

  // The request was stopped: the answer is what exists so far. In a stream that has begun, each
  // unfinished answer gets a last response without tokens.
  void EndEarly() {
    if (num_complete_ > 0 || call_->answers().empty()) {
      responses_.emplace_back();
    } else if (asked_.is_streamed) {
      streamed_.resize(num_answers());
      for (size_t answer = 0; answer < streamed_.size(); ++answer) {
        if (streamed_[answer].ended) continue;
        const Shown rest = {.cum_log_prob = streamed_[answer].cum_log_prob};
        responses_.push_back(formatter_.Make({&rest, 1}, {&answer, 1}));
      }
    } else {
      AddJoined();
    }
    MarkFinal(true);
    call_.reset();  // cancels
  }

  // Nothing follows a response that is final.
  void MarkFinal(bool is_final) {
    if (!is_final) return;
    is_over_ = true;
    responses_.back().is_final = true;
    if (call_ != nullptr && call_->usage().seed != 0) responses_.back().seed = call_->usage().seed;
  }

  Shown WholeAnswer(size_t index) const {
    const TextChoice& answer = call_->answers()[index];
    Shown shown;
    if (!asked_.exclude_input && is_text()) shown.text = PromptOf(index).text.value_or("");
    shown.text += answer.text;
    if (!asked_.exclude_input && !is_text()) shown.tokens = *PromptOf(index).tokens;
    for (const TokenPiece& piece : answer.pieces) {
      if (piece.token < 0) continue;
      shown.Append(piece, LogProb(piece));
      shown.cum_log_prob += LogProb(piece);
    }
    // Pieces are kept only if the client asked for them.
    if (is_text() && !asked_.return_log_probs) {
      shown.log_probs.resize(static_cast<size_t>(answer.num_tokens));
    }
    return shown;
  }

  struct Streamed {
    float cum_log_prob = 0.0f;
    bool ended = false;
  };

  const std::shared_ptr<Shared> shared_;
  const InferRequest request_;
  const GenerationRequest asked_;
  const int64_t num_choices_;
  const bool is_joined_;  // all answers in one response
  const ResponseFormatter formatter_;
  const std::shared_ptr<Stop> stop_;
  std::unique_ptr<GenerateCall> call_;
  std::vector<Streamed> streamed_;  // [answers], of a stream
  size_t num_complete_ = 0;
  bool is_over_ = false;
  std::deque<InferResponse> responses_;  // not taken yet
};

// A call that has ended before it began.
class EndedCall final : public InferCall {
 public:
  explicit EndedCall(Status error) : error_(std::move(error)) {}

  bool is_refused() const override { return !error_.ok(); }
  CallNews Next(InferResponse& response, Status& error) override {
    if (std::exchange(is_over_, true)) return CallNews::kDone;
    if (error_.ok()) {
      response = {};
      response.is_final = true;
      return CallNews::kEvent;
    }
    error = error_;
    return CallNews::kFailed;
  }

 private:
  const Status error_;  // ok: one response without outputs
  bool is_over_ = false;
};

class GenerationModel final : public InferModel {
 public:
  GenerationModel(const inference::ModelConfig& config, ModelPtr engine,
                  GenerationModelOptions options)
      : config_(config), options_(std::move(options)), shared_(std::make_shared<Shared>()) {
    shared_->kind = options_.kind;
    shared_->engine = std::move(engine);
  }

  const inference::ModelConfig& config() const override { return config_; }
  std::vector<std::string> members() const override { return options_.members; }
  bool Ready() const override { return shared_->engine->service->Alive(); }

  std::unique_ptr<InferCall> Infer(InferRequest request, Wake wake) const override {
    const int64_t batch = config_.max_batch_size() > 0 ? request.inputs.front().shape.front() : 1;
    Result<GenerationRequest> asked =
        ReadGeneration(options_.kind, request, batch, options_.defaults);
    if (!asked.ok()) return std::make_unique<EndedCall>(asked.status());
    if (asked->stop) {
      request.running->StopAll(request);
      return std::make_unique<EndedCall>(Status());
    }
    const bool is_decoupled = config_.model_transaction_policy().decoupled();
    if (asked->is_streamed && !is_decoupled) {
      return std::make_unique<EndedCall>(InvalidArgument(
          "Streaming is only supported if model is deployed using decoupled mode."));
    }
    request.one_response = request.one_response || !is_decoupled;
    if (request.one_response) asked->is_streamed = false;
    request.inputs.clear();  // read
    return std::make_unique<GenerationCall>(shared_, std::move(request), *std::move(asked), wake);
  }

 private:
  const inference::ModelConfig config_;
  const GenerationModelOptions options_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

InferModelPtr MakeGenerationModel(const inference::ModelConfig& config, ModelPtr engine,
                                  GenerationModelOptions options) {
  return std::make_shared<GenerationModel>(config, std::move(engine), std::move(options));
}

}  // namespace tandem::serve::kserve
