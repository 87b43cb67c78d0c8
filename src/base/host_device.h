// TANDEM_HOST_DEVICE marks a function that a CUDA compiler builds for both CPU and GPU; for any
// other compiler it is empty. Belongs to no thread.
#pragma once

#ifdef __CUDACC__
#define TANDEM_HOST_DEVICE __host__ __device__
#else
#define TANDEM_HOST_DEVICE
#endif
