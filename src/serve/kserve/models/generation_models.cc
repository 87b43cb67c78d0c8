#include "serve/kserve/models/generation_models.h"

#include <model_config.pb.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "serve/generate_call.h"
#include "serve/unix_time.h"

namespace tandem::serve::kserve {
namespace {

// The end of a running request that another request may ask for.
struct Stop {
  explicit Stop(Wake call_wake) : wake(std::move(call_wake)) {}

  const Wake wake;
  std::atomic<bool> asked{false};
};

// The requests of one model that run, by their ids.
class RunningRequests {
 public:
  void Add(const std::string& id, const std::shared_ptr<Stop>& stop) {
    if (id.empty()) return;
    const MutexLock lock(mutex_);
    by_id_.emplace(id, stop);
  }
  void Remove(const std::string& id, const Stop* stop) {
    const MutexLock lock(mutex_);
    for (auto [at, end] = by_id_.equal_range(id); at != end; ++at) {
      if (at->second.get() != stop) continue;
      by_id_.erase(at);
      return;
    }
  }
  void StopAll(const std::string& id) {
    std::vector<std::shared_ptr<Stop>> stops;
    {
      const MutexLock lock(mutex_);
      for (auto [at, end] = by_id_.equal_range(id); at != end; ++at) stops.push_back(at->second);
    }
    for (const auto& stop : stops) {
      stop->asked = true;
      stop->wake();
    }
  }

 private:
  Mutex mutex_;
  std::multimap<std::string, std::shared_ptr<Stop>> by_id_ TANDEM_GUARDED_BY(mutex_);
};

// Callers with different API keys have different ids. Empty without an id.
std::string RunningId(const InferRequest& request) {
  return request.id.empty() ? "" : request.caller + "\n" + request.id;
}

// Everything that the calls of a model share.
struct Shared {
  ModelKind kind = ModelKind::kEnsemble;
  ModelPtr engine;
  RunningRequests running;
};

// One value a row: [values, 1].
template <typename T>
Tensor Column(std::string name, const std::vector<T>& values) {
  const std::vector<int64_t> shape = {static_cast<int64_t>(values.size()), 1};
  if constexpr (std::is_floating_point_v<T>) {
    return FloatTensor(std::move(name), shape, values);
  } else if constexpr (sizeof(T) == sizeof(int64_t)) {
    return Int64Tensor(std::move(name), shape, values);
  } else {
    return Int32Tensor(std::move(name), shape, values);
  }
}

// Rows of different lengths as a matrix [rows, longest].
template <typename T>
std::vector<T> Padded(const std::vector<std::vector<T>>& rows, T padding, int64_t& longest) {
  size_t most = 0;
  for (const std::vector<T>& row : rows) most = std::max(most, row.size());
  std::vector<T> matrix;
  matrix.reserve(rows.size() * most);
  for (const std::vector<T>& row : rows) {
    matrix.insert(matrix.end(), row.begin(), row.end());
    matrix.resize(matrix.size() + most - row.size(), padding);
  }
  longest = static_cast<int64_t>(most);
  return matrix;
}

// Some tokens of an answer, as a response shows them.
struct Shown {
  std::string text = {};
  std::vector<int32_t> tokens = {};
  std::vector<float> log_probs = {};  // of the tokens
  std::vector<float> logits = {};     // of the tokens, [tokens, vocab], if asked for
  float cum_log_prob = 0.0f;          // of the answer so far
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
        arrived_ns_(UnixNanoseconds()),
        stop_(std::make_shared<Stop>(wake)) {
    std::vector<TextRequest> prompts = asked_.prompts;
    for (TextRequest& prompt : prompts) prompt.stream = asked_.is_streamed;
    call_ = std::make_unique<GenerateCall>(shared_->engine, std::move(prompts), wake);
    shared_->running.Add(RunningId(request_), stop_);
  }
  ~GenerationCall() override { shared_->running.Remove(RunningId(request_), stop_.get()); }

  InferNews Next(InferResponse& response, Status& error) override {
    while (true) {
      if (!responses_.empty()) {
        response = std::move(responses_.front());
        responses_.pop_front();
        return InferNews::kResponse;
      }
      if (is_over_) return InferNews::kDone;
      if (stop_->asked) {
        EndEarly();
        continue;
      }
      TextEvent event;
      switch (call_->Next(event)) {
        case CallNews::kNone:
          return InferNews::kNone;
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
          error = std::move(event.error);
          return InferNews::kFailed;
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
        shown.back().tokens.push_back(piece.token);
        shown.back().log_probs.push_back(LogProb(piece));
        Append(piece.logits, shown.back().logits);
      }
      shown.back().cum_log_prob = before.cum_log_prob;
    }
    // The last response of an answer says that it is the last: one that ends without a token is
    // reported too.
    if (ends && shown.empty()) shown.push_back({.cum_log_prob = before.cum_log_prob});
    for (size_t i = 0; i < shown.size(); ++i) {
      InferResponse response = NewResponse({&shown[i], 1}, {&answer, 1});
      const std::vector<LogitsRow>* context = &event.context_logits;
      if (i == 0) AddContextLogits({&context, 1}, response);
      if (ends && i + 1 == shown.size()) Complete({&event.usage, 1}, response);
      responses_.push_back(std::move(response));
    }
    MarkFinal(std::all_of(streamed_.begin(), streamed_.end(),
                          [](const Streamed& one) { return one.ended; }));
  }

  // The response for an answer that is complete.
  void AddComplete(int32_t choice) {
    const auto answer = static_cast<size_t>(choice);
    const Shown shown = WholeAnswer(answer);
    InferResponse response = NewResponse({&shown, 1}, {&answer, 1});
    const std::vector<LogitsRow>* context = &call_->answers()[answer].context_logits;
    AddContextLogits({&context, 1}, response);
    Complete({&call_->answers()[answer].usage, 1}, response);
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
    InferResponse response = NewResponse(shown, indices);
    std::vector<Usage> usages;
    std::vector<const std::vector<LogitsRow>*> contexts;
    for (size_t i = 0; i < call_->answers().size(); ++i) {
      usages.push_back(call_->answers()[i].usage);
      // With the first answer of each prompt.
      if (i % static_cast<size_t>(num_choices_) == 0) {
        contexts.push_back(&call_->answers()[i].context_logits);
      }
    }
    AddContextLogits(contexts, response);
    Complete(usages, response);
    responses_.push_back(std::move(response));
    MarkFinal(true);
  }

  // The request was stopped: the answer is what exists so far. In a stream, each unfinished answer
  // gets a last response without tokens.
  void EndEarly() {
    if (asked_.is_streamed) {
      streamed_.resize(num_answers());
      for (size_t answer = 0; answer < streamed_.size(); ++answer) {
        if (streamed_[answer].ended) continue;
        const Shown rest = {.cum_log_prob = streamed_[answer].cum_log_prob};
        responses_.push_back(NewResponse({&rest, 1}, {&answer, 1}));
      }
    } else if (num_complete_ > 0 || call_->answers().empty()) {
      responses_.emplace_back();
    } else {
      AddJoined();
    }
    MarkFinal(!responses_.empty());
    call_.reset();  // cancels
    is_over_ = true;
  }

  void MarkFinal(bool is_final) {
    if (!is_final) return;
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
      shown.tokens.push_back(piece.token);
      shown.log_probs.push_back(LogProb(piece));
      shown.cum_log_prob += LogProb(piece);
      Append(piece.logits, shown.logits);
    }
    // Pieces are kept only if the client asked for them.
    if (is_text() && !asked_.return_log_probs) {
      shown.log_probs.resize(static_cast<size_t>(answer.num_tokens));
    }
    return shown;
  }

  // `indices`: of the answers in `shown`, all of them or one.
  InferResponse NewResponse(std::span<const Shown> shown, std::span<const size_t> indices) const {
    InferResponse response;
    const auto add = [&](Tensor tensor) {
      if (request_.Wants(tensor.name)) response.outputs.push_back(std::move(tensor));
    };
    // Answers of one prompt are a row.
    const auto choices =
        shown.size() == 1 ? int64_t{1} : std::min(num_choices_, static_cast<int64_t>(shown.size()));
    const int64_t rows = static_cast<int64_t>(shown.size()) / choices;
    std::vector<std::string> texts;
    std::vector<std::vector<int32_t>> tokens;
    std::vector<int32_t> lengths;
    std::vector<float> sums;
    std::vector<std::vector<float>> log_probs;
    for (const Shown& one : shown) {
      texts.push_back(one.text);
      lengths.push_back(static_cast<int32_t>(one.tokens.size()));
      tokens.push_back(one.tokens);
      sums.push_back(one.cum_log_prob);
      log_probs.push_back(one.log_probs);
    }
    int64_t longest = 0;
    if (is_text()) {
      add(StringTensor("text_output", {static_cast<int64_t>(texts.size())}, texts));
    } else {
      const std::vector<int32_t> matrix = Padded<int32_t>(tokens, -1, longest);
      add(Int32Tensor("output_ids", {rows, choices, longest}, matrix));
      add(Int32Tensor("sequence_length", {rows, choices}, lengths));
    }
    // The text models of older servers always give them, in streams too.
    if (is_text() || asked_.return_log_probs || FillsIn()) {
      add(FloatTensor("cum_log_probs", {rows, choices}, sums));
      const std::vector<float> matrix = Padded<float>(log_probs, 0.0f, longest);
      add(FloatTensor("output_log_probs", {rows, choices, longest}, matrix));
    }
    if (const size_t vocab = VocabOf(shown); vocab > 0 && request_.Wants("generation_logits")) {
      response.outputs.push_back(GenerationLogits(shown, rows, choices, vocab));
    } else if (FillsIn()) {
      const std::vector<float> zeros(static_cast<size_t>(rows * choices));
      add(FloatTensor("generation_logits", {rows, choices, 1, 1}, zeros));
    }
    if (indices.size() == 1) {
      const auto [entry, choice] =
          std::div(static_cast<int>(indices[0]), static_cast<int>(num_choices_));
      if (asked_.prompts.size() > 1 || request_.Names("batch_index")) {
        add(Column<int32_t>("batch_index", {entry}));
      }
      if (num_choices_ > 1 || request_.Names("sequence_index")) {
        add(Column<int32_t>("sequence_index", {choice}));
      }
    }
    if (shared_->kind == ModelKind::kEnsemble) {
      response.parameters = {
          {"sequence_id", int64_t{0}}, {"sequence_start", false}, {"sequence_end", false}};
    }
    return response;
  }

  static void Append(const LogitsRow& row, std::vector<float>& logits) {
    logits.insert(logits.end(), row.begin(), row.end());
  }

  // Of the logits that the answers carry; 0 if they carry none.
  static size_t VocabOf(std::span<const Shown> shown) {
    for (const Shown& one : shown) {
      if (!one.logits.empty()) return one.logits.size() / one.log_probs.size();
    }
    return 0;
  }

  // [rows, choices, longest, vocab]
  static Tensor GenerationLogits(std::span<const Shown> shown, int64_t rows, int64_t choices,
                                 size_t vocab) {
    std::vector<std::vector<float>> logits;
    for (const Shown& one : shown) logits.push_back(one.logits);
    int64_t longest = 0;
    const std::vector<float> matrix = Padded<float>(logits, 0.0f, longest);
    const auto width = static_cast<int64_t>(vocab);
    return FloatTensor("generation_logits", {rows, choices, longest / width, width}, matrix);
  }

  // Clients written for Triton's release 24.04 read log-probabilities and logits from a raw model
  // without asking for them: they get zeros.
  bool FillsIn() const { return !is_text() && !asked_.is_streamed && request_.outputs.empty(); }

  // [prompts, longest, vocab]; of prompts whose logits came with this response.
  void AddContextLogits(std::span<const std::vector<LogitsRow>* const> prompts,
                        InferResponse& response) const {
    std::vector<std::vector<float>> rows;
    size_t vocab = 0;
    for (const std::vector<LogitsRow>* prompt : prompts) {
      std::vector<float>& row = rows.emplace_back();
      for (const LogitsRow& logits : *prompt) Append(logits, row);
      if (!prompt->empty()) vocab = prompt->front().size();
    }
    if (vocab == 0 && FillsIn()) {
      response.outputs.push_back(FloatTensor("context_logits",
                                             {static_cast<int64_t>(rows.size()), 1, 1},
                                             std::vector<float>(rows.size())));
    }
    if (vocab == 0 || !request_.Wants("context_logits")) return;
    int64_t longest = 0;
    const std::vector<float> matrix = Padded<float>(rows, 0.0f, longest);
    const auto width = static_cast<int64_t>(vocab);
    response.outputs.push_back(FloatTensor(
        "context_logits", {static_cast<int64_t>(rows.size()), longest / width, width}, matrix));
  }

  // Figures that are known when an answer is complete.
  void Complete(std::span<const Usage> usages, InferResponse& response) const {
    if (usages.empty()) return;
    response.queued = usages.front().queued;
    // A column of one value for each answer.
    const auto add = [&](bool is_asked, const char* name, auto value_of) {
      if (!is_asked && !request_.Names(name)) return;
      std::vector<decltype(value_of(usages.front()))> values;
      for (const Usage& usage : usages) values.push_back(value_of(usage));
      response.outputs.push_back(Column(name, values));
    };
    const auto at = [this](Nanos since_arrival) { return arrived_ns_ + since_arrival.count(); };
    add(asked_.return_num_input_tokens, "num_input_tokens",
        [](const Usage& usage) { return usage.prompt_tokens; });
    add(asked_.return_num_output_tokens, "num_output_tokens",
        [](const Usage& usage) { return usage.output_tokens; });
    const bool metrics = asked_.return_perf_metrics;
    const bool cache = asked_.return_cache_stats || metrics;
    add(cache, "kv_cache_alloc_new_blocks", [](const Usage& usage) { return usage.kv_blocks_new; });
    add(cache, "kv_cache_reused_blocks", [](const Usage& usage) { return usage.kv_blocks_reused; });
    add(cache, "kv_cache_alloc_total_blocks",
        [](const Usage& usage) { return usage.kv_blocks_total(); });
    add(metrics, "arrival_time_ns", [&](const Usage&) { return at(Nanos(0)); });
    add(metrics, "first_scheduled_time_ns", [&](const Usage& usage) { return at(usage.queued); });
    add(metrics, "first_token_time_ns", [&](const Usage& usage) { return at(usage.first_token); });
    add(metrics, "last_token_time_ns", [&](const Usage& usage) { return at(usage.last_token); });
    add(metrics, "acceptance_rate", [](const Usage& usage) {
      return usage.drafts_proposed == 0 ? 0.0f
                                        : static_cast<float>(usage.drafts_accepted) /
                                              static_cast<float>(usage.drafts_proposed);
    });
    add(metrics, "total_accepted_draft_tokens",
        [](const Usage& usage) { return usage.drafts_accepted; });
    add(metrics, "total_draft_tokens", [](const Usage& usage) { return usage.drafts_proposed; });
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
  const int64_t arrived_ns_;
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
  InferNews Next(InferResponse& response, Status& error) override {
    if (std::exchange(is_over_, true)) return InferNews::kDone;
    if (error_.ok()) {
      response = {};
      response.is_final = true;
      return InferNews::kResponse;
    }
    error = error_;
    return InferNews::kFailed;
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
      shared_->running.StopAll(RunningId(request));
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
