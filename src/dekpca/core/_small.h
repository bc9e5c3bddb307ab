/* Products of a small matrix with a few columns, row-major: out (rows, columns) = alpha a b + beta out.

Twice as fast as BLAS on a matrix in the cache, whose panels BLAS would copy first. A tile of `out` stays in registers; `a` may have either order
(`by_row` and `by_inner` are its strides). `both_*` multiplies with a and with its transpose in one pass. */

#pragma once
#include <math.h>
#include <stddef.h>
#include <string.h>

/* Prefetch. Each tile of a product fetches as many bytes of the next data as it has itself into the L2 cache. Otherwise memory would be idle during
a product, and the next product would wait for it. */
#define MOST_COMING 48
#define MOST_AHEAD (1 << 19) /* bytes of matrices: more would evict each other */
typedef struct {
    const char *at[MOST_COMING];
    ptrdiff_t left[MOST_COMING]; /* bytes */
    int count, now;
} Coming;

static inline void expect(Coming *coming, const void *at, ptrdiff_t bytes) {
    if (bytes <= 0 || coming->count == MOST_COMING) return;
    coming->at[coming->count] = (const char *)at;
    coming->left[coming->count++] = bytes;
}

/* Address of the next `bytes` to prefetch; NULL if none are left */
static inline const void *taken(Coming *coming, ptrdiff_t bytes) {
    if (!coming || coming->now == coming->count) return NULL;
    const char *at = coming->at[coming->now];
    coming->at[coming->now] += bytes;
    coming->left[coming->now] -= bytes;
    if (coming->left[coming->now] <= 0) coming->now++;
    return at;
}

#if defined(__GNUC__)

#define UNROLL _Pragma("GCC unroll 16")
#define EACH(I, N) UNROLL for (int I = 0; I < N; I++)

/* R rows and N vectors V of L numbers T */
#define TILE(NAME, T, V, L, N, R)                                                                                                   \
    static inline __attribute__((always_inline)) void NAME(                                                                         \
        T *restrict out, const T *restrict a, const T *restrict b, ptrdiff_t inner, ptrdiff_t by_row,                               \
        ptrdiff_t by_inner, ptrdiff_t columns, T alpha, T beta, Coming *coming) {                                                   \
        ptrdiff_t by_next = R;                                                                                                      \
        const T *next = (const T *)taken(coming, R * inner * sizeof(T));                                                            \
        if (!next) { /* the rows of the next tile */                                                                                \
            next = a + R * by_row;                                                                                                  \
            by_next = by_inner == 1 ? R : by_inner;                                                                                 \
        }                                                                                                                           \
        V sum[R][N];                                                                                                                \
        EACH(r, R) EACH(c, N) sum[r][c] = (V){0};                                                                                   \
        for (ptrdiff_t l = 0; l < inner; l++) {                                                                                     \
            const T *at = a + l * by_inner;                                                                                         \
            __builtin_prefetch(next + l * by_next, 0, 2);                                                                           \
            V x[N];                                                                                                                 \
            EACH(c, N) x[c] = *(const V *)(b + l * columns + c * L);                                                                \
            EACH(r, R) EACH(c, N) sum[r][c] += at[r * by_row] * x[c];                                                               \
        }                                                                                                                           \
        if (beta == 0) { /* nothing is read: memory that is new would be given a page of zeros first, and then another to write to */ \
            EACH(r, R) EACH(c, N) *(V *)(out + r * columns + c * L) = alpha * sum[r][c];                                            \
            return;                                                                                                                 \
        }                                                                                                                           \
        EACH(r, R) EACH(c, N) {                                                                                                     \
            V *o = (V *)(out + r * columns + c * L);                                                                                \
            *o = alpha * sum[r][c] + beta * *o;                                                                                     \
        }                                                                                                                           \
    }

/* out (R rows) += alpha a b, and turned (inner rows) += beta a' y, where y has the rows that out has */
#define BOTH(NAME, T, V, L, N, R)                                                                                                   \
    static inline __attribute__((always_inline)) void NAME(                                                                         \
        T *restrict out, T *restrict turned, const T *restrict a, const T *restrict b, const T *restrict y,                         \
        ptrdiff_t inner, ptrdiff_t columns, T alpha, T beta, Coming *coming) {                                                      \
        const T *next = (const T *)taken(coming, R * inner * sizeof(T));                                                            \
        if (!next) next = a + R * inner;                                                                                            \
        V sum[R][N], own[R][N];                                                                                                     \
        EACH(r, R) EACH(c, N) {                                                                                                     \
            sum[r][c] = (V){0};                                                                                                     \
            own[r][c] = beta * *(const V *)(y + r * columns + c * L);                                                               \
        }                                                                                                                           \
        for (ptrdiff_t l = 0; l < inner; l++) {                                                                                     \
            __builtin_prefetch(next + R * l, 0, 2);                                                                                 \
            V x[N], to[N];                                                                                                          \
            EACH(c, N) {                                                                                                            \
                x[c] = *(const V *)(b + l * columns + c * L);                                                                       \
                to[c] = *(const V *)(turned + l * columns + c * L);                                                                 \
            }                                                                                                                       \
            EACH(r, R) EACH(c, N) {                                                                                                 \
                sum[r][c] += a[r * inner + l] * x[c];                                                                               \
                to[c] += a[r * inner + l] * own[r][c];                                                                              \
            }                                                                                                                       \
            EACH(c, N) *(V *)(turned + l * columns + c * L) = to[c];                                                                \
        }                                                                                                                           \
        EACH(r, R) EACH(c, N) *(V *)(out + r * columns + c * L) += alpha * sum[r][c];                                               \
    }

/* all rows of L * N columns: R, half of R and single rows at a time; Q for `both_*` */
#define STRIP(NAME, T, V, L, N, R, Q)                                                                                               \
    TILE(NAME##_rows, T, V, L, N, R)                                                                                                \
    TILE(NAME##_half, T, V, L, N, (R / 2))                                                                                          \
    TILE(NAME##_row, T, V, L, N, 1)                                                                                                 \
    BOTH(NAME##_both_rows, T, V, L, N, Q)                                                                                           \
    BOTH(NAME##_both_half, T, V, L, N, (Q / 2))                                                                                     \
    BOTH(NAME##_both_row, T, V, L, N, 1)                                                                                            \
    static void NAME(T *out, const T *a, const T *b, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t by_row,                             \
                            ptrdiff_t by_inner, ptrdiff_t columns, T alpha, T beta, Coming *coming) {                               \
        ptrdiff_t i = 0;                                                                                                            \
        for (; i + R <= rows; i += R)                                                                                               \
            NAME##_rows(out + i * columns, a + i * by_row, b, inner, by_row, by_inner, columns, alpha, beta, coming);               \
        for (; i + R / 2 <= rows; i += R / 2)                                                                                       \
            NAME##_half(out + i * columns, a + i * by_row, b, inner, by_row, by_inner, columns, alpha, beta, coming);               \
        for (; i < rows; i++)                                                                                                       \
            NAME##_row(out + i * columns, a + i * by_row, b, inner, by_row, by_inner, columns, alpha, beta, coming);                \
    }                                                                                                                               \
    static void NAME##_both(T *out, T *turned, const T *a, const T *b, const T *y, ptrdiff_t rows,                                  \
                                   ptrdiff_t inner, ptrdiff_t columns, T alpha, T beta, Coming *coming) {                           \
        ptrdiff_t i = 0;                                                                                                            \
        for (; i + Q <= rows; i += Q)                                                                                               \
            NAME##_both_rows(out + i * columns, turned, a + i * inner, b, y + i * columns, inner, columns, alpha, beta, coming);    \
        for (; i + Q / 2 <= rows; i += Q / 2)                                                                                       \
            NAME##_both_half(out + i * columns, turned, a + i * inner, b, y + i * columns, inner, columns, alpha, beta, coming);    \
        for (; i < rows; i++)                                                                                                       \
            NAME##_both_row(out + i * columns, turned, a + i * inner, b, y + i * columns, inner, columns, alpha, beta, coming);     \
    }

#define VECTOR(T, L) __attribute__((vector_size(L * sizeof(T)), aligned(sizeof(T)))) T
typedef VECTOR(double, 8) double_8;
typedef VECTOR(double, 4) double_4;
typedef VECTOR(double, 2) double_2;
typedef VECTOR(float, 8) float_8;
typedef VECTOR(float, 4) float_4;
typedef VECTOR(float, 2) float_2;

/* all columns: strips of 8, 4, 2 and 1 */
#define BY_STRIPS(NAME, SUFFIX, GIVEN)                                                                                              \
    ptrdiff_t c = 0;                                                                                                                \
    for (; c + 8 <= columns; c += 8) NAME##_8##SUFFIX GIVEN;                                                                        \
    if (columns - c >= 4) {                                                                                                         \
        NAME##_4##SUFFIX GIVEN;                                                                                                     \
        c += 4;                                                                                                                     \
    }                                                                                                                               \
    if (columns - c >= 2) {                                                                                                         \
        NAME##_2##SUFFIX GIVEN;                                                                                                     \
        c += 2;                                                                                                                     \
    }                                                                                                                               \
    if (columns > c) NAME##_1##SUFFIX GIVEN;

/* WIDE is a register vector of WL numbers; R8 (R4) rows of 8 (4) columns fill the registers, Q8 and Q4 for `both_*` */
#define LEVEL(NAME, T, WIDE, WL, R8, R4, Q8, Q4)                                                                                    \
    STRIP(NAME##_8, T, WIDE, WL, (8 / WL), R8, Q8)                                                                                  \
    STRIP(NAME##_4, T, T##_4, 4, 1, R4, Q4)                                                                                         \
    STRIP(NAME##_2, T, T##_2, 2, 1, R4, Q4)                                                                                         \
    STRIP(NAME##_1, T, T, 1, 1, R4, Q4)                                                                                             \
    static void NAME(T *out, const T *a, const T *b, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t by_row,                             \
                     ptrdiff_t by_inner, ptrdiff_t columns, T alpha, T beta, Coming *coming) {                                      \
        BY_STRIPS(NAME, , (out + c, a, b + c, rows, inner, by_row, by_inner, columns, alpha, beta, coming))                         \
    }                                                                                                                               \
    static void NAME##_both(T *out, T *turned, const T *a, const T *b, const T *y, ptrdiff_t rows, ptrdiff_t inner,                 \
                            ptrdiff_t columns, T alpha, T beta, Coming *coming) {                                                   \
        BY_STRIPS(NAME, _both, (out + c, turned + c, a, b + c, y + c, rows, inner, columns, alpha, beta, coming))                   \
    }

#if defined(__AVX512F__)
LEVEL(fit_double, double, double_8, 8, 8, 8, 8, 8)
LEVEL(fit_float, float, float_8, 8, 8, 8, 8, 8)
#elif defined(__AVX2__)
LEVEL(fit_double, double, double_4, 4, 4, 8, 2, 4)
LEVEL(fit_float, float, float_8, 8, 8, 8, 4, 4)
#else
LEVEL(fit_double, double, double_2, 2, 2, 4, 2, 2)
LEVEL(fit_float, float, float_4, 4, 4, 4, 2, 2)
#endif

/* 1 if the matrix was small enough */
#define SMALL(T)                                                                                                                    \
    static inline int small_##T(T *out, const T *a, const T *b, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t columns,                 \
                                int turned, T alpha, T beta, Coming *coming) {                                                      \
        ptrdiff_t by_row = turned ? 1 : inner, by_inner = turned ? rows : 1;                                                        \
        if (columns > 32 || rows * inner * (ptrdiff_t)sizeof(T) > 1 << 19) return 0;                                                \
        fit_##T(out, a, b, rows, inner, by_row, by_inner, columns, alpha, beta, coming);                                            \
        return 1;                                                                                                                   \
    }                                                                                                                               \
    static inline int small_both_##T(T *out, T *turned, const T *a, const T *b, const T *y, ptrdiff_t rows,                         \
                                     ptrdiff_t inner, ptrdiff_t columns, T alpha, T beta, Coming *coming) {                         \
        if (columns > 32 || rows * inner * (ptrdiff_t)sizeof(T) > 1 << 19) return 0;                                                \
        fit_##T##_both(out, turned, a, b, y, rows, inner, columns, alpha, beta, coming);                                            \
        return 1;                                                                                                                   \
    }

SMALL(double)
SMALL(float)

/* Cholesky factors and inverses of symmetric matrices (n, n), n a multiple of 8, by tiles of 8 x 8. LAPACK takes three times as long for 100 rows;
above MOST_FACTORED rows it uses the cache better. `rows` has room for 8 n numbers. */
#define MOST_FACTORED 248
#define SQRT_double sqrt
#define SQRT_float sqrtf
#define CHOLESKY(T)                                                                                                                 \
    /* The inverse of the Cholesky factor of the upper half of d (8, 8), rows `by_row` apart */                                     \
    static int invert_factor_##T(const T *restrict d, ptrdiff_t by_row, T *restrict out) {                                          \
        T l[64];                                                                                                                    \
        for (int r = 0; r < 8; r++) {                                                                                               \
            T over = d[r * by_row + r];                                                                                             \
            for (int k = 0; k < r; k++) over -= l[8 * k + r] * l[8 * k + r];                                                        \
            if (!(over > 0)) return 0;                                                                                              \
            over = 1 / SQRT_##T(over);                                                                                              \
            for (int c = r + 1; c < 8; c++) {                                                                                       \
                T x = d[r * by_row + c];                                                                                            \
                for (int k = 0; k < r; k++) x -= l[8 * k + r] * l[8 * k + c];                                                       \
                l[8 * r + c] = x * over;                                                                                            \
            }                                                                                                                       \
            for (int c = 0; c < r; c++) { /* row r of the inverse from those before it */                                           \
                T x = 0;                                                                                                            \
                for (int k = c; k < r; k++) x += l[8 * k + r] * out[8 * k + c];                                                     \
                out[8 * r + c] = -x * over;                                                                                         \
            }                                                                                                                       \
            out[9 * r] = over;                                                                                                      \
            for (int c = r + 1; c < 8; c++) out[8 * r + c] = 0;                                                                     \
        }                                                                                                                           \
        return 1;                                                                                                                   \
    }                                                                                                                               \
                                                                                                                                    \
    /* What is right of the 8 x 8 blocks on the diagonal of U, a = U'U, and the inverse of each of those, turned, in `blocks`; 0 if a has none */ \
    static int factor_##T(T *restrict a, T *restrict blocks, T *restrict rows, ptrdiff_t n) {                                       \
        for (ptrdiff_t k = 0; k < n; k += 8) {                                                                                      \
            if (k)                                                                                                                  \
                for (ptrdiff_t j = k; j < n; j += 8) fit_##T##_8(a + k * n + j, a + k, a + j, 8, k, 1, n, n, -1, 1, NULL);          \
            if (!invert_factor_##T(a + k * n + k, n, blocks + 8 * k)) return 0;                                                     \
            memcpy(rows, a + k * n, 8 * n * sizeof(T));                                                                             \
            for (ptrdiff_t j = k + 8; j < n; j += 8) fit_##T##_8(a + k * n + j, blocks + 8 * k, rows + j, 8, 8, 8, 1, n, 1, 0, NULL); \
        }                                                                                                                           \
        return 1;                                                                                                                   \
    }                                                                                                                               \
                                                                                                                                    \
    /* After `factor`: L^-1 in the lower half of `root` (n, n), L = U' */                                                           \
    static void root_##T(const T *restrict a, const T *restrict blocks, T *restrict rows, T *restrict root, ptrdiff_t n) {          \
        for (ptrdiff_t k = 0; k < n; k += 8) {                                                                                      \
            for (ptrdiff_t j = 0; j < k; j += 8) {                                                                                  \
                fit_##T##_8(rows + j, a + j * n + k, root + j * n + j, 8, k - j, 1, n, n, 1, 0, NULL);                              \
                fit_##T##_8(root + k * n + j, blocks + 8 * k, rows + j, 8, 8, 8, 1, n, -1, 0, NULL);                                \
            }                                                                                                                       \
            for (int r = 0; r < 8; r++) memcpy(root + (k + r) * n + k, blocks + 8 * (k + r), 8 * sizeof(T));                        \
        }                                                                                                                           \
    }                                                                                                                               \
                                                                                                                                    \
    /* And then the inverse of a in its lower half */                                                                               \
    static void invert_##T(T *restrict a, const T *restrict blocks, T *restrict rows, T *restrict root, ptrdiff_t n) {              \
        root_##T(a, blocks, rows, root, n);                                                                                         \
        for (ptrdiff_t i = 0; i < n; i += 8)                                                                                        \
            for (ptrdiff_t j = 0; j <= i; j += 8) fit_##T##_8(a + i * n + j, root + i * n + i, root + i * n + j, 8, n - i, 1, n, n, 1, 0, NULL); \
    }

CHOLESKY(double)
CHOLESKY(float)

#else /* a compiler without vectors: BLAS does it */
#define small_double(...) 0
#define small_float(...) 0
#define small_both_double(...) 0
#define small_both_float(...) 0
#define MOST_FACTORED 0
#define factor_double(...) 0
#define factor_float(...) 0
#define invert_double(...)
#define invert_float(...)
#endif

/* Linear combinations of arrays */
#if defined(_MSC_VER)
#define restrict __restrict
#endif
#define EVERY for (ptrdiff_t i = 0; i < n; i++)
#define SUMS(T)                                                                                                                     \
    static inline void add_##T(T *restrict out, T a, const T *restrict x, ptrdiff_t n) { EVERY out[i] += a * x[i]; }                \
    static inline void sum1_##T(T *restrict out, T a, const T *restrict x, ptrdiff_t n) { EVERY out[i] = a * x[i]; }                \
    static inline void sum2_##T(T *restrict out, T a, const T *restrict x, T b, const T *restrict y, ptrdiff_t n) {                 \
        EVERY out[i] = a * x[i] + b * y[i];                                                                                         \
    }                                                                                                                               \
    static inline void sum3_##T(T *restrict out, T a, const T *restrict x, T b, const T *restrict y, T c, const T *restrict z,      \
                                ptrdiff_t n) {                                                                                      \
        EVERY out[i] = a * x[i] + b * y[i] + c * z[i];                                                                              \
    }

SUMS(double)
SUMS(float)

/* The largest instruction set of this machine: 2, 1 or 0 */
static int supported(void) {
#if defined(__GNUC__) && defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") ? 2 : 1;
#else
    return 0;
#endif
}
