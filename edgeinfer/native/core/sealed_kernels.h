// The kernels over sealed pages of one instruction set, as a table of functions.
#pragma once

#include "sealed.h"

namespace edgeinfer {

struct SealedTile {  // queries of one kv head whose rows share a frontier
  const SealedView* sequence;
  int kv_head, first_query, count;
  int frontier;
};

// Queries made ready: rotated as keys are, as whole numbers of two bytes: scale * (255 * high + low).
struct SealedQueries {
  alignas(64) int8_t high[QUERY_TILE][MAX_HEAD_DIM];
  alignas(64) int8_t low[QUERY_TILE][MAX_HEAD_DIM];
  float scale[QUERY_TILE];
  float sum[QUERY_TILE][MAX_HEAD_DIM / SCALE_GROUP];  // of the whole numbers of each group
  alignas(64) float plain[QUERY_TILE][MAX_HEAD_DIM];
};

// A query's partial result: most, total, head_dim floats from float16 rows, as many from sealed ones, still rotated.
constexpr int sealed_partial(int dim) { return 2 + 2 * dim; }

struct SealedKernels {
  void (*prepare)(const AttendCall&, const SealedTile&, SealedQueries*);
  void (*chunk)(const AttendCall&, const PageFormat&, const SealedTile&, const SealedQueries&, int chunk, float* partials);
  // Adds partials of a later chunk to those of earlier ones.
  void (*merge)(const AttendCall&, const SealedTile&, float* merged, const float* next);
  void (*finish)(const AttendCall&, const SealedTile&, const float* merged);
  void (*seal)(const PageFormat&, const CacheView&, bool keys, int kv_head, int row, uint8_t* page);
};

}  // namespace edgeinfer
