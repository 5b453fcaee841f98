#ifndef HOSTKV_TESTS_PROPERTY_RECOVERY_PLAN_MODEL_H_
#define HOSTKV_TESTS_PROPERTY_RECOVERY_PLAN_MODEL_H_

// What recovery.h says a plan is, in sets and loops over tokens.

#include <vector>

#include "hostkv/geometry.h"
#include "tests/support/held_request.h"

namespace hostkv::testing {

RecoveryPlan model_plan(const Geometry& geometry, LoadFailurePolicy policy, const std::vector<HeldTables>& requests,
                        const std::vector<FailedLoad>& failed);

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_PROPERTY_RECOVERY_PLAN_MODEL_H_
