// A whole forward pass as one node of an MLX graph.
//
// A step of a small model is some hundred operations of 10 to 50 microseconds. As nodes of their own each costs MLX and
// Python several more, on cores that compute at the same time. So a model's operations are recorded once, on values that
// hold nothing, and run together ever after.
#pragma once

#include <variant>

#include "primitives.h"
#include "sealed.h"

namespace edgeinfer::mlx_ops {

// What operations of a forward pass read and write: (rows, width) float32, one for each token of the step. Operations
// name values by their number in the order in which they were made.
struct EmbedStep {
  std::shared_ptr<const Matrix> matrix;
  int out;
};
struct ScaleStep {
  float factor;
  int in, out;
};
struct MapStep {
  Chain chain;
  int in, residual, out;  // residual -1: none
};
struct HeadsStep {  // the n-th of a program belongs to the n-th cache of each sequence
  std::shared_ptr<const HeadsSpec> spec;
  std::shared_ptr<const RopeSpec> rope;
  Chain chain;
  int in, residual, out;
};
struct PickStep {  // the rows whose logits are wanted
  int in, out;
};
struct SoftcapStep {  // cap * tanh(x / cap)
  float cap;
  int in, out;
};
using Step = std::variant<EmbedStep, ScaleStep, MapStep, HeadsStep, PickStep, SoftcapStep>;

struct Recording {
  std::vector<Step> steps;
  std::vector<int> widths;  // of each value
};

// Ready to run: where each value lies. A buffer is used again once the last operation that reads it is done.
struct Program {
  // Throws std::invalid_argument if the result is not of the wanted rows.
  Program(Recording recording, int result);

  struct Buffer {
    size_t width;
    bool of_wanted;  // it holds the wanted rows, not all
  };

  std::vector<Step> steps;
  std::vector<int> widths, buffer_of;  // of each value
  std::vector<Buffer> buffers;
  std::vector<const HeadsStep*> heads;
  int result;
};

struct Sequence {
  Rows rows;
  std::vector<std::optional<mx::array>> caches;  // one for each HeadsStep; none before the first token
  bool owned;  // nobody else reads them, so that they may be written where they lie
  std::vector<std::shared_ptr<const Frame>> frames;  // one for each HeadsStep where caches are buffers beside sealed pages
};

struct Outcome {
  mx::array logits;
  std::vector<std::vector<mx::array>> caches;  // of each sequence, new ones; empty where the old ones were written
};

// tokens: (T,) int32, every one in the rows of one sequence; wanted: rows in rising order -> logits (wanted, V).
// Caches are written when the logits are computed: nobody may read or fork them from another stream before.
Outcome run(std::shared_ptr<const Program> program, const mx::array& tokens, std::vector<Sequence> sequences,
            std::vector<int> wanted, std::vector<Place> places);

}  // namespace edgeinfer::mlx_ops
