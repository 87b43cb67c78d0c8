// `tandem eval dictionary`: the share of the embedded pair's answer key that a model still knows:
// the quality test for any model or engine made from it, with and without its draft.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench/load.h"
#include "apps/cli/text_verbs.h"
#include "apps/models/dictionary.h"
#include "apps/models/tokenizers.h"

namespace tandem::apps {
namespace {

constexpr size_t kFormSample = 1000;

struct EvalOptions {
  std::string task = "dictionary";
  size_t sample = 0;
  bool forms = false;
  int concurrency = 0;
  double min_recall = 0;
};

const BoundOptions<EvalOptions>& Rows() {
  constexpr std::string_view kEvaluation = "Evaluation";
  static const BoundOptions<EvalOptions> rows({
      BindOption<EvalOptions, &EvalOptions::task>({.name = "task",
                                                   .meaning = "What to measure",
                                                   .group = "Arguments",
                                                   .choices = "dictionary",
                                                   .position = Position::kOptional}),
      BindOption<EvalOptions, &EvalOptions::sample>(
          {.name = "sample",
           .meaning = "Words to ask, spread evenly over the answer key; 0: all",
           .group = kEvaluation,
           .min = 0,
           .max = 1e6}),
      BindOption<EvalOptions, &EvalOptions::forms>(
          {.name = "forms",
           .meaning = "Also ask 1,000 words in other wordings, in chats, and 1,000 made-up words",
           .group = kEvaluation}),
      BindOption<EvalOptions, &EvalOptions::concurrency>(
          {.name = "concurrency",
           .meaning = "Questions open at a time; 0: the batch size of all replicas",
           .group = kEvaluation,
           .min = 0,
           .max = 4096}),
      BindOption<EvalOptions, &EvalOptions::min_recall>(
          {.name = "min_recall",
           .meaning = "Fail when the share of exact answers is below this",
           .group = kEvaluation,
           .min = 0,
           .max = 1}),
  });
  return rows;
}

// One measured list of questions.
struct TaskFigures {
  std::string name;
  size_t asked = 0;
  size_t exact = 0;
  size_t unknown = 0;  // answered with the sentence for unknown words
  double output_rate = 0;
  double acceptance = 0;
  double accepted_per_token = 0;  // share of output tokens that came from a draft
  std::vector<std::string> answers;
  std::vector<std::string> wrong;  // words whose answer differs from the key's

  double ExactShare() const {
    return static_cast<double>(exact) / static_cast<double>(std::max<size_t>(asked, 1));
  }
};

class Evaluation {
 public:
  Evaluation(Session& session, Dictionary& dictionary, Console& console, int concurrency)
      : session_(session), dictionary_(dictionary), console_(console), concurrency_(concurrency) {}

  Result<TaskFigures> Ask(const std::string& name, const std::vector<DictionaryEntry>& entries,
                          const QuestionForm& form, bool use_draft) {
    std::vector<Request> requests;
    requests.reserve(entries.size());
    for (const DictionaryEntry& entry : entries) {
      TANDEM_ASSIGN_OR_RETURN(requests.emplace_back(), dictionary_.Ask(entry.word, form));
      if (!use_draft) requests.back().max_draft_len = 0;
    }
    TANDEM_ASSIGN_OR_RETURN(
        const LoadReport report,
        RunClosedLoop(*session_.engine, session_.clock, requests, concurrency_, [&](size_t done) {
          console_.Progress(name, static_cast<double>(done) / static_cast<double>(entries.size()));
        }));
    return Judge(name, entries, report);
  }

 private:
  TaskFigures Judge(const std::string& name, const std::vector<DictionaryEntry>& entries,
                    const LoadReport& report) const {
    TaskFigures figures;
    figures.name = name;
    figures.asked = entries.size();
    for (size_t i = 0; i < entries.size(); ++i) {
      const LoadRecord& record = report.records[i];
      std::string answer = dictionary_.Decode(record.choices.front());
      const bool ended = record.finish == FinishReason::kEnd;
      const bool exact = ended && answer == entries[i].answer;
      figures.exact += exact;
      if (!exact) figures.wrong.push_back(entries[i].word);
      figures.unknown += answer == Dictionary::UnknownAnswer();
      figures.answers.push_back(std::move(answer));
    }
    figures.output_rate = report.OutputRate();
    figures.acceptance = report.Acceptance();
    figures.accepted_per_token = static_cast<double>(report.DraftsAccepted()) /
                                 static_cast<double>(std::max<int64_t>(report.OutputTokens(), 1));
    return figures;
  }

  Session& session_;
  Dictionary& dictionary_;
  Console& console_;
  const int concurrency_;
};

void Say(const Console& console, const TaskFigures& figures) {
  console.Say(fmt::format(
      "{:44} {:6.2f} % exact of {:6}   {:8.1f} tok/s   {:5.1f} % of drafts held", figures.name,
      figures.ExactShare() * 100, figures.asked, figures.output_rate, figures.acceptance * 100));
}

nlohmann::ordered_json ToJson(const TaskFigures& figures) {
  return {{"name", figures.name},
          {"asked", figures.asked},
          {"exact", figures.ExactShare()},
          {"said_unknown", static_cast<double>(figures.unknown) /
                               static_cast<double>(std::max<size_t>(figures.asked, 1))},
          {"output_tokens_per_s", figures.output_rate},
          {"wrong", figures.wrong},
          {"acceptance", figures.acceptance},
          {"accepted_per_output_token", figures.accepted_per_token}};
}

// The first few words whose answer differs from the key.
void SayWrong(const Console& console, const TaskFigures& figures) {
  constexpr size_t kShown = 20;
  if (figures.wrong.empty()) return;
  std::string words;
  for (size_t i = 0; i < std::min(kShown, figures.wrong.size()); ++i) {
    words += (i > 0 ? ", " : "") + figures.wrong[i];
  }
  if (figures.wrong.size() > kShown) words += " ...";
  console.Say(fmt::format("  not the key's: {}", words));
}

size_t CountDifferent(const TaskFigures& a, const TaskFigures& b) {
  size_t different = 0;
  for (size_t i = 0; i < a.answers.size(); ++i) different += a.answers[i] != b.answers[i];
  return different;
}

// The other wordings, the chats and the made-up words.
Status AskForms(Evaluation& evaluation, const Dictionary& dictionary, bool use_draft,
                std::vector<TaskFigures>& all) {
  const auto sample = dictionary.Sample(kFormSample);
  const auto& forms = Dictionary::Forms();
  for (size_t i = 1; i < forms.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(all.emplace_back(),
                            evaluation.Ask(forms[i].name, sample, forms[i], use_draft));
  }
  std::vector<DictionaryEntry> made_up;
  for (const std::string& word : dictionary.made_up_words()) {
    made_up.push_back({word, Dictionary::UnknownAnswer()});
  }
  TANDEM_ASSIGN_OR_RETURN(all.emplace_back(),
                          evaluation.Ask("made-up words", made_up, forms.front(), use_draft));
  return {};
}

Status Run(const OptionValues& values, Console& console) {
  const EvalOptions options = Rows().Read(values);
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(values, console, QueueForAll));
  if (session->follows()) return FollowSession(*session);
  TANDEM_ASSIGN_OR_RETURN(TextModel text, OpenTextModel(*session));
  TANDEM_ASSIGN_OR_RETURN(Dictionary dictionary, Dictionary::Open(std::move(text.codec)));
  session->engine->Start();
  const auto entries =
      options.sample == 0 ? dictionary.entries() : dictionary.Sample(options.sample);
  const int32_t slots = session->engine->options().max_batch_size * session->engine->size();
  Evaluation evaluation(*session, dictionary, console,
                        options.concurrency > 0 ? options.concurrency : slots);
  const bool has_draft = session->engine->has_draft();
  const QuestionForm& form = Dictionary::Forms().front();

  std::vector<TaskFigures> all;
  TANDEM_ASSIGN_OR_RETURN(all.emplace_back(),
                          evaluation.Ask(form.name + ", target alone", entries, form, false));
  Say(console, all.back());
  SayWrong(console, all.back());
  size_t different = 0;
  if (has_draft) {
    TANDEM_ASSIGN_OR_RETURN(all.emplace_back(),
                            evaluation.Ask(form.name + ", with the draft", entries, form, true));
    Say(console, all.back());
    different = CountDifferent(all[0], all[1]);
    console.Say(fmt::format("answers that differ with and without the draft: {}", different));
  }
  if (options.forms) {
    const size_t first = all.size();
    TANDEM_RETURN_IF_ERROR(AskForms(evaluation, dictionary, has_draft, all));
    for (size_t i = first; i < all.size(); ++i) Say(console, all[i]);
  }
  nlohmann::ordered_json json = {{"model", session->target.name},
                                 {"different_with_draft", different},
                                 {"tasks", nlohmann::ordered_json::array()}};
  for (const TaskFigures& figures : all) json["tasks"].push_back(ToJson(figures));
  console.Result(json);
  // The fast kernels of a GPU may decide near-ties differently; everywhere else a token has only
  // one possible result.
  const bool invariant = session->backend->device().kind == Device::Kind::kCpu ||
                         session->options.backend.cuda.batch_invariant;
  const double most = invariant ? 0.0 : 0.005 * static_cast<double>(entries.size());
  if (static_cast<double>(different) > most) return Internal("the draft changed answers");
  if (all.front().ExactShare() < options.min_recall) {
    return FailedPrecondition(fmt::format("recall {:.4f} is below --min_recall {}",
                                          all.front().ExactShare(), options.min_recall));
  }
  return {};
}

}  // namespace

Command EvalCommand() {
  return {.name = "eval",
          .summary =
              "Measure quality: how many answers of the embedded dictionary a model gives exactly",
          .examples =
              "  tandem eval dictionary --sample 1000\n"
              "  tandem eval dictionary ENGINE_DIR DRAFT_ENGINE_DIR --min_recall 0.95\n",
          .options = Join({Rows().specs(), SessionOptionRows()}),
          .run = Run};
}

}  // namespace tandem::apps
