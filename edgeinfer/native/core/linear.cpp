#include <algorithm>
#include <cmath>
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

using Calls = std::vector<LinearCall>;

void take_scratch(Calls& calls) {
  thread_local Scratch packed, floats;
  const auto plain = [](const Segment& each) { return is_plain(each.format); };
  const auto blocks_of = [&](const LinearCall& call) {
    const bool all_plain = std::all_of(call.matrix.begin(), call.matrix.end(), plain);
    return all_plain ? 0 : size_t(call.rows) * (call.matrix.columns / BLOCK);
  };
  const auto floats_of = [&](const LinearCall& call) {
    const bool any_plain = std::any_of(call.matrix.begin(), call.matrix.end(), plain);
    return any_plain && call.norm ? size_t(call.rows) * call.matrix.columns : 0;
  };
  size_t blocks = 0, numbers = 0;
  for (const LinearCall& call : calls) blocks += blocks_of(call), numbers += floats_of(call);
  QuantBlock* next_block = packed.get<QuantBlock>(blocks);
  float* next_number = floats.get<float>(numbers);
  for (LinearCall& call : calls) {
    call.packed = blocks_of(call) ? next_block : nullptr;
    call.floats = floats_of(call) ? next_number : nullptr;
    next_block += blocks_of(call), next_number += floats_of(call);
  }
}

struct Piece {  // of a call: rows, and units of the output
  const LinearCall* call;
  int first_row, last_row, first_unit, last_unit;
};

void prepare(const Calls& calls, Pool& pool, std::vector<Piece>& pieces) {
  pieces.clear();
  for (const LinearCall& call : calls)
    for (int row = 0; (call.packed || call.floats) && row < call.rows; row += PREPARE_ROWS)
      pieces.push_back({&call, row, std::min(row + PREPARE_ROWS, call.rows), 0, 0});
  const Kernels& isa = kernels();
  pool.run(int(pieces.size()), [&isa, first = pieces.data()](int i) {
    isa.linear_prepare(*first[i].call, first[i].first_row, first[i].last_row);
  });
}

void multiply(const Calls& calls, Pool& pool, std::vector<Piece>& pieces) {
  pieces.clear();
  const int wanted = (pool.threads() * PIECES_A_THREAD + int(calls.size()) - 1) / int(calls.size());
  for (const LinearCall& call : calls) {
    const int total = units(call), parts = std::min(total, wanted);
    for (int row = 0; row < call.rows; row += PANEL)
      for (int64_t part = 0; part < parts; part++)
        pieces.push_back({&call, row, std::min(row + PANEL, call.rows), int(part * total / parts),
                          int((part + 1) * total / parts)});
  }
  const Kernels& isa = kernels();
  pool.run(int(pieces.size()), [&isa, first = pieces.data()](int i) {
    for (int unit = first[i].first_unit; unit < first[i].last_unit; unit++)
      isa.linear_unit(*first[i].call, unit, first[i].first_row, first[i].last_row);
  });
}

void norm_products(const LinearCall& call, Pool& pool) {
  if (!call.post_norm) return;
  const Kernels& isa = kernels();
  pool.run((call.rows + PREPARE_ROWS - 1) / PREPARE_ROWS, [&](int piece) {
    for (int row = piece * PREPARE_ROWS; row < std::min((piece + 1) * PREPARE_ROWS, call.rows); row++)
      isa.linear_post_norm(call, row);
  });
}

// All calls prepared as one job of the pool, and multiplied as another.
void multiply_together(Calls& calls) {
  thread_local std::vector<Piece> pieces;
  Pool& pool = Pool::shared();
  for (LinearCall& call : calls) call.columns_out = columns_out(call.matrix, call.activation);
  take_scratch(calls);
  prepare(calls, pool, pieces);
  multiply(calls, pool, pieces);
  for (const LinearCall& call : calls) norm_products(call, pool);
}

}  // namespace

int columns_out(const MatrixView& matrix, Activation activation) {
  if (activation != Activation::none) return matrix.segments[0].rows;
  return std::accumulate(matrix.begin(), matrix.end(), 0,
                         [](int sum, const Segment& each) { return sum + each.rows; });
}

void linear(const LinearCall& call) {
  if (!call.rows) return;
  thread_local Calls calls;
  calls.assign(1, call);
  multiply_together(calls);
}

void linear_by_expert(const std::vector<LinearCall>& experts, const float* x, const int32_t* chosen, int rows, float* out) {
  if (!rows || experts.empty()) return;
  thread_local Calls calls;
  calls.clear();
  const int64_t columns = experts[0].matrix.columns, width = columns_out(experts[0].matrix, experts[0].activation);
  for (int first = 0, last = 0; first < rows; first = last) {
    while (last < rows && chosen[last] == chosen[first]) last++;
    if (chosen[first] < 0 || chosen[first] >= int(experts.size())) {
      std::fill_n(out + first * width, (last - first) * width, NAN);
      continue;
    }
    LinearCall& call = calls.emplace_back(experts[size_t(chosen[first])]);
    call.x = x + first * columns;
    call.rows = last - first;
    call.out = out + first * width;
  }
  if (!calls.empty()) multiply_together(calls);
}

void argmax(const float* logits, int rows, int columns, int32_t* out) {
  const Kernels& isa = kernels();
  Pool::shared().run(rows, [&](int row) { out[row] = isa.argmax(logits + int64_t(row) * columns, columns); });
}

}  // namespace edgeinfer
