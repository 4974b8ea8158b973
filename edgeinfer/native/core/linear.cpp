#include <algorithm>
#include <numeric>

#include "engine.h"
#include "kernels.h"
#include "pool.h"
#include "scratch.h"

namespace edgeinfer {

namespace {

constexpr int PANEL = 256;         // rows of activations that stay in the second-level cache during a pass over strips
constexpr int PREPARE_ROWS = 16;   // a piece of preparation
constexpr int PIECES_A_THREAD = 6;

bool is_plain(Format format) { return format == Format::f32 || format == Format::f16 || format == Format::bf16; }

int units(const LinearCall& call) {
  const MatrixView& matrix = call.matrix;
  if (call.activation != Activation::none) return matrix.segments[0].strips();
  return std::accumulate(matrix.begin(), matrix.end(), 0,
                         [](int sum, const Segment& each) { return sum + each.strips(); });
}

void take_scratch(LinearCall& call) {
  thread_local Scratch packed, floats;
  const size_t rows = call.rows, columns = call.matrix.columns;
  const auto plain = [](const Segment& each) { return is_plain(each.format); };
  const bool any_plain = std::any_of(call.matrix.begin(), call.matrix.end(), plain);
  const bool all_plain = std::all_of(call.matrix.begin(), call.matrix.end(), plain);
  call.packed = all_plain ? nullptr : packed.get<QuantBlock>(rows * (columns / BLOCK));
  call.floats = any_plain && call.norm ? floats.get<float>(rows * columns) : nullptr;
}

void prepare(const LinearCall& call, Pool& pool) {
  if (!call.packed && !call.floats) return;
  const Kernels& isa = kernels();
  pool.run((call.rows + PREPARE_ROWS - 1) / PREPARE_ROWS, [&](int piece) {
    const int first = piece * PREPARE_ROWS;
    isa.linear_prepare(call, first, std::min(first + PREPARE_ROWS, call.rows));
  });
}

void multiply(const LinearCall& call, Pool& pool) {
  const Kernels& isa = kernels();
  const int total = units(call);
  const int panels = (call.rows + PANEL - 1) / PANEL;
  const int pieces = std::min(total, pool.threads() * PIECES_A_THREAD);
  pool.run(panels * pieces, [&](int piece) {
    const int first = piece / pieces * PANEL, last = std::min(first + PANEL, call.rows);
    const int64_t part = piece % pieces;
    for (int unit = int(part * total / pieces); unit < int((part + 1) * total / pieces); unit++)
      isa.linear_unit(call, unit, first, last);
  });
}

}  // namespace

int columns_out(const MatrixView& matrix, Activation activation) {
  if (activation != Activation::none) return matrix.segments[0].rows;
  return std::accumulate(matrix.begin(), matrix.end(), 0,
                         [](int sum, const Segment& each) { return sum + each.rows; });
}

void linear(LinearCall call) {
  if (!call.rows) return;
  Pool& pool = Pool::shared();
  call.columns_out = columns_out(call.matrix, call.activation);
  take_scratch(call);
  prepare(call, pool);
  multiply(call, pool);
  if (!call.post_norm) return;
  const Kernels& isa = kernels();
  pool.run((call.rows + PREPARE_ROWS - 1) / PREPARE_ROWS, [&](int piece) {
    for (int row = piece * PREPARE_ROWS; row < std::min((piece + 1) * PREPARE_ROWS, call.rows); row++)
      isa.linear_post_norm(call, row);
  });
}

void argmax(const float* logits, int rows, int columns, int32_t* out) {
  const Kernels& isa = kernels();
  Pool::shared().run(rows, [&](int row) { out[row] = isa.argmax(logits + int64_t(row) * columns, columns); });
}

}  // namespace edgeinfer
