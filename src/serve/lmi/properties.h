// Properties: the headers of an invocation, with those that SageMaker passes inside one of its own.
// A view of the request.
#pragma once

#include <string>
#include <string_view>

#include "serve/http/message.h"

namespace tandem::serve::lmi {

inline constexpr std::string_view kCustomAttributes = "x-amzn-sagemaker-custom-attributes";
inline constexpr std::string_view kAdapterIdentifier = "x-amzn-sagemaker-adapter-identifier";
inline constexpr std::string_view kSynchronous = "x-synchronous";
inline constexpr std::string_view kStartingToken = "x-starting-token";
inline constexpr std::string_view kMaxItems = "x-max-items";
inline constexpr std::string_view kNextToken = "x-next-token";

// The header of that (lower-case) name, or else the attribute: X-Amzn-SageMaker-Custom-Attributes
// is "name=value;name=value". Empty: there is neither.
std::string PropertyOf(const HttpRequest& request, std::string_view name);

}  // namespace tandem::serve::lmi
