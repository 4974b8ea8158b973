// The operations, each spread over the pool. Scratch memory belongs to the calling thread, so that several may call.
#pragma once

#include <memory>
#include <vector>

#include "calls.h"

namespace edgeinfer {

// A matrix in tiles. Owns its memory; several operations may hold it.
struct Matrix {
  Segment segment;
  int columns;
  std::shared_ptr<uint8_t[]> memory;

  size_t bytes() const { return size_t(segment.strip_bytes) * segment.strips(); }
};

// Bytes that `rows` x `columns` take in tiles; 0 for a format or a shape that there are no tiles for.
size_t tiled_bytes(Format format, int64_t rows, int64_t columns);

// Rearranges rows of blocks as they lie in a file. Throws std::invalid_argument if `bytes` is not what they take.
std::shared_ptr<Matrix> pack(Format format, const uint8_t* blocks, int64_t bytes, int rows, int columns);

// Row `row` as float32, (columns,): exactly the weights of the file.
void decode_row(const Matrix& matrix, int row, float* out);

int columns_out(const MatrixView& matrix, Activation activation);
void linear(const LinearCall& call);
// Row m of x by the matrices, and as else said, of experts[chosen[m]]: all of one width, without residual. Rows of one
// expert that follow each other read its weights once. Ids out of range give NaN.
void linear_by_expert(const std::vector<LinearCall>& experts, const float* x, const int32_t* chosen, int rows, float* out);
// Rows that tokens name, times scale. Ids out of range give NaN.
void embed(const Matrix& matrix, const int32_t* tokens, int count, float scale, float* out);
// Angle of pair i at a position: position * frequencies[i]. out: (count, 2, pairs), cosines and sines times magnitude.
void rope_table(int start, int count, const double* frequencies, int pairs, double magnitude, float* out);
void append(const HeadsView& in, const SequenceView& sequence);
void attend(const AttendCall& call, const std::vector<SequenceView>& sequences);

// The filters of generation/sampling.py that come after top-k, in their order, and where the draw falls.
struct SampleSpec {
  int top_k;                // at least 1
  float typical_p, top_p;   // 1: off
  double min_p;             // 0: off
  float xtc_threshold;      // below 0: off
  float temperature;        // above 0
  float u;                  // in [0, 1)
};

// The chosen token; -1 if a logit is a NaN or the largest no finite number.
int sample(const float* logits, int count, const SampleSpec& spec);
void argmax(const float* logits, int rows, int columns, int32_t* out);

}  // namespace edgeinfer
