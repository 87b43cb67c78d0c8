// Models in the JSON of djl-serving's management routes. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "serve/lmi/model_list.h"
#include "serve/lmi/settings.h"

namespace tandem::serve::lmi {

// {"models": [{"modelName","modelUrl","status"}], "nextPageToken"}: `limit` of them from `begin`
// on.
std::string FormatModelList(const std::vector<ListedModel>& models, size_t begin, size_t limit);
// {"workflows": [{"workflowName"}], "nextPageToken"}.
std::string FormatWorkflowList(const std::vector<ListedModel>& models, size_t begin, size_t limit);
// [{"workflowName","models":[{..., "workerGroups"}]}].
std::string FormatDescription(const ListedModel& model, const Settings& settings);
// {"status": TEXT}.
std::string FormatStatusText(std::string_view text);

}  // namespace tandem::serve::lmi
