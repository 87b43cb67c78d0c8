#include "apps/models/tokenizers.h"

#include <fmt/format.h>

#include <string>

#include "apps/models/describe_model.h"
#include "base/log.h"
#include "checkpoint/output_folder.h"
#include "text/tokenizer.h"

namespace tandem::apps {
namespace {

Result<std::filesystem::path> TokenizerFolder(const Session& session) {
  const std::filesystem::path& named = session.options.models.tokenizer_dir;
  if (!named.empty()) return named;
  if (!session.target.folder.empty()) return session.target.folder;
  return InvalidArgument("the model has no tokenizer beside it: give --tokenizer_dir");
}

// Drafted ids must mean the same text to both models, and the draft must have a row for every token
// it reads. A draft folder without a tokenizer is assumed to share the target's: old engines were
// built without one.
Status CheckDraft(const std::filesystem::path& target, const Session& session) {
  if (session.draft == nullptr || session.draft->folder.empty()) return {};
  const int64_t rows = session.draft->spec.vocab_size;
  TANDEM_ASSIGN_OR_RETURN(const auto ours, Tokenizer::Load(target));
  if (!ours->FitsVocabulary(rows).ok()) {
    return InvalidArgument(fmt::format(
        "the draft's vocabulary is smaller than the target's: it has {} rows for the {} "
        "tokens of the target's tokenizer, so it cannot read all that the target writes",
        rows, ours->VocabSize()));
  }
  std::string differs;
  if (HasTokenizer(session.draft->folder)) {
    TANDEM_ASSIGN_OR_RETURN(const auto drafts, Tokenizer::Load(session.draft->folder));
    TANDEM_RETURN_IF_ERROR(ours->CompatibleWith(*drafts).Annotate(
        "the draft's tokenizer differs from the target's, so it cannot draft for it"));
    differs = ours->HarmlessDifference("the target's tokenizer", *drafts, "the draft's");
  }
  if (rows != session.target.spec.vocab_size) {
    differs += fmt::format("{}the target's model has {} rows, the draft's {}",
                           differs.empty() ? "" : "; ", session.target.spec.vocab_size, rows);
  }
  if (!differs.empty()) {
    LogWarning(
        "the draft is not quite the target's kind: {}. It drafts all the same; check that "
        "it is meant for this target",
        differs);
  }
  return {};
}

}  // namespace

Result<std::string> DescribeTokenizer(const std::filesystem::path& folder) {
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(folder));
  return fmt::format("{}, {} tokens", tokenizer->Kind(), tokenizer->VocabSize());
}

Result<TextModel> OpenTextModel(const Session& session, const TextSettings& settings) {
  const int64_t vocab = session.target.spec.vocab_size;
  if (settings.n_vocab && *settings.n_vocab != vocab) {
    return InvalidArgument(
        fmt::format("tokenizer.n_vocab_override: {} is not the model's number of tokens, {}, which "
                    "is read from the model; leave the key out",
                    *settings.n_vocab, vocab));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path folder, TokenizerFolder(session));
  TextModel model;
  TANDEM_ASSIGN_OR_RETURN(model.codec,
                          serve::LoadTextCodec(folder, vocab,
                                               {.config_overrides = settings.tokenizer_config,
                                                .grammars = settings.grammars}));
  TANDEM_RETURN_IF_ERROR(CheckDraft(folder, session));
  TANDEM_ASSIGN_OR_RETURN(model.defaults, serve::LoadGenerationDefaults(folder));
  return model;
}

}  // namespace tandem::apps
