#include "sealed.h"

#include <algorithm>
#include <cstring>

#include "node.h"
#include "shared.h"

namespace edgeinfer::mlx_ops {

namespace {

PageFormat format_of(int head_dim, const Place& place) { return {place.key_bits, place.value_bits, head_dim}; }

// `count` rows of a head's keys and values, from row `source` to row `target`, which may overlap.
void move_rows(const CacheView& from, const CacheView& to, int head, int dim, int source, int target, int count) {
  const int64_t at = int64_t(head) * from.capacity + source, into = int64_t(head) * to.capacity + target;
  const int64_t keys = int64_t(count + STRIP - 1) / STRIP * STRIP * dim;
  std::memmove(to.keys + into * dim, from.keys + at * dim, size_t(keys) * 2);
  std::memmove(to.values + into * dim, from.values + at * dim, size_t(count) * dim * 2);
}

// Sinks, and positions from `keep` to `length`, to where the step's buffer has them.
void keep_rows(const CacheView& from, const CacheView& to, const HeadsSpec& spec, const Frame& frame, int length) {
  const bool same = from.keys == to.keys;
  if (same && frame.base == frame.keep) return;
  const int sinks = std::min(frame.sinks, length);
  for (int head = 0; head < spec.kv_heads; head++) {
    if (!same && sinks) move_rows(from, to, head, spec.head_dim, 0, 0, sinks);
    if (length > frame.keep)
      move_rows(from, to, head, spec.head_dim, frame.sinks + frame.keep - frame.base, frame.sinks, length - frame.keep);
  }
}

// Seals the pages from number `next` on that end at `end` at the latest, from a buffer whose rows start at `base`.
int seal_until(int end, int next, const CacheView& buffer, int base, const HeadsSpec& spec, const Frame& frame,
               const Place& place) {
  for (; place.key_bits && next < int(frame.blocks.size()) && SINKS + (next + 1) * PAGE <= end; next++)
    edgeinfer::seal(format_of(spec.head_dim, place), buffer, spec.kv_heads, SINKS + next * PAGE - (base - SINKS),
                    frame.blocks[next]->memory.get() + place.offset);
  return next;
}

class AppendMoving : public Node {
 public:
  AppendMoving(std::shared_ptr<const HeadsSpec> spec, Rows rows, std::shared_ptr<const Frame> frame, Place place)
      : spec_(std::move(spec)), rows_(rows), frame_(std::move(frame)), place_(place) {}
  DEFINE_NAME(EdgeInferAppendMoving)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    if (inputs.size() == 3)
      take_or_allocate(inputs[2], out);
    else
      allocate(out);
    launch(inputs, out, [spec = spec_, rows = rows_, frame = frame_, place = place_](const auto& in, mx::array& out) {
      const CacheView before = in.size() == 3 ? cache_view(in[2]) : CacheView{};
      append_step(*spec, heads_view(*spec, in[0], in[1]), in.size() == 3 ? &before : nullptr, cache_view(out), rows, *frame,
                  place);
    });
  }

 private:
  std::shared_ptr<const HeadsSpec> spec_;
  Rows rows_;
  std::shared_ptr<const Frame> frame_;
  Place place_;
};

class AttendSealed : public Node {
 public:
  AttendSealed(std::shared_ptr<const HeadsSpec> spec, Chain chain, std::vector<Rows> rows,
               std::vector<std::shared_ptr<const Frame>> frames, Place place)
      : spec_(std::move(spec)), chain_(std::move(chain)), rows_(std::move(rows)), frames_(std::move(frames)), place_(place) {}
  DEFINE_NAME(EdgeInferAttendSealed)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const bool has_residual = inputs.size() > 2 + rows_.size();
    if (has_residual && may_take_residual(chain_))
      take_or_allocate(inputs.back(), out);
    else
      allocate(out);
    launch(inputs, out, [spec = spec_, chain = chain_, rows = rows_, frames = frames_, place = place_,
                         has_residual](const auto& in, mx::array& out) {
      std::vector<CacheView> buffers;
      for (size_t i = 0; i < rows.size(); i++) buffers.push_back(cache_view(in[2 + i]));
      const float* residual = has_residual ? in.back().template data<float>() : nullptr;
      run_heads(*spec, chain, in[0].shape(0), residual, out.data<float>(), [&](float* mixed) {
        attend_step(attend_call(*spec, heads_view(*spec, in[0], in[1]), mixed), buffers, rows, frames, place);
      });
    });
  }

 private:
  std::shared_ptr<const HeadsSpec> spec_;
  Chain chain_;
  std::vector<Rows> rows_;
  std::vector<std::shared_ptr<const Frame>> frames_;
  Place place_;
};

}  // namespace

void append_step(const HeadsSpec& spec, const HeadsView& heads, const CacheView* before, const CacheView& buffer,
                 const Rows& rows, const Frame& frame, const Place& place) {
  int next = frame.filled;
  if (before) {  // what is whole already is sealed before it may be let go
    next = seal_until(rows.start, next, *before, frame.base, spec, frame, place);
    keep_rows(*before, buffer, spec, frame, rows.start);
  }
  edgeinfer::append(heads, {buffer, rows.first, rows.count, rows.start - (frame.keep - frame.sinks)});
  seal_until(rows.start + rows.count, next, buffer, frame.keep, spec, frame, place);
}

void attend_step(const AttendCall& call, const std::vector<CacheView>& buffers, const std::vector<Rows>& rows,
                 const std::vector<std::shared_ptr<const Frame>>& frames, const Place& place) {
  if (!place.key_bits) {  // a window: all in sight lies in the buffer, whole chunks of positions further ahead
    std::vector<SequenceView> sequences;
    for (size_t i = 0; i < rows.size(); i++)
      sequences.push_back({buffers[i], rows[i].first, rows[i].count, rows[i].start - frames[i]->keep});
    return edgeinfer::attend(call, sequences);
  }
  std::vector<std::vector<const PageBlock*>> blocks(rows.size());
  std::vector<SealedView> sequences;
  for (size_t i = 0; i < rows.size(); i++) {
    for (const auto& block : frames[i]->blocks) blocks[i].push_back(block.get());
    sequences.push_back({buffers[i], frames[i]->keep, rows[i].first, rows[i].count, rows[i].start, blocks[i].data(),
                         place.offset});
  }
  edgeinfer::attend_sealed(call, format_of(call.in.head_dim, place), sequences);
}

int buffer_rows(const Frame& frame, const Rows& rows) {
  const int end = std::max(rows.start + rows.count, frame.keep);
  return (frame.sinks + end - frame.keep + CHUNK - 1) / CHUNK * CHUNK;
}

void expect_frame(const HeadsSpec& spec, const Frame& frame, const Place& place, const Rows& rows) {
  const bool seals = place.key_bits != 0;
  expect(frame.sinks == (seals ? SINKS : 0) && frame.base >= frame.sinks && frame.keep >= frame.base &&
             frame.keep % (seals ? PAGE : CHUNK) == 0 && (frame.keep <= rows.start || frame.keep == frame.sinks),
         "frame: expected whole pages that the buffer holds");
  if (!seals) {
    expect(spec.window && frame.keep <= std::max(0, rows.start + 1 - spec.window), "frame: expected all of the window");
    return;
  }
  const PageFormat format = format_of(spec.head_dim, place);
  const int64_t pages = int64_t(frame.blocks.size());
  expect(format.supported() && !spec.window && !spec.sinks, "place: no kernels for this format");
  expect(frame.keep <= frontier(rows.start) && frame.filled >= 0 &&
             SINKS + pages * PAGE >= frontier(rows.start + rows.count - 1) &&
             SINKS + int64_t(frame.filled) * PAGE >= frame.base &&
             (frame.filled >= pages || SINKS + pages * PAGE <= rows.start + rows.count),
         "frame: expected a block for every page before the last row's frontier");
  for (const auto& block : frame.blocks)
    expect(place.offset >= 0 && place.offset + format.bytes() * spec.kv_heads <= block->size, "place: outside the block");
}

void expect_buffer(const HeadsSpec& spec, const std::optional<mx::array>& buffer, const Frame& frame, const Rows& rows) {
  expect(buffer || rows.start == 0, "buffer: missing, and the rows do not start a sequence");
  if (buffer) expect_cache(spec, *buffer, rows.start > frame.base ? frame.sinks + rows.start - frame.base : rows.start);
}

mx::array append_moving(std::shared_ptr<const HeadsSpec> spec, const mx::array& qkv, const mx::array& table,
                        const std::optional<mx::array>& buffer, Rows rows, std::shared_ptr<const Frame> frame, Place place) {
  expect_heads(*spec, qkv, table);
  expect_inside(rows, qkv);
  expect_frame(*spec, *frame, place, rows);
  expect_buffer(*spec, buffer, *frame, rows);
  std::vector<mx::array> inputs{qkv, table};
  int capacity = buffer_rows(*frame, rows);
  if (buffer) {
    if (buffer_fits(buffer->shape(2), capacity)) capacity = buffer->shape(2);
    inputs.push_back(*buffer);
  }
  const mx::Shape shape{2, spec->kv_heads, capacity, spec->head_dim};
  return node<AppendMoving>(shape, mx::float16, std::move(inputs), std::move(spec), rows, std::move(frame), place);
}

mx::array attend_sealed(std::shared_ptr<const HeadsSpec> spec, Chain chain, const mx::array& qkv, const mx::array& table,
                        const std::vector<mx::array>& buffers, std::vector<Rows> rows,
                        std::vector<std::shared_ptr<const Frame>> frames, Place place,
                        const std::optional<mx::array>& residual) {
  expect_heads(*spec, qkv, table);
  expect(buffers.size() == rows.size() && frames.size() == rows.size(), "buffers: expected one for each entry of rows");
  const mx::Shape shape = attended_shape(*spec, chain, qkv, rows, residual.has_value());
  std::vector<mx::array> inputs{qkv, table};
  for (size_t i = 0; i < rows.size(); i++) {
    expect_frame(*spec, *frames[i], place, rows[i]);
    expect_cache(*spec, buffers[i], buffer_rows(*frames[i], rows[i]));
    inputs.push_back(buffers[i]);
  }
  add_residual(inputs, residual, shape);
  return node<AttendSealed>(shape, mx::float32, std::move(inputs), std::move(spec), std::move(chain), std::move(rows),
                            std::move(frames), place);
}

}  // namespace edgeinfer::mlx_ops
