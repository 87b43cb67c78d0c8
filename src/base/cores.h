// The cores of this process, and binding threads to them. Any thread.
#pragma once

#include <span>

namespace tandem {

// The cores on which the process might run when this was first called, at least one. A thread that
// is bound to one of them still sees all.
std::span<const int> AllowedCores();
int AvailableCores();

// The calling thread, and the threads that it starts from now on, run on this core only. A refusal
// of the system only costs speed.
void BindToCore(int core);
// Undoes that for the calling thread: it may have been started by a bound one.
void BindToAllCores();

}  // namespace tandem
