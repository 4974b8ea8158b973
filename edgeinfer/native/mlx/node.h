// What the primitives share.
#pragma once

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include <cstring>
#include <stdexcept>

#include "primitives.h"

namespace edgeinfer::mlx_ops {

// A primitive of the CPU that computes one array.
class Node : public mx::UnaryPrimitive {
 public:
  Node() : mx::UnaryPrimitive(mx::default_stream(mx::Device(mx::Device::cpu))) {}

  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error("edgeinfer's native operations run on the CPU alone");
  }

 protected:
  // Calls run(inputs, out) on the stream's thread, once the inputs are there; `out` has its memory.
  template <typename Run>
  void launch(const std::vector<mx::array>& inputs, mx::array& out, Run run) {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<mx::array> dense;
    dense.reserve(inputs.size());
    for (const mx::array& each : inputs) {
      encoder.set_input_array(each);
      dense.push_back(mx::array::unsafe_weak_copy(each.flags().row_contiguous ? each : row_contiguous(each, encoder)));
    }
    encoder.set_output_array(out);
    encoder.dispatch([run = std::move(run), dense = std::move(dense), out = mx::array::unsafe_weak_copy(out)]() mutable {
      run(dense, out);
    });
  }

  static void allocate(mx::array& out) { out.set_data(mx::allocator::malloc(out.nbytes())); }

  // The memory of `input` where nobody else holds it; else memory of its own.
  static void take_or_allocate(const mx::array& input, mx::array& out) {
    if (input.flags().row_contiguous && input.is_donatable() && input.nbytes() == out.nbytes())
      out.copy_shared_buffer(input);
    else
      allocate(out);
  }

 private:
  static mx::array row_contiguous(const mx::array& x, mx::cpu::CommandEncoder& encoder) {
    mx::array copy(x.shape(), x.dtype(), nullptr, {});
    allocate(copy);
    encoder.add_temporary(copy);
    encoder.dispatch([x = mx::array::unsafe_weak_copy(x), copy = mx::array::unsafe_weak_copy(copy)]() mutable {
      int inner = int(x.ndim());  // axes from here on lie together in memory
      int64_t run = 1;
      while (inner > 0 && (x.shape(inner - 1) == 1 || x.strides(inner - 1) == run)) run *= x.shape(--inner);
      char* to = copy.data<char>();
      for (int64_t i = 0; i < int64_t(x.size()) / run; i++, to += run * int64_t(x.itemsize())) {
        int64_t at = 0, rest = i;
        for (int axis = inner; axis-- > 0; rest /= x.shape(axis)) at += rest % x.shape(axis) * x.strides(axis);
        std::memcpy(to, x.data<char>() + at * int64_t(x.itemsize()), size_t(run) * x.itemsize());
      }
    });
    return copy;
  }
};

template <class Operation, typename... Arguments>
mx::array node(mx::Shape shape, mx::Dtype dtype, std::vector<mx::array> inputs, Arguments&&... arguments) {
  return mx::array(std::move(shape), dtype, std::make_shared<Operation>(std::forward<Arguments>(arguments)...),
                   std::move(inputs));
}

}  // namespace edgeinfer::mlx_ops
