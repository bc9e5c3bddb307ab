"""The steps of an iteration in compiled code, for NumPy arrays: node by node, so that all that a step reads and writes stays in a cache.

The formulas are those of consensus.py and stopping.py, which say what they mean; fused.py calls this. Nothing is checked here. It is compiled
once for every machine and once for each larger set of instructions (setup.py); native.py chooses.
"""

import numpy as np

from libc.math cimport NAN, fabs, sqrt
from libc.stdint cimport intptr_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from scipy.linalg.cython_blas cimport dgemm, sgemm
from scipy.linalg.cython_lapack cimport dpotrf, dpotri, dsyev, spotrf, spotri, ssyev

LAYOUT = 4  # of the arrays that fused.py hands over; native.py compares it


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
    void root_double(const double *, const double *, double *, double *, Py_ssize_t)
    void root_float(const float *, const float *, float *, float *, Py_ssize_t)
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
    """So many numbers will be needed."""
    expect(coming, at, count * sizeof(real))


cdef real *aligned(real *x) noexcept nogil:
    """The first place from x on where a line of the cache begins."""
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
    """Columns that span what those of x (n, c) do; zero for directions that are not there. As spectrum._orthonormal."""
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
        shrink[0] = NAN  # the next check will notice
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

    What is needed after that is fetched with the last block.
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


def apply_nodes(
    Py_ssize_t start,
    Py_ssize_t stop,
    const real[:, :, :, ::1] c,
    const real[:, :, ::1] weights,
    const intptr_t[:, ::1] address,
    const int[:, :, ::1] where,
    real[:, :, :, ::1] out,
):
    """`apply_gram` for some nodes."""
    cdef Py_ssize_t b
    cdef int d = c.shape[1], n = c.shape[2], k = c.shape[3]
    with nogil:
        for b in range(start, stop):
            apply_gram(
                &c[b, 0, 0, 0], &out[b, 0, 0, 0], &weights[b, 0, 0], &address[b, 0], &where[b, 0, 0], address.shape[1],
                d, n, k, NULL
            )


def z_nodes(
    Py_ssize_t start,
    Py_ssize_t stop,
    const real[:, :, ::1] shared,  # (B, m, k) and
    const real[:, :, :, ::1] near,  # (B, d, n, k): z before
    const real[:, :, ::1] total,  # (B, m, k): sums.z
    const real[:, :, ::1] shares,  # (., n, k): what was said,
    const Py_ssize_t[::1] at_shares,  # and where slot s of node b finds what it heard: at[b * d + s];
    const real[:, :, ::1] rows,  # (., m, k): the same in shared coordinates
    const Py_ssize_t[::1] place,
    const real[:, :, ::1] late,
    const real[:, ::1] factors,
    const real[::1] around,
    const real[::1] on_z,
    real weight,
    bint alike,  # the penalties: nothing is late
    const intptr_t[:, ::1] address,  # (B, T) of each Gram block of a neighborhood;
    const int[:, :, ::1] where,  # (B, T, 4): its slots, rows and columns
    real limit,
    real[:, :, ::1] out_shared,
    real[:, :, :, ::1] out_near,
    real[:, :, :, ::1] out_values,
):
    """z of some nodes from what they heard, clipped, and its values on the samples of the neighborhood."""
    cdef Py_ssize_t b, s
    cdef int m = shared.shape[1], d = near.shape[1], n = near.shape[2], k = near.shape[3]
    cdef Py_ssize_t one = <Py_ssize_t> n * k, short = <Py_ssize_t> m * k, long = d * one
    cdef int lwork = 34 * k + 8
    cdef real pull
    cdef Coming coming
    cdef real *space
    cdef real *wanted
    cdef real *top
    cdef real *heard
    cdef real *values
    cdef real *square
    cdef real *work
    with nogil:
        space = <real *> malloc((2 * long + 2 * short + 2 * k * k + k + lwork) * sizeof(real) + 64)
        if space == NULL:
            with gil:
                raise MemoryError()
        wanted = aligned(space)
        values = wanted + long
        top = values + long
        heard = top + short
        square = heard + short
        work = square + 2 * k * k + k
        for b in range(start, stop):
            for s in range(d):
                sum2(wanted + s * one, <real> 1, &near[b, s, 0, 0], factors[b, s] / on_z[b], &shares[at_shares[b * d + s], 0, 0], one)
            if m:
                sum1(heard, <real> 1, &rows[place[b * d], 0, 0], short)
                if not alike:
                    add(heard, <real> 1, &late[b, 0, 0], short)
                for s in range(1, d):
                    add(heard, <real> 1, &rows[place[b * d + s], 0, 0], short)
                pull = around[b] / on_z[b]
                sum3(top, 1 - pull * weight, &shared[b, 0, 0], 1 / on_z[b], heard, -pull, &total[b, 0, 0], short)
            coming.count = coming.now = 0
            soon(&coming, &out_near[b, 0, 0, 0], long)
            soon(&coming, &out_values[b, 0, 0, 0], long)
            if m:
                soon(&coming, &out_shared[b, 0, 0], short)
            if b + 1 < stop:
                soon(&coming, &near[b + 1, 0, 0, 0], long)
                for s in range(d):
                    soon(&coming, &shares[at_shares[(b + 1) * d + s], 0, 0], one)
                if m:
                    soon(&coming, &shared[b + 1, 0, 0], short)
                    soon(&coming, &total[b + 1, 0, 0], short)
            apply_gram(wanted, values, NULL, &address[b, 0], &where[b, 0, 0], address.shape[1], d, n, k, &coming)
            product(square, top, top, k, m, k, True, <real> 1, <real> 0, &coming)
            product(square, wanted, values, k, d * n, k, True, <real> 1, <real> 1, &coming)
            clip_matrix(square, square + k * k, square + 2 * k * k, work, lwork, k, limit)
            if m:
                product(&out_shared[b, 0, 0], top, square + k * k, m, k, k, False, <real> 1, <real> 0, &coming)
            product(&out_near[b, 0, 0, 0], wanted, square + k * k, d * n, k, k, False, <real> 1, <real> 0, &coming)
            product(&out_values[b, 0, 0, 0], values, square + k * k, d * n, k, k, False, <real> 1, <real> 0, &coming)
        free(space)


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
    const real *w, const real *gw, const real *w_before, const real *gw_before, real *space, real *square, int m, int n, int k
) noexcept nogil:
    """(k, k) inner products of what w changed by; gw has the n rows beyond the shared ones."""
    cdef Py_ssize_t short = <Py_ssize_t> m * k, one = <Py_ssize_t> n * k
    sum2(space, <real> 1, w, <real> -1, w_before, short + one)
    product(square, space, space, k, m, k, True, <real> 1, <real> 0)
    sum2(space + short + one, <real> 1, gw, <real> -1, gw_before, one)
    product(square, space + short, space + short + one, k, n, k, True, <real> 1, <real> 1)


def w_nodes(
    Py_ssize_t start,
    Py_ssize_t stop,
    const real[:, :, ::1] views,  # as for z_nodes: what was said, and where
    const Py_ssize_t[::1] at_views,
    const real[:, :, ::1] rows,
    const Py_ssize_t[::1] place,
    const real[:, :, ::1] psi,  # (B, n, m)
    const real[:, :, ::1] rest,
    const real[:, :, ::1] inverse,
    const real[:, :, ::1] response,
    const real[:, :, :, ::1] dual,
    const real[:, :, ::1] pulled,
    const real[:, :, ::1] sum_w,  # (B, m, k)
    const real[:, :, ::1] sum_z,
    const real[:, :, :, ::1] sum_seen,  # (B, 1, m, k)
    const real[:, :, ::1] sum_extra,
    const real[::1] factor,  # the same in all iterations
    const real[::1] spent,
    real weight,  # of the neighbors' z,
    real extra,  # and what the own has beyond that;
    real next_weight,  # in the next iteration
    real next_extra,
    bint alike,  # the penalties of all: nothing is extra or late, and stays as it is
    const real[:, :, ::1] w_before,  # (B, m + n, k) and, (B, n, k), with the metric: of the last iteration,
    const real[:, :, ::1] gw_before,
    const real[:, :, ::1] w_check,  # of the last check
    const real[:, :, ::1] gw_check,
    const real[:, ::1] rotation,  # (k, kept)
    real nothing,
    real[:, :, ::1] out_w,
    real[:, :, ::1] out_gw,
    real[:, :, ::1] out_values,
    real[:, :, :, ::1] out_dual,
    real[:, :, ::1] out_pulled,
    real[:, :, :, ::1] out_shares,
    real[:, :, ::1] out_said,
    real[:, :, ::1] out_late,
    real[:, :, ::1] out_sum_w,
    real[:, :, ::1] out_sum_z,
    real[:, :, :, ::1] out_sum_seen,
    real[:, :, ::1] out_sum_extra,
    real[:, ::1] progress,  # (4, B): residual, change, since the check, objective
):
    """w of some nodes, the multipliers and all that follows from them, and how far the nodes are."""
    cdef Py_ssize_t b, i, s
    cdef int d = dual.shape[1], n = dual.shape[2], k = dual.shape[3], m = psi.shape[2], kept = rotation.shape[1]
    cdef Py_ssize_t one = <Py_ssize_t> n * k, short = <Py_ssize_t> m * k, c
    cdef real scaled, now, later, objective
    cdef bint ahead, checked = &w_before[0, 0, 0] == &w_check[0, 0, 0]  # the last iteration was followed by a check
    cdef const real *turn = &rotation[0, 0]
    cdef const real *heard
    cdef Coming coming
    cdef real *space
    cdef real *seen
    cdef real *around
    cdef real *target
    cdef real *apart
    cdef real *square
    cdef real *length
    cdef real *w
    cdef real *gw
    cdef real *half
    cdef real *alone
    with nogil:
        space = <real *> malloc((d * one + one + 3 * (short + one) + k * k + 2 * kept) * sizeof(real) + 64)
        if space == NULL:
            with gil:
                raise MemoryError()
        seen = aligned(space)
        around = seen + d * one
        target = around + one
        apart = target + short + one  # twice as long: also for differences
        square = apart + 2 * (short + one)
        length = square + k * k
        ahead = (3 * <Py_ssize_t> n + m) * n * sizeof(real) < MOST_AHEAD
        for b in range(start, stop):
            w, gw, half = &out_w[b, 0, 0], &out_gw[b, 0, 0], &out_values[b, 0, 0]
            coming.count = coming.now = 0
            if ahead:
                if b == start and n > 8:
                    soon(&coming, &inverse[b, 8, 0], (n - 8) * n)  # its first rows are being read
                soon(&coming, &rest[b, 0, 0], n * n)
                if m:
                    soon(&coming, &psi[b, 0, 0], n * m)
                soon(&coming, &response[b, 0, 0], n * n)
                if m:
                    soon(&coming, &sum_seen[b, 0, 0, 0], short)
                    soon(&coming, &sum_w[b, 0, 0], short)
                    soon(&coming, &sum_z[b, 0, 0], short)
                    soon(&coming, &out_sum_seen[b, 0, 0, 0], short)
                    soon(&coming, &out_sum_z[b, 0, 0], short)
                soon(&coming, &pulled[b, 0, 0], one)
                soon(&coming, w, short + one)
                soon(&coming, &dual[b, 0, 0, 0], d * one)
                soon(&coming, &out_dual[b, 0, 0, 0], d * one)
                soon(&coming, &out_shares[b, 0, 0, 0], d * one)
                if m:
                    soon(&coming, &out_sum_w[b, 0, 0], short)
                    soon(&coming, &out_said[b, 0, 0], short)
                soon(&coming, &w_before[b, 0, 0], short + one)
                if not checked:
                    soon(&coming, &w_check[b, 0, 0], short + one)
            if ahead and b + 1 < stop:
                soon(&coming, &inverse[b + 1, 0, 0], n * n)
                for s in range(d):
                    soon(&coming, &views[at_views[(b + 1) * d + s], 0, 0], one)
                for s in range(d if m else 0):
                    soon(&coming, &rows[place[(b + 1) * d + s], 0, 0], short)
            # what it saw of its neighbors' z
            for s in range(d):
                product(seen + s * one, &inverse[b, 0, 0], &views[at_views[b * d + s], 0, 0], n, n, k, False, <real> 1, <real> 0, &coming)
            sum1(around, <real> 1, seen, one)
            for s in range(1, d):
                add(around, <real> 1, seen + s * one, one)
            # the new w
            scaled = factor[b]
            if m:
                heard = &rows[place[b * d], 0, 0]
                sum1(apart, <real> 1, heard, short)
                for s in range(1, d):
                    add(apart, <real> 1, &rows[place[b * d + s], 0, 0], short)
                sum3(target, scaled * weight, apart, scaled * extra, heard, scaled, &sum_seen[b, 0, 0, 0], short)
                add(target, -scaled * d, &sum_w[b, 0, 0], short)
                if not alike:
                    add(target, -scaled, &sum_extra[b, 0, 0], short)
                sum2(&out_sum_seen[b, 0, 0, 0], <real> 1, &sum_seen[b, 0, 0, 0], weight, apart, short)
                sum2(&out_sum_z[b, 0, 0], <real> 1, &sum_z[b, 0, 0], weight, heard, short)
            sum3(target + short, scaled * weight, around, scaled * extra, seen, -scaled, &pulled[b, 0, 0], one)
            product(apart, &rest[b, 0, 0], target + short, n, n, k, False, <real> 1, <real> 0, &coming)
            if m:
                product(apart, &psi[b, 0, 0], target, n, m, k, False, <real> 1, <real> 1, &coming)
            product(half, &response[b, 0, 0], apart, n, n, k, False, <real> 1, <real> 0, &coming)
            if m:
                sum1(w, 1 / spent[b], target, short)
                product(w, &psi[b, 0, 0], half, m, n, k, True, 2 / spent[b], <real> 1, &coming)
            alone = w + short
            sum2(alone, 1 / spent[b], target + short, 2 / spent[b], half, one)
            product(gw, &rest[b, 0, 0], alone, n, n, k, False, <real> 1, <real> 0, &coming)
            # the multipliers, and the shares to be said next
            sum2(target, <real> d, alone, <real> -1, around, one)
            sum3(&out_pulled[b, 0, 0], <real> 1, &pulled[b, 0, 0], weight, target, extra, alone, one)
            add(&out_pulled[b, 0, 0], -extra, seen, one)
            product(square, target, gw, k, n, k, True, <real> 1, <real> 0)
            for s in range(d):
                now, later = (weight, next_weight) if s else (weight + extra, next_weight + next_extra)
                sum2(apart, <real> 1, alone, <real> -1, seen + s * one, one)
                sum2(&out_dual[b, s, 0, 0], <real> 1, &dual[b, s, 0, 0], now, apart, one)
                sum2(&out_shares[b, s, 0, 0], <real> 1, &out_dual[b, s, 0, 0], later, apart, one)
                product(square, apart, &views[at_views[b * d + s], 0, 0], k, n, k, True, <real> -1, <real> 1)
            for s in range(d if m else 0):
                sum2(apart, <real> 1, w, <real> -1, &rows[place[b * d + s], 0, 0], short)
                product(square, apart, apart, k, m, k, True, <real> 1, <real> 1)
                if s == 0:
                    sum2(&out_sum_w[b, 0, 0], <real> 1, &sum_w[b, 0, 0], weight, w, short)
                    sum2(&out_said[b, 0, 0], scaled, &out_sum_w[b, 0, 0], scaled * next_weight, w, short)
                if s == 0 and not alike:
                    sum2(&out_sum_extra[b, 0, 0], <real> 1, &sum_extra[b, 0, 0], extra, apart, short)
                    sum2(&out_late[b, 0, 0], scaled, &out_sum_extra[b, 0, 0], scaled * next_extra, apart, short)
            # how far it is
            for i in range(k * k):
                square[i] = square[i] / d
            norms(square, turn, k, kept, length + kept)
            product(square, w, w, k, m, k, True, <real> 1, <real> 0)
            product(square, alone, gw, k, n, k, True, <real> 1, <real> 1)
            norms(square, turn, k, kept, length)
            for c in range(kept):
                if length[c] < nothing:
                    length[c] = nothing
            progress[0, b] = worst(length + kept, length, kept)
            moved(w, gw, &w_before[b, 0, 0], &gw_before[b, 0, 0], apart, square, m, n, k)
            norms(square, turn, k, kept, length + kept)
            progress[1, b] = worst(length + kept, length, kept)
            if not checked:
                moved(w, gw, &w_check[b, 0, 0], &gw_check[b, 0, 0], apart, square, m, n, k)
                norms(square, turn, k, kept, length + kept)
            progress[2, b] = worst(length + kept, length, kept)
            product(apart, half, turn, n, k, kept, False, <real> 1, <real> 0)
            objective = 0
            for i in range(n * kept):
                objective += apart[i] * apart[i]
            progress[3, b] = objective
        free(space)


def metric_nodes(
    Py_ssize_t start, Py_ssize_t stop, const real[:, :, ::1] rest, const real[:, :, ::1] w, real[:, :, ::1] out
):
    """The rows of w of some nodes beyond the shared ones, with the metric applied, to the same bits as w_nodes."""
    cdef Py_ssize_t b
    cdef int n = rest.shape[1], k = w.shape[2]
    cdef Py_ssize_t short = (w.shape[1] - n) * k
    with nogil:
        for b in range(start, stop):
            product(&out[b, 0, 0], &rest[b, 0, 0], &w[b, 0, 0] + short, n, n, k, False, <real> 1, <real> 0)


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


def inverse_factor(const real[:, ::1] matrix, real[:, ::1] out):
    """L^-1 into the lower half of `out`, L L' the matrix; False if it is not positive definite, or too large."""
    cdef Py_ssize_t i
    cdef int n = matrix.shape[0], wide = (n + 7) // 8 * 8
    cdef bint good = 0 < n and wide <= MOST_FACTORED
    cdef real *space
    cdef real *x
    cdef real *root
    if not good:
        return False
    with nogil:
        space = <real *> malloc(factor_space(wide) * sizeof(real) + 64)
        if space == NULL:
            with gil:
                raise MemoryError()
        x = aligned(space)
        root = x + wide * wide + 16 * wide
        widened(&matrix[0, 0], x, n, wide, 1, 0)
        good = factored(x, wide)
        if good:
            if real is double:
                root_double(x, x + wide * wide, x + wide * wide + 8 * wide, root, wide)
            else:
                root_float(x, x + wide * wide, x + wide * wide + 8 * wide, root, wide)
        for i in range(n if good else 0):
            memcpy(&out[i, 0], root + i * wide, (i + 1) * sizeof(real))
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
