#ifndef HOSTKV_BENCH_ENGINE_PLANTED_BACKEND_H_
#define HOSTKV_BENCH_ENGINE_PLANTED_BACKEND_H_

#include <memory>

#include "bench/engine/engine.h"
#include "hostkv/transfer_backend.h"

namespace hostkv::bench {

// `backend` with a fault in it, for the negative controls; `backend` itself for plants that are not a backend's.
//
// kCorruptByte: the last source byte of the first load job is flipped before it is copied (once). kSwapBlocks: every
// load job exchanges the sources of two runs, or of the halves of its only run. kLoadBeforeLanded: every load job is
// reported as done, nothing moves. Thread-safety, cost and failure: those of TransferBackend.
std::unique_ptr<TransferBackend> plant_fault(std::unique_ptr<TransferBackend> backend, Plant plant);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_PLANTED_BACKEND_H_
