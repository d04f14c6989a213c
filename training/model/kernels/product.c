/* The product of a matrix with the few rows of a batch, for sampling one token at a time (product.py).

   native.py compiles this file on the machine where it runs. Such a product waits for the matrix: here it is read once,
   from its beginning to its end, as memory is read fastest. Sizes are in values; nothing allocates. */

#include <stdint.h>

static inline float dot(const float *restrict row, const float *restrict inputs, int64_t size) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += row[i] * inputs[i];
    return sum;
}

/* out (batch, rows) = inputs (batch, columns) times the transposed matrix (rows, columns), plus bias (rows) if any. */
void product(const float *restrict matrix, const float *restrict bias, const float *restrict inputs,
             float *restrict out, int64_t batch, int64_t rows, int64_t columns) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t sample = 0; sample < batch; sample++)
            out[sample * rows + row] =
                (bias ? bias[row] : 0.0f) + dot(matrix + row * columns, inputs + sample * columns, columns);
}

/* Runs the loop, so that a processor without the instructions ends here and not in a sample. */
int probe(void) {
    enum { SIZE = 100 };
    float matrix[2 * SIZE], inputs[SIZE], out[2];
    for (int i = 0; i < SIZE; i++) matrix[i] = inputs[i] = 1.0f, matrix[SIZE + i] = (float)i;
    product(matrix, 0, inputs, out, 1, 2, SIZE);
    return out[0] != SIZE || out[1] != SIZE * (SIZE - 1) / 2;
}
