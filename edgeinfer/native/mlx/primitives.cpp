#include "primitives.h"

#include "node.h"
#include "shared.h"

namespace edgeinfer::mlx_ops {

void expect_rows(const mx::array& x, int columns, const char* message) {
  expect(x.ndim() == 2 && x.shape(1) == columns && x.dtype() == mx::float32, message);
}

void add_residual(std::vector<mx::array>& inputs, const std::optional<mx::array>& residual, const mx::Shape& shape) {
  if (!residual) return;
  expect(residual->shape() == shape && residual->dtype() == mx::float32, "residual: expected the result's shape, float32");
  inputs.push_back(*residual);
}

void expect_heads(const HeadsSpec& spec, const mx::array& qkv, const mx::array& table) {
  expect_rows(qkv, (spec.heads + 2 * spec.kv_heads) * spec.head_dim, "qkv: expected (rows, heads * head_dim) float32");
  expect(table.ndim() == 3 && table.dtype() == mx::float32 && table.shape(0) == qkv.shape(0) && table.shape(1) == 2 &&
             2 * table.shape(2) <= spec.head_dim,
         "table: expected the rope table of the same rows");
}

void expect_inside(const Rows& rows, const mx::array& qkv) {
  expect(rows.first >= 0 && rows.count > 0 && rows.start >= 0 && rows.first <= qkv.shape(0) - rows.count &&
             rows.start <= (1 << 30) - rows.count,
         "rows: expected some that the call has");
}

mx::Shape attended_shape(const HeadsSpec& spec, const Chain& chain, const mx::array& qkv, const std::vector<Rows>& rows,
                         bool has_residual) {
  int total = 0;
  for (const Rows& each : rows) {
    expect_inside(each, qkv);
    expect(each.first == total, "rows: expected each to follow the one before");
    total += each.count;
  }
  expect(total == qkv.shape(0), "rows: expected all of the call");
  const int width = spec.heads * spec.head_dim;
  expect(chain.empty() ? !has_residual : chain[0]->matrices[0]->columns == width, "output: expected a map of all heads");
  return {qkv.shape(0), chain.empty() ? width : chain.back()->columns_out()};
}

namespace {

class Embed : public Node {
 public:
  Embed(std::shared_ptr<const Matrix> matrix, float scale) : matrix_(std::move(matrix)), scale_(scale) {}
  DEFINE_NAME(EdgeInferEmbed)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    launch(inputs, out, [matrix = matrix_, scale = scale_](const auto& in, mx::array& out) {
      edgeinfer::embed(*matrix, in[0].template data<int32_t>(), int(in[0].size()), scale, out.data<float>());
    });
  }

 private:
  std::shared_ptr<const Matrix> matrix_;
  float scale_;
};

class Linear : public Node {
 public:
  explicit Linear(Chain chain) : chain_(std::move(chain)) {}
  DEFINE_NAME(EdgeInferLinear)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    // A residual that is x itself is one buffer with two holders, and is not taken.
    if (inputs.size() == 2 && may_take_residual(chain_))
      take_or_allocate(inputs[1], out);
    else
      allocate(out);
    launch(inputs, out, [chain = chain_](const auto& in, mx::array& out) {
      const float* residual = in.size() == 2 ? in[1].template data<float>() : nullptr;
      run_chain(chain, in[0].template data<float>(), in[0].shape(0), residual, out.data<float>());
    });
  }

 private:
  Chain chain_;
};

class RopeTable : public Node {
 public:
  RopeTable(std::shared_ptr<const RopeSpec> spec, std::vector<Rows> rows)
      : spec_(std::move(spec)), rows_(std::move(rows)) {}
  DEFINE_NAME(EdgeInferRopeTable)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    launch(inputs, out, [spec = spec_, rows = rows_](const auto&, mx::array& out) {
      const int pairs = int(spec->frequencies.size());
      for (const Rows& each : rows)
        edgeinfer::rope_table(each.start, each.count, spec->frequencies.data(), pairs, spec->magnitude,
                              out.data<float>() + int64_t(each.first) * 2 * pairs);
    });
  }

 private:
  std::shared_ptr<const RopeSpec> spec_;
  std::vector<Rows> rows_;
};

class Append : public Node {
 public:
  Append(std::shared_ptr<const HeadsSpec> spec, Rows rows) : spec_(std::move(spec)), rows_(rows) {}
  DEFINE_NAME(EdgeInferAppend)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    if (inputs.size() == 3)
      take_or_allocate(inputs[2], out);
    else
      allocate(out);
    launch(inputs, out, [spec = spec_, rows = rows_](const auto& in, mx::array& out) {
      const CacheView cache = cache_view(out);
      if (in.size() == 3) copy_positions(cache_view(in[2]), cache, *spec, rows.start);
      edgeinfer::append(heads_view(*spec, in[0], in[1]), {cache, rows.first, rows.count, rows.start});
    });
  }

 private:
  std::shared_ptr<const HeadsSpec> spec_;
  Rows rows_;
};

class Attend : public Node {
 public:
  Attend(std::shared_ptr<const HeadsSpec> spec, Chain chain, std::vector<Rows> rows)
      : spec_(std::move(spec)), chain_(std::move(chain)), rows_(std::move(rows)) {}
  DEFINE_NAME(EdgeInferAttend)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    const bool has_residual = inputs.size() > 2 + rows_.size();
    if (has_residual && may_take_residual(chain_))
      take_or_allocate(inputs.back(), out);
    else
      allocate(out);
    launch(inputs, out, [spec = spec_, chain = chain_, rows = rows_, has_residual](const auto& in, mx::array& out) {
      std::vector<SequenceView> sequences;
      for (size_t i = 0; i < rows.size(); i++)
        sequences.push_back({cache_view(in[2 + i]), rows[i].first, rows[i].count, rows[i].start});
      const float* residual = has_residual ? in.back().template data<float>() : nullptr;
      run_heads(*spec, chain, in[0].shape(0), residual, out.data<float>(), [&](float* mixed) {
        edgeinfer::attend(attend_call(*spec, heads_view(*spec, in[0], in[1]), mixed), sequences);
      });
    });
  }

 private:
  std::shared_ptr<const HeadsSpec> spec_;
  Chain chain_;
  std::vector<Rows> rows_;
};

class ArgMax : public Node {
 public:
  DEFINE_NAME(EdgeInferArgMax)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    launch(inputs, out, [](const auto& in, mx::array& out) {
      edgeinfer::argmax(in[0].template data<float>(), in[0].shape(0), in[0].shape(1), out.data<int32_t>());
    });
  }
};

class Sample : public Node {
 public:
  explicit Sample(SampleSpec spec) : spec_(spec) {}
  DEFINE_NAME(EdgeInferSample)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    launch(inputs, out, [spec = spec_](const auto& in, mx::array& out) {
      *out.data<int32_t>() = edgeinfer::sample(in[0].template data<float>(), in[0].shape(0), spec);
    });
  }

 private:
  SampleSpec spec_;
};

}  // namespace

MatrixView LinearSpec::view() const {
  MatrixView view{};
  for (const auto& matrix : matrices) view.segments[view.count++] = matrix->segment;
  view.columns = matrices[0]->columns;
  view.bias = data_of(bias);
  return view;
}

LinearCall LinearSpec::call() const {
  LinearCall call{};
  call.matrix = view();
  call.norm = data_of(norm);
  call.eps = eps;
  call.activation = activation;
  call.post_norm = data_of(post_norm);
  return call;
}

int LinearSpec::columns_out() const {
  return edgeinfer::columns_out(view(), activation);
}

mx::array embed(std::shared_ptr<const Matrix> matrix, const mx::array& tokens, float scale) {
  expect(tokens.ndim() == 1 && tokens.dtype() == mx::int32, "tokens: expected (rows,) int32");
  const mx::Shape shape{tokens.shape(0), matrix->columns};
  return node<Embed>(shape, mx::float32, {tokens}, std::move(matrix), scale);
}

mx::array linear(Chain chain, const mx::array& x, const std::optional<mx::array>& residual) {
  expect_rows(x, chain[0]->matrices[0]->columns, "x: expected (rows, columns of the matrix) float32");
  const mx::Shape shape{x.shape(0), chain.back()->columns_out()};
  std::vector<mx::array> inputs{x};
  add_residual(inputs, residual, shape);
  return node<Linear>(shape, mx::float32, std::move(inputs), std::move(chain));
}

mx::array rope_table(std::shared_ptr<const RopeSpec> spec, std::vector<Rows> rows) {
  int total = 0;
  for (const Rows& each : rows) {
    expect(each.first == total && each.count > 0 && each.start >= 0, "rows: expected each to follow the one before");
    total += each.count;
  }
  const mx::Shape shape{total, 2, int(spec->frequencies.size())};
  return node<RopeTable>(shape, mx::float32, {}, std::move(spec), std::move(rows));
}

mx::array append(std::shared_ptr<const HeadsSpec> spec, const mx::array& qkv, const mx::array& table,
                 const std::optional<mx::array>& cache, Rows rows) {
  expect_heads(*spec, qkv, table);
  expect_inside(rows, qkv);
  expect(cache || rows.start == 0, "cache: missing, and the rows do not start a sequence");
  std::vector<mx::array> inputs{qkv, table};
  const int needed = rows.start + rows.count;
  if (cache) {
    expect_cache(*spec, *cache, rows.start);
    inputs.push_back(*cache);
  }
  const int capacity = capacity_for(needed, cache ? cache->shape(2) : 0);
  const mx::Shape shape{2, spec->kv_heads, capacity, spec->head_dim};
  return node<Append>(shape, mx::float16, std::move(inputs), std::move(spec), rows);
}

mx::array attend(std::shared_ptr<const HeadsSpec> spec, Chain chain, const mx::array& qkv, const mx::array& table,
                 const std::vector<mx::array>& caches, std::vector<Rows> rows, const std::optional<mx::array>& residual) {
  expect_heads(*spec, qkv, table);
  expect(caches.size() == rows.size(), "caches: expected one for each entry of rows");
  const mx::Shape shape = attended_shape(*spec, chain, qkv, rows, residual.has_value());
  std::vector<mx::array> inputs{qkv, table};
  for (size_t i = 0; i < rows.size(); i++) {
    expect_cache(*spec, caches[i], rows[i].start + rows[i].count);
    inputs.push_back(caches[i]);
  }
  add_residual(inputs, residual, shape);
  return node<Attend>(shape, mx::float32, std::move(inputs), std::move(spec), std::move(chain), std::move(rows));
}

mx::array argmax(const mx::array& logits) {
  expect(logits.ndim() == 2 && logits.dtype() == mx::float32 && logits.shape(1) > 0, "logits: expected (rows, V) float32");
  return node<ArgMax>({logits.shape(0)}, mx::int32, {logits});
}

mx::array sample(const mx::array& logits, SampleSpec spec) {
  expect(logits.ndim() == 1 && logits.dtype() == mx::float32 && logits.size() > 0, "logits: expected (V,) float32");
  expect(spec.top_k > 0 && spec.temperature > 0 && spec.u >= 0 && spec.u < 1,
         "top_k, temperature, u: expected top_k and temperature above 0, and u in [0, 1)");
  return node<Sample>({1}, mx::int32, {logits}, spec);
}

}  // namespace edgeinfer::mlx_ops
