#include "bench/cli/report.h"

#include <gtest/gtest.h>

#include <sstream>

namespace hostkv::bench {
namespace {

TEST(Table, AlignsNamesLeftAndNumbersRight) {
  Table table({"name", "count"}, 1);
  table.add({"a", "1"});
  table.add({"longer", "1,000"});
  std::ostringstream out;
  table.write(out);
  EXPECT_EQ(out.str(), "name    count\na           1\nlonger  1,000\n");
}

TEST(Numbers, AreGroupedByThousands) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(58368), "58,368");
  EXPECT_EQ(with_commas(-1000000), "-1,000,000");
  EXPECT_EQ(fixed(0.36644, 4), "0.3664");
}

TEST(Progress, SpeaksAtOnceOnATerminalAndNeverWhenQuiet) {
  std::ostringstream out;
  std::ostringstream err;
  Progress({out, err, true}, false).tick([] { return std::string("busy"); });
  EXPECT_EQ(err.str(), "busy\n");
  Progress({out, err, true}, true).tick([] { return std::string("quiet"); });
  Progress({out, err, false}, false).tick([] { return std::string("too early"); });
  EXPECT_EQ(err.str(), "busy\n");
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace hostkv::bench
