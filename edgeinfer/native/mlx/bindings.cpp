// The extension module: matrices, linear maps and heads as objects, and the operations as their methods.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "../core/kernels.h"
#include "../core/pool.h"
#include "bindings.h"
#include "held.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace edgeinfer;
namespace ops = edgeinfer::mlx_ops;
namespace mx = mlx::core;

namespace {

using ops::Held, ops::LinearMap, ops::RowTuple, ops::to_rows;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoubleVector = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// What an operation gives while a program is recorded.
struct Value {
  std::shared_ptr<ops::Recording> recording;
  int id;
  int width() const { return recording->widths[size_t(id)]; }
};

struct Recorder {
  std::shared_ptr<ops::Recording> recording = std::make_shared<ops::Recording>();
};

template <class Step>
Value record(const std::shared_ptr<ops::Recording>& recording, Step step, int width) {
  step.out = int(recording->widths.size());
  recording->widths.push_back(width);
  recording->steps.push_back(std::move(step));
  return {recording, int(recording->widths.size()) - 1};
}

int residual_id(const std::optional<Value>& residual, const Value& x, int width) {
  if (!residual) return -1;
  if (residual->recording != x.recording || residual->width() != width)
    throw std::invalid_argument("residual: expected a value of the same program, as wide as the result");
  return residual->id;
}

Value record_map(const LinearMap& map, const Value& x, const std::optional<Value>& residual) {
  const int width = map.chain.back()->columns_out();
  if (x.width() != map.chain[0]->matrices[0]->columns) throw std::invalid_argument("x: expected the columns of the matrix");
  return record(x.recording, ops::MapStep{map.chain, x.id, residual_id(residual, x, width), 0}, width);
}

Value record_heads(const Held<ops::HeadsSpec>& spec, const Value& qkv, const Held<ops::RopeSpec>& rope,
                   const LinearMap& output, const std::optional<Value>& residual) {
  const int heads = spec.it->heads * spec.it->head_dim, both = 2 * spec.it->kv_heads * spec.it->head_dim;
  const int width = output.chain.back()->columns_out();
  if (qkv.width() != heads + both || output.chain[0]->matrices[0]->columns != heads ||
      2 * int(rope.it->frequencies.size()) > spec.it->head_dim)
    throw std::invalid_argument("qkv: expected all heads, a map of the queries' and a rotation that fits");
  return record(qkv.recording,
                ops::HeadsStep{spec.it, rope.it, output.chain, qkv.id, residual_id(residual, qkv, width), 0}, width);
}

ops::Floats copy(const std::optional<Vector>& values, int size, const char* name) {
  if (!values) return nullptr;
  if (int64_t(values->size()) != size) throw std::invalid_argument(std::string(name) + ": expected " + std::to_string(size) + " values");
  return std::make_shared<const std::vector<float>>(values->data(), values->data() + values->size());
}

Held<Matrix> make_matrix(int format, const Bytes& blocks, int columns) {
  if (blocks.shape(0) > size_t(1 << 30)) throw std::invalid_argument("too many rows");
  const nb::gil_scoped_release released;
  return {pack(Format(format), blocks.data(), int64_t(blocks.size()), int(blocks.shape(0)), columns)};
}

Activation activation_named(const std::string& name) {
  if (name.empty()) return Activation::none;
  if (name == "silu") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  throw std::invalid_argument("activation: expected 'silu', 'gelu' or ''");
}

LinearMap make_linear(const std::vector<Held<Matrix>>& held,
                                  const std::optional<Vector>& bias, const std::optional<Vector>& norm,
                                  const std::optional<Vector>& post_norm, float eps, const std::string& activation) {
  if (held.empty() || held.size() > size_t(MAX_SEGMENTS)) throw std::invalid_argument("matrices: expected 1 to 3");
  auto spec = std::make_shared<ops::LinearSpec>();
  auto& matrices = spec->matrices;
  for (const auto& [matrix] : held) {
    matrices.push_back(matrix);
    if (matrix->columns != matrices[0]->columns) throw std::invalid_argument("matrices: expected the same columns in all");
  }
  spec->activation = activation_named(activation);
  if (spec->activation != Activation::none &&
      (matrices.size() != 2 || matrices[0]->segment.rows != matrices[1]->segment.rows || bias))
    throw std::invalid_argument("activation: expected a gate and an up matrix of one shape, without bias");
  spec->bias = copy(bias, spec->columns_out(), "bias");
  spec->norm = copy(norm, matrices[0]->columns, "norm");
  spec->post_norm = copy(post_norm, spec->columns_out(), "post_norm");
  spec->eps = eps;
  return {{spec}};
}

Held<ops::HeadsSpec> make_heads(int heads, int kv_heads, int head_dim, const std::optional<Vector>& q_norm,
                                const std::optional<Vector>& k_norm, float eps, float scale, float softcap,
                                int window, bool interleaved, const std::optional<Vector>& sinks) {
  if (kv_heads < 1 || heads < 1 || heads % kv_heads || head_dim < 16 || head_dim % 16 || head_dim > MAX_HEAD_DIM)
    throw std::invalid_argument("heads: expected whole groups of query heads, of a multiple of 16 up to 512 dimensions");
  auto spec = std::make_shared<ops::HeadsSpec>();
  *spec = {heads, kv_heads, head_dim, copy(q_norm, head_dim, "q_norm"), copy(k_norm, head_dim, "k_norm"),
           eps,   scale,    softcap,  window, interleaved, copy(sinks, heads, "sinks")};
  return {spec};
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Kernels* const* each = available_kernels(); *each; each++) names.push_back((*each)->name);
  return names;
}

LinearMap then(const LinearMap& first, const LinearMap& following) {
  if (following.chain[0]->matrices[0]->columns != first.chain.back()->columns_out())
    throw std::invalid_argument("following: expected as many columns as there are rows before");
  LinearMap both = first;
  both.chain.insert(both.chain.end(), following.chain.begin(), following.chain.end());
  return both;
}

using Caches = std::vector<std::optional<mx::array>>;

std::pair<mx::array, std::vector<std::vector<mx::array>>> run_program(
    const Held<ops::Program>& program, const mx::array& tokens, const std::vector<RowTuple>& rows,
    std::vector<Caches> caches, const std::vector<bool>& owned, std::vector<int> wanted,
    const std::vector<std::vector<Held<ops::Frame>>>& frames, const std::vector<ops::PlaceTuple>& places) {
  if (caches.size() != rows.size() || owned.size() != rows.size() || (!frames.empty() && frames.size() != rows.size()))
    throw std::invalid_argument("caches, owned, frames: expected one entry for each of rows");
  std::vector<ops::Sequence> sequences;
  const std::vector<ops::Rows> spans = to_rows(rows);
  for (size_t i = 0; i < rows.size(); i++) {
    sequences.push_back({spans[i], std::move(caches[i]), owned[i], {}});
    if (!frames.empty())
      for (const auto& [frame] : frames[i]) sequences[i].frames.push_back(frame);
  }
  ops::Outcome outcome = ops::run(program.it, tokens, std::move(sequences), std::move(wanted), ops::to_places(places));
  return {std::move(outcome.logits), std::move(outcome.caches)};
}

void bind_program(nb::module_& m) {
  nb::class_<Value>(m, "Value", "What an operation gives while a program is recorded; it holds nothing.")
      .def("__mul__", [](const Value& x, float factor) { return record(x.recording, ops::ScaleStep{factor, x.id, 0}, x.width()); })
      .def("softcap", [](const Value& x, float cap) { return record(x.recording, ops::SoftcapStep{cap, x.id, 0}, x.width()); }, "cap"_a)
      .def("wanted", [](const Value& x) { return record(x.recording, ops::PickStep{x.id, 0}, x.width()); },
           "The rows whose logits are asked for.");
  nb::class_<Recorder>(m, "Recorder", "Stands for the tokens of a step while a program is recorded.")
      .def(nb::init<>())
      .def("finish", [](const Recorder& recorder, const Value& logits) {
        if (logits.recording != recorder.recording) throw std::invalid_argument("logits: expected a value of this program");
        return Held<ops::Program>{std::make_shared<const ops::Program>(*recorder.recording, logits.id)};
      }, "logits"_a);
  nb::class_<Held<ops::Program>>(m, "Program", "A recorded forward pass, as one operation.")
      .def_prop_ro("layers", [](const Held<ops::Program>& program) { return program.it->heads.size(); })
      .def("__call__", &run_program, "tokens"_a, "rows"_a, "caches"_a, "owned"_a, "wanted"_a,
           "frames"_a = std::vector<std::vector<Held<ops::Frame>>>{}, "places"_a = std::vector<ops::PlaceTuple>{},
           "Logits of the wanted rows, and for each sequence its new caches, or none where the old ones are written. "
           "rows: [(first, count, position of the first), ...] of each sequence; caches: of each sequence, one a layer, "
           "None before its first token; owned: whether nobody else reads a sequence's caches. frames: of each sequence, "
           "one a layer, and places, one a layer, where caches are buffers beside sealed pages.");
}

void bind_linear(nb::module_& m) {
  nb::class_<Held<Matrix>>(m, "Matrix")
      .def_prop_ro("rows", [](const Held<Matrix>& matrix) { return matrix.it->segment.rows; })
      .def_prop_ro("columns", [](const Held<Matrix>& matrix) { return matrix.it->columns; })
      .def_prop_ro("nbytes", [](const Held<Matrix>& matrix) { return matrix.it->bytes(); });
  m.def("pack", &make_matrix, "format"_a, "blocks"_a, "columns"_a,
        "Rearranges rows as they are stored, (rows, bytes) uint8; format: the number that ggml gives to the codec.");
  m.def(
      "tiled_bytes", [](int format, int64_t rows, int64_t columns) { return tiled_bytes(Format(format), rows, columns); },
      "format"_a, "rows"_a, "columns"_a, "Bytes that a matrix takes; 0 where it cannot be packed.");
  m.def(
      "embed",
      [](const Held<Matrix>& matrix, const mx::array& tokens, float scale) {
        return ops::embed(matrix.it, tokens, scale);
      },
      "matrix"_a, "tokens"_a, "scale"_a = 1.0f,
      "(T,) int32 -> (T, columns) float32: the rows that tokens name, times scale.");
  m.def("embed", [](const Held<Matrix>& matrix, const Recorder& recorder) {
    return record(recorder.recording, ops::EmbedStep{matrix.it, 0}, matrix.it->columns);
  }, "matrix"_a, "tokens"_a);

  nb::class_<LinearMap>(m, "Linear")
      .def(
          "__call__",
          [](const LinearMap& map, const mx::array& x, const std::optional<mx::array>& residual) {
            return ops::linear(map.chain, x, residual);
          },
          "x"_a, "residual"_a = nb::none())
      .def("__call__", &record_map, "x"_a, "residual"_a = nb::none())
      .def("then", &then, "following"_a, "One operation that does what this does and then what follows.");
  m.def("linear", &make_linear, "matrices"_a, "bias"_a = nb::none(), "norm"_a = nb::none(), "post_norm"_a = nb::none(),
        "eps"_a = 0.0f, "activation"_a = "",
        "A map x (T, columns) -> residual + post_norm(activation(norm(x) @ matrices.T + bias)), (T, rows).");
  m.def(
      "sample",
      [](const mx::array& logits, float u, int top_k, float temperature, float typical_p, float top_p, double min_p,
         float xtc_threshold) {
        return ops::sample(logits, {top_k, typical_p, top_p, min_p, xtc_threshold, temperature, u});
      },
      "logits"_a, "u"_a, "top_k"_a, "temperature"_a, "typical_p"_a = 1.0f, "top_p"_a = 1.0f, "min_p"_a = 0.0,
      "xtc_threshold"_a = -1.0f, "(V,) float32 -> (1,) int32: the token on which u falls, of those that the filters leave.");
  m.def("argmax", &ops::argmax, "logits"_a, "(T, V) float32 -> (T,) int32: the first of the largest, -1 where that is not finite or any is a NaN.");
}

void bind_heads(nb::module_& m) {
  nb::class_<Held<ops::RopeSpec>>(m, "Rope")
      .def(
          "__call__",
          [](const Held<ops::RopeSpec>& spec, const std::vector<RowTuple>& rows) {
            return ops::rope_table(spec.it, to_rows(rows));
          },
          "rows"_a, "[(first, count, position of the first), ...] -> the rotation of each row, (T, 2, pairs).");
  m.def(
      "rope",
      [](const DoubleVector& frequencies, double magnitude) {
        const double* first = frequencies.data();
        const ops::RopeSpec spec{{first, first + frequencies.size()}, magnitude};
        return Held<ops::RopeSpec>{std::make_shared<const ops::RopeSpec>(spec)};
      },
      "frequencies"_a, "magnitude"_a = 1.0);

  nb::class_<Held<ops::HeadsSpec>> heads(m, "Heads");
  heads
      .def(
          "append",
          [](const Held<ops::HeadsSpec>& spec, const mx::array& qkv, const mx::array& table,
             const std::optional<mx::array>& cache, const RowTuple& rows) {
            return ops::append(spec.it, qkv, table, cache, to_rows({rows})[0]);
          },
          "qkv"_a, "table"_a, "cache"_a.none(), "rows"_a,
          "The cache with the keys and values of some rows, (first, count, position of the first).")
      .def(
          "attend",
          [](const Held<ops::HeadsSpec>& spec, const mx::array& qkv, const mx::array& table,
             const std::vector<mx::array>& caches, const std::vector<RowTuple>& rows, const LinearMap* output,
             const std::optional<mx::array>& residual) {
            return ops::attend(spec.it, output ? output->chain : ops::Chain{}, qkv, table, caches, to_rows(rows), residual);
          },
          "qkv"_a, "table"_a, "caches"_a, "rows"_a, "output"_a = nb::none(), "residual"_a = nb::none(),
          "Causal attention of all rows, each over its own sequence's cache, and then the output map.")
      .def("record", &record_heads, "qkv"_a, "rope"_a, "output"_a, "residual"_a = nb::none());
  m.def("heads", &make_heads, "heads"_a, "kv_heads"_a, "head_dim"_a, "q_norm"_a = nb::none(), "k_norm"_a = nb::none(),
        "eps"_a = 0.0f, "scale"_a = 1.0f, "softcap"_a = 0.0f, "window"_a = 0, "interleaved"_a = false, "sinks"_a = nb::none());
  ops::bind_sealed(m, heads);
}

}  // namespace

NB_MODULE(_primitives, m) {
  m.doc() = "CPU kernels as MLX operations";

  bind_program(m);
  bind_linear(m);
  bind_heads(m);
  bind_drafts(m);
  ops::bind_experts(m);
  m.def("set_threads", [](int threads) { Pool::shared().resize(threads); }, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("threads", [] { return Pool::shared().threads(); });
  m.def("instruction_sets", &kernel_names, "Those that this build and this processor have, the fastest first.");
  m.def("instruction_set", [] { return std::string(kernels().name); });
  m.def("use_instruction_set", [](const std::string& name) { if (!use_kernels(name.c_str())) throw std::invalid_argument("no such instruction set here"); }, "name"_a);
}
