#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "held.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace edgeinfer::mlx_ops {

namespace {

Held<PageBlock> make_block(int64_t size) {
  if (size < 1) throw std::invalid_argument("size: expected bytes");
  return {std::make_shared<const PageBlock>(size)};
}

// Its memory, to write before it is used or to read once it is sealed; keeps the block.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> memory_of(const Held<PageBlock>& block) {
  auto* held = new std::shared_ptr<const PageBlock>(block.it);
  nb::capsule owner(held, [](void* it) noexcept { delete static_cast<std::shared_ptr<const PageBlock>*>(it); });
  return {block.it->memory.get(), {size_t(block.it->size)}, owner};
}

Held<Frame> make_frame(int sinks, int base, int keep, const std::vector<Held<PageBlock>>& held, int filled) {
  auto frame = std::make_shared<Frame>(Frame{sinks, base, keep, {}, filled});
  for (const auto& [block] : held) frame->blocks.push_back(block);
  return {frame};
}

}  // namespace

void bind_sealed(nb::module_& m, nb::class_<Held<HeadsSpec>>& heads) {
  nb::class_<Held<PageBlock>>(m, "Block")
      .def(nb::new_(&make_block), "size"_a)
      .def_prop_ro("nbytes", [](const Held<PageBlock>& block) { return block.it->size; })
      .def("memory", &memory_of, "(nbytes,) uint8");
  nb::class_<Held<Frame>>(m, "Frame").def(nb::new_(&make_frame), "sinks"_a, "base"_a, "keep"_a, "blocks"_a, "filled"_a);
  m.def(
      "page_bytes",
      [](int head_dim, int key_bits, int value_bits) {
        const PageFormat format{key_bits, value_bits, head_dim};
        return format.supported() ? format.bytes() : 0;
      },
      "head_dim"_a, "key_bits"_a, "value_bits"_a, "Bytes of a sealed page of one kv head; 0 where there are no kernels.");
  m.def("page_sizes", [] { return std::make_tuple(PAGE, SINKS, TAIL); });
  heads
      .def(
          "append_moving",
          [](const Held<HeadsSpec>& spec, const mx::array& qkv, const mx::array& table,
             const std::optional<mx::array>& buffer, const RowTuple& rows, const Held<Frame>& frame,
             const PlaceTuple& place) {
            return append_moving(spec.it, qkv, table, buffer, to_rows({rows})[0], frame.it, to_places({place})[0]);
          },
          "qkv"_a, "table"_a, "buffer"_a.none(), "rows"_a, "frame"_a, "place"_a,
          "The buffer with the rows of a step, without what the frame lets go; seals the pages that the frame wants.")
      .def(
          "attend_sealed",
          [](const Held<HeadsSpec>& spec, const mx::array& qkv, const mx::array& table,
             const std::vector<mx::array>& buffers, const std::vector<RowTuple>& rows,
             const std::vector<Held<Frame>>& held, const PlaceTuple& place, const LinearMap* output,
             const std::optional<mx::array>& residual) {
            std::vector<std::shared_ptr<const Frame>> frames;
            for (const auto& [frame] : held) frames.push_back(frame);
            return attend_sealed(spec.it, output ? output->chain : Chain{}, qkv, table, buffers, to_rows(rows),
                                 std::move(frames), to_places({place})[0], residual);
          },
          "qkv"_a, "table"_a, "buffers"_a, "rows"_a, "frames"_a, "place"_a, "output"_a = nb::none(),
          "residual"_a = nb::none(), "As attend(), over buffers and sealed pages.");
}

}  // namespace edgeinfer::mlx_ops
