#include "apps/models/load_quantization.h"

#include <fmt/core.h>

#include <utility>

#include "apps/models/quantized_model.h"
#include "base/log.h"

namespace tandem::apps {
namespace {

using Scheme = CalibratedQuantization::Scheme;

constexpr std::string_view kGroup = "Quantization at load";

template <auto kField>
BoundOption<LoadQuantization> Sets(OptionSpec spec) {
  spec.group = kGroup;
  return BindOption<LoadQuantization, kField>(spec);
}

using L = LoadQuantization;
constexpr auto kAlpha = [](L& o) -> auto& { return o.details.alpha; };
constexpr auto kPerToken = [](L& o) -> auto& { return o.details.per_token; };
constexpr auto kPerChannel = [](L& o) -> auto& { return o.details.per_channel; };
constexpr auto kMultiQuery = [](L& o) -> auto& { return o.details.multi_query_mode; };
constexpr auto kFormat = [](L& o) -> auto& { return o.details.awq_format; };
constexpr auto kBlockSize = [](L& o) -> auto& { return o.details.block_size; };
constexpr auto kCalibSize = [](L& o) -> auto& { return o.details.calib_size; };
constexpr auto kBatchSize = [](L& o) -> auto& { return o.details.calib_batch_size; };
constexpr auto kFp8Attention = [](L& o) -> auto& { return o.details.use_fp8_context_fmha; };

}  // namespace

std::optional<CalibratedQuantization> LoadQuantization::Asked() const {
  if (!scheme) return std::nullopt;
  CalibratedQuantization asked = details;
  asked.scheme = *scheme;
  return asked;
}

const BoundOptions<LoadQuantization>& LoadQuantizationRows() {
  static const BoundOptions<L> rows({
      BindChoice<L, &L::scheme>(
          {.name = "quantize",
           .meaning = "Quantize the target with calibration, when it is first opened, into a cache "
                      "($DJL_CACHE_DIR, $XDG_CACHE_HOME/tandem or ~/.cache/tandem) that later "
                      "starts open: smoothquant: int8 weights and inputs; awq: int4 in groups; "
                      "fp8. --weights rounds without calibration and keeps nothing",
           .group = kGroup},
          {{"none", std::nullopt},
           {"smoothquant", Scheme::kSmoothQuant},
           {"awq", Scheme::kAwq},
           {"fp8", Scheme::kFp8}}),
      Sets<kAlpha>({.name = "smoothquant_alpha",
                    .meaning = "Of smoothquant: how much of the inputs' range moves into the "
                               "weights",
                    .min = 0,
                    .max = 1}),
      Sets<kPerToken>({.name = "smoothquant_per_token",
                       .meaning = "Of smoothquant: each token's inputs are scaled by their own "
                                  "maximum, not by a calibrated one"}),
      Sets<kPerChannel>({.name = "smoothquant_per_channel",
                         .meaning = "Of smoothquant: a scale for each output. Always so; "
                                    "accepted"}),
      Sets<kMultiQuery>({.name = "multi_query_mode",
                         .meaning = "Of smoothquant: heads share keys and values. config.json says "
                                    "it; accepted"}),
      Sets<kFormat>({.name = "awq_format",
                     .meaning = "Of awq: w4a8_awq has fp8 inputs",
                     .choices = "int4_awq|w4a8_awq",
                     .alias = "q_format"}),
      Sets<kBlockSize>({.name = "awq_block_size",
                        .meaning = "Of awq: columns of a group with one scale",
                        .choices = "64|128"}),
      Sets<kCalibSize>({.name = "calib_size",
                        .meaning = "Samples to calibrate with, at most",
                        .min = 1,
                        .max = 1e6,
                        .alias = "awq_calib_size"}),
      Sets<kBatchSize>({.name = "calib_batch_size",
                        .meaning = "Samples that are run together, at most, and within 2,048 "
                                   "tokens",
                        .min = 1,
                        .max = 1e6}),
      Sets<&L::calib_dataset>(
          {.name = "calib_dataset",
           .meaning = "A text file (a sample a line) or a .jsonl file (of objects with \"text\", "
                      "\"article\" or \"prompt\") to calibrate with. Any other name means the "
                      "embedded dictionary, which needs no network"}),
      Sets<kFp8Attention>({.name = "use_fp8_context_fmha",
                           .meaning = "Of fp8: attention of prompts in fp8. It computes in 16 "
                                      "bits; accepted"}),
  });
  return rows;
}

void NameIdleQuantization(const OptionValues& values, const LoadQuantization& asked) {
  const BoundOptions<L>& rows = LoadQuantizationRows();
  const auto of_scheme = [&](const OptionSpec& row, Scheme scheme, std::string_view name) {
    if (values.IsSet(row) && asked.scheme != scheme) {
      LogWarning("--{} has no effect without --quantize {}", row.name, name);
    }
  };
  of_scheme(rows.RowOf<kAlpha>(), Scheme::kSmoothQuant, "smoothquant");
  of_scheme(rows.RowOf<kPerToken>(), Scheme::kSmoothQuant, "smoothquant");
  of_scheme(rows.RowOf<kFormat>(), Scheme::kAwq, "awq");
  of_scheme(rows.RowOf<kBlockSize>(), Scheme::kAwq, "awq");
  for (const OptionSpec* row :
       {&rows.RowOf<kCalibSize>(), &rows.RowOf<kBatchSize>(), &rows.RowOf<&L::calib_dataset>()}) {
    if (values.IsSet(*row) && !asked.scheme) {
      LogWarning("--{} has no effect without --quantize", row->name);
    }
  }
  const auto without_effect = [&](const OptionSpec& row, std::string_view why) {
    if (values.IsSet(row)) LogWarning("--{} has no effect: {}", row.name, why);
  };
  if (!asked.details.per_channel) {
    without_effect(rows.RowOf<kPerChannel>(),
                   "weights always have a scale for each output, which is finer and not slower");
  }
  without_effect(rows.RowOf<kMultiQuery>(), "config.json says how heads share keys and values");
  without_effect(rows.RowOf<kFp8Attention>(),
                 "attention computes in 16 bits; --kv_cache_dtype fp8 stores its keys and values "
                 "in fp8");
}

}  // namespace tandem::apps
