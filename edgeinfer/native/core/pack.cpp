// From the blocks of a file to tiles, and back for single rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "arena.h"
#include "codecs/all.h"
#include "engine.h"
#include "pool.h"

namespace edgeinfer {

namespace {

// Every tiled format with what reads its blocks and what its tiles are; every plain one with the bytes of a weight.
struct FormatRow {
  Format format;
  int weights, block_bytes;      // of a block of the file
  int strip_columns, strip_step;  // a strip takes strip_step bytes for so many columns
  const Codebook* book;
  void (*pack_strip)(const uint8_t* blocks, int64_t row_bytes, int rows, int columns, const Codebook* book, uint8_t* out);
  void (*decode)(const uint8_t* strip, int row, int columns, const Codebook* book, float* out);
};

// Codes [16 rows][32 columns] -> the planes of a tile.
template <class T>
void write_planes(const uint8_t codes[STRIP][BLOCK], uint8_t* out) {
  constexpr int high_bits = T::bits == 8 ? 0 : T::bits - (T::bits >= 4 ? 4 : 2);
  uint8_t* high = out + STRIP * BLOCK * (T::bits - high_bits) / 8;
  for (int row = 0; row < STRIP; row++)
    for (int k = 0; k < 4; k++) {
      const uint8_t* from = codes[row] + k;
      const int at = row * 4 + k;
      uint8_t code[8];
      for (int c = 0; c < 8; c++) code[c] = from[4 * c];
      if constexpr (T::bits == 8)
        for (int c = 0; c < 8; c++) out[64 * c + at] = code[c];
      if constexpr (T::bits == 4 || T::bits == 5 || T::bits == 6)
        for (int c = 0; c < 4; c++) out[64 * c + at] = uint8_t((code[c] & 15) | (code[c + 4] & 15) << 4);
      if constexpr (T::bits == 2 || T::bits == 3)
        for (int j = 0; j < 2; j++) {
          out[64 * j + at] = 0;
          for (int c = 0; c < 4; c++) out[64 * j + at] |= uint8_t((code[4 * j + c] & 3) << 2 * c);
        }
      if constexpr (high_bits == 2)
        for (int j = 0; j < 2; j++) {
          high[64 * j + at] = 0;
          for (int c = 0; c < 4; c++) high[64 * j + at] |= uint8_t(code[4 * j + c] >> 4 << 2 * c);
        }
      if constexpr (high_bits == 1) {
        high[at] = 0;
        for (int c = 0; c < 8; c++) high[at] |= uint8_t(code[c] >> (T::bits - 1) << c);
      }
    }
}

template <class T>
int read_code(const uint8_t* planes, int row, int column) {
  const int c = column / 4, at = row * 4 + column % 4;
  if constexpr (T::bits == 8) return int8_t(planes[64 * c + at]);
  int code = T::bits >= 4 ? planes[64 * (c % 4) + at] >> (c / 4 * 4) & 15 : planes[64 * (c / 4) + at] >> 2 * (c % 4) & 3;
  if constexpr (T::bits == 6) code |= (planes[256 + 64 * (c / 4) + at] >> 2 * (c % 4) & 3) << 4;
  if constexpr (T::bits == 5) code |= (planes[256 + at] >> c & 1) << 4;
  if constexpr (T::bits == 3) code |= (planes[128 + at] >> c & 1) << 2;
  return code - T::zero;
}

void put_half(uint8_t* halves, int row, unsigned short bits) { std::memcpy(halves + 2 * row, &bits, 2); }

// The bits of a number that float16 holds as a normal number or zero.
unsigned short bits_of_half(float value) {
  const uint32_t bits = codecs::host::bits_of(value);
  return bits ? (unsigned short)((bits >> 13) - (112 << 10)) : 0;
}

// Scales (and offsets) of weights from `first` on of a block.
template <class Codec, class T>
void write_halves(const uint8_t* block, int first, int row, uint8_t* out) {
  if constexpr (T::kind == ScaleKind::f32) {
    const float scale = Codec::scale(block, 0), offset = Codec::offset(block, 0) - float(T::zero) * scale;
    std::memcpy(out + 4 * row, &scale, 4);
    std::memcpy(out + 4 * (STRIP + row), &offset, 4);
    return;
  } else if constexpr (T::kind == ScaleKind::bf16)
    put_half(out, row, (unsigned short)(codecs::host::bits_of(Codec::scale(block, first / Codec::group)) >> 16));
  else if constexpr (T::halves > 1)
    for (int g = 0; g < T::halves; g++)
      put_half(out + 2 * STRIP * g, row, bits_of_half(Codec::scale(block, first / Codec::group + g)));
  else
    put_half(out, row, Codec::d_bits(block));
  if constexpr (T::has_offset && T::kind == ScaleKind::f16) put_half(out + 2 * STRIP, row, Codec::m_bits(block));
}

// What stands for a code in a plane.
template <class T>
uint8_t stored_code(int code, const Codebook* book) {
  if constexpr (!T::has_book) return uint8_t(code + T::zero);
  return uint8_t(std::find(book->values, book->values + (1 << T::bits) - 1, code) - book->values);
}

template <class Codec, class T>
void write_sub_scales(const uint8_t* block, int row, int first_group, uint8_t* out) {
  for (int g = 0; g < T::groups; g++) {
    out[STRIP * g + row] = uint8_t(Codec::sub_scale(block, first_group + g));
    if constexpr (T::has_offset) out[STRIP * (T::groups + g) + row] = uint8_t(Codec::sub_offset(block, first_group + g));
  }
}

// `rows` of 16 rows of blocks; the others are zeros.
template <class Codec, class T>
void pack_strip(const uint8_t* blocks, int64_t row_bytes, int rows, int columns, const Codebook* book, uint8_t* out) {
  static_assert(Codec::weights % T::columns == 0 && T::groups == BLOCK / std::min(BLOCK, Codec::group));
  static_assert(T::has_offset == Codec::has_offset);
  for (int column = 0; column < columns; column += T::columns, out += T::stride) {
    const uint8_t* at = blocks + column / Codec::weights * Codec::bytes;
    const int first = column % Codec::weights;
    std::memset(out, 0, T::half_bytes);
    for (int row = 0; row < rows; row++) write_halves<Codec, T>(at + row * row_bytes, first, row, out);
    for (int t = 0; t < T::tiles; t++) {
      uint8_t codes[STRIP][BLOCK] = {};
      uint8_t* tile = out + (T::is_super ? T::half_bytes : 0) + t * T::bytes;
      if constexpr (T::is_super) std::memset(tile, 0, T::sub_bytes);
      for (int row = 0; row < rows; row++) {
        const uint8_t* block = at + row * row_bytes;
        for (int i = 0; i < BLOCK; i++)
          codes[row][i] = stored_code<T>(Codec::code(block, first + t * BLOCK + i), book);
        if constexpr (T::is_super) write_sub_scales<Codec, T>(block, row, t * T::groups, tile);
      }
      write_planes<T>(codes, tile + (T::is_super ? T::sub_bytes : T::half_bytes));
    }
  }
}

// Number `index` of a run of scales.
template <ScaleKind kind>
float scale_at(const uint8_t* run, int index) {
  if constexpr (kind == ScaleKind::f32) return codecs::float_bits(codecs::load_u32(run + 4 * index));
  const unsigned short bits = codecs::load_u16(run + 2 * index);
  return kind == ScaleKind::bf16 ? codecs::float_bits((unsigned int)bits << 16) : codecs::half_bits(bits);
}

template <class T>
void decode_tiles(const uint8_t* strip, int row, int columns, const Codebook* book, float* out) {
  for (int column = 0; column < columns; column++) {
    const uint8_t* run = strip + int64_t(column / T::columns) * T::stride;
    const uint8_t* tile = run + (T::is_super ? T::half_bytes : 0) + column % T::columns / BLOCK * T::bytes;
    const int in_tile = column % BLOCK, g = in_tile / (BLOCK / T::groups);
    const int8_t* sub = reinterpret_cast<const int8_t*>(tile);
    float scale = scale_at<T::kind>(run, (T::is_super ? 0 : STRIP * g) + row);
    if constexpr (T::is_super) scale *= float(sub[STRIP * g + row]);
    int code = read_code<T>(tile + (T::is_super ? T::sub_bytes : T::half_bytes), row, in_tile);
    if constexpr (T::has_book) code = book->values[code], scale *= book->factor;
    float value = scale * float(code);
    if constexpr (T::has_offset) {
      const float offset = scale_at<T::kind>(run, STRIP + row);
      value = T::is_super ? value - offset * float(sub[STRIP * (T::groups + g) + row]) : value + offset;
    }
    out[column] = value;
  }
}

template <int size>
void pack_plain(const uint8_t* blocks, int64_t row_bytes, int rows, int columns, const Codebook*, uint8_t* out) {
  for (int column = 0; column < columns; column++)
    for (int row = 0; row < STRIP; row++, out += size) {
      if (row < rows)
        std::memcpy(out, blocks + row * row_bytes + int64_t(column) * size, size);
      else
        std::memset(out, 0, size);
    }
}

template <class Codec>
void decode_plain(const uint8_t* strip, int row, int columns, const Codebook*, float* out) {
  for (int column = 0; column < columns; column++)
    out[column] = codecs::decode<Codec>(strip + (int64_t(column) * STRIP + row) * Codec::bytes, 0);
}

const FormatRow* row_of(Format format) {
  static const FormatRow rows[] = {
#define TILED(name, C, T, book)                                                            \
  {Format::name, codecs::C::weights, codecs::C::bytes, T::columns, T::stride, book,         \
   pack_strip<codecs::C, T>, decode_tiles<T>},
#define PLAIN(name, C)                                                                      \
  {Format::name, 1, codecs::C::bytes, 1, STRIP * codecs::C::bytes, nullptr,                 \
   pack_plain<codecs::C::bytes>, decode_plain<codecs::C>},
      TILED_FORMATS(TILED) PLAIN_FORMATS(PLAIN)
#undef TILED
#undef PLAIN
  };
  const auto* found = std::find_if(std::begin(rows), std::end(rows), [&](const auto& row) { return row.format == format; });
  return found == std::end(rows) ? nullptr : found;
}

}  // namespace

size_t tiled_bytes(Format format, int64_t rows, int64_t columns) {
  const FormatRow* row = row_of(format);
  if (!row || rows < 0 || columns < 0 || columns % row->strip_columns) return 0;
  return size_t((rows + STRIP - 1) / STRIP) * size_t(columns / row->strip_columns) * size_t(row->strip_step);
}

std::shared_ptr<Matrix> pack(Format format, const uint8_t* blocks, int64_t bytes, int rows, int columns) {
  const FormatRow* row = row_of(format);
  if (!row) throw std::invalid_argument("no tiles for this format");
  if (rows < 1 || columns < 1 || columns % row->weights)
    throw std::invalid_argument("rows are no whole number of blocks");
  const int64_t row_bytes = int64_t(columns / row->weights) * row->block_bytes;
  if (bytes != rows * row_bytes) throw std::invalid_argument("the bytes do not fit the shape");

  std::shared_ptr<uint8_t[]> owner = take_memory(tiled_bytes(format, rows, columns));
  uint8_t* memory = owner.get();
  const int64_t strip_bytes = int64_t(columns / row->strip_columns) * row->strip_step;
  auto matrix = std::make_shared<Matrix>(Matrix{{format, memory, strip_bytes, rows}, columns, std::move(owner)});
  Pool::shared().run(matrix->segment.strips(), [&](int strip) {
    row->pack_strip(blocks + int64_t(strip) * STRIP * row_bytes, row_bytes, std::min(STRIP, rows - strip * STRIP),
                    columns, row->book, memory + strip * strip_bytes);
  });
  return matrix;
}

void decode_row(const Matrix& matrix, int row, float* out) {
  const Segment& segment = matrix.segment;
  const FormatRow* format = row_of(segment.format);
  format->decode(segment.tiles + row / STRIP * segment.strip_bytes, row % STRIP, matrix.columns, format->book, out);
}

void embed(const Matrix& matrix, const int32_t* tokens, int count, float scale, float* out) {
  Pool::shared().run(count, [&](int i) {
    float* to = out + int64_t(i) * matrix.columns;
    if (tokens[i] < 0 || tokens[i] >= matrix.segment.rows) return void(std::fill_n(to, matrix.columns, NAN));
    decode_row(matrix, tokens[i], to);
    for (int k = 0; scale != 1 && k < matrix.columns; k++) to[k] *= scale;
  });
}

}  // namespace edgeinfer
