// Resolves the geometry of a hybrid model (MLA under DCP 8 beside recurrent states) with the installed library alone.

#include <hostkv/connector.h>
#include <hostkv/geometry.h>
#include <hostkv/version.h>

#include <cstdio>

int main() {
  hostkv::GeometrySpec spec;
  spec.groups.resize(2);
  spec.groups[0].kind = hostkv::GroupKind::kMla;
  spec.groups[0].block_tokens = 384;
  spec.groups[0].sharded = true;
  spec.groups[1].kind = hostkv::GroupKind::kMamba;
  spec.groups[1].block_tokens = 3072;
  spec.parallel.tp = 8;
  spec.parallel.dcp = 8;
  const hostkv::Result<hostkv::Geometry> geometry = hostkv::Geometry::resolve(spec);
  if (!geometry) {
    std::printf("%s\n", geometry.error().to_string().c_str());
    return 1;
  }
  std::printf("hostkv %s: scheduler block %lld tokens\n", hostkv::kVersion,
              static_cast<long long>(geometry->scheduler_block_tokens()));
  return 0;
}
