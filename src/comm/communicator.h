// Communicator: how the ranks of a model put together what each of them has computed. A rank has
// one, made with those of the other ranks; its executor's thread uses it. All ranks call the same
// functions in the same order, with tensors of the same shapes and types; Send and Receive are for
// two of them alone.
//
// As the ops of a backend the functions are enqueued on its stream and return nothing. When a rank
// leaves or fails, the first failure stays: from then on every function returns at once, on every
// rank, and what it should have computed is void.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "tensor/tensor.h"

namespace tandem {

namespace ops {
struct NormedRows;
}

class Communicator {
 public:
  virtual ~Communicator() = default;

  // 0 leads. Where the model is split into stages of layers, the ranks of the first stage come
  // first, then those of the next: rank = stage * ranks of a stage + rank in the stage. Ranks that
  // have a model of their own come last, as one more stage (Stages).
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The ranks of this one's stage among themselves, as rank 0, 1, ... there; itself where there is
  // one stage. It lives as long as this communicator, and shares its failure: a rank that fails
  // ends the waits of all stages. Used by the same thread.
  virtual Communicator& stage() = 0;

  // `rows` becomes the sum of the rows of all ranks, with the same bits on each: an element is
  // added up in fp32, in the order of the ranks, and rounded once.
  virtual void AllReduce(const Tensor& rows) = 0;
  // AllReduce of x.delta and Ops::AddNorm with the sum, in one kernel and with the bits of both;
  // x.delta is not the sum then. Returns false, and has done nothing, where there is no such
  // kernel: on every rank alike.
  virtual bool AllReduceAddNorm(const ops::NormedRows& /*x*/) { return false; }
  // The ranks' parts, side by side: part: [rows, n], all: [rows, columns]. Of the last parts what
  // would lie beyond `columns` is left out.
  virtual void GatherColumns(const Tensor& part, const Tensor& all) = 0;

  // From one rank to another one. A Send is met by a Receive of rows of the same shape and type;
  // the calls between two ranks have the same order on both. Either may wait for the other, even
  // for several calls of it, so the two must not send to each other at the same time.
  virtual void Send(const Tensor& rows, int to) = 0;
  virtual void Receive(const Tensor& rows, int from) = 0;

  // Every rank gets the bytes of rank 0, in host memory, before the function returns: for what the
  // host decides, not for tensors.
  virtual void Broadcast(std::span<std::byte> bytes) = 0;

  // Ends what the other ranks wait for. Any thread; the first call counts.
  virtual void Fail(const Status& why) = 0;
  // The first failure of any rank. Any thread.
  virtual Status status() const = 0;
};

}  // namespace tandem
