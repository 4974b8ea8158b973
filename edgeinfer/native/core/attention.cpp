#include <algorithm>
#include <cmath>

#include "engine.h"
#include "kernels.h"
#include "pool.h"
#include "scratch.h"

namespace edgeinfer {

namespace {

struct Work {  // one tile of queries of one kv head, and the chunks that it sees
  const SequenceView* sequence;
  int kv_head, first_query;
  int first_chunk, chunks;
  int64_t partial;  // of its first chunk, counted in tiles
};

std::vector<Work> divide(const AttendCall& call, const std::vector<SequenceView>& sequences) {
  const int group = call.in.heads / call.in.kv_heads;
  std::vector<Work> list;
  int64_t partial = 0;
  for (const SequenceView& each : sequences)
    for (int kv_head = 0; kv_head < call.in.kv_heads; kv_head++)
      for (int first = 0; first < each.rows * group; first += QUERY_TILE) {
        const int last = std::min(first + QUERY_TILE, each.rows * group) - 1;
        const int from = call.window ? std::max(0, each.start + first / group + 1 - call.window) : 0;
        const int first_chunk = from / CHUNK, chunks = (each.start + last / group) / CHUNK + 1 - first_chunk;
        list.push_back({&each, kv_head, first, first_chunk, chunks, partial});
        partial += chunks;
      }
  return list;
}

// Few tiles: every chunk of each is a piece of its own, and the partial results are merged afterwards.
void attend_by_chunk(const AttendCall& call, const std::vector<Work>& list, Pool& pool) {
  struct Piece {
    const Work* work;
    int chunk;
  };
  thread_local Scratch scratch;
  thread_local std::vector<Piece> pieces;
  pieces.clear();
  for (const Work& work : list)
    for (int chunk = 0; chunk < work.chunks; chunk++) pieces.push_back({&work, chunk});
  const int64_t tile_floats = QUERY_TILE * (call.in.head_dim + 2);
  float* partials = scratch.get<float>(pieces.size() * tile_floats);
  const Kernels& isa = kernels();
  const Piece* first = pieces.data();
  pool.run(int(pieces.size()), [&](int i) {
    const auto [work, chunk] = first[i];
    isa.attend_chunk(call, *work->sequence, work->kv_head, work->first_query, work->first_chunk + chunk,
                     partials + (work->partial + chunk) * tile_floats);
  });
  for (const Work& work : list)
    isa.attend_merge(call, *work.sequence, work.kv_head, work.first_query, work.chunks,
                     partials + work.partial * tile_floats);
}

}  // namespace

void attend(const AttendCall& call, const std::vector<SequenceView>& sequences) {
  Pool& pool = Pool::shared();
  const std::vector<Work> list = divide(call, sequences);
  if (int(list.size()) < 8 * pool.threads()) return attend_by_chunk(call, list, pool);
  const Kernels& isa = kernels();
  // The longest come last in a sequence: taken first, no thread is left alone with one at the end.
  pool.run(int(list.size()), [&](int i) {
    const Work& work = list[list.size() - 1 - i];
    isa.attend_tile(call, *work.sequence, work.kv_head, work.first_query);
  });
}

void append(const HeadsView& in, const SequenceView& sequence) {
  constexpr int rows = 16;
  const Kernels& isa = kernels();
  Pool::shared().run((sequence.rows + rows - 1) / rows, [&](int piece) {
    isa.append(in, sequence, piece * rows, std::min((piece + 1) * rows, sequence.rows));
  });
}

void rope_table(int start, int count, const double* frequencies, int pairs, double magnitude, float* out) {
  for (int row = 0; row < count; row++, out += 2 * pairs)
    for (int i = 0; i < pairs; i++) {
      const double angle = (start + row) * frequencies[i];
      out[i] = float(std::cos(angle) * magnitude);
      out[i + pairs] = float(std::sin(angle) * magnitude);
    }
}

}  // namespace edgeinfer
