// What the parts of the extension module share.
#pragma once

#include <nanobind/nanobind.h>

#include <tuple>

#include "primitives.h"
#include "sealed.h"

namespace edgeinfer::mlx_ops {

// What Python holds. Not nanobind's own shared_ptr: one of those takes Python's lock when it is dropped, and MLX's thread
// drops operations while others that hold the lock may wait for it.
template <typename T>
struct Held {
  std::shared_ptr<const T> it;
};

struct LinearMap {  // one map, or several that follow each other
  Chain chain;
};

using RowTuple = std::tuple<int, int, int>;
using PlaceTuple = std::tuple<int64_t, int, int>;

inline std::vector<Rows> to_rows(const std::vector<RowTuple>& tuples) {
  std::vector<Rows> rows;
  for (const auto& [first, count, start] : tuples) rows.push_back({first, count, start});
  return rows;
}

inline std::vector<Place> to_places(const std::vector<PlaceTuple>& tuples) {
  std::vector<Place> places;
  for (const auto& [offset, key_bits, value_bits] : tuples) places.push_back({offset, key_bits, value_bits});
  return places;
}

// Maps of which each row takes one.
void bind_experts(nanobind::module_& m);
// Blocks of sealed pages, frames, and the operations of heads over them.
void bind_sealed(nanobind::module_& m, nanobind::class_<Held<HeadsSpec>>& heads);

}  // namespace edgeinfer::mlx_ops
