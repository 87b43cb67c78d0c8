#include "apps/verbs/answers.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace tandem::apps {
namespace {

nlohmann::ordered_json ToJson(const Prompt& prompt, const serve::TextResult& result) {
  nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
  for (const serve::TextChoice& choice : result.choices) {
    outputs.push_back({{"text", choice.text},
                       {"finish_reason", serve::TextFinishName(choice.finish)},
                       {"output_tokens", choice.usage.output_tokens},
                       {"drafts_proposed", choice.usage.drafts_proposed},
                       {"drafts_accepted", choice.usage.drafts_accepted},
                       {"seed", choice.usage.seed}});
  }
  return {{"input", prompt.shown}, {"outputs", outputs}};
}

}  // namespace

std::string OutputName(size_t prompt, size_t choice, bool several) {
  return several ? fmt::format("Output [Text {} Seq {} Beam 0]", prompt, choice)
                 : fmt::format("Output [Text {} Beam 0]", prompt);
}

std::string CsvLines(const serve::TextResult& result) {
  std::string lines;
  for (const serve::TextChoice& choice : result.choices) {
    std::string line;
    for (const serve::TokenPiece& piece : choice.pieces) {
      if (piece.token < 0) continue;  // text that was held back to the end
      line += fmt::format("{}{}", line.empty() ? "" : ",", piece.token);
    }
    lines += line + "\n";
  }
  return lines;
}

Result<AnswerWriter> AnswerWriter::Open(const std::string& csv_path, const Console& console) {
  AnswerWriter writer(console);
  if (!csv_path.empty()) {
    writer.csv_path_ = csv_path;
    TANDEM_ASSIGN_OR_RETURN(
        writer.csv_, AtomicFileWriter::Create(csv_path, AtomicFileWriter::Unfinished::kKeep));
  }
  return writer;
}

Status AnswerWriter::Write(const Prompt& prompt, const serve::TextResult& result) {
  console_.ResultPart(written_ == 0 ? "[" : ",");
  console_.Result(ToJson(prompt, result));
  ++written_;
  if (csv_) {
    TANDEM_RETURN_IF_ERROR(csv_->Append(CsvLines(result)));
    lines_ += result.choices.size();
  }
  return console_.status();
}

Status AnswerWriter::Finish(const Status& failed) {
  console_.ResultPart(written_ == 0 ? "[]\n" : "]\n");
  if (!csv_) return failed;
  if (failed.ok()) return csv_->Commit();
  const std::string held = lines_ == 0   ? "no answer is"
                           : lines_ == 1 ? "the 1 answer before it is"
                                         : fmt::format("the {} answers before it are", lines_);
  return {failed.code(), fmt::format("{} ({} in {}.partial)", failed.message(), held, csv_path_)};
}

}  // namespace tandem::apps
