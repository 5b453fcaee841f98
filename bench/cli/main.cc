#include <unistd.h>

#include <iostream>

#include "bench/cli/cli.h"

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  return hostkv::bench::run_cli(args, {std::cout, std::cerr, isatty(STDERR_FILENO) != 0});
}
