// Reads how a Hugging Face folder describes its quantized weights: in quantization_config, or, from
// older tools, in a file beside config.json. docs/formats/quantized_folders.md lists the accepted
// forms. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/json_fields.h"
#include "model/spec.h"

namespace tandem {

// How a tool puts the elements, scales and zero points of a quantized matrix into tensors. Each has
// a reader in checkpoint/layouts/.
enum class Packing : uint8_t {
  kNone,           // weights are not quantized
  kBytes,          // fp8 or int8 elements, a byte each
  kGptq,           // GPTQ: words of elements along the columns, zero points less one
  kGptqV2,         // the same with zero points as they are
  kAwqGemm,        // AutoAWQ: words of elements along the rows
  kAwqGemv,        // AutoAWQ: words of elements along the columns
  kPackQuantized,  // compressed-tensors: words of elements along the columns
  kRowPairs,       // modelopt: two rows in a byte
  kNvFp4,          // modelopt: scales of groups in fp8, multiplied by one of the tensor
  kNvFp4Packed,    // compressed-tensors: the same, divided by one of the tensor
  kMxFp4,          // modelopt: fp4 with scales of groups that are powers of two
  kMxFp4Packed,    // compressed-tensors: the same
  kMxFp4Blocks,    // gpt-oss: the same, each group's bytes in a dimension of their own
};

struct HfQuantization {
  // Of most of the layers' products. What a folder stores says more: which weights were left as
  // they were, which have zero points, factors or an order of their inputs.
  QuantScheme scheme;
  Packing packing = Packing::kNone;
  // The type of cache that stored scales of keys and values are for; none: no supported one.
  std::optional<DType> cache_scales = DType::kF8E4M3;
  bool operator==(const HfQuantization&) const = default;
};

// What config.json says. Anything unsupported is recorded as a fault of `config`, with its key.
// Lists of modules left out ("ignore") are not read: the stored weights show it.
HfQuantization ReadHfQuantization(const JsonFields& config);
// Sets the spec's quantization to it, and the scales of keys and values if the config names them.
void ReadQuantization(const JsonFields& config, ModelSpec& spec);

// A file that describes the quantization where config.json does not.
struct QuantizationFile {
  std::string_view name;
  HfQuantization (*read)(const JsonFields& json);
};
std::span<const QuantizationFile> QuantizationFiles();

}  // namespace tandem
