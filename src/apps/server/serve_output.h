// What `tandem serve` prints: at start the use of memory, the models that are ready, the address
// and commands to try; at the first signal how long it waits. Main thread.
#pragma once

#include <cstdint>

#include "apps/cli/command.h"
#include "apps/server/serve_models.h"
#include "serve/server/server.h"

namespace tandem::apps {

// The server in whose place this one is, whose requests its users know.
enum class Clients : uint8_t { kTriton, kLlgtrt, kLmi };

// Scripts read from a line of this form which GPU is in use.
void SayDevice(const ops::Backend& backend, const Console& console);
void SayMemory(const ServedEngine& engine, const Console& console);
// Every name that a request may give, and the state of the model.
void SayModels(const serve::kserve::Repository& models, Clients clients, const Console& console);
// With a request to try.
void SayAddress(const serve::ServerOptions& options, const ServedModels& served,
                const serve::Server& server, Clients clients, const Console& console);
// At the first signal: what the server waits for, and how to end the wait. Nothing if it ends at
// once.
void SayShutdown(const serve::ServerOptions& options, int requests, const Console& console);

}  // namespace tandem::apps
