// RunSource: the events of one `/v1/run`: "initial-run", then "run" with what its one fork has
// added, then "[DONE]". An error after the beginning is a "run" whose fork has it. Owned by the
// reply.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/generate_call.h"
#include "serve/http/call_reply.h"

namespace tandem::serve::llgtrt {

class RunSource final : public MessageSource {
 public:
  // `created`: seconds since 1970.
  RunSource(std::string id, std::string model, int64_t created, std::unique_ptr<GenerateCall> call);

  CallNews Next(HttpHead& head, std::vector<std::string>& messages, Status& error) override;
  HttpHead ErrorHead(const Status& error) const override;
  std::string FormatError(const Status& error) const override;
  std::string Summary() const override { return call_->Summary(); }

 private:
  std::string FormatInitial() const;
  // One fork; `finish` is empty before its end.
  std::string FormatRun(const std::string& text, std::string_view finish,
                        std::string_view error) const;

  const std::string id_;
  const std::string model_;
  const int64_t created_;
  const std::unique_ptr<GenerateCall> call_;
  bool has_begun_ = false;  // "initial-run" has been sent
};

}  // namespace tandem::serve::llgtrt
