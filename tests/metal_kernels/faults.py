"""Faults planted in the kernels, as (what, text, text in its place, how it must be found)."""

from __future__ import annotations

BARRIER = "metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);"
DEVICE_BARRIER = "metal::threadgroup_barrier(metal::mem_flags::mem_device);"
SIMD_BARRIER = "metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);"

QMV = [
    ("first barrier removed", f"{SIMD_BARRIER}\n      if (lane", "if (lane", "uninitialised"),
    ("second barrier removed", f"lane, norm);\n      }}\n      {SIMD_BARRIER}", "lane, norm);\n      }", "race"),
    (
        "barrier of the wrong memory",
        f"{SIMD_BARRIER}\n      if",
        f"{SIMD_BARRIER.replace('mem_threadgroup', 'mem_none')}\n      if",
        "race",
    ),
    ("row guard off by one", "all_outputs - output, 0", "all_outputs - output + 1, 0", "bounds"),
    ("row guard missing in the write", "if (m < rows && n < present)", "if (m < rows)", "race"),
    ("x guard missing", "metal::min(all_rows - row, ROWS)", "ROWS", "bounds"),
    ("one byte too many", "i < present; i += threads", "i < present + 1; i += threads", "race"),
    (
        "sum of half the lanes",
        "const float sum = product.result(m, n, columns, eps, has_norm);",
        "float sum = 0; if (lane < 16) sum = product.result(m, n, columns, eps, has_norm);",
        "divergent-simd",
    ),
    ("every lane writes", "if (lane == (m * OUTPUTS + n) % 32) {", "{", "race"),
    (
        "wrong address space",
        "const device ushort* source = (const device",
        "const threadgroup ushort* source = (const device",
        "compile",
    ),
    ("offset forgotten", "Codec::has_offset ? metal::fma(chunk.offset, total, scaled) : scaled", "scaled", "numbers"),
    ("sum not cleared", "sum[m][n] = 0;", "if (m) sum[m][n] = 0;", "numbers"),
    ("nibbles swapped", ">> (i % run / 32 * bits)", ">> (4 - i % run / 32 * bits)", "numbers"),
    (
        "group of another chunk",
        "scale = Codec::scale(block, i / Codec::group)",
        "scale = Codec::scale(block, i / 64)",
        "numbers",
    ),
]
QMV_FUSED = [
    ("gain of another chunk", "gain + first", "gain + start", "numbers"),
    ("gain too far", "gain + first", "gain + first + columns", "bounds"),
    ("square not summed over lanes", "metal::simd_sum(squares[m])", "squares[m]", "numbers"),
    ("mean over the wrong length", "/ float(columns)", "/ 256.0f", "numbers"),
    ("squares not cleared", "squares[m] = 0;", "", "numbers"),
    ("bias of another tile", "bias[output + n]", "bias[n]", "numbers"),
    ("bias too far", "bias[output + n]", "bias[output + n + 8]", "bounds"),
    ("residual of another row", "residual[at]", "residual[at + all_outputs]", "bounds"),
]
GATED = [
    ("gate and other swapped", "activation::of<ACTIVATION>(gate.", "activation::of<ACTIVATION>(other.", "numbers"),
    ("another activation", "which == 0", "which == 1", "numbers"),
    ("matrices mixed up", "other.run(up + matrix", "other.run(w + matrix", "numbers"),
    ("simdgroups share memory", "staged + simdgroup * OUTPUTS * Stage<Codec>::halves;", "staged;", "race"),
    ("memory of one simdgroup", "staged[SIMDGROUPS * OUTPUTS", "staged[OUTPUTS", "bounds"),
    ("row guard missing", "if (m < rows && n < present)", "if (m < rows)", "race"),
    ("half the lanes", "const float gated = ", "if (lane > 15) continue; const float gated = ", "divergent-simd"),
    ("every lane writes", "if (lane == (m * OUTPUTS + n) % 32) y", "y", "race"),
]
QMV_TAIL = [
    ("end of a row not seen", "if (lane * 8 < weights)", "if (lane * 8 <= weights)", "bounds"),
    (
        "a whole step at the end",
        "metal::min(columns - start, int(Stage<Codec>::weights))",
        "Stage<Codec>::weights",
        "bounds",
    ),
]
QMM = [
    ("barrier after the staging removed", f"{BARRIER}\n      for (int k", "for (int k", "uninitialised"),
    ("barrier after the load removed", f"{BARRIER}\n        multiply", "multiply", "race"),
    ("barrier after the product removed", f"% 2 * 16);\n        {BARRIER}", "% 2 * 16);", "race"),
    ("barrier before the write removed", f"% 2 * 16);\n    {BARRIER}", "% 2 * 16);", "race"),
    ("only a simdgroup barrier", f"{BARRIER}\n        multiply", f"{SIMD_BARRIER}\n        multiply", "uninitialised"),
    ("guard of rows missing", "const bool there = m < rows && ", "const bool there = ", "bounds"),
    ("guard of columns missing", "m < rows && k + first < columns", "m < rows", "bounds"),
    ("guard of the matrix missing", "metal::min(all_outputs - output, int(qmm::outputs))", "32", "bounds"),
    ("rows that were not staged", "n < present && k + first < left_over", "k + first < left_over", "uninitialised"),
    ("a whole step at the end", "metal::min(columns - start, int(weights))", "weights", "bounds"),
    ("guard of the write missing", "if (m < rows && n < present)", "if (n < present)", "bounds"),
    ("one simdgroup leaves early", "tile.run(", "if (index > 95) return; tile.run(", "divergent-barrier"),
    ("parts in one place", "* high * 8 * stride + simdgroup % 2 * 16);", "* high * 8 * stride);", "race"),
    ("fragment from the wrong row", "left + i * 8 * stride + k", "left + i * 4 * stride + k", "numbers"),
    (
        "tile too small",
        "threadgroup float right[qmm::depth * qmm::stride]",
        "threadgroup float right[qmm::depth * qmm::depth]",
        "bounds",
    ),
]
QMV_EXPERTS = [
    ("expert of the first row for all", "&& experts[next] == expert", "", "numbers"),
    ("expert too far", "experts[first];", "experts[first + 8];", "bounds"),
    ("matrices at the wrong distance", "ulong(expert) * all_outputs + output", "ulong(expert) + output", "numbers"),
    ("end of the rows not seen", "metal::min(x_shape[0], row + ROWS)", "row + ROWS", "bounds"),
    ("rows of the tile's start", "x + ulong(first) * columns", "x + ulong(row) * columns", "numbers"),
    ("written to the tile's start", "y[ulong(first + m)", "y[ulong(row + m)", "unwritten"),
    ("one row skipped", "first = next;", "first = next + 1;", "unwritten"),
    ("every lane writes", "if (lane == (m * OUTPUTS + n) % 32) y", "y", "race"),
]
QMM_EXPERTS = [
    ("expert of the first row for all", "&& experts[next] == expert", "", "numbers"),
    ("matrices at the wrong distance", "ulong(expert) * all_outputs + output", "ulong(expert) + output", "numbers"),
    ("end of the rows not seen", "metal::min(x_shape[0], row + ROWS)", "row + ROWS", "bounds"),
    ("barrier after the staging removed", f"{BARRIER}\n      for (int k", "for (int k", "uninitialised"),
    ("barrier before the write removed", f"% 2 * 16);\n    {BARRIER}", "% 2 * 16);", "race"),
    ("barrier after the load removed", f"{BARRIER}\n        multiply", "multiply", "race"),
    ("one row skipped", "first = next;", "first = next + 1;", "unwritten"),
    ("guard of the write missing", "if (n < present) y", "y", "race"),
]
ROWS = [
    ("barrier removed", f"{SIMD_BARRIER}\nif (start", "if (start", "uninitialised"),
    (
        "bytes of the wrong step",
        "w + start / Codec::weights * Codec::bytes",
        "w + start / Codec::weights",
        "misaligned",
    ),
    ("chunk too far", "staged, lane);\n  for", "staged, lane + 1);\n  for", "bounds"),
    ("token too far", "tokens[token])", "tokens[token + 8])", "bounds"),
    ("signed past the end", "ulong(tokens[token])", "ulong(-tokens[token] - 1)", "bounds"),
    ("written twice", "y[ulong(token) * columns", "y[ulong(0) * columns", "race"),
    ("one weight short", "for (int j = 0; j < 8; j++) y[", "for (int j = 0; j < 7; j++) y[", "unwritten"),
    ("array overrun", "for (int j = 0; j < 8; j++) y[", "for (int j = 0; j < 9; j++) y[", "array-index"),
    ("nibbles swapped", ">> (i % run / 32 * bits)", ">> (4 - i % run / 32 * bits)", "numbers"),
    ("six-bit scales mixed up", "s[g - 4] >> 6 << 4; }", "s[g - 4] >> 6 << 3; }", "numbers"),
]
ROWS_TAIL = [("end of a row not seen", "if (start + lane * 8 < columns)", "", "uninitialised")]

ATTENTION_PART = [
    (
        "keys read too early",
        f"length, index, threads);\n  {BARRIER}\n  softmax.score",
        "length, index, threads);\n  softmax.score",
        "uninitialised",
    ),
    ("keys overwritten too early", f"first + lane, lane);\n  {BARRIER}", "first + lane, lane);", "race"),
    ("values read too early", f"{BARRIER}\n  softmax.mix", "softmax.mix", "race"),
    ("values overwritten too early", f"present, lane);\n  {BARRIER}", "present, lane);", "race"),
    ("barrier of the wrong memory", f"{BARRIER}\n  softmax.mix", f"{DEVICE_BARRIER}\n  softmax.mix", "race"),
    ("tokens behind the last one", "metal::min(length - first, int(tile)) * Size", "tile * Size", "numbers"),
    ("window off by one", "token > place - window", "token >= place - window", "numbers"),
    ("sees the future", "token <= place &&", "token <= place + 1 &&", "numbers"),
    (
        "tile without its padding",
        "threadgroup half tile[attention::tile * (SIZE + 2)]",
        "threadgroup half tile[attention::tile * SIZE]",
        "bounds",
    ),
    ("weight of the next token", "ushort(t)", "ushort(t + 1)", "inactive-lane"),
    ("sum not rescaled", "sum[q][s] *= kept", "sum[q][s] *= 1", "numbers"),
    (
        "queries of another KV head",
        "const int start = simdgroup_index_in_threadgroup * QUERIES",
        "const int start = 0",
        "race",
    ),
    ("page of another head", "table + head * head_pages", "table + head", "numbers"),
    ("page too far", "table[first / page]", "table[first / page + 4]", "bounds"),
    ("channel guard missing in the write", "if (s * 32 + lane < SIZE) part", "part", "race"),
    ("a simdgroup leaves early", "softmax.clear();", "softmax.clear(); if (start > 0) return;", "divergent-barrier"),
]
ATTENTION_MERGE = [
    ("one split too far", "for (int s = 0; s < splits; s++) most", "for (int s = 0; s <= splits; s++) most", "bounds"),
    ("sink left out", "SINKS ? metal::precise::exp(sinks[head] - most) : 0.0f", "0.0f", "numbers"),
    ("sink of another head", "SINKS ? sinks[head]", "SINKS ? sinks[head + 8]", "bounds"),
    ("not divided", "mixed / sum", "mixed", "numbers"),
    ("every lane writes everything", "int d = lane", "int d = 0", "race"),
    ("last channel left out", "d < SIZE; d += 32", "d < SIZE - 1; d += 32", "unwritten"),
    ("splits at the wrong distance", "threads_per_grid.z * heads", "heads", "numbers"),
    (
        "not rescaled",
        "mixed = metal::fma(metal::precise::exp(largest[place] - most), part",
        "mixed = metal::fma(1, part",
        "numbers",
    ),
]
ATTENTION_ROWS = [
    ("keys read too early", f"{BARRIER}\n  if (there) block.score", "if (there) block.score", "uninitialised"),
    ("keys overwritten too early", f"row, first, lane);\n  {BARRIER}", "row, first, lane);", "race"),
    ("values read too early", f"{BARRIER}\n  if (there) block.mix", "if (there) block.mix", "race"),
    ("values overwritten too early", f"block.mix(mine, tile);\n  {BARRIER}", "block.mix(mine, tile);", "race"),
    ("scores read too early", f"{SIMD_BARRIER}\n    weigh", "weigh", "race"),
    ("simdgroups share their scores", "scratch + simdgroup * attention::Scratch<TOKENS>::size", "scratch", "race"),
    ("blocks that are not there", "const bool there = row < rows", "const bool there = true", "bounds"),
    ("tokens behind the last one", "metal::min(length - first, Tokens) * Size", "Tokens * Size", "numbers"),
    ("keys not turned", "Size + 4, 0, true", "Size + 4, 0, false", "numbers"),
    ("a lane's neighbour left out", "metal::simd_shuffle_xor(added, ushort(2))", "0", "numbers"),
    ("another row's lane", "metal::simd_shuffle_xor(most, ushort(2))", "metal::simd_shuffle_xor(most, ushort(32))",
     "inactive-lane"),
    ("sum not rescaled", "scale_by(scores - lane / 4 * Memory::stride, kept, lane)",
     "scale_by(scores - lane / 4 * Memory::stride, 1, lane)", "numbers"),
    ("window begins too late", "first_place + 1 - window)", "first_place + 40 - window)", "numbers"),
    ("sees too few tokens", "metal::min(length, last_place + 1)", "metal::min(length, last_place - 30)", "numbers"),
    ("sink of another head", "sinks[head]", "sinks[head + 8]", "bounds"),
    ("a simdgroup leaves early", "block.clear(mine, lane);", "block.clear(mine, lane); if (simdgroup == 2) return;",
     "divergent-barrier"),
]  # fmt: skip
