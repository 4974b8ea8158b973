// The operations as nodes of an MLX graph. One output each: MLX gives the memory of an input that nobody else holds
// only to primitives with a single output, and the cache must not be copied at every token.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include "../core/engine.h"

namespace edgeinfer::mlx_ops {

namespace mx = mlx::core;
using Floats = std::shared_ptr<const std::vector<float>>;

// Matrices of as many columns, one below the other, with all that is done around the product.
struct LinearSpec {
  std::vector<std::shared_ptr<const Matrix>> matrices;
  Floats bias, norm, post_norm;  // may be null
  float eps = 0;
  Activation activation = Activation::none;
  MatrixView view() const;
  LinearCall call() const;  // without x and out
  int columns_out() const;
};

struct HeadsSpec {
  int heads = 0, kv_heads = 0, head_dim = 0;
  Floats q_norm, k_norm;  // may be null
  float eps = 0, scale = 1, softcap = 0;
  int window = 0;
  bool interleaved = false;
  Floats sinks;  // may be null
};

struct RopeSpec {
  std::vector<double> frequencies;  // of each pair of dimensions, in radians a position
  double magnitude;
};

struct Rows {  // of a call, that belong to one sequence; `start` is the position of the first
  int first, count, start;
};

mx::array embed(std::shared_ptr<const Matrix> matrix, const mx::array& tokens, float scale);
// Each map takes what the one before gives; the residual is the last one's.
using Chain = std::vector<std::shared_ptr<const LinearSpec>>;
mx::array linear(Chain chain, const mx::array& x, const std::optional<mx::array>& residual);
mx::array rope_table(std::shared_ptr<const RopeSpec> spec, std::vector<Rows> rows);
mx::array append(std::shared_ptr<const HeadsSpec> spec, const mx::array& qkv, const mx::array& table,
                 const std::optional<mx::array>& cache, Rows rows);
// Attention, and the maps in `chain` on its result.
mx::array attend(std::shared_ptr<const HeadsSpec> spec, Chain chain, const mx::array& qkv, const mx::array& table,
                 const std::vector<mx::array>& caches, std::vector<Rows> rows, const std::optional<mx::array>& residual);
mx::array argmax(const mx::array& logits);
mx::array sample(const mx::array& logits, SampleSpec spec);

}  // namespace edgeinfer::mlx_ops
