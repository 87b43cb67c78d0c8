#include "base/cores.h"

#include <pthread.h>
#include <sched.h>

#include <vector>

namespace tandem {
namespace {

std::vector<int> CoresOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

void BindTo(std::span<const int> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

std::span<const int> AllowedCores() {
  static const std::vector<int> cores = CoresOfThisThread();
  return cores;
}

int AvailableCores() { return static_cast<int>(AllowedCores().size()); }

void BindToCore(int core) { BindTo({&core, 1}); }

void BindToAllCores() { BindTo(AllowedCores()); }

}  // namespace tandem
