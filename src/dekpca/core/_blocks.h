/* Blocks of an rbf kernel's matrix between small sets of samples, minus the landmarks' part.

BLAS would pack both sets for every block; here a set is packed once for all its blocks, in cache lines of LINE numbers: line k of a group has
column k of LINE samples. A tile of the block stays in registers from the first column to the last, and its exponentials are computed before it is
stored. */

#include "_small.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__) && defined(__GNUC__)
#define BLOCKS 1
#else
#define BLOCKS 0 /* BLAS is faster */
#endif

#if defined(__GNUC__)

/* exp(x) for x <= 0 (NaN stays) to two units in the last place, 0 below LEAST, without a branch, so that compilers vectorize it:
x = N log(2) + r, exp(r) by its series. Adding ROUND leaves N in the last bits; log(2) is HIGH + LOW, N * HIGH exact. */
#define EXP(T, BITS, ROUND, MANTISSA, BIAS, LEAST, HIGH, LOW, ...)                                                                  \
    static inline T exp_##T(T x) {                                                                                                  \
        static const T series[] = {__VA_ARGS__}; /* from the last term to the first */                                              \
        T y = x < (T)(LEAST) ? (T)(LEAST) : x;                                                                                      \
        T rounded = y * (T)1.4426950408889634074 + (T)(ROUND);                                                                      \
        T whole = rounded - (T)(ROUND);                                                                                             \
        T r = (y - whole * (T)(HIGH)) - whole * (T)(LOW);                                                                           \
        T sum = series[0], power;                                                                                                   \
        UNROLL for (size_t i = 1; i < sizeof series / sizeof series[0]; i++) sum = sum * r + series[i];                             \
        BITS bits;                                                                                                                  \
        memcpy(&bits, &rounded, sizeof bits);                                                                                       \
        bits = (bits + BIAS) << MANTISSA;                                                                                           \
        memcpy(&power, &bits, sizeof bits);                                                                                         \
        return x < (T)(LEAST) ? (T)0 : sum * power;                                                                                 \
    }

#define TO_7 1. / 5040, 1. / 720, 1. / 120, 1. / 24, 1. / 6, 1. / 2, 1, 1
EXP(double, uint64_t, 6755399441055744.0, 52, 1023, -708, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 1. / 6227020800,
    1. / 479001600, 1. / 39916800, 1. / 3628800, 1. / 362880, 1. / 40320, TO_7)
EXP(float, uint32_t, 12582912.0, 23, 127, -87, 0.693359375, -2.12194440054690583e-4, TO_7)

/* out = exp(min(0, gamma (2 out - a - b))) - less: the kernel of samples whose products are in `out` and whose squares are a and b */
#define RBF(T)                                                                                                                      \
    static inline void rbf_##T(T *restrict out, const T *restrict less, T gamma, T a, const T *restrict b, ptrdiff_t count) {       \
        for (ptrdiff_t c = 0; c < count; c++) {                                                                                     \
            T x = gamma * (2 * out[c] - a - b[c]);                                                                                  \
            out[c] = exp_##T(x > 0 ? 0 : x) - less[c];                                                                              \
        }                                                                                                                           \
    }

RBF(double)
RBF(float)

/* out (R rows, N lines) = products of R samples of one group with those of N groups, with stride `apart`; W vectors V of L are a line.
Over the `columns` listed in `which`, or the first ones if that is NULL */
#define PRODUCTS(NAME, T, V, L, W, R, N)                                                                                            \
    static inline __attribute__((always_inline)) void NAME(T *restrict out, const T *restrict a, const T *restrict b,               \
                                                           ptrdiff_t columns, ptrdiff_t apart, const int32_t *which) {              \
        V sum[R][N * W];                                                                                                            \
        EACH(r, R) EACH(c, N * W) sum[r][c] = (V){0};                                                                               \
        for (ptrdiff_t t = 0; t < columns; t++) {                                                                                   \
            ptrdiff_t k = which ? which[t] : t;                                                                                     \
            V x[N * W];                                                                                                             \
            EACH(c, N * W) x[c] = *(const V *)(b + c / W * apart + (k * W + c % W) * L);                                            \
            EACH(r, R) {                                                                                                            \
                T y = a[k * W * L + r];                                                                                             \
                EACH(c, N * W) sum[r][c] += y * x[c];                                                                               \
            }                                                                                                                       \
        }                                                                                                                           \
        EACH(r, R) EACH(c, N * W) *(V *)(out + (r * N * W + c) * L) = sum[r][c];                                                    \
    }

/* R rows of a block from row i on, N lines of its columns from column j on */
#define PART(NAME, T, V, L, W, R, N)                                                                                                \
    PRODUCTS(NAME##_products, T, V, L, W, R, N)                                                                                     \
    static void NAME(T *restrict out, const Set_##T *p, const Set_##T *q, ptrdiff_t i, ptrdiff_t j, T gamma, ptrdiff_t by_row) {    \
        enum { LINE = W * L, WIDE = N * LINE };                                                                                     \
        T found[R * WIDE], less[R * WIDE];                                                                                          \
        ptrdiff_t M = p->columns, m = p->landmarks, group = i / LINE * LINE, real = q->rows - j < WIDE ? q->rows - j : WIDE;        \
        const int32_t *which = p->which + i / LINE * (M + 1);                                                                       \
        NAME##_products(found, p->samples + group * M + i - group, q->samples + j * M, which[0], M * LINE, which + 1);              \
        NAME##_products(less, p->psi + group * m + i - group, q->psi + j * m, m, m * LINE, NULL);                                   \
        for (ptrdiff_t r = 0; r < R && i + r < p->rows; r++) {                                                                      \
            rbf_##T(found + r * WIDE, less + r * WIDE, gamma, p->squares[i + r], q->squares + j, WIDE);                             \
            memcpy(out + (i + r) * by_row + j, found + r * WIDE, real * sizeof(T));                                                 \
        }                                                                                                                           \
    }

typedef VECTOR(float, 16) float_16;

/* Transposes LINE rows, one vector of columns at a time; returns the number of columns done. A scalar loop would take longer than reading the
samples. */
#if defined(__AVX512F__) && !defined(__clang__) /* which has no __builtin_shuffle */
#define TURNED(T, V, L, BITS, LOW, HIGH)                                                                                            \
    typedef BITS V##_order __attribute__((vector_size(L * sizeof(T))));                                                             \
    static inline ptrdiff_t turned_##T(T *restrict out, const T *restrict x, ptrdiff_t columns) {                                   \
        static const V##_order low = LOW, high = HIGH; /* of two vectors in turn: their first halves, their second */               \
        ptrdiff_t k = 0;                                                                                                            \
        for (; k + L <= columns; k += L) {                                                                                          \
            V a[L], b[L];                                                                                                           \
            EACH(r, L) a[r] = *(const V *)(x + r * columns + k);                                                                    \
            for (int passes = 1; passes < L; passes *= 2) {                                                                         \
                EACH(r, L / 2) {                                                                                                    \
                    b[2 * r] = __builtin_shuffle(a[r], a[r + L / 2], low);                                                          \
                    b[2 * r + 1] = __builtin_shuffle(a[r], a[r + L / 2], high);                                                     \
                }                                                                                                                   \
                EACH(r, L) a[r] = b[r];                                                                                             \
            }                                                                                                                       \
            EACH(r, L) *(V *)(out + (k + r) * L) = a[r];                                                                            \
        }                                                                                                                           \
        return k;                                                                                                                   \
    }
#define PAIRS_8(A) A, A + 8, A + 1, A + 9, A + 2, A + 10, A + 3, A + 11
#define PAIRS_16(A) A, A + 16, A + 1, A + 17, A + 2, A + 18, A + 3, A + 19, A + 4, A + 20, A + 5, A + 21, A + 6, A + 22, A + 7, A + 23
TURNED(double, double_8, 8, int64_t, {PAIRS_8(0)}, {PAIRS_8(4)})
TURNED(float, float_16, 16, int32_t, {PAIRS_16(0)}, {PAIRS_16(8)})
#else
#define turned_double(...) 0
#define turned_float(...) 0
#endif

/* Sets of samples, packed into `memory` of so many numbers; tiles of a block have R rows and MOST lines or fewer */
#define SETS(T, V, L, W, R, MOST)                                                                                                       \
    typedef struct {                                                                                                                    \
        ptrdiff_t rows, columns, landmarks;                                                                                             \
        T *samples, *psi, *squares;                                                                                                     \
        int32_t *which; /* for each group how many columns have a number other than 0 in some sample, and which: of the others products are 0 */\
    } Set_##T;                                                                                                                          \
                                                                                                                                        \
    static Set_##T set_##T(T *memory, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t landmarks) {                                         \
        ptrdiff_t all = (rows + W * L - 1) / (W * L) * (W * L);                                                                         \
        T *psi = memory + all * columns, *squares = psi + all * landmarks;                                                              \
        return (Set_##T){rows, columns, landmarks, memory, psi, squares, (int32_t *)(squares + all)};                                   \
    }                                                                                                                                   \
                                                                                                                                        \
    static ptrdiff_t packed_size_##T(ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t landmarks) {                                          \
        ptrdiff_t groups = (rows + W * L - 1) / (W * L), lists = (groups * (columns + 1) * sizeof(int32_t) + 63) / 64 * 64;             \
        return groups * W * L * (columns + landmarks + 1) + lists / sizeof(T);                                                          \
    }                                                                                                                                   \
                                                                                                                                        \
    static void pack_rows_##T(T *restrict out, const T *restrict x, ptrdiff_t rows, ptrdiff_t columns) {                                \
        enum { LINE = W * L };                                                                                                          \
        for (ptrdiff_t g = 0; g < rows; g += LINE) {                                                                                    \
            ptrdiff_t real = rows - g < LINE ? rows - g : LINE;                                                                         \
            T *restrict o = out + g * columns;                                                                                          \
            if (real < LINE) memset(o, 0, LINE * columns * sizeof(T));                                                                  \
            ptrdiff_t k = real < LINE ? 0 : turned_##T(o, x + g * columns, columns);                                                    \
            for (; k < columns; k++)                                                                                                    \
                for (ptrdiff_t r = 0; r < real; r++) o[k * LINE + r] = x[(g + r) * columns + k];                                        \
        }                                                                                                                               \
    }                                                                                                                                   \
                                                                                                                                        \
    /* In the order in which products are summed up, so that a sample is at no distance from itself */                                  \
    static void squares_##T(Set_##T set) {                                                                                              \
        enum { LINE = W * L };                                                                                                          \
        for (ptrdiff_t g = 0; g < set.rows; g += LINE) {                                                                                \
            T sum[LINE] = {0};                                                                                                          \
            for (ptrdiff_t k = 0; k < set.columns; k++) {                                                                               \
                const T *restrict x = set.samples + g * set.columns + k * LINE;                                                         \
                EACH(r, LINE) sum[r] += x[r] * x[r];                                                                                    \
            }                                                                                                                           \
            memcpy(set.squares + g, sum, sizeof sum);                                                                                   \
        }                                                                                                                               \
    }                                                                                                                                   \
                                                                                                                                        \
    static void list_columns_##T(Set_##T set) {                                                                                         \
        enum { LINE = W * L };                                                                                                          \
        for (ptrdiff_t g = 0; g < set.rows; g += LINE) {                                                                                \
            int32_t *which = set.which + g / LINE * (set.columns + 1), count = 0;                                                       \
            for (ptrdiff_t k = 0; k < set.columns; k++) {                                                                               \
                const T *restrict x = set.samples + g * set.columns + k * LINE;                                                         \
                int any = 0;                                                                                                            \
                EACH(r, LINE) any |= x[r] != 0;                                                                                         \
                which[1 + count] = k; /* there is always room for one more */                                                           \
                count += any;                                                                                                           \
            }                                                                                                                           \
            which[0] = count;                                                                                                           \
        }                                                                                                                               \
    }                                                                                                                                   \
                                                                                                                                        \
    static void pack_##T(T *memory, const T *samples, const T *psi, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t landmarks) {           \
        Set_##T set = set_##T(memory, rows, columns, landmarks);                                                                        \
        pack_rows_##T(set.samples, samples, rows, columns);                                                                             \
        pack_rows_##T(set.psi, psi, rows, landmarks);                                                                                   \
        squares_##T(set);                                                                                                               \
        list_columns_##T(set);                                                                                                          \
    }                                                                                                                                   \
                                                                                                                                        \
    PART(part_1_##T, T, V, L, W, R, 1)                                                                                                  \
    PART(part_2_##T, T, V, L, W, R, 2)                                                                                                  \
    PART(part_3_##T, T, V, L, W, R, 3)                                                                                                  \
                                                                                                                                        \
    /* rest(X_p, X_q) into the real rows and columns of `out`, whose rows are `by_row` apart; of a set with itself one half is computed */\
    static void block_##T(T *out, T *p_memory, T *q_memory, ptrdiff_t p_rows, ptrdiff_t q_rows, ptrdiff_t columns,                      \
                          ptrdiff_t landmarks, T gamma, ptrdiff_t by_row) {                                                             \
        enum { LINE = W * L };                                                                                                          \
        Set_##T p = set_##T(p_memory, p_rows, columns, landmarks), q = set_##T(q_memory, q_rows, columns, landmarks);                   \
        for (ptrdiff_t j = 0; j < q_rows;) {                                                                                            \
            ptrdiff_t left = (q_rows - j + LINE - 1) / LINE, lines = left == 2 || left == 4 ? 2 : left == 1 ? 1 : 3;                    \
            lines = lines < MOST ? lines : MOST;                                                                                        \
            for (ptrdiff_t i = p_memory == q_memory ? j / R * R : 0; i < p_rows; i += R) {                                              \
                if (lines == 3) part_3_##T(out, &p, &q, i, j, gamma, by_row);                                                           \
                else if (lines == 2) part_2_##T(out, &p, &q, i, j, gamma, by_row);                                                      \
                else part_1_##T(out, &p, &q, i, j, gamma, by_row);                                                                      \
            }                                                                                                                           \
            j += lines * LINE;                                                                                                          \
        }                                                                                                                               \
        for (ptrdiff_t i = 0; p_memory == q_memory && i < p_rows; i++)                                                                  \
            for (ptrdiff_t j = 0; j < i; j++) out[j * by_row + i] = out[i * by_row + j];                                                \
    }                                                                                                                                   \
                                                                                                                                        \
    /* The kernel of any number of samples with a packed set of m points, into `out` (rows, m), and the samples' squares; 0 if there is not enough\
    memory. A tile of samples is packed at a time, so that it stays in the cache with all points. */                                   \
    static int kernel_rows_##T(T *out, T *squares, const T *samples, ptrdiff_t rows, ptrdiff_t columns, T *points, ptrdiff_t m, T gamma) {\
        enum { TILE = 96 };                                                                                                            \
        T *space = malloc(packed_size_##T(TILE, columns, 0) * sizeof(T) + 64), *packed = (T *)(((uintptr_t)space + 63) / 64 * 64);     \
        if (space == NULL) return 0;                                                                                                   \
        for (ptrdiff_t i = 0; i < rows; i += TILE) {                                                                                   \
            ptrdiff_t some = rows - i < TILE ? rows - i : TILE;                                                                        \
            pack_##T(packed, samples + i * columns, NULL, some, columns, 0);                                                           \
            memcpy(squares + i, set_##T(packed, some, columns, 0).squares, some * sizeof(T));                                          \
            block_##T(out + i * m, packed, points, some, m, columns, 0, gamma, m);                                                     \
        }                                                                                                                              \
        free(space);                                                                                                                   \
        return 1;                                                                                                                      \
    }

#if defined(__AVX512F__)
SETS(double, double_8, 8, 1, 8, 3)
SETS(float, float_16, 16, 1, 8, 3)
#elif defined(__AVX2__)
SETS(double, double_4, 4, 2, 4, 1)
SETS(float, float_8, 8, 2, 4, 1)
#else
SETS(double, double_2, 2, 4, 2, 1)
SETS(float, float_4, 4, 4, 2, 1)
#endif

#else
#define packed_size_double(...) 0
#define packed_size_float(...) 0
#define pack_double(...)
#define pack_float(...)
#define block_double(...)
#define block_float(...)
#define kernel_rows_double(...) 0
#define kernel_rows_float(...) 0
#endif
