#include "program.h"

#include <cmath>
#include <set>

#include "../core/arena.h"
#include "node.h"
#include "shared.h"

namespace edgeinfer::mlx_ops {

namespace {

template <class... Handlers>
struct Match : Handlers... {
  using Handlers::operator()...;
};

std::vector<int> read_by(const Step& step) {
  const auto both = [](int in, int residual) {
    return residual < 0 ? std::vector<int>{in} : std::vector<int>{in, residual};
  };
  return std::visit(Match{[](const EmbedStep&) { return std::vector<int>{}; },
                          [&](const MapStep& it) { return both(it.in, it.residual); },
                          [&](const HeadsStep& it) { return both(it.in, it.residual); },
                          [](const auto& it) { return std::vector<int>{it.in}; }},
                    step);
}

int written_by(const Step& step) {
  return std::visit([](const auto& it) { return it.out; }, step);
}

// The value in whose buffer the result may be put, if nothing reads it afterwards; -1: none.
int overwritable(const Step& step) {
  return std::visit(
      Match{[](const MapStep& it) {
              const bool read_first = it.in != it.residual || it.chain.size() > 1;
              return may_take_residual(it.chain) && read_first ? it.residual : -1;
            },
            [](const HeadsStep& it) { return may_take_residual(it.chain) ? it.residual : -1; },
            [](const ScaleStep& it) { return it.in; }, [](const SoftcapStep& it) { return it.in; },
            [](const auto&) { return -1; }},
      step);
}

struct Layout {  // where caches are buffers beside sealed pages; else empty
  std::vector<std::vector<std::shared_ptr<const Frame>>> frames;  // [sequence][heads step]
  std::vector<Place> places;                                      // [heads step]
};

struct Call {  // one run of a program
  const Program& program;
  const int32_t* tokens;
  int rows;  // of values that are computed now: all, or those that are wanted
  const std::vector<int>& wanted;
  std::vector<SequenceView> sequences;
  const std::vector<std::vector<CacheView>>& caches;  // [sequence][heads step]
  const std::vector<std::vector<CacheView>>& before;  // as they were before the step; empty where they are the same
  const Layout& layout;
  std::vector<float*> memory;                         // of each value
  std::vector<std::pair<const RopeSpec*, const float*>> tables;
  int heads_done = 0;

  void operator()(const EmbedStep& it) { edgeinfer::embed(*it.matrix, tokens, rows, 1.0f, memory[it.out]); }
  void operator()(const ScaleStep& it) {
    const float* in = memory[it.in];
    for (int64_t i = 0; i < int64_t(rows) * program.widths[it.in]; i++) memory[it.out][i] = in[i] * it.factor;
  }
  void operator()(const SoftcapStep& it) {
    const float* in = memory[it.in];
    for (int64_t i = 0; i < int64_t(rows) * program.widths[it.in]; i++)
      memory[it.out][i] = it.cap * std::tanh(in[i] / it.cap);
  }
  void operator()(const MapStep& it) {
    run_chain(it.chain, memory[it.in], rows, it.residual < 0 ? nullptr : memory[it.residual], memory[it.out]);
  }
  void operator()(const HeadsStep& it) {
    const HeadsSpec& spec = *it.spec;
    const HeadsView heads = heads_view(spec, memory[it.in], table_of(*it.rope), int(it.rope->frequencies.size()));
    run_heads(spec, it.chain, rows, it.residual < 0 ? nullptr : memory[it.residual], memory[it.out], [&](float* mixed) {
      const AttendCall call = attend_call(spec, heads, mixed);
      if (!layout.places.empty()) return beside_pages(spec, heads, call);
      for (size_t i = 0; i < sequences.size(); i++) {
        sequences[i].cache = caches[i][heads_done];
        edgeinfer::append(heads, sequences[i]);
      }
      edgeinfer::attend(call, sequences);
    });
    heads_done++;
  }
  void operator()(const PickStep& it) {
    const int64_t width = program.widths[it.in];
    for (size_t i = 0; i < wanted.size(); i++)
      std::copy_n(memory[it.in] + wanted[i] * width, width, memory[it.out] + int64_t(i) * width);
    rows = int(wanted.size());
  }

  void beside_pages(const HeadsSpec& spec, const HeadsView& heads, const AttendCall& call) {
    const Place& place = layout.places[heads_done];
    std::vector<CacheView> buffers;
    std::vector<Rows> spans;
    std::vector<std::shared_ptr<const Frame>> frames;
    for (size_t i = 0; i < sequences.size(); i++) {
      buffers.push_back(caches[i][heads_done]);
      spans.push_back({sequences[i].first_row, sequences[i].rows, sequences[i].start});
      frames.push_back(layout.frames[i][heads_done]);
      const CacheView* old = !before[i].empty() ? &before[i][heads_done] : spans[i].start ? &buffers[i] : nullptr;
      append_step(spec, heads, old, buffers[i], spans[i], *frames[i], place);
    }
    attend_step(call, buffers, spans, frames, place);
  }

  const float* table_of(const RopeSpec& rope) {
    for (const auto& [spec, table] : tables)
      if (spec == &rope) return table;
    const size_t pairs = rope.frequencies.size();
    thread_local std::vector<Scratch> scratch;
    if (scratch.size() <= tables.size()) scratch.resize(tables.size() + 1);
    float* table = scratch[tables.size()].get<float>(size_t(rows) * 2 * pairs);
    for (const SequenceView& each : sequences)
      edgeinfer::rope_table(each.start, each.rows, rope.frequencies.data(), int(pairs), rope.magnitude,
                            table + each.first_row * 2 * pairs);
    tables.push_back({&rope, table});
    return table;
  }
};

constexpr int FEW_ROWS = 64;  // of more, a step's buffers are not kept for the tokens that follow

class Forward : public Node {
 public:
  Forward(std::shared_ptr<const Program> program, std::vector<Rows> rows, std::vector<int> wanted,
          std::vector<bool> copied, Layout layout)
      : program_(std::move(program)), rows_(std::move(rows)), wanted_(std::move(wanted)), copied_(std::move(copied)),
        layout_(std::move(layout)) {}
  DEFINE_NAME(EdgeInferForward)

  // inputs: tokens; then for each sequence its caches, and behind those of one that is copied what they are copied from.
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    launch(inputs, out, [program = program_, rows = rows_, wanted = wanted_, copied = copied_, layout = layout_](
                            const std::vector<mx::array>& in, mx::array& out) {
      const size_t layers = program->heads.size();
      std::vector<std::vector<CacheView>> caches(rows.size()), before(rows.size());
      std::vector<SequenceView> sequences;
      size_t at = 1;
      for (size_t i = 0; i < rows.size(); i++) {
        for (size_t layer = 0; layer < layers; layer++) caches[i].push_back(cache_view(in[at++]));
        for (size_t layer = 0; copied[i] && layer < layers; layer++) {
          before[i].push_back(cache_view(in[at++]));
          if (layout.places.empty())
            copy_positions(before[i][layer], caches[i][layer], *program->heads[layer]->spec, rows[i].start);
        }
        sequences.push_back({{}, rows[i].first, rows[i].count, rows[i].start});
      }
      execute(*program, in[0].data<int32_t>(), int(in[0].size()), wanted, std::move(sequences), caches, before, layout, out);
    });
  }

 private:
  static void execute(const Program& program, const int32_t* tokens, int rows, const std::vector<int>& wanted,
                      std::vector<SequenceView> sequences, const std::vector<std::vector<CacheView>>& caches,
                      const std::vector<std::vector<CacheView>>& before, const Layout& layout, mx::array& out) {
    thread_local std::vector<Scratch> scratch;
    if (scratch.size() < program.buffers.size()) scratch.resize(program.buffers.size());
    Call call{program, tokens, rows, wanted, std::move(sequences), caches, before, layout, {}, {}};
    for (int id : program.buffer_of) {
      const auto& buffer = program.buffers[id];
      const size_t floats = buffer.width * (buffer.of_wanted ? wanted.size() : rows);
      const bool is_result = id == program.buffer_of[program.result];
      call.memory.push_back(is_result ? out.data<float>() : scratch[id].get<float>(floats));
    }
    for (const Step& step : program.steps) std::visit(call, step);
    if (rows > FEW_ROWS) scratch.clear();
  }

  std::shared_ptr<const Program> program_;
  std::vector<Rows> rows_;
  std::vector<int> wanted_;
  std::vector<bool> copied_;
  Layout layout_;
};

constexpr size_t LINE = 64;

size_t cache_bytes(const HeadsSpec& spec, int capacity) {
  return size_t(4) * spec.kv_heads * capacity * spec.head_dim;
}

// A cache in memory of ours, LINE bytes of which lie before it: MLX keeps the size of a buffer right before its data.
mx::array cache_in(const std::shared_ptr<uint8_t[]>& memory, size_t offset, const HeadsSpec& spec, int capacity) {
  uint8_t* data = memory.get() + offset + LINE;
  size_t* header = reinterpret_cast<size_t*>(data) - 1;
  *header = cache_bytes(spec, capacity);
  mx::array cache(mx::Shape{2, spec.kv_heads, capacity, spec.head_dim}, mx::float16, nullptr, {});
  cache.set_data(mx::allocator::Data(mx::allocator::Buffer(header), [memory](mx::allocator::Buffer) {}));
  cache.set_status(mx::array::Status::available);
  if (cache.data<uint8_t>() != data) throw std::logic_error("this version of MLX lays buffers out in another way");
  return cache;
}

// Caches of all layers with room for the step's rows, in one piece: they grow and end together.
std::vector<mx::array> new_caches(const Program& program, const Sequence& sequence, bool beside_pages) {
  std::vector<int> capacities;
  std::vector<size_t> offsets;
  size_t bytes = 0;
  for (size_t layer = 0; layer < program.heads.size(); layer++) {
    const auto& old = sequence.caches[layer];
    const Rows& rows = sequence.rows;
    capacities.push_back(beside_pages ? buffer_rows(*sequence.frames[layer], rows)
                                      : capacity_for(rows.start + rows.count, old ? old->shape(2) : 0));
    offsets.push_back(bytes);
    bytes += LINE + (cache_bytes(*program.heads[layer]->spec, capacities.back()) + LINE - 1) / LINE * LINE;
  }
  const std::shared_ptr<uint8_t[]> memory = map_memory(bytes);
  std::vector<mx::array> caches;
  for (size_t layer = 0; layer < program.heads.size(); layer++)
    caches.push_back(cache_in(memory, offsets[layer], *program.heads[layer]->spec, capacities[layer]));
  return caches;
}

// Adds a sequence's caches to the inputs; those that are new to `made`. True if old ones are to be copied into them.
bool add_caches(const Program& program, const Sequence& sequence, const std::vector<Place>& places,
                std::vector<mx::array>& inputs, std::vector<mx::array>& made) {
  const Rows& rows = sequence.rows;
  const bool beside_pages = !places.empty();
  const auto needed = [&](size_t layer) {
    return beside_pages ? buffer_rows(*sequence.frames[layer], rows) : rows.start + rows.count;
  };
  expect(sequence.frames.size() == places.size() && (!beside_pages || places.size() == program.heads.size()),
         "frames, places: expected one for each layer of the program, or none");
  expect(sequence.caches.size() == program.heads.size(), "caches: expected one for each layer of the program");
  bool fits = sequence.owned;
  for (size_t layer = 0; layer < program.heads.size(); layer++) {
    const auto& cache = sequence.caches[layer];
    expect(cache || rows.start == 0, "caches: missing, and the rows do not start a sequence");
    const HeadsSpec& spec = *program.heads[layer]->spec;
    if (beside_pages) {
      expect_frame(spec, *sequence.frames[layer], places[layer], rows);
      expect_buffer(spec, cache, *sequence.frames[layer], rows);
      fits = fits && cache && buffer_fits(cache->shape(2), needed(layer));
      continue;
    }
    if (cache) expect_cache(spec, *cache, rows.start);
    fits = fits && cache && cache->shape(2) >= needed(layer);
  }
  if (!fits) made = new_caches(program, sequence, beside_pages);
  for (size_t layer = 0; layer < program.heads.size(); layer++)
    inputs.push_back(fits ? *sequence.caches[layer] : made[layer]);
  const bool copied = !fits && rows.start > 0;
  for (size_t layer = 0; copied && layer < program.heads.size(); layer++) inputs.push_back(*sequence.caches[layer]);
  return copied;
}

}  // namespace

Program::Program(Recording recording, int result)
    : steps(std::move(recording.steps)), buffer_of(recording.widths.size(), 0), result(result) {
  std::vector<size_t> last_read(buffer_of.size(), 0);
  for (size_t i = 0; i < steps.size(); i++)
    for (int value : read_by(steps[i])) last_read[value] = i;
  widths = std::move(recording.widths);
  std::set<int> free;
  bool picked = false;
  for (size_t i = 0; i < steps.size(); i++) {
    const Step& step = steps[i];
    if (const auto* it = std::get_if<HeadsStep>(&step)) heads.push_back(it);
    const int out = written_by(step), old = overwritable(step);
    picked = picked || std::holds_alternative<PickStep>(step);
    const bool taken = old >= 0 && last_read[old] == i;
    if (taken) {
      buffer_of[out] = buffer_of[old];
    } else if (!free.empty() && !picked) {
      buffer_of[out] = free.extract(free.begin()).value();
    } else {
      buffer_of[out] = int(buffers.size());
      buffers.push_back({0, picked});
    }
    size_t& width = buffers[buffer_of[out]].width;
    width = std::max(width, size_t(widths[out]));
    for (int value : read_by(step))
      if (last_read[value] == i && !(taken && value == old)) free.insert(buffer_of[value]);
  }
  expect(picked && buffers[buffer_of[result]].of_wanted, "a program's result: expected logits of the wanted rows");
}

Outcome run(std::shared_ptr<const Program> program, const mx::array& tokens, std::vector<Sequence> sequences,
            std::vector<int> wanted, std::vector<Place> places) {
  expect(tokens.ndim() == 1 && tokens.dtype() == mx::int32, "tokens: expected (rows,) int32");
  std::vector<mx::array> inputs{tokens};
  std::vector<Rows> rows;
  std::vector<bool> copied;
  Layout layout;
  std::vector<std::vector<mx::array>> made;
  int total = 0;
  for (const Sequence& each : sequences) {
    expect(each.rows.first == total && each.rows.count > 0 && each.rows.start >= 0 &&
               each.rows.start <= (1 << 30) - each.rows.count,
           "rows: expected each to follow the one before");
    total += each.rows.count;
    rows.push_back(each.rows);
    copied.push_back(add_caches(*program, each, places, inputs, made.emplace_back()));
    layout.frames.push_back(each.frames);
  }
  expect(total == tokens.shape(0), "rows: expected all of the call");
  for (size_t i = 0; i < wanted.size(); i++)
    expect(wanted[i] >= 0 && wanted[i] < total && (!i || wanted[i] > wanted[i - 1]), "wanted: expected rows in order");
  layout.places = std::move(places);
  const mx::Shape shape{int(wanted.size()), program->widths[program->result]};
  auto forward = std::make_shared<Forward>(std::move(program), std::move(rows), std::move(wanted), std::move(copied),
                                           std::move(layout));
  return {mx::array(shape, mx::float32, std::move(forward), std::move(inputs)), std::move(made)};
}

}  // namespace edgeinfer::mlx_ops
