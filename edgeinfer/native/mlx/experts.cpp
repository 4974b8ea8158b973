// Maps of which each row takes one, as a node of an MLX graph, bound to Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "held.h"
#include "node.h"
#include "shared.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace edgeinfer::mlx_ops {

namespace {

struct ExpertsSpec {
  Chain experts;
  std::vector<LinearCall> calls;  // of each, without rows
  int columns, width;
};

class LinearByExpert : public Node {
 public:
  explicit LinearByExpert(std::shared_ptr<const ExpertsSpec> spec) : spec_(std::move(spec)) {}
  DEFINE_NAME(EdgeInferLinearByExpert)
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    allocate(out);
    launch(inputs, out, [spec = spec_](const auto& in, mx::array& out) {
      edgeinfer::linear_by_expert(spec->calls, in[0].template data<float>(), in[1].template data<int32_t>(),
                                  in[0].shape(0), out.data<float>());
    });
  }

 private:
  std::shared_ptr<const ExpertsSpec> spec_;
};

Held<ExpertsSpec> make_experts(const std::vector<const LinearMap*>& maps) {
  if (maps.empty()) throw std::invalid_argument("maps: expected one for each expert");
  auto spec = std::make_shared<ExpertsSpec>();
  const LinearSpec& first = *maps[0]->chain[0];
  spec->columns = first.matrices[0]->columns;
  spec->width = first.columns_out();
  for (const LinearMap* each : maps) {
    const LinearSpec& map = *each->chain[0];
    if (each->chain.size() != 1 || map.matrices[0]->columns != spec->columns || map.columns_out() != spec->width)
      throw std::invalid_argument("maps: expected single maps of one shape");
    spec->experts.push_back(each->chain[0]);
    spec->calls.push_back(map.call());
  }
  return {spec};
}

mx::array run_experts(const Held<ExpertsSpec>& held, const mx::array& x, const mx::array& experts) {
  expect_rows(x, held.it->columns, "x: expected (rows, columns of the matrices) float32");
  expect(experts.ndim() == 1 && experts.dtype() == mx::int32 && experts.shape(0) == x.shape(0),
         "experts: expected (rows,) int32");
  return node<LinearByExpert>({x.shape(0), held.it->width}, mx::float32, {x, experts}, held.it);
}

}  // namespace

void bind_experts(nb::module_& m) {
  nb::class_<Held<ExpertsSpec>>(m, "Experts")
      .def("__call__", &run_experts, "x"_a, "experts"_a,
           "(M, columns) float32 and (M,) int32 -> (M, rows): row m by the map of expert experts[m]. Those of one expert "
           "that follow each other read its weights once. Ids out of range give NaN.");
  m.def("experts", &make_experts, "maps"_a, "Maps of one shape, to be chosen from by row.");
}

}  // namespace edgeinfer::mlx_ops
