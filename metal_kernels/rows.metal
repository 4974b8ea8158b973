// y[t] = row tokens[t] of w, decoded. w: (N, bytes of a row), tokens: (T,), y: (T, K). Grid: (K / 8, T, 1).
#include "chunk.h"

using Codec = typename codecs::Row<CODEC>::Codec;
const int chunk = thread_position_in_grid.x;
const int token = thread_position_in_grid.y;
const int columns = threads_per_grid.x * 8;

Chunk<Codec> weights;
weights.unpack(w + ulong(tokens[token]) * w_shape[1], chunk);
for (int j = 0; j < 8; j++) y[ulong(token) * columns + chunk * 8 + j] = T(weights.weight(j));
