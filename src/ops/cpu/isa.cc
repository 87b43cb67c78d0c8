#include "ops/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "ops/cpu/host_scratch.h"

namespace tandem::ops::cpu {
namespace {

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf Cpuid(unsigned leaf, unsigned subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool Bit(unsigned word, int bit) { return (word >> bit & 1u) != 0; }

// Register state that the operating system saves (XCR0): without it the instructions fault.
uint64_t SavedState() {
  if (!Bit(Cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

constexpr uint64_t kYmmState = 0x6;
constexpr uint64_t kZmmState = 0xe6;
constexpr uint64_t kTileState = 0x60000;

bool HasAvx2() {
  const CpuidLeaf basic = Cpuid(1, 0);
  const bool fma = Bit(basic.ecx, 12);
  const bool f16c = Bit(basic.ecx, 29);
  return (SavedState() & kYmmState) == kYmmState && fma && f16c && Bit(Cpuid(7, 0).ebx, 5);
}

bool HasAvx512() {
  const unsigned features = Cpuid(7, 0).ebx;
  const bool f = Bit(features, 16), dq = Bit(features, 17);
  const bool bw = Bit(features, 30), vl = Bit(features, 31);
  return HasAvx2() && (SavedState() & kZmmState) == kZmmState && f && dq && bw && vl;
}

bool HasAvx512Bf16() {
  const bool bf16 = Bit(Cpuid(7, 1).eax, 5), vnni = Bit(Cpuid(7, 0).ecx, 11);
  return HasAvx512() && bf16 && vnni;
}

// Linux hands the 8 KB of tile registers only to a program that asks (x86: ARCH_REQ_XCOMP_PERM).
bool AskForTiles() {
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool HasAmx() {
  const unsigned features = Cpuid(7, 0).edx;
  const bool bf16 = Bit(features, 22), tile = Bit(features, 24), int8 = Bit(features, 25);
  return HasAvx512Bf16() && bf16 && tile && int8 && (SavedState() & kTileState) == kTileState &&
         AskForTiles();
}

// Seconds of a product small enough for the caches, best of a few runs.
double MultiplySeconds(const CpuKernels& kernels) {
  constexpr int64_t kRows = 64, kInputs = 512, kOutputs = 256;
  const Buffer x = HostScratch(kRows * kInputs * 2);
  const Buffer packed = HostScratch(kRows * kInputs * 4);
  const Buffer weights = HostScratch(kInputs * kOutputs * 2);
  const Buffer out = HostScratch(kRows * kOutputs * 2);
  const Buffer scratch = HostScratch(kLinearScratchBytes);
  PackJob pack;
  pack.element = Element::kBF16;
  pack.x = x.data();
  pack.x_stride = kInputs;
  pack.num_rows = kRows;
  pack.inputs = kInputs;
  pack.padded_inputs = kInputs;
  pack.packed = packed.data();
  kernels.pack_activations(pack, 0, kernels.num_linear_blocks(pack));
  LinearJob job;
  job.element = Element::kBF16;
  job.num_rows = kRows;
  job.inputs = kInputs;
  job.outputs = kOutputs;
  job.activations = packed.data();
  job.weights = weights.data();
  job.out = out.data();
  job.out_stride = kOutputs;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    kernels.linear_panels(job, 0, kOutputs / kPanelOutputs, scratch.As<float>());
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    best = std::min(best, spent.count());
  }
  return best;
}

const CpuKernels& MeasureFastest() {
  const CpuKernels* fastest = &kScalarKernels;
  double best = 1e9;
  for (const CpuKernels* kernels : SupportedKernels()) {
    if (kernels == &kScalarKernels) continue;  // every other one is faster
    const double seconds = MultiplySeconds(*kernels);
    if (seconds < best) {
      best = seconds;
      fastest = kernels;
    }
  }
  return *fastest;
}

}  // namespace

const std::vector<const CpuKernels*>& SupportedKernels() {
  static const std::vector<const CpuKernels*> supported = [] {
    std::vector<const CpuKernels*> found = {&kScalarKernels};
    if (HasAvx2()) found.push_back(&kAvx2Kernels);
    if (HasAvx512()) found.push_back(&kAvx512Kernels);
    if (HasAvx512Bf16()) found.push_back(&kAvx512Bf16Kernels);
    if (HasAmx()) found.push_back(&kAmxKernels);
    return found;
  }();
  return supported;
}

const CpuKernels* FindKernels(std::string_view name) {
  for (const CpuKernels* kernels : SupportedKernels()) {
    if (name == kernels->name) return kernels;
  }
  return nullptr;
}

const CpuKernels& FastestKernels() {
  static const CpuKernels& fastest = MeasureFastest();
  return fastest;
}

}  // namespace tandem::ops::cpu
