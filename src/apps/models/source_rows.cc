#include "apps/models/local_model.h"

namespace tandem::apps {
namespace {

template <auto kField>
BoundOption<SourceChoice> Sets(OptionSpec spec) {
  spec.group = "Downloads";
  return BindOption<SourceChoice, kField>(spec);
}

}  // namespace

const BoundOptions<SourceChoice>& SourceOptionRows() {
  static const BoundOptions<SourceChoice> rows({
      Sets<&SourceChoice::revision>(
          {.name = "revision",
           .meaning = "Branch, tag or commit of the models that come from a hub; main by default"}),
      Sets<&SourceChoice::download_dir>(
          {.name = "download_dir",
           .meaning =
               "Cache of downloads and unpacked archives; by default HF_HUB_CACHE for models "
               "of a hub, and ~/.cache/tandem"}),
      Sets<&SourceChoice::offline>(
          {.name = "offline",
           .meaning = "Download nothing: use what is in the cache, or say what is missing"}),
  });
  return rows;
}

}  // namespace tandem::apps
