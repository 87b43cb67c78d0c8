// The backend itself: choice of instruction set, memory, measurement.
#include "ops/forwarding_backend.h"
#include "ops/testing/op_test.h"

namespace tandem::ops {
namespace {

using ::testing::HasSubstr;

TEST(CpuBackendTest, SaysWhichInstructionSetsAreTested) {
  const std::vector<std::string> supported = SupportedCpuIsas();
  EXPECT_EQ(supported.front(), "scalar");
  for (const std::string isa : {"scalar", "avx2", "avx512", "avx512_bf16", "amx"}) {
    const bool here = std::find(supported.begin(), supported.end(), isa) != supported.end();
    std::printf("%-12s %s\n", isa.c_str(), here ? "tested here" : "ABSENT on this CPU: not tested");
  }
}

TEST(CpuBackendTest, RefusesAnInstructionSetItLacksAndNamesTheOthers) {
  const auto backend = MakeCpuBackend({.isa = "avx1024"});
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(backend.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(backend.status().message(), HasSubstr("avx1024"));
  EXPECT_THAT(backend.status().message(), HasSubstr("scalar"));
}

TEST(CpuBackendTest, ChoosesOnceAndForAll) {
  const auto first = MakeCpuBackend({.num_threads = 1});
  const auto second = MakeCpuBackend({.num_threads = 1});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->Describe(), (*second)->Describe());
  EXPECT_THAT((*first)->Describe(), HasSubstr("1 thread"));
}

TEST(CpuBackendTest, MemoryIsZeroedAndAlignedAndRefusedPolitely) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{5} << 20}) {
    const Buffer buffer = backend->Allocate(bytes).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (size_t i = 0; i < bytes; i += 97) ASSERT_EQ(buffer.As<char>()[i], 0);
  }
  const auto refused = backend->Allocate(size_t{1} << 60);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("1152921504606846976"));
}

TEST(CpuBackendTest, RefusesToPackIntegers) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  const Buffer memory = Buffer::OnHost(64);
  const Tensor weight = memory.View(DType::kI8, {8, 8});
  EXPECT_EQ(backend->PackLinear({{{weight}}}, {DType::kI8}).status().code(), Code::kUnimplemented);
}

TEST(CpuBackendTest, NamesWeightsThatItCannotRound) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  const Buffer memory = Buffer::OnHost(128);
  const Tensor weight = memory.View(DType::kBF16, {8, 8});
  const WeightFormat fp4{DType::kBF16, {QuantScheme::Element::kFp4E2M1, 1, 16}};
  const Status status = backend->PackLinear({{{weight}}}, fp4).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_EQ(status.message(),
            "the CPU does not keep weights of type bfloat16 as fp4 in groups of 16");
}

// Asked for, fp8 weights become the activations' type: an element times its scale.
TEST(CpuBackendTest, WidensFp8Weights) {
  for (const std::string& isa : SupportedCpuIsas()) {
    const auto backend =
        MakeCpuBackend({.num_threads = 2, .pin_threads = false, .isa = isa}).value();
    std::vector<uint8_t> elements(40 * 48);
    for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<uint8_t>(i * 37) & 0xf7;
    std::vector<float> scales(41);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f * static_cast<float>(i + 1);
    const Tensor weight{elements.data(), DType::kF8E4M3, {40, 48}, {}};
    const QuantScheme fp8 = Fp8Scheme(QuantScheme::Inputs::kStatic);
    const LinearPart by_row{
        .weight = weight, .scale = {scales.data(), DType::kF32, {40}, {}}, .scheme = fp8};
    const LinearPart as_one{
        .weight = weight, .scale = {&scales[40], DType::kF32, {1}, {}}, .scheme = fp8};
    const auto packed = backend->PackLinear({{by_row, as_one}}, {DType::kF32});
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    EXPECT_EQ(packed->dtype, DType::kF32);
    // The product with each unit vector is a column of the weights, exactly.
    std::vector<float> x(48 * 48), out(48 * 80);
    for (size_t i = 0; i < 48; ++i) x[i * 48 + i] = 1.0f;
    backend->ops().Linear({x.data(), DType::kF32, {48, 48}, {}}, *packed,
                          {out.data(), DType::kF32, {48, 80}, {}});
    for (size_t col = 0; col < 48; ++col) {
      for (size_t row = 0; row < 80; ++row) {
        const float element = ToFloat(Float8E4M3{elements[row % 40 * 48 + col]});
        ASSERT_EQ(out[col * 80 + row], element * (row < 40 ? scales[row] : scales[40])) << isa;
      }
    }
  }
}

// The value of a weight at an input, in every form that a file may store.
TEST(WidenRow, GivesTheWeightsOfTheProductWithUnchangedInputs) {
  using Element = QuantScheme::Element;
  std::vector<uint8_t> pairs = {0x21, 0x43, 0x65, 0x87, 0x0f, 0x1e, 0x2d, 0x3c};
  std::vector<int8_t> bytes = {1, -2, 3, -4, 5, -6, 7, -8, -128, 127, 0, 1, 2, 3, 4, 5};
  std::vector<float> scales = {0.5f, 2.0f, 0.25f, 4.0f};
  std::vector<uint8_t> zeros = {1, 2, 3, 15};
  std::vector<float> factors = {1.0f, 10.0f, 100.0f, 1000.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  std::vector<int32_t> order = {7, 6, 5, 4, 3, 2, 1, 0};
  const Tensor halves{pairs.data(), DType::kU8, {2, 4}, {}};
  const Tensor whole{bytes.data(), DType::kI8, {2, 8}, {}};
  const Tensor by_group{scales.data(), DType::kF32, {2, 2}, {}};
  const Tensor by_row{scales.data(), DType::kF32, {2}, {}};
  const auto row = [](const LinearPart& part, int64_t index) {
    std::vector<float> values(8);
    WidenRow(part, index, values.data());
    return values;
  };
  LinearPart part{.weight = halves, .scale = by_group, .scheme = {Element::kInt4, 1, 4}};
  EXPECT_THAT(row(part, 0), testing::ElementsAre(-3.5f, -3, -2.5f, -2, -6, -4, -2, 0));
  EXPECT_THAT(row(part, 1), testing::ElementsAre(1.75f, -2, 1.5f, -1.75f, 20, -24, 16, -20));
  part.zero = {zeros.data(), DType::kU8, {2, 2}, {}};
  part.scheme.zero_points = true;
  EXPECT_THAT(row(part, 0), testing::ElementsAre(0, 0.5f, 1, 1.5f, 6, 8, 10, 12));
  part.input_order = {order.data(), DType::kI32, {8}, {}};
  part.scheme.input_order = true;
  EXPECT_THAT(row(part, 0), testing::ElementsAre(12, 10, 8, 6, 1.5f, 1, 0.5f, 0));
  part.input_factors = {factors.data(), DType::kF32, {8}, {}};
  part.scheme.input_factors = true;
  EXPECT_THAT(row(part, 0), testing::ElementsAre(12, 100, 800, 6000, 1.5f, 1, 0.5f, 0));
  part = {.weight = halves, .scale = by_row, .scheme = {Element::kFp4E2M1, 1, 0}};
  EXPECT_THAT(row(part, 0), testing::ElementsAre(0.25f, 0.5f, 0.75f, 1, 1.5f, 2, 3, -0.0f));
  part = {.weight = whole, .scale = by_row, .scheme = {Element::kInt8, 1, 0}};
  EXPECT_THAT(row(part, 1), testing::ElementsAre(-256, 254, 0, 2, 4, 6, 8, 10));
  part = {.weight = whole, .scale = by_group, .scheme = {Element::kInt8, 1, 4}};
  EXPECT_THAT(row(part, 0), testing::ElementsAre(0.5f, -1, 1.5f, -2, 10, -12, 14, -16));
}

// A layer whose products are stored in different ways is one plain product.
TEST(CpuBackendTest, WidensPartsOfDifferentKinds) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  std::vector<float> plain(16, 2.0f), scale = {3.0f}, x(16), out(2);
  std::vector<int8_t> bytes(16, 5);
  x[3] = 1.0f;
  const LinearPart first{.weight = {plain.data(), DType::kF32, {1, 16}, {}}};
  const LinearPart second{.weight = {bytes.data(), DType::kI8, {1, 16}, {}},
                          .scale = {scale.data(), DType::kF32, {1}, {}},
                          .scheme = {QuantScheme::Element::kInt8, 1}};
  const LinearWeight weight = backend->PackLinear({{first, second}}, {DType::kF32}).value();
  backend->ops().Linear({x.data(), DType::kF32, {1, 16}, {}}, weight,
                        {out.data(), DType::kF32, {1, 2}, {}});
  EXPECT_THAT(out, testing::ElementsAre(2.0f, 15.0f));
}

TEST(CpuBackendTest, WarmUpRunsTheWorkOnce) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  int runs = 0;
  backend->WarmUp([&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST(ForwardingBackendTest, TheInnerBackendWarmsUp) {
  class Counting final : public ForwardingBackend {
   public:
    using ForwardingBackend::ForwardingBackend;
    void WarmUp(const std::function<void()>& work) override {
      ++warm_ups;
      ForwardingBackend::WarmUp(work);
    }
    int warm_ups = 0;
  };
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  Counting counting(*backend);
  Backend& inner = counting;  // named so that `outer` is not a copy of it
  ForwardingBackend outer(inner);
  int runs = 0;
  outer.WarmUp([&] { ++runs; });
  EXPECT_EQ(counting.warm_ups, 1);
  EXPECT_EQ(runs, 1);
}

TEST(CpuBackendTest, MatrixPeakIsPlausible) {
  const auto backend = MakeCpuBackend({.num_threads = 1}).value();
  const double peak = backend->MeasureMatrixPeak(DType::kBF16);
  EXPECT_GT(peak, 1e8);
  EXPECT_LT(peak, 1e14);
}

}  // namespace
}  // namespace tandem::ops
