/* Products of a small matrix with a few columns, row by row in memory: out (rows, columns) = alpha a b + beta out.

Twice as fast as a BLAS on a matrix that the cache holds, whose panels it would copy first. A tile of `out` stays in registers; `a` may lie in
either order (`by_row` and `by_inner` say how far apart its entries are). Meanwhile as many numbers from `ahead` on, which the next product needs,
are fetched into the cache. Sets of instructions are chosen when the program runs. */

#include <stddef.h>

#if defined(__GNUC__)

#define UNROLL _Pragma("GCC unroll 16")

/* R rows and N vectors V of L numbers T */
#define TILE(NAME, TARGET, T, V, L, N, R)                                                                            \
    static inline __attribute__((always_inline)) TARGET void NAME(                                                   \
        T *restrict out, const T *restrict a, const T *restrict b, ptrdiff_t inner, ptrdiff_t by_row,                \
        ptrdiff_t by_inner, ptrdiff_t columns, T alpha, T beta, const T *ahead) {                                                    \
        V sum[R][N];                                                                                                 \
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < N; c++) sum[r][c] = (V){0};                    \
        for (ptrdiff_t l = 0; l < inner; l++) {                                                                      \
            const T *at = a + l * by_inner;                                                                          \
            __builtin_prefetch(ahead + l * R, 0, 2);                                                                 \
            V x[N];                                                                                                  \
            UNROLL for (int c = 0; c < N; c++) x[c] = *(const V *)(b + l * columns + c * L);                         \
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < N; c++) sum[r][c] += at[r * by_row] * x[c]; \
        }                                                                                                            \
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < N; c++) {                                      \
            V *o = (V *)(out + r * columns + c * L);                                                                 \
            V x = alpha * sum[r][c];                                                                                 \
            *o = beta == 0 ? x : x + beta * *o;                                                                      \
        }                                                                                                            \
    }

/* all rows of L * N columns */
#define STRIP(NAME, TARGET, T, V, L, N, R)                                                                        \
    TILE(NAME##_rows, TARGET, T, V, L, N, R)                                                                      \
    TILE(NAME##_row, TARGET, T, V, L, N, 1)                                                                       \
    static TARGET void NAME(T *out, const T *a, const T *b, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t by_row,    \
                            ptrdiff_t by_inner, ptrdiff_t columns, T alpha, T beta, const T *ahead) {                             \
        ptrdiff_t i = 0;                                                                                          \
        for (; i + R <= rows; i += R)                                                                             \
            NAME##_rows(out + i * columns, a + i * by_row, b, inner, by_row, by_inner, columns, alpha, beta, ahead + i * inner);     \
        for (; i < rows; i++)                                                                                     \
            NAME##_row(out + i * columns, a + i * by_row, b, inner, by_row, by_inner, columns, alpha, beta, ahead + i * inner);      \
    }

#define VECTOR(T, L) __attribute__((vector_size(L * sizeof(T)), aligned(sizeof(T)))) T
typedef VECTOR(double, 8) double_8;
typedef VECTOR(double, 4) double_4;
typedef VECTOR(double, 2) double_2;
typedef VECTOR(float, 8) float_8;
typedef VECTOR(float, 4) float_4;
typedef VECTOR(float, 2) float_2;

/* strips of 8, 4, 2 and 1 columns; WIDE is a vector of WL numbers that the instructions have a register for, R8 tiles of it fill the registers */
#define LEVEL(NAME, TARGET, T, WIDE, WL, R8, R4)                                                                        \
    STRIP(NAME##_8, TARGET, T, WIDE, WL, (8 / WL), R8)                                                                \
    STRIP(NAME##_4, TARGET, T, T##_4, 4, 1, R4)                                                                       \
    STRIP(NAME##_2, TARGET, T, T##_2, 2, 1, R4)                                                                       \
    STRIP(NAME##_1, TARGET, T, T, 1, 1, R4)                                                                           \
    static void NAME(T *out, const T *a, const T *b, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t by_row,               \
                     ptrdiff_t by_inner, ptrdiff_t columns, T alpha, T beta, const T *ahead) {                                        \
        ptrdiff_t c = 0;                                                                                              \
        for (; c + 8 <= columns; c += 8) NAME##_8(out + c, a, b + c, rows, inner, by_row, by_inner, columns, alpha, beta, ahead); \
        if (columns - c >= 4) {                                                                                       \
            NAME##_4(out + c, a, b + c, rows, inner, by_row, by_inner, columns, alpha, beta, ahead);                         \
            c += 4;                                                                                                   \
        }                                                                                                             \
        if (columns - c >= 2) {                                                                                       \
            NAME##_2(out + c, a, b + c, rows, inner, by_row, by_inner, columns, alpha, beta, ahead);                         \
            c += 2;                                                                                                   \
        }                                                                                                             \
        if (columns > c) NAME##_1(out + c, a, b + c, rows, inner, by_row, by_inner, columns, alpha, beta, ahead);            \
    }

LEVEL(plain_double, , double, double_2, 2, 2, 4)
LEVEL(plain_float, , float, float_4, 4, 4, 4)

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx2,fma")))
LEVEL(avx2_double, AVX2, double, double_4, 4, 4, 8)
LEVEL(avx2_float, AVX2, float, float_8, 8, 8, 8)
LEVEL(avx512_double, AVX512, double, double_8, 8, 8, 8)
LEVEL(avx512_float, AVX512, float, float_8, 8, 8, 8)

static int allowed_level = 2;

static int known_level(void) {
    static int level = -1; /* threads that find it out at once find the same */
    if (level < 0) {
        __builtin_cpu_init();
        int two = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        int five = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
        level = two ? (five ? 2 : 1) : 0;
    }
    return level < allowed_level ? level : allowed_level;
}

static int at_most(int level) {
    allowed_level = level;
    return known_level();
}

#define SMALL(T)                                                                                                     \
    static inline int small_##T(T *out, const T *a, const T *b, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t columns,  \
                                int turned, T alpha, T beta, const T *ahead) {                                                       \
        ptrdiff_t by_row = turned ? 1 : inner, by_inner = turned ? rows : 1;                                         \
        if (columns > 32 || rows * inner * (ptrdiff_t)sizeof(T) > 1 << 19) return 0;                                 \
        switch (known_level()) {                                                                                     \
        case 2: avx512_##T(out, a, b, rows, inner, by_row, by_inner, columns, alpha, beta, ahead); break;                   \
        case 1: avx2_##T(out, a, b, rows, inner, by_row, by_inner, columns, alpha, beta, ahead); break;                     \
        default: plain_##T(out, a, b, rows, inner, by_row, by_inner, columns, alpha, beta, ahead);                          \
        }                                                                                                            \
        return 1;                                                                                                    \
    }
#else
static int at_most(int level) { return 0; }

#define SMALL(T)                                                                                                     \
    static inline int small_##T(T *out, const T *a, const T *b, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t columns,  \
                                int turned, T alpha, T beta, const T *ahead) {                                                       \
        if (columns > 32 || rows * inner * (ptrdiff_t)sizeof(T) > 1 << 19) return 0;                                 \
        plain_##T(out, a, b, rows, inner, turned ? 1 : inner, turned ? rows : 1, columns, alpha, beta, ahead);              \
        return 1;                                                                                                    \
    }
#endif

SMALL(double)
SMALL(float)

#else /* a compiler without vectors: BLAS does it */
static int at_most(int level) { return 0; }
#define small_double(...) 0
#define small_float(...) 0
#endif
