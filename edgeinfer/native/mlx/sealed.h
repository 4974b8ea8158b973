// Heads whose pages are sealed, as nodes of an MLX graph. Pages are no arrays: a token would have to carry hundreds.
#pragma once

#include "../core/sealed.h"
#include "primitives.h"

namespace edgeinfer::mlx_ops {

// What a sequence holds around one step; for all of its layers that see as far.
struct Frame {
  int sinks;  // first positions that stay: SINKS, or 0 where a window will have left them behind
  int base;   // the buffer's first position behind them before the step
  int keep;   // and after it
  std::vector<std::shared_ptr<const PageBlock>> blocks;  // from position SINKS on; empty where nothing is sealed
  int filled;                                            // blocks that were sealed before
};

struct Place {  // of a layer in a block; without bits it does not seal
  int64_t offset = 0;
  int key_bits = 0, value_bits = 0;
};

// The two halves of a step of heads, for single operations and for programs. `before`: the buffer as it was, or none.
void append_step(const HeadsSpec& spec, const HeadsView& heads, const CacheView* before, const CacheView& buffer,
                 const Rows& rows, const Frame& frame, const Place& place);
void attend_step(const AttendCall& call, const std::vector<CacheView>& buffers, const std::vector<Rows>& rows,
                 const std::vector<std::shared_ptr<const Frame>>& frames, const Place& place);

// Rows of a buffer after the step.
int buffer_rows(const Frame& frame, const Rows& rows);
// Whether one of `capacity` rows does; a little too large is kept, lest it be copied back and forth around a border.
inline bool buffer_fits(int capacity, int needed) { return capacity >= needed && capacity <= needed + CHUNK; }
// Raises std::invalid_argument unless the frame fits the rows, and the buffer before the step the frame.
void expect_frame(const HeadsSpec& spec, const Frame& frame, const Place& place, const Rows& rows);
void expect_buffer(const HeadsSpec& spec, const std::optional<mx::array>& buffer, const Frame& frame, const Rows& rows);

// The buffer with the rows of the step, what lies before `keep` let go, and the pages behind `filled` sealed from it.
mx::array append_moving(std::shared_ptr<const HeadsSpec> spec, const mx::array& qkv, const mx::array& table,
                        const std::optional<mx::array>& buffer, Rows rows, std::shared_ptr<const Frame> frame, Place place);
// Attention over what the buffers and the pages hold, and the maps in `chain` on its result.
mx::array attend_sealed(std::shared_ptr<const HeadsSpec> spec, Chain chain, const mx::array& qkv, const mx::array& table,
                        const std::vector<mx::array>& buffers, std::vector<Rows> rows,
                        std::vector<std::shared_ptr<const Frame>> frames, Place place,
                        const std::optional<mx::array>& residual);

}  // namespace edgeinfer::mlx_ops
