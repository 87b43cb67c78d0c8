#include "apps/tokenizers.h"

#include "base/file.h"
#include "text/tokenizer.h"

namespace tandem::apps {
namespace {

Result<std::filesystem::path> TokenizerFolder(const OptionValues& options, const Session& session) {
  if (options.IsSet("tokenizer_dir")) return std::filesystem::path(options.Text("tokenizer_dir"));
  if (!session.target.folder.empty()) return session.target.folder;
  return InvalidArgument("the model has no tokenizer.json beside it: give --tokenizer_dir");
}

// Drafted ids must mean the same text to both models. A draft folder without a tokenizer is taken
// to share the target's: engines of old were built without one.
Status CheckDraft(const std::filesystem::path& target, const Session& session) {
  if (session.draft == nullptr || session.draft->folder.empty()) return {};
  if (!NameExists(session.draft->folder / "tokenizer.json")) return {};
  TANDEM_ASSIGN_OR_RETURN(const auto ours, Tokenizer::Load(target));
  TANDEM_ASSIGN_OR_RETURN(const auto drafts, Tokenizer::Load(session.draft->folder));
  return ours->CompatibleWith(*drafts).Annotate(
      "the draft's tokenizer differs from the target's, so it cannot draft for it");
}

}  // namespace

Result<TextModel> OpenTextModel(const OptionValues& options, const Session& session) {
  TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path folder, TokenizerFolder(options, session));
  TANDEM_RETURN_IF_ERROR(CheckDraft(folder, session));
  TextModel model;
  TANDEM_ASSIGN_OR_RETURN(model.codec, serve::LoadTextCodec(folder));
  TANDEM_ASSIGN_OR_RETURN(model.defaults, serve::LoadGenerationDefaults(folder));
  return model;
}

}  // namespace tandem::apps
