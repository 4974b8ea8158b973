// Memory for weights and caches, in huge pages where the system has them.
//
// A step reads every weight once. With pages of 4 KiB a processor waits for the translation of addresses as much as for
// memory: one thread of a Zen 4 server reads 31 GB/s from huge pages and 22 GB/s from small ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace edgeinfer {

// `bytes` at a multiple of 64. Matrices share mappings, so that none leaves most of a huge page empty; a mapping lives
// as long as any of them. Throws std::bad_alloc.
std::shared_ptr<uint8_t[]> take_memory(size_t bytes);

// The same in a mapping of its own; in huge pages if it is large enough that one that is half empty does not matter.
std::shared_ptr<uint8_t[]> map_memory(size_t bytes);

}  // namespace edgeinfer
