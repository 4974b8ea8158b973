// The C++ core without Python: against plain loops in double, for every instruction set that this machine has, and the
// same bits whatever the rows, the threads and the chunks. Built with each sanitizer, and for ARM under emulation.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "arena.h"
#include "codecs/all.h"
#include "engine.h"
#include "kernels.h"
#include "pool.h"

using namespace edgeinfer;

static std::mt19937 random_bits(1);
static int failures = 0;

#define CHECK(condition, ...)                                          \
  if (!(condition)) {                                                  \
    failures++;                                                        \
    std::printf("FAILED %s:%d %s: ", kernels().name, __LINE__, #condition); \
    std::printf(__VA_ARGS__);                                          \
    std::printf("\n");                                                 \
  }

static std::vector<float> normal(size_t count, float scale = 1) {
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(count);
  for (float& each : values) each = distribution(random_bits);
  return values;
}

struct FormatCase {
  const char* name;
  Format format;
  int weights, bytes, d_at;  // d_at: where float16 scales lie, to keep them finite
  bool plain;
};
static const FormatCase cases[] = {
    {"q4_0", Format::q4_0, 32, 18, 0, false},   {"q4_1", Format::q4_1, 32, 20, 0, false},
    {"q5_0", Format::q5_0, 32, 22, 0, false},   {"q5_1", Format::q5_1, 32, 24, 0, false},
    {"q8_0", Format::q8_0, 32, 34, 0, false},   {"q2_k", Format::q2_k, 256, 84, 80, false},
    {"q3_k", Format::q3_k, 256, 110, 108, false}, {"q4_k", Format::q4_k, 256, 144, 0, false},
    {"q5_k", Format::q5_k, 256, 176, 0, false}, {"q6_k", Format::q6_k, 256, 210, 208, false},
    {"f32", Format::f32, 1, 4, -1, true},       {"f16", Format::f16, 1, 2, -1, true},
    {"bf16", Format::bf16, 1, 2, -1, true},
};

static bool has_two_halves(Format format) {
  return format == Format::q4_1 || format == Format::q5_1 || format == Format::q2_k || format == Format::q4_k ||
         format == Format::q5_k;
}

static std::vector<uint8_t> random_blocks(const FormatCase& form, int rows, int columns) {
  const size_t count = size_t(rows) * columns / form.weights;
  std::vector<uint8_t> blocks(count * form.bytes);
  for (uint8_t& each : blocks) each = uint8_t(random_bits());
  for (size_t b = 0; b < count; b++) {
    uint8_t* block = blocks.data() + b * form.bytes;
    if (form.format == Format::f32) {
      const float value = normal(1)[0];
      std::memcpy(block, &value, 4);
    } else if (form.plain) {
      block[1] = uint8_t((block[1] & 0x80) | (form.format == Format::bf16 ? 0x3e : 0x34));
    } else {
      block[form.d_at + 1] = uint8_t((block[form.d_at + 1] & 0x83) | 0x10);
      if (has_two_halves(form.format)) block[form.d_at + 3] = uint8_t((block[form.d_at + 3] & 0x83) | 0x10);
    }
  }
  return blocks;
}

static std::shared_ptr<Matrix> random_matrix(const FormatCase& form, int rows, int columns) {
  const std::vector<uint8_t> blocks = random_blocks(form, rows, columns);
  return pack(form.format, blocks.data(), int64_t(blocks.size()), rows, columns);
}

static std::vector<float> run_linear(const Matrix& matrix, const std::vector<float>& x, int rows) {
  LinearCall call{};
  std::vector<float> out(size_t(rows) * matrix.segment.rows);
  call.x = x.data(), call.rows = rows, call.matrix = {{matrix.segment}, 1, matrix.columns, nullptr}, call.out = out.data();
  linear(call);
  return out;
}

// Rounds blocks of 32 to bytes, as the kernels do.
static std::vector<double> as_bytes(const std::vector<float>& x) {
  std::vector<double> rounded(x.size());
  for (size_t b = 0; b < x.size(); b += BLOCK) {
    float most = 0;
    for (int i = 0; i < BLOCK; i++) most = std::fmax(most, std::fabs(x[b + i]));
    const float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < BLOCK; i++) rounded[b + i] = std::nearbyint(x[b + i] * inverse) * double(scale);
  }
  return rounded;
}

static void check_product(const FormatCase& form, int rows, int columns, int m) {
  const auto matrix = random_matrix(form, rows, columns);
  const std::vector<float> x = normal(size_t(m) * columns);
  const std::vector<double> rounded = form.plain ? std::vector<double>(x.begin(), x.end()) : as_bytes(x);
  const std::vector<float> out = run_linear(*matrix, x, m);
  std::vector<float> weights(columns);
  double worst = 0;
  for (int n = 0; n < rows; n++) {
    decode_row(*matrix, n, weights.data());
    for (int r = 0; r < m; r++) {
      double sum = 0, size = 0;
      for (int k = 0; k < columns; k++) {
        sum += weights[k] * rounded[size_t(r) * columns + k];
        size += std::fabs(weights[k] * rounded[size_t(r) * columns + k]);
      }
      worst = std::fmax(worst, std::fabs(sum - out[size_t(r) * rows + n]) / size);
    }
  }
  CHECK(worst < 2e-6, "%s %dx%d, %d rows: %g", form.name, rows, columns, m, worst);
}

static void check_invariance(const FormatCase& form) {
  constexpr int rows = 37, columns = 512, m = 33;
  const auto matrix = random_matrix(form, rows, columns);
  const std::vector<float> x = normal(m * columns);
  const std::vector<float> whole = run_linear(*matrix, x, m);
  for (int threads = 1; threads <= 3; threads++) {
    Pool::shared().resize(threads);
    for (int size : {1, 2, 3, 5, 6, 7, 12, 16, 20}) {
      for (int first = 0; first + size <= m; first += size) {
        const std::vector<float> some(x.begin() + first * columns, x.begin() + (first + size) * columns);
        const std::vector<float> part = run_linear(*matrix, some, size);
        CHECK(!std::memcmp(part.data(), whole.data() + first * rows, part.size() * 4), "%s: rows %d+%d, %d threads",
              form.name, first, size, threads);
      }
    }
  }
}

struct Heads {
  int heads, kv_heads, dim, window;
  float softcap;
  bool norms, interleaved;
};

struct Attended {
  std::vector<float> out;
  int width;
};

// Positions [0, total) of one sequence, appended and attended in steps of `step` rows.
static Attended attend_in_steps(const Heads& h, const std::vector<float>& qkv, const std::vector<float>& norms, int total,
                                int step) {
  const int capacity = (total + CHUNK - 1) / CHUNK * CHUNK, width = (h.heads + 2 * h.kv_heads) * h.dim;
  std::vector<uint16_t> keys(size_t(h.kv_heads) * capacity * h.dim, 0x7e00), values = keys;  // NaN until written
  std::vector<double> frequencies(h.dim / 2);
  for (int i = 0; i < h.dim / 2; i++) frequencies[i] = std::pow(10000.0, -2.0 * i / h.dim);
  Attended result{std::vector<float>(size_t(total) * h.heads * h.dim), h.heads * h.dim};
  for (int start = 0; start < total; start += step) {
    const int rows = std::min(step, total - start);
    std::vector<float> table(size_t(rows) * h.dim);
    rope_table(start, rows, frequencies.data(), h.dim / 2, 1, table.data());
    const HeadsView in{qkv.data() + size_t(start) * width, h.heads, h.kv_heads, h.dim, h.norms ? norms.data() : nullptr,
                       h.norms ? norms.data() + h.dim : nullptr, 1e-6f, {table.data(), h.dim / 2, h.interleaved}};
    const SequenceView sequence{{keys.data(), values.data(), capacity}, 0, rows, start};
    append(in, sequence);
    attend({in, 1 / std::sqrt(float(h.dim)), h.softcap, h.window, result.out.data() + size_t(start) * result.width},
           {sequence});
  }
  return result;
}

static std::vector<double> rotated(const float* x, const float* norm, int dim, int position, bool interleaved) {
  std::vector<double> y(x, x + dim);
  if (norm) {
    double squares = 0;
    for (double each : y) squares += each * each;
    for (int d = 0; d < dim; d++) y[d] *= norm[d] / std::sqrt(squares / dim + 1e-6);
  }
  for (int i = 0; i < dim / 2; i++) {
    double& a = y[interleaved ? 2 * i : i];
    double& b = y[interleaved ? 2 * i + 1 : i + dim / 2];
    const double angle = position * std::pow(10000.0, -2.0 * i / dim), old = a;
    a = old * std::cos(angle) - b * std::sin(angle);
    b = old * std::sin(angle) + b * std::cos(angle);
  }
  return y;
}

static void check_attention(const Heads& h, int total, int step) {
  const int width = (h.heads + 2 * h.kv_heads) * h.dim, group = h.heads / h.kv_heads;
  const std::vector<float> qkv = normal(size_t(total) * width), norms = normal(2 * h.dim);
  const Attended whole = attend_in_steps(h, qkv, norms, total, step);
  double worst = 0;
  for (int head = 0; head < h.heads; head++) {
    std::vector<std::vector<double>> keys;
    for (int p = 0; p < total; p++)
      keys.push_back(rotated(qkv.data() + size_t(p) * width + (h.heads + head / group) * h.dim,
                             h.norms ? norms.data() + h.dim : nullptr, h.dim, p, h.interleaved));
    for (int row = total - 1; row >= 0; row -= 37) {
      const std::vector<double> q = rotated(qkv.data() + size_t(row) * width + head * h.dim,
                                            h.norms ? norms.data() : nullptr, h.dim, row, h.interleaved);
      std::vector<double> expected(h.dim);
      double sum = 0;
      for (int p = h.window ? std::max(0, row + 1 - h.window) : 0; p <= row; p++) {
        double score = 0;
        for (int d = 0; d < h.dim; d++) score += q[d] * keys[p][d] / std::sqrt(double(h.dim));
        if (h.softcap != 0) score = h.softcap * std::tanh(score / h.softcap);
        const float* value = qkv.data() + size_t(p) * width + (h.heads + h.kv_heads + head / group) * h.dim;
        sum += std::exp(score);
        for (int d = 0; d < h.dim; d++) expected[d] += std::exp(score) * value[d];
      }
      for (int d = 0; d < h.dim; d++)
        worst = std::fmax(worst, std::fabs(expected[d] / sum - whole.out[size_t(row) * whole.width + head * h.dim + d]));
    }
  }
  CHECK(worst < 4e-3, "attention %d/%d heads of %d, window %d: %g", h.heads, h.kv_heads, h.dim, h.window, worst);
  for (int other : {total, 1, 7, 64}) {
    if (other == 1 && total > 300) continue;
    const Attended again = attend_in_steps(h, qkv, norms, total, other);
    CHECK(again.out == whole.out, "attention in steps of %d and of %d", other, step);
  }
}

// Two callers at once, as two MLX streams would be.
static void check_two_callers() {
  const auto matrix = random_matrix(cases[1], 64, 256);
  const std::vector<float> x = normal(5 * 256);
  const std::vector<float> expected = run_linear(*matrix, x, 5);
  bool same[2] = {true, true};
  std::vector<std::thread> callers;
  for (bool& each : same)
    callers.emplace_back([&] {
      for (int i = 0; i < 200; i++) each = each && run_linear(*matrix, x, 5) == expected;
    });
  for (std::thread& each : callers) each.join();
  CHECK(same[0] && same[1], "two callers");
}

static void check_bad_scales() {
  for (const float bad : {INFINITY, NAN}) {
    auto x = normal(3 * 256);
    const auto matrix = random_matrix(cases[1], 20, 256);
    const std::vector<float> clean = run_linear(*matrix, x, 3);
    x[256 + 40] = bad;
    const std::vector<float> out = run_linear(*matrix, x, 3);
    for (int n = 0; n < 20; n++) {
      CHECK(std::isnan(out[20 + n]), "an activation of %g", bad);
      CHECK(out[n] == clean[n] && out[40 + n] == clean[40 + n], "rows beside an activation of %g", bad);
    }
  }
}

// Chosen tokens are within the best k, for every u; vocabularies of any size, also smaller than k.
static void check_sample() {
  for (const int count : {1, 63, 64, 65, 1000}) {
    const std::vector<float> logits = normal(count, 3);
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (const int k : {1, 40, 2000})
      for (float u = 0; u < 1; u += 0.09f) {
        const int token = sample(logits.data(), count, {k, 0.9f, 0.95f, 0.01, 0.2f, 0.7f, u});
        CHECK(token >= 0 && token < count && logits[token] >= sorted[std::min(k, count) - 1], "sample %d of %d", k, count);
      }
  }
}

// Matrices share a mapping; each keeps what was written to it, whichever goes first.
static void check_memory() {
  std::vector<std::shared_ptr<uint8_t[]>> pieces;
  for (int i = 0; i < 40; i++) {
    pieces.push_back(i % 8 ? take_memory(size_t(i) * 100 + 1) : map_memory(size_t(i) * 100000 + 1));
    CHECK(reinterpret_cast<uintptr_t>(pieces.back().get()) % 64 == 0, "memory at a line");
    std::memset(pieces.back().get(), i, size_t(i) * 100 + 1);
    if (i % 3 == 2) pieces[i / 2].reset();
  }
  for (int i = 0; i < 40; i++) CHECK(!pieces[i] || (pieces[i][0] == i && pieces[i][i * 100] == i), "memory kept");
}

int main(int argc, char** argv) {
  const bool quick = argc > 1 && !std::strcmp(argv[1], "--quick");
  for (const Kernels* const* each = available_kernels(); *each; each++) {
    use_kernels((*each)->name);
    Pool::shared().resize(2);
    for (const FormatCase& form : cases) {
      for (int m : quick ? std::vector{1, 19} : std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33}) {
        check_product(form, 37, 512, m);
        check_product(form, 16, form.weights == 256 ? 256 : form.plain ? 50 : 96, m);
      }
      if (!quick || form.format == Format::q5_0) check_invariance(form);
    }
    Pool::shared().resize(2);
    check_attention({6, 2, 64, 0, 0, false, false}, quick ? 300 : 530, 16);
    check_attention({4, 1, 32, 100, 0, true, false}, quick ? 280 : 700, 5);
    check_attention({4, 4, 80, 0, 20, false, true}, 270, 270);
    check_attention({3, 1, 256, 300, 0, true, false}, quick ? 40 : 600, 3);
    check_two_callers();
    check_bad_scales();
    check_sample();
    check_memory();
    std::printf("%s: %s\n", (*each)->name, failures ? "FAILED" : "ok");
  }
  return failures != 0;
}
