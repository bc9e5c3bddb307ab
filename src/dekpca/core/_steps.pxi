"""Compiled code for NumPy arrays: the steps of an iteration, Gram blocks, landmark coordinates and factors of small matrices.

The steps (`Nodes`) go node by node, so that all that a step reads and writes stays in a cache. Their formulas are those of
backends/arrays.py and core/stopping.py; backends/compiled.py calls them. This file is compiled once for every machine and once for each
larger set of instructions (setup.py); native.py chooses.
"""

import numpy as np

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport NAN, fabs, sqrt
from libc.stdint cimport intptr_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from scipy.linalg.cython_blas cimport dgemm, sgemm
from scipy.linalg.cython_lapack cimport dpotrf, dpotri, dsyev, spotrf, spotri, ssyev

cdef extern from *:
    """
    #include <float.h>
    #include <math.h>
    #ifndef DEKPCA_SOURCE
    #define DEKPCA_SOURCE ""
    #endif
    """
    const char *DEKPCA_SOURCE
    double DBL_MAX
    float FLT_MAX

SOURCE = DEKPCA_SOURCE.decode()  # fingerprint of this file when it was compiled (setup.py); native.py compares it

ctypedef fused real:
    float
    double

cdef extern from "_small.h" nogil:
    ctypedef struct Coming:
        int count, now
    void expect(Coming *, const void *, Py_ssize_t)
    Py_ssize_t MOST_AHEAD
    # 1 if the matrix was small enough
    bint small_double(
        double *, const double *, const double *, Py_ssize_t, Py_ssize_t, Py_ssize_t, bint, double, double, Coming *
    )
    bint small_float(
        float *, const float *, const float *, Py_ssize_t, Py_ssize_t, Py_ssize_t, bint, float, float, Coming *
    )
    bint small_both_double(
        double *, double *, const double *, const double *, const double *, Py_ssize_t, Py_ssize_t, Py_ssize_t, double, double, Coming *
    )
    bint small_both_float(
        float *, float *, const float *, const float *, const float *, Py_ssize_t, Py_ssize_t, Py_ssize_t, float, float, Coming *
    )
    int MOST_FACTORED
    bint factor_double(double *, double *, double *, Py_ssize_t)
    bint factor_float(float *, float *, float *, Py_ssize_t)
    void invert_double(double *, const double *, double *, double *, Py_ssize_t)
    void invert_float(float *, const float *, float *, float *, Py_ssize_t)
    void add_double(double *, double, const double *, Py_ssize_t)
    void add_float(float *, float, const float *, Py_ssize_t)
    void sum1_double(double *, double, const double *, Py_ssize_t)
    void sum1_float(float *, float, const float *, Py_ssize_t)
    void sum2_double(double *, double, const double *, double, const double *, Py_ssize_t)
    void sum2_float(float *, float, const float *, float, const float *, Py_ssize_t)
    void sum3_double(double *, double, const double *, double, const double *, double, const double *, Py_ssize_t)
    void sum3_float(float *, float, const float *, float, const float *, float, const float *, Py_ssize_t)
    int supported()

cdef extern from "_blocks.h" nogil:
    bint BLOCKS_OF_SETS "BLOCKS"
    Py_ssize_t packed_size_double(Py_ssize_t, Py_ssize_t, Py_ssize_t)
    Py_ssize_t packed_size_float(Py_ssize_t, Py_ssize_t, Py_ssize_t)
    void pack_double(double *, const double *, const double *, Py_ssize_t, Py_ssize_t, Py_ssize_t)
    void pack_float(float *, const float *, const float *, Py_ssize_t, Py_ssize_t, Py_ssize_t)
    void block_double(double *, double *, double *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, double, Py_ssize_t)
    void block_float(float *, float *, float *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, float, Py_ssize_t)
    bint kernel_rows_double(double *, double *, const double *, Py_ssize_t, Py_ssize_t, double *, Py_ssize_t, double)
    bint kernel_rows_float(float *, float *, const float *, Py_ssize_t, Py_ssize_t, float *, Py_ssize_t, float)

BLOCKS = BLOCKS_OF_SETS  # whether rest_blocks and kernel_rows are better than BLAS


cdef void product(
    real *out, const real *a, const real *b, int rows, int inner, int columns, bint turned, real alpha, real beta,
    Coming *coming=NULL
) noexcept nogil:
    """out (rows, columns) = alpha a b + beta out, row by row; `turned`: a is stored (inner, rows)."""
    cdef int lda = rows if turned else inner
    cdef char plain = b"N"
    cdef char first = b"T" if turned else b"N"
    if rows == 0 or columns == 0:
        return
    if inner == 0:
        scale(out, rows * columns, beta)
        return
    # BLAS: what is row by row here is column by column there, out' = b' a'
    if real is double:
        if small_double(out, a, b, rows, inner, columns, turned, alpha, beta, coming):
            return
        dgemm(&plain, &first, &columns, &rows, &inner, &alpha, <double *> b, &columns, <double *> a, &lda, &beta, out, &columns)
    else:
        if small_float(out, a, b, rows, inner, columns, turned, alpha, beta, coming):
            return
        sgemm(&plain, &first, &columns, &rows, &inner, &alpha, <float *> b, &columns, <float *> a, &lda, &beta, out, &columns)


cdef void both(
    real *out, real *turned, const real *a, const real *b, const real *y, int rows, int columns, int k, real alpha, real beta,
    Coming *coming
) noexcept nogil:
    """out (rows, k) += alpha a b, and turned (columns, k) += beta a' y."""
    if real is double:
        if small_both_double(out, turned, a, b, y, rows, columns, k, alpha, beta, coming):
            return
    else:
        if small_both_float(out, turned, a, b, y, rows, columns, k, alpha, beta, coming):
            return
    product(out, a, b, rows, columns, k, False, alpha, <real> 1)
    product(turned, a, y, columns, rows, k, True, beta, <real> 1)


cdef void add(real *out, real a, const real *x, Py_ssize_t count) noexcept nogil:
    """out += a x."""
    if real is double:
        add_double(out, a, x, count)
    else:
        add_float(out, a, x, count)


cdef void sum1(real *out, real a, const real *x, Py_ssize_t count) noexcept nogil:
    """out = a x, and so on; `out` is none of the others."""
    if real is double:
        sum1_double(out, a, x, count)
    else:
        sum1_float(out, a, x, count)


cdef void sum2(real *out, real a, const real *x, real b, const real *y, Py_ssize_t count) noexcept nogil:
    if real is double:
        sum2_double(out, a, x, b, y, count)
    else:
        sum2_float(out, a, x, b, y, count)


cdef void sum3(real *out, real a, const real *x, real b, const real *y, real c, const real *z, Py_ssize_t count) noexcept nogil:
    if real is double:
        sum3_double(out, a, x, b, y, c, z, count)
    else:
        sum3_float(out, a, x, b, y, c, z, count)


cdef void soon(Coming *coming, const real *at, Py_ssize_t count) noexcept nogil:
    """Prefetch `count` numbers during the next products."""
    expect(coming, at, count * sizeof(real))


cdef real *aligned(real *x) noexcept nogil:
    """x, rounded up to a cache line."""
    return <real *> ((<uintptr_t> x + 63) // 64 * 64)


cdef void scale(real *x, Py_ssize_t count, real by) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        x[i] = by * x[i] if by != 0 else 0


cdef int eigen(real *square, real *values, real *work, int lwork, int k) noexcept nogil:
    """Eigenvalues, ascending, and eigenvectors, vector l in row l, of the symmetric part of `square`, which they replace; 0 if all went well."""
    cdef int i, j, info = 0
    cdef char vectors = b"V"
    cdef char upper = b"U"
    for i in range(k):
        for j in range(i, k):
            square[i * k + j] = square[j * k + i] = 0.5 * (square[i * k + j] + square[j * k + i])
    if real is double:
        dsyev(&vectors, &upper, &k, square, &k, values, work, &lwork, &info)
    else:
        ssyev(&vectors, &upper, &k, square, &k, values, work, &lwork, &info)
    return info


cdef void orthonormal(real *x, real *out, real *square, int n, int c, int lwork, real least) noexcept nogil:
    """Orthonormal columns with the span of x (n, c), zero where its rank is not full. As spectrum._orthonormal."""
    cdef Py_ssize_t i, j
    cdef real *values = square + 2 * c * c
    cdef real *turn = square + c * c
    cdef real size
    memset(values, 0, c * sizeof(real))
    for i in range(n):
        for j in range(c):
            values[j] += x[i * c + j] * x[i * c + j]
    for j in range(c):
        values[j] = 1 / sqrt(values[j]) if values[j] > 0 else 1
    for i in range(n):
        for j in range(c):
            x[i * c + j] *= values[j]
    product(square, x, x, c, n, c, True, <real> 1, <real> 0)
    eigen(square, values, values + c, lwork, c)
    for i in range(c):
        size = 1 / sqrt(values[i]) if values[i] > least else 0
        for j in range(c):
            turn[j * c + i] = square[i * c + j] * size
    product(out, x, turn, n, c, c, False, <real> 1, <real> 0)


cdef void clip_matrix(real *square, real *shrink, real *size, real *work, int lwork, int k, real limit) noexcept nogil:
    """shrink (k, k) = V min(1, 1 / sqrt(size)) V' of a symmetric `square`; entries beyond `limit` count as zero."""
    cdef int i, j, l
    cdef real x
    for i in range(k * k):
        if not fabs(square[i]) < limit:
            square[i] = 0
    memset(shrink, 0, k * k * sizeof(real))
    if eigen(square, size, work, lwork, k):
        shrink[0] = NAN  # the next check finds it
        return
    for l in range(k):
        x = 1 / sqrt(size[l]) if size[l] > 1 else 1
        for i in range(k):
            for j in range(k):
                shrink[i * k + j] += x * square[l * k + i] * square[l * k + j]


cdef void apply_gram(
    const real *c, real *values, const real *weights, const intptr_t *address, const int *where, Py_ssize_t n_blocks,
    int d, int n, int k, Coming *after
) noexcept nogil:
    """values (d, n, k) = G c of one neighborhood, block by block; `weights` (d, d) scale what a slot (last axis) adds to another.

    `after` is prefetched with the last block.
    """
    cdef Py_ssize_t t, next_size, one = <Py_ssize_t> n * k
    cdef int s, q, rows, columns
    cdef real there, back
    cdef const real *block
    cdef Coming coming
    cdef Coming *then
    memset(values, 0, d * one * sizeof(real))
    for t in range(n_blocks):
        block = <const real *> address[t]
        s, q, rows, columns = where[4 * t], where[4 * t + 1], where[4 * t + 2], where[4 * t + 3]
        then = after
        if t + 1 < n_blocks:
            then = &coming
            coming.count = coming.now = 0
            next_size = <Py_ssize_t> where[4 * t + 6] * where[4 * t + 7]
            if next_size * sizeof(real) < MOST_AHEAD:
                soon(then, <const real *> address[t + 1], next_size)
        there = 1 if weights == NULL else weights[s * d + q]
        back = 1 if weights == NULL else weights[q * d + s]
        if s == q:
            product(values + s * one, block, c + q * one, rows, columns, k, False, there, <real> 1, then)
        else:
            both(values + s * one, values + q * one, block, c + q * one, c + s * one, rows, columns, k, there, back, then)


# ---------------------------------------------------------------------- the steps of an iteration
cdef enum:
    PSI, REST, INVERSE, BLOCK_AT, BLOCK_SHAPE
    FACTORS, ON_W, ON_Z, RESPONSE, LEADING
    W, IMAGE, CHECK_W, CHECK_IMAGE, Z_SHARED, Z_NEAR, DUAL, SEEN, DUAL_W, DUAL_Z, DUAL_SEEN, DUAL_EXTRA
    SHARES, SHARES_AT, VIEWS, VIEWS_AT, SHARED, SHARED_AT
    OUT_SHARES, OUT_SHARED, OUT_Z_SHARED, OUT_Z_NEAR, OUT_VIEWS
    OUT_W, OUT_IMAGE, OUT_VALUES, OUT_DUAL, OUT_SEEN, OUT_DUAL_W, OUT_DUAL_Z, OUT_DUAL_SEEN, OUT_DUAL_EXTRA, PROGRESS
    N_FIELDS

# Every array of the steps: its place and its axes. B nodes, d slots, n own samples, p samples a slot of z, m shared coordinates, l = m + n,
# k columns, c leading components, T Gram blocks a neighborhood, S = B d; a digit is that number, * any. The letter behind the colon is the
# dtype: r that of the samples, a addresses and indices (intp), i numbers (intc).
FIELDS = {
    "psi": (PSI, "Bnm:r"),
    "rest": (REST, "Bnn:r"),
    "inverse": (INVERSE, "Bnn:r"),
    "block_at": (BLOCK_AT, "BT:a"),  # address of each Gram block of a neighborhood;
    "block_shape": (BLOCK_SHAPE, "BT4:i"),  # its two slots, rows and columns
    "factors": (FACTORS, "Bd:r"),
    "on_w": (ON_W, "B:r"),
    "on_z": (ON_Z, "B:r"),
    "response": (RESPONSE, "Bnn:r"),
    "leading": (LEADING, "kc:r"),
    "w": (W, "Blk:r"),
    "image": (IMAGE, "Bnk:r"),
    "check_w": (CHECK_W, "Blk:r"),
    "check_image": (CHECK_IMAGE, "Bnk:r"),
    "z_shared": (Z_SHARED, "Bmk:r"),
    "z_near": (Z_NEAR, "Bdpk:r"),
    "dual": (DUAL, "Bdnk:r"),
    "seen": (SEEN, "Bdnk:r"),
    "dual_w": (DUAL_W, "Bmk:r"),
    "dual_z": (DUAL_Z, "Bmk:r"),
    "dual_seen": (DUAL_SEEN, "B1mk:r"),
    "dual_extra": (DUAL_EXTRA, "Bmk:r"),
    "shares": (SHARES, "*pk:r"),  # messages that arrived: slot s of node b has shares[shares_at[b d + s]]
    "shares_at": (SHARES_AT, "S:a"),
    "views": (VIEWS, "*nk:r"),
    "views_at": (VIEWS_AT, "S:a"),
    "shared": (SHARED, "*mk:r"),  # what arrived with either in shared coordinates
    "shared_at": (SHARED_AT, "S:a"),
    "out_shares": (OUT_SHARES, "Bdnk:r"),
    "out_shared": (OUT_SHARED, "Bmk:r"),
    "out_z_shared": (OUT_Z_SHARED, "Bmk:r"),
    "out_z_near": (OUT_Z_NEAR, "Bdpk:r"),
    "out_views": (OUT_VIEWS, "Bdpk:r"),
    "out_w": (OUT_W, "Blk:r"),
    "out_image": (OUT_IMAGE, "Bnk:r"),
    "out_values": (OUT_VALUES, "Bnk:r"),
    "out_dual": (OUT_DUAL, "Bdnk:r"),
    "out_seen": (OUT_SEEN, "Bdnk:r"),
    "out_dual_w": (OUT_DUAL_W, "Bmk:r"),
    "out_dual_z": (OUT_DUAL_Z, "Bmk:r"),
    "out_dual_seen": (OUT_DUAL_SEEN, "B1mk:r"),
    "out_dual_extra": (OUT_DUAL_EXTRA, "Bmk:r"),
    "out_progress": (PROGRESS, "4B:r"),  # residual, change, since the last check, objective
}
CONSTANT = {"psi", "rest", "inverse", "block_at", "block_shape"}  # in all steps
STEPS = {  # what each step takes besides
    "shares": {"factors", "w", "dual", "seen", "dual_w", "out_shares", "out_shared"},
    "z_step": {
        "factors", "on_z", "w", "z_shared", "z_near", "dual_z", "shares", "shares_at", "shared", "shared_at",
        "out_z_shared", "out_z_near", "out_views",
    },
    "w_step": {
        "factors", "on_w", "response", "leading", "w", "image", "check_w", "check_image", "dual", "dual_w", "dual_z", "dual_seen",
        "views", "views_at", "shared", "shared_at", "out_w", "out_image", "out_values", "out_dual", "out_seen", "out_dual_w",
        "out_dual_z", "out_dual_seen", "out_progress",
    },
}
# and one or the other: where the penalty on a node's own z differs; where penalties are constant (the w step then makes the next shares, too)
UNEQUAL = {"shares": set(), "z_step": {"dual_extra"}, "w_step": {"dual_extra", "out_dual_extra"}}
EQUAL = {"shares": set(), "z_step": set(), "w_step": {"out_shares", "out_shared"}}
ANY = -1


cdef bint within(const Py_ssize_t[::1] places, Py_ssize_t count):
    """Whether all places are below `count`."""
    cdef Py_ssize_t i
    for i in range(places.shape[0]):
        if not 0 <= places[i] < count:
            return False
    return True


cdef class Nodes:
    """The steps for the nodes of a block, on arrays that are given by name and checked: dtype, shape, order, indices.

    `prepare` has the arrays and penalties of the next step. `run` then does it for some nodes at a time, in any number of threads.
    """

    cdef void *at[N_FIELDS]
    cdef dict expected, held
    cdef object step
    cdef bint double
    cdef Py_ssize_t B, T
    cdef int d, n, p, m, k, c
    cdef double weight, extra, negligible

    def __init__(self, sizes, **constant):
        """`sizes` of the axes B, d, n, p, m, k, c; and the arrays that all steps use."""
        if set(constant) != CONSTANT:
            raise TypeError(f"the steps take {sorted(CONSTANT)}, not {sorted(constant)}")
        self.B, self.d, self.n, self.p = sizes["B"], sizes["d"], sizes["n"], sizes["p"]
        self.m, self.k, self.c, self.T = sizes["m"], sizes["k"], sizes["c"], self.d * (self.d + 1) // 2
        sizes = {**sizes, "l": self.m + self.n, "T": self.T, "S": self.B * self.d, "*": ANY, "1": 1, "4": 4}
        self.double = constant["rest"].dtype.char == "d"
        formats = {"r": "d" if self.double else "f", "a": "lq", "i": "i"}
        self.held, self.expected = {}, {}
        for name, (place, axes) in FIELDS.items():
            axes, kind = axes.split(":")
            flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if name.startswith("out_") else 0)
            self.expected[name] = place, flags, tuple([sizes[axis] for axis in axes]), formats[kind]
        memset(self.at, 0, sizeof(self.at))
        for name, array in constant.items():
            self._set(name, array)

    def prepare(self, step, arrays, double weight, double extra, double negligible=0.0):
        """The next step ("shares", "z_step", "w_step"): its arrays by name; the weight of the penalties, and by how much the own z has more.

        Norms below `negligible` count as that.
        """
        self.release()
        if arrays.keys() != STEPS[step] | EQUAL[step] and arrays.keys() != STEPS[step] | UNEQUAL[step]:
            raise TypeError(f"{step} takes {sorted(STEPS[step])}, not {sorted(arrays)}")
        for name, array in arrays.items():
            self._set(name, array)
        for name in arrays:
            messages = arrays.get(name.removesuffix("_at")) if name.endswith("_at") else None
            if messages is not None and not within(arrays[name], len(messages)):
                raise IndexError(f"{step}: {name} points beyond the {len(messages)} messages that arrived")
        self.step, self.weight, self.extra, self.negligible = step, weight, extra, negligible

    def release(self):
        """Forget the arrays of the last step, so that their memory can be used again."""
        self.step = None
        for name in self.held.keys() - CONSTANT:
            self.at[<int> FIELDS[name][0]] = NULL
            del self.held[name]

    def run(self, Py_ssize_t start, Py_ssize_t stop):
        """The step that was prepared, for nodes `start` to `stop`."""
        if self.step is None or not 0 <= start <= stop <= self.B:
            raise RuntimeError(f"step {self.step}, nodes {start} to {stop} of {self.B}")
        if self.double:
            self._run(start, stop, <double *> NULL)
        else:
            self._run(start, stop, <float *> NULL)

    cdef _run(self, Py_ssize_t start, Py_ssize_t stop, real *space):
        cdef Py_ssize_t own = <Py_ssize_t> self.n * self.k, short = <Py_ssize_t> self.m * self.k
        cdef Py_ssize_t near = <Py_ssize_t> self.d * self.p * self.k, square = self.k * self.k
        cdef real weight = self.weight, extra = self.extra, negligible = self.negligible
        cdef bint shares = self.step == "shares", z_step = self.step == "z_step"
        cdef Py_ssize_t room = own + 3 * (short + own) + square + 2 * self.c
        if shares:
            room = own
        elif z_step:
            room = 2 * near + 2 * short + 2 * square + self.k + eigen_space(self.k)
        space = <real *> malloc(room * sizeof(real) + 64)
        if space == NULL:
            raise MemoryError()
        with nogil:
            if shares:
                share_nodes(self, start, stop, aligned(space), weight, extra)
            elif z_step:
                z_nodes(self, start, stop, aligned(space), weight, extra)
            else:
                w_nodes(self, start, stop, aligned(space), weight, extra, negligible)
        free(space)

    def _set(self, name, array):
        cdef Py_buffer buffer
        cdef int i
        cdef bint good
        place, flags, shape, formats = self.expected[name]
        PyObject_GetBuffer(array, &buffer, flags)
        try:
            good = buffer.ndim == len(shape) and buffer.format.decode() in formats
            for i in range(buffer.ndim if good else 0):
                good = good and (shape[i] == buffer.shape[i] or shape[i] == ANY)
            if not good:
                raise ValueError(f"{name}: shape {array.shape} of {array.dtype}; shape {shape} of format {formats!r} is needed")
            self.at[<int> place] = buffer.buf
            self.held[name] = array
        finally:
            PyBuffer_Release(&buffer)


cdef int eigen_space(int k) noexcept nogil:
    """Numbers that LAPACK needs room for in `eigen`."""
    return 34 * k + 8


cdef void share_nodes(Nodes c, Py_ssize_t start, Py_ssize_t stop, real *gap, real weight, real extra) noexcept nogil:
    """dual + rho (w - P z): over the own samples divided by rho's factor, in shared coordinates without z."""
    cdef Py_ssize_t b, s, one = <Py_ssize_t> c.n * c.k, short = <Py_ssize_t> c.m * c.k
    cdef int d = c.d
    cdef const real *factors = <const real *> c.at[FACTORS]
    cdef const real *dual = <const real *> c.at[DUAL]
    cdef const real *seen = <const real *> c.at[SEEN]
    cdef const real *dual_w = <const real *> c.at[DUAL_W]
    cdef const real *w
    cdef real *shares = <real *> c.at[OUT_SHARES]
    cdef real *shared = <real *> c.at[OUT_SHARED]
    for b in range(start, stop):
        w = <const real *> c.at[W] + b * (short + one)
        sum2(shared + b * short, factors[b * d], dual_w + b * short, factors[b * d] * weight, w, short)
        for s in range(b * d, (b + 1) * d):
            sum2(gap, <real> 1, w + short, <real> -1, seen + s * one, one)
            sum2(shares + s * one, <real> 1, dual + s * one, weight + extra if s == b * d else weight, gap, one)


cdef void z_nodes(Nodes c, Py_ssize_t start, Py_ssize_t stop, real *space, real weight, real extra) noexcept nogil:
    """z of some nodes from the shares they heard, clipped, and its values on the samples of the neighborhood."""
    cdef Py_ssize_t b, s
    cdef int m = c.m, d = c.d, n = c.p, k = c.k, lwork = eigen_space(c.k)
    cdef Py_ssize_t one = <Py_ssize_t> n * k, short = <Py_ssize_t> m * k, long = d * one, T = c.T
    cdef Py_ssize_t lower = <Py_ssize_t> c.n * k
    cdef real limit = sqrt(DBL_MAX if real is double else FLT_MAX)  # the square of a larger number is none
    cdef real pull, around
    cdef Coming coming
    cdef const real *factors = <const real *> c.at[FACTORS]
    cdef const real *on_z = <const real *> c.at[ON_Z]
    cdef const real *w = <const real *> c.at[W]
    cdef const real *z_shared = <const real *> c.at[Z_SHARED]
    cdef const real *z_near = <const real *> c.at[Z_NEAR]
    cdef const real *dual_z = <const real *> c.at[DUAL_Z]
    cdef const real *dual_extra = <const real *> c.at[DUAL_EXTRA]
    cdef const real *shares = <const real *> c.at[SHARES]
    cdef const Py_ssize_t *shares_at = <const Py_ssize_t *> c.at[SHARES_AT]
    cdef const real *shared = <const real *> c.at[SHARED]
    cdef const Py_ssize_t *shared_at = <const Py_ssize_t *> c.at[SHARED_AT]
    cdef const intptr_t *block_at = <const intptr_t *> c.at[BLOCK_AT]
    cdef const int *block_shape = <const int *> c.at[BLOCK_SHAPE]
    cdef real *out_z_shared = <real *> c.at[OUT_Z_SHARED]
    cdef real *out_z_near = <real *> c.at[OUT_Z_NEAR]
    cdef real *out_views = <real *> c.at[OUT_VIEWS]
    cdef real *wanted = space
    cdef real *values = wanted + long
    cdef real *top = values + long
    cdef real *heard = top + short
    cdef real *square = heard + short
    cdef real *shrink = square + k * k
    cdef real *work = shrink + k * k + k
    for b in range(start, stop):
        around = 0
        for s in range(b * d, (b + 1) * d):
            around += factors[s]
            sum2(wanted + (s - b * d) * one, <real> 1, z_near + s * one, factors[s] / on_z[b], shares + shares_at[s] * one, one)
        if m:
            sum1(heard, <real> 1, shared + shared_at[b * d] * short, short)
            if dual_extra != NULL:
                add(heard, factors[b * d], dual_extra + b * short, short)
                add(heard, factors[b * d] * extra, w + b * (short + lower), short)
                add(heard, -factors[b * d] * extra, z_shared + b * short, short)
            for s in range(b * d + 1, (b + 1) * d):
                add(heard, <real> 1, shared + shared_at[s] * short, short)
            pull = around / on_z[b]
            sum3(top, 1 - pull * weight, z_shared + b * short, 1 / on_z[b], heard, -pull, dual_z + b * short, short)
        coming.count = coming.now = 0
        soon(&coming, out_z_near + b * long, long)
        soon(&coming, out_views + b * long, long)
        if m:
            soon(&coming, out_z_shared + b * short, short)
        if b + 1 < stop:
            soon(&coming, z_near + (b + 1) * long, long)
            for s in range((b + 1) * d, (b + 2) * d):
                soon(&coming, shares + shares_at[s] * one, one)
            if m:
                soon(&coming, z_shared + (b + 1) * short, short)
                soon(&coming, dual_z + (b + 1) * short, short)
        apply_gram(wanted, values, NULL, block_at + b * T, block_shape + 4 * b * T, T, d, n, k, &coming)
        product(square, top, top, k, m, k, True, <real> 1, <real> 0, &coming)
        product(square, wanted, values, k, d * n, k, True, <real> 1, <real> 1, &coming)
        clip_matrix(square, shrink, shrink + k * k, work, lwork, k, limit)
        if m:
            product(out_z_shared + b * short, top, shrink, m, k, k, False, <real> 1, <real> 0, &coming)
        product(out_z_near + b * long, wanted, shrink, d * n, k, k, False, <real> 1, <real> 0, &coming)
        product(out_views + b * long, values, shrink, d * n, k, k, False, <real> 1, <real> 0, &coming)


cdef void norms(const real *square, const real *rotation, int k, int kept, real *out) noexcept nogil:
    """sqrt(r' square r) for each column r of the rotation (k, kept)."""
    cdef int i, j, c
    cdef real found, row
    for c in range(kept):
        found = 0
        for i in range(k):
            row = 0
            for j in range(k):
                row += square[i * k + j] * rotation[j * kept + c]
            found += rotation[i * kept + c] * row
        out[c] = sqrt(found) if not found < 0 else 0  # NaN stays


cdef real worst(const real *size, const real *length, int kept) noexcept nogil:
    """The largest size / length; NaN if there is one."""
    cdef int c
    cdef real found, most = 0
    for c in range(kept):
        found = size[c] / length[c]
        if found > most or found != found:
            most = found
        if most != most:
            break
    return most


cdef void moved(
    const real *w, const real *image, const real *w_before, const real *image_before, real *space, real *square, int m, int n, int k
) noexcept nogil:
    """(k, k) inner products of what w changed by."""
    cdef Py_ssize_t short = <Py_ssize_t> m * k, one = <Py_ssize_t> n * k
    sum2(space, <real> 1, w, <real> -1, w_before, short + one)
    product(square, space, space, k, m, k, True, <real> 1, <real> 0)
    sum2(space + short + one, <real> 1, image, <real> -1, image_before, one)
    product(square, space + short, space + short + one, k, n, k, True, <real> 1, <real> 1)


cdef void w_nodes(
    Nodes c, Py_ssize_t start, Py_ssize_t stop, real *space, real weight, real extra, real negligible
) noexcept nogil:
    """w of some nodes, the multipliers, and how far the nodes are."""
    cdef Py_ssize_t b, i, s
    cdef int d = c.d, n = c.n, k = c.k, m = c.m, kept = c.c
    cdef Py_ssize_t one = <Py_ssize_t> n * k, short = <Py_ssize_t> m * k, whole = short + one, long = d * one
    cdef Py_ssize_t square_n = <Py_ssize_t> n * n, wide = <Py_ssize_t> n * m
    cdef real scaled, objective
    cdef const real *psi = <const real *> c.at[PSI]
    cdef const real *rest = <const real *> c.at[REST]
    cdef const real *inverse = <const real *> c.at[INVERSE]
    cdef const real *response = <const real *> c.at[RESPONSE]
    cdef const real *factors = <const real *> c.at[FACTORS]
    cdef const real *on_w = <const real *> c.at[ON_W]
    cdef const real *leading = <const real *> c.at[LEADING]
    cdef const real *w_before = <const real *> c.at[W]
    cdef const real *image_before = <const real *> c.at[IMAGE]
    cdef const real *w_check = <const real *> c.at[CHECK_W]
    cdef const real *image_check = <const real *> c.at[CHECK_IMAGE]
    cdef const real *dual = <const real *> c.at[DUAL]
    cdef const real *dual_w = <const real *> c.at[DUAL_W]
    cdef const real *dual_z = <const real *> c.at[DUAL_Z]
    cdef const real *dual_seen = <const real *> c.at[DUAL_SEEN]
    cdef const real *dual_extra = <const real *> c.at[DUAL_EXTRA]
    cdef const real *views = <const real *> c.at[VIEWS]
    cdef const Py_ssize_t *views_at = <const Py_ssize_t *> c.at[VIEWS_AT]
    cdef const real *shared = <const real *> c.at[SHARED]
    cdef const Py_ssize_t *shared_at = <const Py_ssize_t *> c.at[SHARED_AT]
    cdef real *out_w = <real *> c.at[OUT_W]
    cdef real *out_image = <real *> c.at[OUT_IMAGE]
    cdef real *out_values = <real *> c.at[OUT_VALUES]
    cdef real *out_dual = <real *> c.at[OUT_DUAL]
    cdef real *out_seen = <real *> c.at[OUT_SEEN]
    cdef real *out_dual_w = <real *> c.at[OUT_DUAL_W]
    cdef real *out_dual_z = <real *> c.at[OUT_DUAL_Z]
    cdef real *out_dual_seen = <real *> c.at[OUT_DUAL_SEEN]
    cdef real *out_dual_extra = <real *> c.at[OUT_DUAL_EXTRA]
    cdef real *out_shares = <real *> c.at[OUT_SHARES]
    cdef real *out_shared = <real *> c.at[OUT_SHARED]
    cdef real *progress = <real *> c.at[PROGRESS]
    cdef bint checked = w_before == w_check  # the last iteration was followed by a check
    cdef bint ahead = (3 * square_n + wide) * sizeof(real) < MOST_AHEAD
    cdef const real *mine
    cdef Coming coming
    cdef real *around = space
    cdef real *target = around + one
    cdef real *apart = target + whole  # twice as long: also for differences
    cdef real *square = apart + 2 * whole
    cdef real *length = square + k * k
    cdef real *size = length + kept
    cdef real *seen
    cdef real *w
    cdef real *own
    cdef real *image
    cdef real *half
    for b in range(start, stop):
        seen, w, own = out_seen + b * long, out_w + b * whole, out_w + b * whole + short
        image, half = out_image + b * one, out_values + b * one
        coming.count = coming.now = 0
        if ahead:
            if b == start and n > 8:
                soon(&coming, inverse + b * square_n + 8 * n, (n - 8) * n)  # its first rows are being read
            soon(&coming, rest + b * square_n, square_n)
            soon(&coming, dual + b * long, long)
            if m:
                soon(&coming, psi + b * wide, wide)
            soon(&coming, response + b * square_n, square_n)
            if m:
                soon(&coming, dual_seen + b * short, short)
                soon(&coming, dual_w + b * short, short)
                soon(&coming, dual_z + b * short, short)
                soon(&coming, out_dual_seen + b * short, short)
                soon(&coming, out_dual_z + b * short, short)
            soon(&coming, w, whole)
            soon(&coming, out_dual + b * long, long)
            if out_shares != NULL:
                soon(&coming, out_shares + b * long, long)
            if m:
                soon(&coming, out_dual_w + b * short, short)
            if m and out_shares != NULL:
                soon(&coming, out_shared + b * short, short)
            soon(&coming, w_before + b * whole, whole)
            if not checked:
                soon(&coming, w_check + b * whole, whole)
        if ahead and b + 1 < stop:
            soon(&coming, inverse + (b + 1) * square_n, square_n)
            for s in range((b + 1) * d, (b + 2) * d):
                soon(&coming, views + views_at[s] * one, one)
            soon(&coming, out_seen + (b + 1) * long, long)
            for s in range((b + 1) * d, (b + 2) * d if m else 0):
                soon(&coming, shared + shared_at[s] * short, short)
        # P z, from the views
        for s in range(d):
            product(
                seen + s * one, inverse + b * square_n, views + views_at[b * d + s] * one, n, n, k, False, <real> 1, <real> 0, &coming
            )
        sum1(around, <real> 1, seen, one)
        for s in range(1, d):
            add(around, <real> 1, seen + s * one, one)
        # the new w
        scaled = factors[b * d]
        if m:
            mine = shared + shared_at[b * d] * short
            sum1(apart, <real> 1, mine, short)
            for s in range(b * d + 1, (b + 1) * d):
                add(apart, <real> 1, shared + shared_at[s] * short, short)
            sum3(target, scaled * weight, apart, scaled * extra, mine, scaled, dual_seen + b * short, short)
            add(target, -scaled * d, dual_w + b * short, short)
            if dual_extra != NULL:
                add(target, -scaled, dual_extra + b * short, short)
            sum2(out_dual_seen + b * short, <real> 1, dual_seen + b * short, weight, apart, short)
            sum2(out_dual_z + b * short, <real> 1, dual_z + b * short, weight, mine, short)
        sum3(target + short, scaled * weight, around, scaled * extra, seen, -scaled, dual + b * long, one)
        for s in range(1, d):
            add(target + short, -scaled, dual + b * long + s * one, one)
        product(apart, rest + b * square_n, target + short, n, n, k, False, <real> 1, <real> 0, &coming)
        if m:
            product(apart, psi + b * wide, target, n, m, k, False, <real> 1, <real> 1, &coming)
        product(half, response + b * square_n, apart, n, n, k, False, <real> 1, <real> 0, &coming)
        if m:
            sum1(w, 1 / on_w[b], target, short)
            product(w, psi + b * wide, half, m, n, k, True, 2 / on_w[b], <real> 1, &coming)
        sum2(own, 1 / on_w[b], target + short, 2 / on_w[b], half, one)
        product(image, rest + b * square_n, own, n, n, k, False, <real> 1, <real> 0, &coming)
        # the multipliers, and the inner products of w - P z
        sum2(target, <real> d, own, <real> -1, around, one)
        product(square, target, image, k, n, k, True, <real> 1, <real> 0)
        for s in range(d):
            sum2(apart, <real> 1, own, <real> -1, seen + s * one, one)
            sum2(out_dual + b * long + s * one, <real> 1, dual + b * long + s * one, weight if s else weight + extra, apart, one)
            if out_shares != NULL:
                sum2(out_shares + b * long + s * one, <real> 1, out_dual + b * long + s * one, weight, apart, one)
            product(square, apart, views + views_at[b * d + s] * one, k, n, k, True, <real> -1, <real> 1)
        for s in range(d if m else 0):
            sum2(apart, <real> 1, w, <real> -1, shared + shared_at[b * d + s] * short, short)
            product(square, apart, apart, k, m, k, True, <real> 1, <real> 1)
            if s == 0 and dual_extra != NULL:
                sum2(out_dual_extra + b * short, <real> 1, dual_extra + b * short, extra, apart, short)
        if m:
            sum2(out_dual_w + b * short, <real> 1, dual_w + b * short, weight, w, short)
        if m and out_shares != NULL:
            sum2(out_shared + b * short, scaled, out_dual_w + b * short, scaled * weight, w, short)
        # how far it is
        for i in range(k * k):
            square[i] = square[i] / d
        norms(square, leading, k, kept, size)
        product(square, w, w, k, m, k, True, <real> 1, <real> 0)
        product(square, own, image, k, n, k, True, <real> 1, <real> 1)
        norms(square, leading, k, kept, length)
        for i in range(kept):
            if length[i] < negligible:
                length[i] = negligible
        progress[b] = worst(size, length, kept)
        moved(w, image, w_before + b * whole, image_before + b * one, apart, square, m, n, k)
        norms(square, leading, k, kept, size)
        progress[c.B + b] = worst(size, length, kept)
        if not checked:
            moved(w, image, w_check + b * whole, image_check + b * one, apart, square, m, n, k)
            norms(square, leading, k, kept, size)
        progress[2 * c.B + b] = worst(size, length, kept)
        product(apart, half, leading, n, k, kept, False, <real> 1, <real> 0)
        objective = 0
        for i in range(n * kept):
            objective += apart[i] * apart[i]
        progress[3 * c.B + b] = objective


cdef Py_ssize_t factor_space(Py_ssize_t n) noexcept nogil:
    """Numbers that `factored` and `inverted` need room for, for matrices of n rows: the matrix first."""
    return 2 * n * n + 16 * n if n <= MOST_FACTORED else n * n


cdef void widened(const real *x, real *out, int n, int wide, real factor, real shift) noexcept nogil:
    """factor x + shift I into out (wide, wide), with the unit matrix beyond n."""
    cdef Py_ssize_t i
    for i in range(n):
        sum1(out + i * wide, factor, x + i * n, n)
        memset(out + i * wide + n, 0, (wide - n) * sizeof(real))
        out[i * wide + i] += shift
    for i in range(n, wide):
        memset(out + i * wide, 0, wide * sizeof(real))
        out[i * wide + i] = 1


cdef bint factored(real *x, int n) noexcept nogil:
    """Whether the symmetric x (n, n) is positive definite; what `inverted` needs replaces it."""
    cdef Py_ssize_t i
    cdef int info = 0
    cdef char half = b"L"  # what is row by row here is column by column there
    if n <= MOST_FACTORED:
        if real is double:
            return factor_double(x, x + n * n, x + n * n + 8 * n, n)
        else:
            return factor_float(x, x + n * n, x + n * n + 8 * n, n)
    if real is double:
        dpotrf(&half, &n, x, &n, &info)
    else:
        spotrf(&half, &n, x, &n, &info)
    for i in range(n if info == 0 else 0):  # of NaN it makes NaN
        if not x[i * n + i] > 0:
            info = 1
    return info == 0


cdef void inverted(real *x, real *out, int n, int wide) noexcept nogil:
    """After `factored`: the inverse of x (wide, wide), its first n rows and columns, into `out`."""
    cdef Py_ssize_t i, j
    cdef int info = 0
    cdef char half = b"L"
    if wide <= MOST_FACTORED:
        if real is double:
            invert_double(x, x + wide * wide, x + wide * wide + 8 * wide, x + wide * wide + 16 * wide, wide)
        else:
            invert_float(x, x + wide * wide, x + wide * wide + 8 * wide, x + wide * wide + 16 * wide, wide)
        for i in range(n):
            for j in range(i + 1):
                out[i * n + j] = out[j * n + i] = x[i * wide + j]
        return
    if real is double:
        dpotri(&half, &wide, x, &wide, &info)
    else:
        spotri(&half, &wide, x, &wide, &info)
    for i in range(n):
        for j in range(i, n):
            out[i * n + j] = out[j * n + i] = x[i * wide + j]


cdef real norm(const real *x, Py_ssize_t count) noexcept nogil:
    """The root of the sum of squares."""
    cdef Py_ssize_t i, j
    cdef real part[16]
    cdef real found = 0
    memset(part, 0, sizeof(part))
    for i in range(0, count - 15, 16):
        for j in range(16):
            part[j] += x[i + j] * x[i + j]
    for i in range(count // 16 * 16, count):
        found += x[i] * x[i]
    for j in range(16):
        found += part[j]
    return sqrt(found)


def definite(const real[:, :, ::1] matrices, const real[::1] shift):
    """Whether all of a stack of symmetric matrices, each with a number of its own added along its diagonal, are positive definite."""
    return _factors(matrices, 1, shift, None)


def inverses(const real[:, :, ::1] matrices, real factor, const real[::1] shift, real[:, :, ::1] out):
    """The inverse of factor A + shift of each A of a stack; False if one of them is not positive definite."""
    return _factors(matrices, factor, shift, out)


def _factors(const real[:, :, ::1] matrices, real factor, const real[::1] shift, real[:, :, ::1] out):
    cdef Py_ssize_t b
    cdef int n = matrices.shape[1], wide = (n + 7) // 8 * 8
    cdef bint good = True, wanted = out is not None
    cdef real *space
    cdef real *x
    with nogil:
        space = <real *> malloc(factor_space(wide) * sizeof(real) + 64)
        if space == NULL:
            with gil:
                raise MemoryError()
        x = aligned(space)
        for b in range(matrices.shape[0] if n else 0):
            widened(&matrices[b, 0, 0], x, n, wide, factor, shift[b])
            good = factored(x, wide)
            if not good:
                break
            if wanted:
                inverted(x, &out[b, 0, 0], n, wide)
        free(space)
    return good


def pseudo_inverses(
    const real[:, :, ::1] matrices, const real[::1] rounding, real cutoff, real[:, :, ::1] out, unsigned char[::1] done
):
    """As spectrum.Factor._inverse: of each of a stack, without rows and columns that are nothing but rounding.

    `done` says where nothing else is below cutoff and rounding, for certain: the norm of the inverse is at least 1 / the smallest eigenvalue.
    """
    cdef Py_ssize_t b, i, j
    cdef int n = matrices.shape[1], wide = (n + 7) // 8 * 8
    cdef real size, least
    cdef const real *matrix
    cdef real *space
    cdef real *x
    with nogil:
        space = <real *> malloc(factor_space(wide) * sizeof(real) + 64)
        if space == NULL:
            with gil:
                raise MemoryError()
        x = aligned(space)
        for b in range(matrices.shape[0] if n else 0):
            matrix = &matrices[b, 0, 0]
            size = norm(matrix, <Py_ssize_t> n * n)
            least = max(cutoff * size, rounding[b])
            widened(matrix, x, n, wide, <real> 1, <real> 0)
            for i in range(n):
                if not matrix[i * n + i] > least:
                    memset(x + i * wide, 0, n * sizeof(real))
                    for j in range(n):
                        x[j * wide + i] = 0
                    x[i * wide + i] = size + 1
            done[b] = factored(x, wide)
            if not done[b]:
                continue
            inverted(x, &out[b, 0, 0], n, wide)
            for i in range(n):
                if not matrix[i * n + i] > least:
                    out[b, i, i] = 0
            done[b] = norm(&out[b, 0, 0], <Py_ssize_t> n * n) * least < 1
        free(space)


def tops(const real[:, :, ::1] matrices, const real[:, ::1] start, int steps, real least, real[::1] out):
    """The largest eigenvalue of each of a stack of matrices, as spectrum.largest finds it: `steps` times two products, from `start` (n, c)."""
    cdef Py_ssize_t b
    cdef int n = start.shape[0], c = start.shape[1], lwork = 34 * c + 8, step
    cdef real *space
    cdef real *x
    cdef real *y
    cdef real *square
    cdef const real *a
    with nogil:
        space = <real *> malloc((2 * <Py_ssize_t> n * c + 2 * c * c + c + lwork) * sizeof(real))
        if space == NULL:
            with gil:
                raise MemoryError()
        x, y, square = space, space + <Py_ssize_t> n * c, space + 2 * <Py_ssize_t> n * c
        for b in range(matrices.shape[0]):
            a = &matrices[b, 0, 0]
            product(x, a, &start[0, 0], n, n, c, False, <real> 1, <real> 0)
            for step in range(steps + 1):
                orthonormal(x, y, square, n, c, lwork, least)
                if step == steps:
                    break
                product(x, a, y, n, n, c, False, <real> 1, <real> 0)
                product(y, a, x, n, n, c, False, <real> 1, <real> 0)
                x, y = y, x
            product(x, a, y, n, n, c, False, <real> 1, <real> 0)
            product(square, y, x, c, n, c, True, <real> 1, <real> 0)
            eigen(square, square + 2 * c * c, square + 2 * c * c + c, lwork, c)
            out[b] = max(square[2 * c * c + c - 1], 0)
        free(space)


cdef enum:
    MOST_SETS = 16


cdef struct Sets:  # some sets of samples, packed; which, where, and when each was needed last
    Py_ssize_t which[MOST_SETS]
    Py_ssize_t last[MOST_SETS]
    Py_ssize_t count


cdef Py_ssize_t find(Sets *sets, Py_ssize_t site, Py_ssize_t now, bint *there) noexcept nogil:
    """The place of a site, or the one that was not needed for the longest time."""
    cdef Py_ssize_t i, oldest = 0
    there[0] = False
    for i in range(sets.count):
        if sets.which[i] == site:
            there[0] = True
            oldest = i
            break
        if sets.last[i] < sets.last[oldest]:
            oldest = i
    sets.which[oldest], sets.last[oldest] = site, now
    return oldest


def rest_blocks(
    Py_ssize_t start,
    Py_ssize_t stop,
    const real[:, :, :] p_samples,  # (S, a, M), the rows of a site one behind the other
    const real[:, :, :] p_psi,
    const Py_ssize_t[::1] p_sizes,  # (S,) real rows
    const real[:, :, :] q_samples,  # the other side, which may be the same
    const real[:, :, :] q_psi,
    const Py_ssize_t[::1] q_sizes,
    bint alike,  # whether it is
    const Py_ssize_t[::1] p_rows,  # of each pair: its sites,
    const Py_ssize_t[::1] q_rows,
    const intptr_t[::1] address,  # and where its block (a, b) is
    Py_ssize_t kept_bytes,  # of packed sets, two at least
    real gamma,
):
    """What is left of the rbf kernel between the sites of some pairs."""
    cdef Py_ssize_t t, i, site, size, bytes, a = p_samples.shape[1], b = q_samples.shape[1]
    cdef Py_ssize_t M = p_samples.shape[2], m = p_psi.shape[2], S = p_samples.shape[0]
    cdef Py_ssize_t rows[2]
    cdef bint there
    cdef real *space
    cdef real *first
    cdef real *at[2]
    cdef real *block
    cdef const real *samples
    cdef const real *psi
    cdef Sets sets
    with nogil:
        if real is double:
            size = packed_size_double(max(a, b), M, m)
        else:
            size = packed_size_float(max(a, b), M, m)
        bytes = size * sizeof(real)
        sets.count = min(max(kept_bytes // bytes, 2), MOST_SETS)
        for i in range(sets.count):
            sets.which[i] = sets.last[i] = -1
        space = <real *> malloc(sets.count * bytes + 64)
        if space == NULL:
            with gil:
                raise MemoryError()
        first = aligned(space)
        for t in range(start, stop):
            for i in range(2):
                if i == 0 or alike:
                    site = p_rows[t] if i == 0 else q_rows[t]
                    at[i] = first + size * find(&sets, site, t, &there)
                    samples, psi, rows[i] = &p_samples[site, 0, 0], &p_psi[site, 0, 0] if m else NULL, p_sizes[site]
                else:
                    site = q_rows[t]
                    at[i] = first + size * find(&sets, S + site, t, &there)
                    samples, psi, rows[i] = &q_samples[site, 0, 0], &q_psi[site, 0, 0] if m else NULL, q_sizes[site]
                if there:
                    continue
                if real is double:
                    pack_double(at[i], samples, psi, rows[i], M, m)
                else:
                    pack_float(at[i], samples, psi, rows[i], M, m)
            block = <real *> address[t]
            if rows[0] < a or rows[1] < b:
                memset(block, 0, a * b * sizeof(real))
            if real is double:
                block_double(block, at[0], at[1], rows[0], rows[1], M, m, gamma, b)
            else:
                block_float(block, at[0], at[1], rows[0], rows[1], M, m, gamma, b)
        free(space)


def packed_points(const real[:, ::1] points):
    """Points (m, M) as `kernel_rows` takes them. The buffer is aligned from within; do not copy it."""
    cdef Py_ssize_t m = points.shape[0], M = points.shape[1]
    if real is double:
        memory = np.empty(packed_size_double(m, M, 0) + 8, dtype=np.float64)
    else:
        memory = np.empty(packed_size_float(m, M, 0) + 16, dtype=np.float32)
    cdef real[::1] into = memory
    with nogil:
        if real is double:
            pack_double(aligned(&into[0]), &points[0, 0], NULL, m, M, 0)
        else:
            pack_float(aligned(&into[0]), &points[0, 0], NULL, m, M, 0)
    return memory


def kernel_rows(const real[:, ::1] samples, real[::1] packed, real gamma, real[:, ::1] out, real[::1] squares):
    """The rbf kernel of samples (n, M) with packed points, into `out` (n, m), and the samples' squares (n,)."""
    cdef Py_ssize_t rows = samples.shape[0], M = samples.shape[1], m = out.shape[1]
    cdef bint done
    if out.shape[0] != rows or squares.shape[0] != rows:
        raise ValueError("out and squares need a row for each sample")
    if not rows:
        return
    with nogil:
        if real is double:
            done = kernel_rows_double(&out[0, 0], &squares[0], &samples[0, 0], rows, M, aligned(&packed[0]), m, gamma)
        else:
            done = kernel_rows_float(&out[0, 0], &squares[0], &samples[0, 0], rows, M, aligned(&packed[0]), m, gamma)
    if not done:
        raise MemoryError()


def multiply(const real[:, ::1] a, const real[:, ::1] b, bint turned):
    """a b, or a' b if `turned`; for tests of what the steps are made of."""
    cdef int rows = a.shape[1] if turned else a.shape[0], inner = b.shape[0], columns = b.shape[1]
    out = np.empty((rows, columns), dtype=np.float64 if real is double else np.float32)
    cdef real[:, ::1] into = out
    product(&into[0, 0], &a[0, 0], &b[0, 0], rows, inner, columns, turned, <real> 1, <real> 0)
    return out


def instructions():
    """The largest set of instructions that this machine has: 2 AVX-512, 1 AVX2, 0 what every machine has."""
    return supported()
