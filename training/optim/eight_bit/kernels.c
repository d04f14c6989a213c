/* The inner loops of 8-bit LAMB and AdamW in one pass each: what blockwise.py and directions.py do in many passes over memory.

   native.py compiles this file on the machine where it runs. It names no vector instructions; every loop is written so
   that the compiler finds them (`omp simd` lets it reorder sums, no OpenMP library is used). All sizes are in values.
   Codes and scales are those of blockwise.py, bit for bit. Nothing here allocates, blocks, or looks at the clock. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { DECADES = 8 }; /* seven decades of the dynamic type, and 1.0 as one more with a single value */

/* One dynamic type, filled by kernels.py. A quotient q >= 0 in decade d, the last one with threshold[d] <= q, has rank
   min(slope[d] * q + offset[d], last[d]), cut to an integer; a quotient below all decades has rank 0, the value 0. */
typedef struct {
    float values[256];
    float threshold[DECADES], slope[DECADES], offset[DECADES], last[DECADES];
} Map;

/* What one update of one tensor needs; kernels.py fills it and directions.py explains it. */
typedef struct {
    float clip, gain1, decay2, gain2, root_factor, root_shift, weight_decay;
} Settings;

/* The middle of all numbers that share the upper 16 bits: blockwise.py's table rounds by these alone. */
static inline float rounded(float quotient) {
    uint32_t bits;
    memcpy(&bits, &quotient, sizeof bits);
    bits = (bits & 0xffff0000u) | 0x8000u;
    memcpy(&quotient, &bits, sizeof bits);
    return quotient;
}

static inline int32_t rank_of(float quotient, const Map *map) {
    float slope = 0.0f, offset = 0.0f, last = 0.0f;
    for (int d = 0; d < DECADES; d++) {
        int above = quotient >= map->threshold[d];
        slope = above ? map->slope[d] : slope;
        offset = above ? map->offset[d] : offset;
        last = above ? map->last[d] : last;
    }
    float rank = slope * quotient + offset;
    return (int32_t)(rank < last ? rank : last);
}

/* As in blockwise.py, with which it must agree to the last bit. */
static inline float factor_for(float largest) {
    return 1.0f / (largest > FLT_MIN ? largest : FLT_MIN) * (1.0f + 0x1p-22f);
}

static void encode_signed(const float *restrict values, uint8_t *restrict codes, int64_t size, float largest,
                          const Map *restrict shared) {
    const Map map = *shared;
    const float factor = factor_for(largest);
    for (int64_t i = 0; i < size; i++) {
        float quotient = rounded(values[i] * factor);
        int32_t rank = rank_of(fabsf(quotient), &map);
        int32_t code = quotient < 0 ? 127 - rank : 127 + rank;
        codes[i] = (uint8_t)(code < 0 ? 0 : code); /* -1.0 is no value of the type */
    }
}

static void encode_unsigned(const float *restrict values, uint8_t *restrict codes, int64_t size, float largest,
                            const Map *restrict shared) {
    const Map map = *shared;
    const float factor = factor_for(largest);
    for (int64_t i = 0; i < size; i++) codes[i] = (uint8_t)rank_of(rounded(values[i] * factor), &map);
}

static inline void decode(const uint8_t *restrict codes, float *restrict out, int64_t size, float scale,
                          const Map *restrict map) {
    for (int64_t i = 0; i < size; i++) out[i] = map->values[codes[i]] * scale;
}

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void quantize(const float *values, uint8_t *codes, float *scales, int64_t size, int64_t block_size, int is_signed,
              const Map *map) {
    for (int64_t start = 0; start < size; start += block_size, scales++) {
        const int64_t count = smaller(block_size, size - start);
        const float *restrict block = values + start;
        float largest = 0.0f;
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < count; i++) {
            float magnitude = fabsf(block[i]);
            largest = magnitude > largest ? magnitude : largest;
        }
        *scales = largest;
        (is_signed ? encode_signed : encode_unsigned)(block, codes + start, count, largest, map);
    }
}

void dequantize(const uint8_t *codes, const float *scales, float *out, int64_t size, int64_t block_size,
                const Map *map) {
    for (int64_t start = 0; start < size; start += block_size, scales++)
        decode(codes + start, out + start, smaller(block_size, size - start), *scales, map);
}

/* New moments and the direction of `size` values: whole blocks, but for the last one of a tensor.

   out      gets the direction; may be the gradient itself
   buffer   2 * block_size values
   squares  gets the sums of squares of the weights and of the direction */
void lamb_direction(const float *gradient, const float *weights, float *out, uint8_t *codes1, float *scales1,
                    uint8_t *codes2, float *scales2, float *buffer, int64_t size, int64_t block_size,
                    const Settings *shared, const Map *map1, const Map *map2, double *squares) {
    const Settings s = *shared;
    float *restrict moment1 = buffer, *restrict moment2 = buffer + block_size;
    squares[0] = squares[1] = 0.0;
    for (int64_t start = 0; start < size; start += block_size, scales1++, scales2++) {
        const int64_t count = smaller(block_size, size - start);
        const float *restrict w = weights + start, *g = gradient + start;
        float *u = out + start;
        float weight_squares = 0.0f, direction_squares = 0.0f, largest1 = 0.0f, largest2 = 0.0f;
        decode(codes1 + start, moment1, count, *scales1, map1);
        decode(codes2 + start, moment2, count, *scales2, map2);
#pragma omp simd reduction(+ : weight_squares, direction_squares) reduction(max : largest1, largest2)
        for (int64_t i = 0; i < count; i++) {
            float clipped = g[i] * s.clip;
            float m = moment1[i] + s.gain1 * (clipped - moment1[i]);
            float v = s.decay2 * moment2[i] + s.gain2 * (clipped * clipped);
            float direction = m / (sqrtf(v) * s.root_factor + s.root_shift) + s.weight_decay * w[i];
            float magnitude = fabsf(m);
            largest1 = magnitude > largest1 ? magnitude : largest1;
            largest2 = v > largest2 ? v : largest2;
            weight_squares += w[i] * w[i];
            direction_squares += direction * direction;
            moment1[i] = m;
            moment2[i] = v;
            u[i] = direction;
        }
        squares[0] += weight_squares;
        squares[1] += direction_squares;
        *scales1 = largest1;
        *scales2 = largest2;
        encode_signed(moment1, codes1 + start, count, largest1, map1);
        encode_unsigned(moment2, codes2 + start, count, largest2, map2);
    }
}

/* Runs every loop once; a child process calls it before anyone else does, in case this processor cannot. */
int probe(void) {
    enum { SIZE = 300, BLOCK = 200 };
    static float gradient[SIZE], weights[SIZE], scales1[2], scales2[2], buffer[2 * BLOCK];
    static uint8_t codes1[SIZE], codes2[SIZE];
    static Map map;
    static Settings settings;
    double squares[2];
    settings.root_shift = 1.0f;
    for (int i = 0; i < SIZE; i++) gradient[i] = weights[i] = (float)i;
    lamb_direction(gradient, weights, gradient, codes1, scales1, codes2, scales2, buffer, SIZE, BLOCK, &settings,
                   &map, &map, squares);
    quantize(weights, codes1, scales1, SIZE, BLOCK, 1, &map);
    dequantize(codes1, scales1, weights, SIZE, BLOCK, &map);
    return 0;
}
