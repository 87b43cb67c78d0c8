#include "quantize/recipe.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace tandem {
namespace {

using Element = QuantScheme::Element;
using Inputs = QuantScheme::Inputs;
using InputScales = QuantizeRecipe::InputScales;

struct Format {
  std::string_view name;
  QuantScheme scheme;
  InputScales input_scales = InputScales::kNone;
};

constexpr std::string_view kFullPrecision = "full_prec";

// AWQ's groups are of the size that is asked for.
constexpr std::array kFormats = {
    Format{kFullPrecision, {}},
    Format{"fp8", Fp8Scheme(Inputs::kStatic)},
    Format{"int8_wo", {.element = Element::kInt8, .block_rows = 1}},
    Format{"int4_wo", {.element = Element::kInt4, .block_rows = 1}},
    Format{"int8_sq",
           {.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kStatic},
           InputScales::kSmoothQuant},
    Format{"int4_awq", {.element = Element::kInt4, .block_rows = 1}, InputScales::kAwq},
    Format{"w4a8_awq",
           {.element = Element::kInt4, .block_rows = 1, .inputs = Inputs::kStatic},
           InputScales::kAwq},
};

}  // namespace

std::string QuantFormatNames() {
  std::string names;
  for (const Format& format : kFormats) {
    if (format.name == kFullPrecision) continue;
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  }
  return names;
}

Result<QuantizeRecipe> RecipeOf(const std::string& qformat, int64_t awq_block_size,
                                const std::string& kv_cache_dtype) {
  const auto* const format = std::ranges::find(kFormats, qformat, &Format::name);
  if (format == kFormats.end()) {
    return Unimplemented("qformat \"" + qformat + "\" is not made; there are " +
                         std::string(kFullPrecision) + ", " + QuantFormatNames());
  }
  QuantizeRecipe recipe{.scheme = format->scheme, .input_scales = format->input_scales};
  if (format->input_scales == InputScales::kAwq) {
    if (awq_block_size != 64 && awq_block_size != 128) {
      return InvalidArgument("awq_block_size is " + std::to_string(awq_block_size) +
                             "; it must be 64 or 128");
    }
    recipe.scheme.block_columns = awq_block_size;
  }
  if (kv_cache_dtype == "fp8") {
    recipe.cache_scales = DType::kF8E4M3;
  } else if (kv_cache_dtype == "int8") {
    recipe.cache_scales = DType::kI8;
  } else if (!kv_cache_dtype.empty() && kv_cache_dtype != "none") {
    return Unimplemented("kv_cache_dtype \"" + kv_cache_dtype +
                         "\" is not supported; keys and values are kept in fp8, int8 or 16 bits");
  }
  return recipe;
}

}  // namespace tandem
