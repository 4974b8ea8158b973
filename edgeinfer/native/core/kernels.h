// The kernels of one instruction set, as a table of functions, and the choice of a table.
#pragma once

#include "calls.h"

namespace edgeinfer {

struct SealedKernels;

struct Kernels {
  const char* name;
  void (*linear_prepare)(const LinearCall&, int first_row, int last_row);
  void (*linear_unit)(const LinearCall&, int unit, int first_row, int last_row);
  void (*linear_post_norm)(const LinearCall&, int row);
  void (*append)(const HeadsView&, const SequenceView&, int first, int last);
  // Partials of one tile of queries over chunk `chunk`: per query most, total, and head_dim floats.
  void (*attend_chunk)(const AttendCall&, const SequenceView&, int kv_head, int first_query, int chunk, float* partials);
  // The tile's result from partials of `chunks` consecutive chunks, each QUERY_TILE queries large.
  void (*attend_merge)(const AttendCall&, const SequenceView&, int kv_head, int first_query, int chunks, float* partials);
  // The same from the first chunk to the last, with nothing kept but the running result.
  void (*attend_tile)(const AttendCall&, const SequenceView&, int kv_head, int first_query);
  int (*argmax)(const float* values, int count);
  const SealedKernels* sealed;
};

// Every table that was compiled in and that this processor can run, the fastest first; there is always one.
const Kernels* const* available_kernels();

// The table in use; the fastest, until use_kernels names another. False if there is none of that name here.
const Kernels& kernels();
bool use_kernels(const char* name);

}  // namespace edgeinfer
