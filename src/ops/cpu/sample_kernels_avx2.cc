// Compiled with -mavx2: called only where the CPU has it.
#define TANDEM_SAMPLE_KERNELS kSampleKernelsAvx2
#include "ops/cpu/sample_kernels.inc"
