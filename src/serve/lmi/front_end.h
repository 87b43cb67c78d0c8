// The front ends of djl-serving's HTTP API, as SageMaker's LMI containers have it: /ping,
// /invocations, /predictions and the management of models. They only translate between wire and
// service. One for each prefix of a path, over shared parts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "serve/http/router.h"
#include "serve/lmi/counters.h"
#include "serve/lmi/model_list.h"
#include "serve/lmi/settings.h"
#include "serve/openai/answers/answer_format.h"

namespace tandem::serve::lmi {

inline constexpr std::string_view kFrontEndName = "lmi";  // in metrics

// Everything outlives the router, but for `metrics`, which is kept: the text of /metrics, to which
// /server/metrics adds its own.
std::vector<FrontEnd> MakeFrontEnds(const Host& host, const Settings& settings,
                                    const openai::AnswerFormatNames& formats, Counters& counters,
                                    const Clock& clock, std::function<std::string()> metrics);

}  // namespace tandem::serve::lmi
