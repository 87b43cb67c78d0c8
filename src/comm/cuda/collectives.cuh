// The kernels of GPU ranks. Each function enqueues one kernel on the rank's stream; every rank
// calls it with a tensor of the same shape and type, but for EnqueueSend and EnqueueReceive. Used
// only in comm/cuda.
#pragma once

#include "comm/cuda/links.cuh"
#include "ops/cuda/device/context.cuh"
#include "ops/ops.h"
#include "tensor/tensor.h"

namespace tandem::cuda_ranks {

// The rows become their sum over the ranks. Both ways give the same bits. With n ranks and B bytes,
// one-shot sends 2 (n - 1) B bytes from each rank and waits for one transfer; two-shot sends
// 2 (n - 1) / n B and waits for two flags and two reads.
void EnqueueOneShot(const ops::cuda::Context& context, const Links& links, const Tensor& rows);
void EnqueueTwoShot(const ops::cuda::Context& context, const Links& links, const Tensor& rows);
// One-shot with AddNorm: x.residual and x.rows become what AddNorm makes of them with the sum of
// x.delta over the ranks, bit for bit; x.delta stays. Returns false where it is not for such rows
// or such a GPU; on every rank alike.
bool EnqueueAllReduceNorm(const ops::cuda::Context& context, const Links& links,
                          const ops::NormedRows& x);
// fp32. part: [rows, n], all: [rows, columns]; fewer than 2^31 elements in `part`.
void EnqueueGather(const ops::cuda::Context& context, const Links& links, const Tensor& part,
                   const Tensor& all);
// Rows of any type of two bytes or more, to and from another rank. On both sides the rows have the
// same number of bytes.
void EnqueueSend(const ops::cuda::Context& context, const Links& links, const Tensor& rows, int to);
void EnqueueReceive(const ops::cuda::Context& context, const Links& links, const Tensor& rows,
                    int from);

// Load the kernels for this many ranks onto the current GPU (LoadKernel).
void LoadOneShot(int ranks);
void LoadTwoShot(int ranks);
void LoadAllReduceNorm(int ranks);
void LoadGather();
void LoadSendAndReceive();

}  // namespace tandem::cuda_ranks
