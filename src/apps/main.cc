#include <csignal>

#include "apps/command.h"

int main(int argc, char** argv) {
  // A client that went away is an error of one write, not the end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  return tandem::apps::Main(argc, argv);
}
