#include <algorithm>
#include <cstdlib>
#include <new>

#include "engine.h"
#include "kernels.h"
#include "pool.h"
#include "scratch.h"
#include "sealed_kernels.h"

namespace edgeinfer {

namespace {

struct Work {
  SealedTile tile;
  int chunks;
  int64_t partial;  // of its first chunk, counted in chunks of tiles
};

// Tiles of queries; those of rows with different frontiers are never one.
std::vector<Work> divide(const AttendCall& call, const std::vector<SealedView>& sequences) {
  const int group = call.in.heads / call.in.kv_heads;
  std::vector<Work> list;
  int64_t partial = 0;
  for (const SealedView& each : sequences)
    for (int kv_head = 0; kv_head < call.in.kv_heads; kv_head++)
      for (int row = 0; row < each.rows;) {
        const int border = frontier(each.start + row);
        int end = row;
        while (end < each.rows && frontier(each.start + end) == border) end++;
        for (int first = row * group; first < end * group; first += QUERY_TILE) {
          const int count = std::min(QUERY_TILE, end * group - first);
          const int chunks = (each.start + (first + count - 1) / group) / CHUNK + 1;
          list.push_back({{&each, kv_head, first, count, border}, chunks, partial});
          partial += chunks;
        }
        row = end;
      }
  return list;
}

void attend_by_chunk(const AttendCall& call, const PageFormat& format, const std::vector<Work>& list, Pool& pool) {
  struct Piece {
    int work, chunk;
  };
  thread_local Scratch scratch, prepared;
  thread_local std::vector<Piece> pieces;
  pieces.clear();
  const SealedKernels& isa = *kernels().sealed;
  SealedQueries* queries = prepared.get<SealedQueries>(list.size());
  for (int i = 0; i < int(list.size()); i++) {
    isa.prepare(call, list[i].tile, queries + i);
    for (int chunk = 0; chunk < list[i].chunks; chunk++) pieces.push_back({i, chunk});
  }
  const int64_t floats = int64_t(QUERY_TILE) * sealed_partial(call.in.head_dim);
  float* partials = scratch.get<float>(pieces.size() * floats);
  const Piece* first = pieces.data();
  const Work* works = list.data();
  pool.run(int(pieces.size()), [&](int i) {
    const auto [work, chunk] = first[i];
    isa.chunk(call, format, works[work].tile, queries[work], chunk, partials + (works[work].partial + chunk) * floats);
  });
  for (const Work& work : list) {
    float* merged = partials + work.partial * floats;
    for (int chunk = 1; chunk < work.chunks; chunk++) isa.merge(call, work.tile, merged, merged + chunk * floats);
    isa.finish(call, work.tile, merged);
  }
}

void attend_pages(const AttendCall& call, const PageFormat& format, const std::vector<SealedView>& sequences) {
  Pool& pool = Pool::shared();
  const std::vector<Work> list = divide(call, sequences);
  if (int(list.size()) < 8 * pool.threads()) return attend_by_chunk(call, format, list, pool);
  const SealedKernels& isa = *kernels().sealed;
  // The longest come last in a sequence: taken first, no thread is left alone with one at the end.
  pool.run(int(list.size()), [&](int i) {
    const Work& work = list[list.size() - 1 - i];
    const int64_t floats = int64_t(QUERY_TILE) * sealed_partial(call.in.head_dim);
    thread_local Scratch scratch, prepared;
    float* merged = scratch.get<float>(2 * floats);
    SealedQueries* queries = prepared.get<SealedQueries>(1);
    isa.prepare(call, work.tile, queries);
    isa.chunk(call, format, work.tile, *queries, 0, merged);
    for (int chunk = 1; chunk < work.chunks; chunk++) {
      isa.chunk(call, format, work.tile, *queries, chunk, merged + floats);
      isa.merge(call, work.tile, merged, merged + floats);
    }
    isa.finish(call, work.tile, merged);
  });
}

}  // namespace

PageBlock::PageBlock(int64_t bytes) : size((bytes + 63) / 64 * 64) {
  memory.reset(static_cast<uint8_t*>(std::aligned_alloc(64, size_t(size))), [](uint8_t* each) { std::free(each); });
  if (!memory) throw std::bad_alloc();
}

void seal(const PageFormat& format, const CacheView& buffer, int kv_heads, int row, uint8_t* page) {
  const SealedKernels& isa = *kernels().sealed;
  Pool::shared().run(2 * kv_heads, [&](int piece) {
    const int head = piece / 2;
    isa.seal(format, buffer, piece % 2 == 0, head, row, page + head * format.bytes());
  });
}

void attend_sealed(const AttendCall& call, const PageFormat& format, const std::vector<SealedView>& sequences) {
  std::vector<SequenceView> exact;
  std::vector<SealedView> others;
  for (const SealedView& each : sequences) {
    const int before = std::clamp(FIRST_SEALED - each.start, 0, each.rows);
    if (before) exact.push_back({each.buffer, each.first_row, before, each.start});
    if (before == each.rows) continue;
    others.push_back(each);
    others.back().first_row += before, others.back().rows -= before, others.back().start += before;
  }
  if (!exact.empty()) attend(call, exact);
  if (!others.empty()) attend_pages(call, format, others);
}

}  // namespace edgeinfer
