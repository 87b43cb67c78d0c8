// Folders as other tools quantize them, written from the formats' descriptions without the code
// that reads them, together with the same model in fp32. Test code; what WriteBoth returns is owned
// by the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "checkpoint/testing/hf_folder.h"

namespace tandem::quantized {

// A quantized matrix before it is packed.
struct Matrix {
  int rows = 0;
  int cols = 0;
  int block_rows = 1;
  int group = 0;               // columns that share a scale
  std::vector<int> codes;      // [rows][cols] what is stored of an element
  std::vector<float> numbers;  // [rows][cols] what it means before zero points and scales
  std::vector<float> scales;   // [row blocks][groups]
  std::vector<int> zeros;      // the same
  std::vector<int> group_of;   // [cols]
  std::vector<float> factors;  // [cols]
  float input_scale = 0.0f;

  int groups() const { return (cols + group - 1) / group; }
  size_t At(int row, int col) const {
    return static_cast<size_t>(row) * static_cast<size_t>(cols) + static_cast<size_t>(col);
  }
  size_t Block(int row, int g) const {
    return static_cast<size_t>(row / block_rows) * static_cast<size_t>(groups()) +
           static_cast<size_t>(g);
  }
  size_t num_scales() const { return Block((rows + block_rows - 1) / block_rows * block_rows, 0); }
  float Value(int row, int col) const {
    const size_t block = Block(row, group_of[static_cast<size_t>(col)]);
    return (numbers[At(row, col)] - static_cast<float>(zeros[block])) * scales[block] *
           factors[static_cast<size_t>(col)];
  }
};

inline float Fp8(int code) {
  const int exponent = (code >> 3) & 15;
  const double mantissa = (code & 7) / 8.0 + (exponent == 0 ? 0.0 : 1.0);
  const double magnitude = mantissa * std::pow(2.0, std::max(exponent, 1) - 7);
  return static_cast<float>((code & 128) != 0 ? -magnitude : magnitude);
}

inline float Fp4(int code) {
  constexpr float kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

using Random = std::mt19937;

// Zero points and scales of a random matrix.
inline Matrix Scaled(Random& random, int rows, int cols, int group, int block_rows,
                     int zero_range) {
  Matrix m;
  m.rows = rows;
  m.cols = cols;
  m.block_rows = block_rows;
  m.group = group == 0 ? cols : group;
  m.codes.resize(m.At(rows, 0));
  m.numbers.resize(m.codes.size());
  m.zeros.resize(m.num_scales());
  m.factors.assign(static_cast<size_t>(cols), 1.0f);
  for (int& zero : m.zeros)
    zero = zero_range == 0 ? 0 : static_cast<int>(random() % 5) - zero_range;
  // Exact in every floating-point type.
  for (size_t i = 0; i < m.zeros.size(); ++i) {
    m.scales.push_back(static_cast<float>(17 + random() % 15) / 1024.0f);
  }
  for (int col = 0; col < cols; ++col) m.group_of.push_back(col / m.group);
  return m;
}

// Integers, signed, of 4 or 8 bits; the codes are from 0.
inline Matrix Integers(Random& random, int rows, int cols, int bits, int group,
                       bool zeros = false) {
  Matrix m = Scaled(random, rows, cols, group, 1, zeros ? 2 : 0);
  for (float& scale : m.scales) scale /= bits == 8 ? 16.0f : 1.0f;
  for (size_t i = 0; i < m.codes.size(); ++i) {
    m.codes[i] = static_cast<int>(random() % (1u << bits));
    m.numbers[i] = static_cast<float>(m.codes[i] - (1 << (bits - 1)));
  }
  return m;
}

inline Matrix Floats(Random& random, int rows, int cols, int bits, int group, int block_rows = 1) {
  Matrix m = Scaled(random, rows, cols, group, block_rows, 0);
  for (size_t i = 0; i < m.codes.size(); ++i) {
    m.codes[i] = static_cast<int>(random() & (bits == 8 ? 0xd7u : 15u));
    m.numbers[i] = bits == 8 ? Fp8(m.codes[i]) : Fp4(m.codes[i]);
  }
  return m;
}

// Members of each group all over the columns, as act-order leaves them.
inline void Shuffle(Random& random, Matrix& m) {
  std::shuffle(m.group_of.begin(), m.group_of.end(), random);
}

// Tensors of a folder in the making; owns what it adds.
class Packer {
 public:
  explicit Packer(std::map<std::string, Tensor>& tensors) : tensors_(tensors) {}

  template <typename T>
  void Put(const std::string& name, DType dtype, const Shape& shape, const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    memory_.push_back(Buffer::OnHost(bytes));
    std::memcpy(memory_.back().data(), values.data(), bytes);
    tensors_[name] = memory_.back().View(dtype, shape);
  }
  void PutF16(const std::string& name, const Shape& shape, const std::vector<float>& values) {
    std::vector<uint16_t> halves;
    for (const float value : values) halves.push_back(ToFloat16(value).bits);
    Put(name, DType::kF16, shape, halves);
  }
  // `count` numbers in words of 32 bits for each of `outer`, one after the other or, transposed,
  // one beside the other.
  void PutWords(const std::string& name, int outer, int count, int bits, bool transposed,
                const std::function<int(int outer, int index)>& number,
                std::span<const int> places = {}) {
    const int per_word = 32 / bits;
    const int words = (count + per_word - 1) / per_word;
    std::vector<uint32_t> packed(static_cast<size_t>(outer * words));
    for (int o = 0; o < outer; ++o) {
      for (int i = 0; i < count; ++i) {
        const int place = places.empty() ? i % per_word : places[static_cast<size_t>(i % per_word)];
        const int word = i / per_word;
        const int at = transposed ? word * outer + o : o * words + word;
        packed[static_cast<size_t>(at)] |=
            (static_cast<uint32_t>(number(o, i)) & ((1u << bits) - 1)) << (place * bits);
      }
    }
    Put(name, DType::kI32, transposed ? Shape{words, outer} : Shape{outer, words}, packed);
  }
  void Erase(const std::string& name) { tensors_.erase(name); }

 private:
  std::map<std::string, Tensor>& tensors_;
  std::vector<Buffer> memory_;
};

inline std::vector<float> Transposed(const std::vector<float>& values, int rows, int cols) {
  std::vector<float> out;
  for (int col = 0; col < cols; ++col) {
    for (int row = 0; row < rows; ++row) {
      out.push_back(
          values[static_cast<size_t>(row) * static_cast<size_t>(cols) + static_cast<size_t>(col)]);
    }
  }
  return out;
}

// GPTQ: a zero point is that of codes from 0; the first version stores it less one.
inline void PackGptq(Packer& out, const std::string& name, const Matrix& m, int bits, int less) {
  out.PutWords(name + ".qweight", m.rows, m.cols, bits, true,
               [&](int row, int col) { return m.codes[m.At(row, col)]; });
  out.PutWords(name + ".qzeros", m.groups(), m.rows, bits, false, [&](int group, int row) {
    return m.zeros[m.Block(row, group)] + (1 << (bits - 1)) - less;
  });
  out.PutF16(name + ".scales", {m.groups(), m.rows}, Transposed(m.scales, m.rows, m.groups()));
  out.Put(name + ".g_idx", DType::kI32, {m.cols}, m.group_of);
  out.PutF16(name + ".bias", {m.rows}, std::vector<float>(static_cast<size_t>(m.rows)));
}

inline constexpr int kAwqPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};

inline void PackAwqGemm(Packer& out, const std::string& name, const Matrix& m, bool with_zeros) {
  out.PutWords(
      name + ".qweight", m.cols, m.rows, 4, false,
      [&](int col, int row) { return m.codes[m.At(row, col)]; }, kAwqPlaces);
  out.PutF16(name + ".scales", {m.groups(), m.rows}, Transposed(m.scales, m.rows, m.groups()));
  if (!with_zeros) return;
  out.PutWords(
      name + ".qzeros", m.groups(), m.rows, 4, false,
      [&](int group, int row) { return m.zeros[m.Block(row, group)] + 8; }, kAwqPlaces);
}

// Scales and zero points of a row are padded: to a multiple of 32 groups of 32 columns.
inline void PackAwqGemv(Packer& out, const std::string& name, const Matrix& m) {
  out.PutWords(name + ".qweight", m.rows, m.cols, 4, false,
               [&](int row, int col) { return m.codes[m.At(row, col)]; });
  const int padded = (m.groups() + 31) / 32 * 32;
  out.PutWords(name + ".qzeros", m.rows, padded, 4, false, [&](int row, int group) {
    return group < m.groups() ? m.zeros[m.Block(row, group)] + 8 : 0;
  });
  std::vector<float> scales;
  for (int row = 0; row < m.rows; ++row) {
    for (int g = 0; g < padded; ++g) {
      scales.push_back(g < m.groups() ? m.scales[m.Block(row, g)] : 0.0f);
    }
  }
  out.PutF16(name + ".scales", {m.rows, padded}, scales);
}

enum class ZeroPoints { kNone, kWords, kBytes };

inline void PackQuantized(Packer& out, const std::string& name, const Matrix& m, int bits,
                          ZeroPoints zeros) {
  out.PutWords(name + ".weight_packed", m.rows, m.cols, bits, false,
               [&](int row, int col) { return m.codes[m.At(row, col)]; });
  out.PutF16(name + ".weight_scale", {m.rows, m.groups()}, m.scales);
  out.Put(name + ".weight_shape", DType::kI64, {2}, std::vector<int64_t>{m.rows, m.cols});
  if (zeros == ZeroPoints::kWords) {
    out.PutWords(
        name + ".weight_zero_point", m.groups(), m.rows, bits, true,
        [&](int group, int row) { return m.zeros[m.Block(row, group)] + (1 << (bits - 1)); });
  } else if (zeros == ZeroPoints::kBytes) {
    out.Put(name + ".weight_zero_point", DType::kI8, {m.rows, m.groups()},
            std::vector<int8_t>(m.zeros.begin(), m.zeros.end()));
  }
  if (!std::ranges::is_sorted(m.group_of)) {
    out.Put(name + ".weight_g_idx", DType::kI32, {m.cols}, m.group_of);
  }
}

// A byte an element; integers are signed.
inline void PutBytes(Packer& out, const std::string& name, const Matrix& m, DType dtype) {
  std::vector<uint8_t> bytes;
  for (const int code : m.codes) {
    bytes.push_back(static_cast<uint8_t>(dtype == DType::kI8 ? code - 128 : code));
  }
  out.Put(name + ".weight", dtype, {m.rows, m.cols}, bytes);
}

inline void PackRowPairs(Packer& out, const std::string& name, const Matrix& m) {
  std::vector<uint8_t> bytes;
  for (int row = 0; row < m.rows; row += 2) {
    for (int col = 0; col < m.cols; ++col) {
      const int low = (m.codes[m.At(row, col)] - 8) & 15;
      const int high = (m.codes[m.At(row + 1, col)] - 8) & 15;
      bytes.push_back(static_cast<uint8_t>(low | high << 4));
    }
  }
  out.Put(name + ".weight", DType::kU8, {m.rows / 2, m.cols}, bytes);
  out.Put(name + ".weight_scale", DType::kF32, {m.rows, m.groups()}, m.scales);
}

// Two levels of scales: e4m3 numbers of 0x38 (1) to 0x47 times one of the tensor.
inline void PackNvFp4(Packer& out, const std::string& name, Matrix& m, bool modelopt) {
  std::vector<uint8_t> pairs;
  for (size_t i = 0; i < m.codes.size(); i += 2) {
    pairs.push_back(static_cast<uint8_t>(m.codes[i] | m.codes[i + 1] << 4));
  }
  const std::string elements = modelopt ? ".weight" : ".weight_packed";
  out.Put(name + elements, DType::kU8, {m.rows, m.cols / 2}, pairs);
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < m.scales.size(); ++i) {
    codes.push_back(static_cast<uint8_t>(0x38 + i % 16));
    m.scales[i] = Fp8(codes.back()) / 64.0f;
  }
  out.Put(name + ".weight_scale", DType::kF8E4M3, {m.rows, m.groups()}, codes);
  if (modelopt) {
    out.Put(name + ".weight_scale_2", DType::kF32, {}, std::vector<float>{1.0f / 64.0f});
    out.Put(name + ".input_scale", DType::kF32, {}, std::vector<float>{0.5f});
  } else {
    out.Put(name + ".weight_global_scale", DType::kF32, {1}, std::vector<float>{64.0f});
  }
}

// Scales of 2^-7 to 2^-4 as exponents.
inline void PackMxFp4(Packer& out, const std::string& name, Matrix& m, const std::string& elements,
                      const std::string& scales) {
  std::vector<uint8_t> pairs;
  for (size_t i = 0; i < m.codes.size(); i += 2) {
    pairs.push_back(static_cast<uint8_t>(m.codes[i] | m.codes[i + 1] << 4));
  }
  const bool blocks = elements == "_blocks";
  out.Put(name + elements, DType::kU8,
          blocks ? Shape{m.rows, m.groups(), m.group / 2} : Shape{m.rows, m.cols / 2}, pairs);
  std::vector<uint8_t> exponents;
  for (size_t i = 0; i < m.scales.size(); ++i) {
    exponents.push_back(static_cast<uint8_t>(120 + i % 4));
    m.scales[i] = std::ldexp(1.0f, exponents.back() - 127);
  }
  out.Put(name + scales, DType::kU8, {m.rows, m.groups()}, exponents);
}

struct Format {
  std::string name;
  // The object quantization_config, or what is in `file`.
  std::string config;
  std::string file = {};
  // Makes and packs one matrix.
  std::function<Matrix(Packer& out, const std::string& name, Random& random, int rows, int cols)>
      pack;
  std::string described;  // what DescribeScheme says
  bool head = false;      // is quantized too
};

inline std::string Compressed(const std::string& format, const std::string& weights,
                              const std::string& inputs = "null") {
  return R"({"quant_method": "compressed-tensors", "format": ")" + format +
         R"(", "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], )"
         R"("weights": {)" +
         weights + R"(}, "input_activations": )" + inputs + "}}}";
}

// Columns of the same inputs have the same order.
inline Random Alike(const std::string& name) {
  const bool qkv =
      name.find("self_attn.o") == std::string::npos && name.find("self_attn") != std::string::npos;
  const bool gate_up =
      name.find("gate") != std::string::npos || name.find("up") != std::string::npos;
  return Random(qkv ? 1u : gate_up ? 2u : static_cast<unsigned>(name.size()));
}

inline std::vector<Format> Formats() {
  const auto gptq = [](int bits, int group, bool zeros, int less, bool act_order = false) {
    return [=](Packer& out, const std::string& name, Random& random, int rows, int cols) {
      Matrix m = Integers(random, rows, cols, bits, group, zeros);
      Random order = Alike(name);
      if (act_order) Shuffle(order, m);
      PackGptq(out, name, m, bits, less);
      return m;
    };
  };
  const auto packed = [](int bits, int group, ZeroPoints zeros, bool act_order = false) {
    return [=](Packer& out, const std::string& name, Random& random, int rows, int cols) {
      Matrix m = Integers(random, rows, cols, bits, group, zeros != ZeroPoints::kNone);
      Random order = Alike(name);
      if (act_order) Shuffle(order, m);
      PackQuantized(out, name, m, bits, zeros);
      return m;
    };
  };
  const auto awq = [](int group, bool with_zeros) {
    return [=](Packer& out, const std::string& name, Random& random, int rows, int cols) {
      const Matrix m = Integers(random, rows, cols, 4, group, with_zeros);
      PackAwqGemm(out, name, m, with_zeros);
      return m;
    };
  };
  // Elements of a byte; `shape` of the scales as the tool writes it.
  const auto bytes = [](DType dtype, int group, int block_rows, const std::string& suffix,
                        const std::function<Shape(const Matrix&)>& shape, float input_scale = 0) {
    return [=](Packer& out, const std::string& name, Random& random, int rows, int cols) {
      const bool integers = dtype == DType::kI8;
      Matrix m = integers ? Integers(random, rows, cols, 8, group)
                          : Floats(random, rows, cols, 8, group, block_rows);
      const Shape stored = shape(m);
      if (stored.NumElements() == 1) std::ranges::fill(m.scales, m.scales[0]);
      PutBytes(out, name, m, dtype);
      out.Put(name + suffix, DType::kF32, stored,
              std::vector<float>(m.scales.begin(), m.scales.begin() + stored.NumElements()));
      m.input_scale = input_scale;
      if (input_scale > 0) {
        out.Put(name + ".input_scale", DType::kF32, {1}, std::vector<float>{input_scale});
        out.Put(name + ".input_zero_point", DType::kI8, {1}, std::vector<int8_t>{0});
      }
      return m;
    };
  };
  const auto by_row = [](const Matrix& m) { return Shape{m.rows, 1}; };
  const auto by_block = [](const Matrix& m) {
    return Shape{static_cast<int64_t>(m.num_scales()) / m.groups(), m.groups()};
  };
  const auto mxfp4 = [](const std::string& elements, const std::string& scales) {
    return [=](Packer& out, const std::string& name, Random& random, int rows, int cols) {
      Matrix m = Floats(random, rows, cols, 4, 32);
      PackMxFp4(out, name, m, elements, scales);
      return m;
    };
  };
  const auto row_pairs = [](Packer& out, const std::string& name, Random& random, int rows,
                            int cols) {
    Matrix m = Integers(random, rows, cols, 4, 32);
    PackRowPairs(out, name, m);
    Random order = Alike(name);
    std::ranges::generate(m.factors, [&] { return static_cast<float>(8 + order() % 16) / 16.0f; });
    out.PutF16(name + ".pre_quant_scale", {cols}, m.factors);
    return m;
  };
  const auto nvfp4 = [](bool modelopt) {
    return [=](Packer& out, const std::string& name, Random& random, int rows, int cols) {
      Matrix m = Floats(random, rows, cols, 4, 16);
      PackNvFp4(out, name, m, modelopt);
      return m;
    };
  };
  const std::string ints = R"("num_bits": 4, "type": "int", "symmetric": true, )";
  const std::string bytes_by_row = R"("num_bits": 8, "type": "int", "strategy": "channel")";
  return {
      {"gptq", R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true,
                   "desc_act": false, "lm_head": false})",
       "", gptq(4, 32, false, 1), "int4 in groups of 32"},
      {"gptq_zeros", R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false})", "",
       gptq(4, 32, true, 1), "int4 in groups of 32 with zero points"},
      {"gptq_sym_with_zeros", R"({"quant_method": "gptq", "bits": 4, "group_size": 32})", "",
       gptq(4, 32, true, 1), "int4 in groups of 32 with zero points"},
      {"gptq_v2", R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false,
                      "checkpoint_format": "gptq_v2", "dynamic": {"-:.*lm_head.*": {}}})",
       "", gptq(4, 32, true, 0), "int4 in groups of 32 with zero points"},
      {"gptq_file", R"({"bits": 8, "group_size": -1, "sym": false, "desc_act": true})",
       "quantize_config.json", gptq(8, 0, true, 1), "int8 with zero points"},
      {"gptq_8_bits", R"({"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": true})", "",
       gptq(8, 32, false, 1), "int8 in groups of 32"},
      {"gptq_act_order", R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false,
                             "desc_act": true})",
       "", gptq(4, 32, true, 1, true), "int4 in groups of 32 with zero points, an order of inputs"},
      {"gptq_8_bits_act_order", R"({"quant_method": "gptq", "bits": 8, "group_size": 16,
                                    "desc_act": true})",
       "", gptq(8, 16, false, 1, true), "int8 in groups of 16 with an order of inputs"},
      {"gptq_head", R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "lm_head": true})", "",
       gptq(4, 32, false, 1), "int4 in groups of 32", true},
      {"awq_gemm", R"({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true,
                       "version": "GEMM", "modules_to_not_convert": null})",
       "", awq(32, true), "int4 in groups of 32 with zero points"},
      {"awq_file", R"({"w_bit": 4, "q_group_size": 64, "zero_point": false, "version": "GEMM"})",
       "quant_config.json", awq(64, false), "int4 in groups of 64"},
      {"awq_gemv", R"({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"})", "",
       [](Packer& out, const std::string& name, Random& random, int rows, int cols) {
         const Matrix m = Integers(random, rows, cols, 4, 32, true);
         PackAwqGemv(out, name, m);
         return m;
       },
       "int4 in groups of 32 with zero points"},
      {"packed_groups",
       Compressed("pack-quantized", ints + R"("strategy": "group", "group_size": 32)"), "",
       packed(4, 32, ZeroPoints::kNone), "int4 in groups of 32"},
      {"packed_rows", Compressed("pack-quantized", ints + R"("strategy": "channel")"), "",
       packed(4, 0, ZeroPoints::kNone), "int4"},
      {"packed_zeros", Compressed("pack-quantized", R"("num_bits": 4, "type": "int",
           "symmetric": false, "strategy": "group", "group_size": 32)"),
       "", packed(4, 32, ZeroPoints::kWords), "int4 in groups of 32 with zero points"},
      {"packed_zeros_in_bytes", Compressed("pack-quantized", R"("num_bits": 4, "type": "int",
           "symmetric": false, "strategy": "group", "group_size": 32)"),
       "", packed(4, 32, ZeroPoints::kBytes), "int4 in groups of 32 with zero points"},
      {"packed_8_bits_zeros", Compressed("pack-quantized", R"("num_bits": 8, "type": "int",
           "symmetric": false, "strategy": "channel")"),
       "", packed(8, 0, ZeroPoints::kWords), "int8 with zero points"},
      {"packed_act_order", Compressed("pack-quantized", ints + R"("strategy": "group",
           "group_size": 16, "actorder": "group")"),
       "", packed(4, 16, ZeroPoints::kNone, true), "int4 in groups of 16 with an order of inputs"},
      {"int8_dynamic", Compressed("int-quantized", bytes_by_row, R"({"num_bits": 8, "type": "int",
           "strategy": "token", "dynamic": true})"),
       "", bytes(DType::kI8, 0, 1, ".weight_scale", by_row), "int8"},
      {"int8_static", Compressed("int-quantized", bytes_by_row, R"({"num_bits": 8, "type": "int",
           "strategy": "tensor", "dynamic": false})"),
       "", bytes(DType::kI8, 0, 1, ".weight_scale", by_row, 0.25f),
       "int8 with static input scales"},
      {"fp8_weights_only", Compressed("float-quantized", R"("num_bits": 8, "type": "float",
           "strategy": "tensor")"),
       "", bytes(DType::kF8E4M3, 0, 1, ".weight_scale", [](const Matrix&) { return Shape{1}; }),
       "fp8"},
      {"fp8_blocks_compressed",
       Compressed("float-quantized", R"("num_bits": 8, "type": "float",
           "strategy": "block", "block_structure": [32, 32])",
                  R"({"num_bits": 8, "type": "float",
           "strategy": "group", "group_size": 32, "dynamic": true})"),
       "", bytes(DType::kF8E4M3, 32, 32, ".weight_scale", by_block), "fp8 in blocks of 32 x 32"},
      {"fp8_blocks", R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                         "weight_block_size": [48, 48]})",
       "", bytes(DType::kF8E4M3, 48, 48, ".weight_scale_inv", by_block),
       "fp8 in blocks of 48 x 48"},
      {"fbgemm", R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0})", "",
       bytes(DType::kF8E4M3, 0, 1, ".weight_scale", by_row), "fp8"},
      {"modelopt_blocks", R"({"producer": {"name": "modelopt"},
                              "quantization": {"quant_algo": "fp8_pb_wo"}})",
       "hf_quant_config.json",
       bytes(DType::kF8E4M3, 128, 128, ".weight_scale",
             [](const Matrix& m) { return Shape{(m.rows + 127) / 128, 1, m.groups(), 1}; }),
       "fp8 in blocks of 128 x 128"},
      {"modelopt_awq", R"({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 32,
                           "has_zero_point": false, "pre_quant_scale": true})",
       "", row_pairs, "int4 in groups of 32 with input factors"},
      {"modelopt_w4a8", R"({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
                            "model.layers.0.mlp.up_proj": {"quant_algo": "W4A8_AWQ", "group_size": 32},
                            "model.layers.1.mlp.up_proj": {"quant_algo": "W4A8_AWQ", "group_size": 32}}}})",
       "hf_quant_config.json",
       [=](Packer& out, const std::string& name, Random& random, int rows, int cols) {
         Matrix m = row_pairs(out, name, random, rows, cols);
         m.input_scale = 0.25f;
         out.Put(name + ".input_scale", DType::kF32, {}, std::vector<float>{m.input_scale});
         out.Put(name + ".weight_scale_2", DType::kF32, {}, std::vector<float>{0.001f});
         return m;
       },
       "int4 in groups of 32 with input factors, static input scales"},
      {"modelopt_mxfp4", R"({"quant_method": "modelopt", "quant_algo": "MXFP4", "group_size": 32})",
       "", mxfp4(".weight", ".weight_scale"), "fp4 in groups of 32"},
      {"mxfp4_packed", Compressed("mxfp4-pack-quantized", R"("num_bits": 4, "type": "float",
           "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8")"),
       "", mxfp4(".weight_packed", ".weight_scale"), "fp4 in groups of 32"},
      {"mxfp4_blocks", R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})", "",
       mxfp4("_blocks", "_scales"), "fp4 in groups of 32"},
      {"modelopt_nvfp4", R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16,
                             "kv_cache_quant_algo": null, "exclude_modules": ["lm_head"]}})",
       "hf_quant_config.json", nvfp4(true), "fp4 in groups of 16"},
      {"nvfp4_packed",
       Compressed("nvfp4-pack-quantized", R"("num_bits": 4, "type": "float",
           "strategy": "tensor_group", "group_size": 16)",
                  R"({"num_bits": 4, "type": "float",
           "strategy": "tensor_group", "group_size": 16, "dynamic": "local"})"),
       "", nvfp4(false), "fp4 in groups of 16"},
  };
}

// One for each way of packing.
inline std::vector<Format> Packings() {
  const std::vector<Format> formats = Formats();
  std::vector<Format> packings;
  for (const char* name :
       {"gptq_act_order", "gptq_file", "awq_gemm", "awq_gemv", "packed_zeros", "packed_act_order",
        "int8_static", "fp8_blocks", "modelopt_awq", "modelopt_w4a8", "modelopt_nvfp4",
        "nvfp4_packed", "mxfp4_packed", "mxfp4_blocks"}) {
    packings.push_back(*std::ranges::find(formats, name, &Format::name));
  }
  return packings;
}

inline std::string NameOf(WeightRole role, int64_t layer) {
  const WeightRow& row = RowOf(role);
  return (row.per_layer ? "model.layers." + std::to_string(layer) + "." : "") +
         std::string(row.hf_name);
}

// A weight that the folder leaves as it is.
inline constexpr WeightRole kLeftRole = WeightRole::kDown;
inline constexpr int64_t kLeftLayer = 1;

using Change = std::function<void(std::map<std::string, Tensor>&)>;

// Writes the model with quantized weights into `folder`/quantized, and with their values into
// `folder`/plain. `change` may edit the quantized tensors. Returns the quantized matrices by name.
inline std::map<std::string, Matrix> WriteBoth(const std::filesystem::path& folder,
                                               const Format& format, const Change& change = {}) {
  std::map<std::string, Matrix> matrices;
  const HfFolder base{.extra_config = "", .stored = DType::kF32};
  std::unique_ptr<Packer> packer;
  base.Write(folder / "quantized", [&](std::map<std::string, Tensor>& tensors) {
    packer = std::make_unique<Packer>(tensors);
    Random random(5);
    const ModelSpec spec = SpecFromHfConfig(base.Config()).value();
    for (const WeightId& id : StoredWeights(spec)) {
      const WeightRow& row = RowOf(id.role);
      const bool left = id.role == kLeftRole && id.layer == kLeftLayer;
      const bool packed = row.quantizable || (format.head && id.role == WeightRole::kHead);
      if (!packed || left) continue;
      const std::string name = NameOf(id.role, id.layer);
      packer->Erase(name + ".weight");
      matrices[name] =
          format.pack(*packer, name, random, static_cast<int>(row.rows(spec, id.layer)),
                      static_cast<int>(row.columns(spec, id.layer)));
    }
    if (change) change(tensors);
  });
  const std::string key = R"(, "quantization_config": )";
  const HfFolder described{.extra_config = format.file.empty() ? key + format.config : ""};
  WriteText(folder / "quantized/config.json", described.Config());
  if (!format.file.empty()) WriteText(folder / "quantized" / format.file, format.config);
  std::vector<std::vector<float>> values;
  base.Write(folder / "plain", [&](std::map<std::string, Tensor>& tensors) {
    for (const auto& [name, m] : matrices) {
      std::vector<float>& wide = values.emplace_back();
      for (int row = 0; row < m.rows; ++row) {
        for (int col = 0; col < m.cols; ++col) wide.push_back(m.Value(row, col));
      }
      tensors[name + ".weight"] = {wide.data(), DType::kF32, {m.rows, m.cols}, {}};
    }
  });
  return matrices;
}

}  // namespace tandem::quantized
