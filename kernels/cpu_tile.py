"""Register tiles of the CPU kernels, written as LLVM vectors.

numba would wrap loops this short in checks for overlapping arrays that cost more than their work. Vectors have 16 lanes:
one AVX-512 register, two AVX2 registers, four NEON registers.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .cpu_math import FAST

LANES = 16
F32, I8, I16, I32 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)
VECTOR = ir.VectorType(F32, LANES)


def _pointer(context: Any, b: Any, array_type: Any, array: Any, *index: Any) -> Any:
    """Address of an element of a C-ordered array."""
    layout = context.make_array(array_type)(context, b, array)
    flat = index[0]
    for axis, i in enumerate(index[1:], 1):
        flat = b.add(b.mul(flat, b.extract_value(layout.shape, axis)), i)
    return b.gep(layout.data, [flat])


def _load(b: Any, pointer: Any, offset: int, kind: Any) -> Any:
    at = b.bitcast(b.gep(pointer, [ir.Constant(ir.IntType(64), offset)]), kind.as_pointer())
    return b.load(at, align=1)


def _store(b: Any, value: Any, pointer: Any, offset: int) -> None:
    b.store(value, b.bitcast(b.gep(pointer, [ir.Constant(ir.IntType(64), offset)]), VECTOR.as_pointer()), align=1)


def _splat(b: Any, scalar: Any) -> Any:
    single = b.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(single, ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(I32, LANES), [0] * LANES))


def _multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    return b.fadd(b.fmul(x, y, flags=("contract",)), z, flags=("contract",))


@intrinsic(prefer_literal=True)
def _tile(typingctx: Any, out: Any, a: Any, b: Any, row: Any, col: Any, inner: Any, rows: Any, vectors: Any) -> Any:
    """out[row:row+rows, col:col+16*vectors] += a[row:row+rows, :inner] @ b[:inner, col:...]; rows and vectors are literals."""
    n, m = rows.literal_value, vectors.literal_value

    def generate(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        out_t, a_t, b_t = signature.args[:3]
        row_v, col_v = args[3], args[4]
        row_at = [bd.add(row_v, ir.Constant(row_v.type, i)) for i in range(n)]
        targets = [_pointer(context, bd, out_t, args[0], r, col_v) for r in row_at]
        sums = [[cgutils.alloca_once_value(bd, _load(bd, t, LANES * j, VECTOR)) for j in range(m)] for t in targets]
        with cgutils.for_range(bd, args[5]) as loop:
            source = _pointer(context, bd, b_t, args[2], loop.index, col_v)
            columns = [_load(bd, source, LANES * j, VECTOR) for j in range(m)]
            for i in range(n):
                x = _splat(bd, bd.load(_pointer(context, bd, a_t, args[1], row_at[i], loop.index)))
                for j in range(m):
                    bd.store(_multiply_add(bd, x, columns[j], bd.load(sums[i][j])), sums[i][j])
        for i in range(n):
            for j in range(m):
                _store(bd, bd.load(sums[i][j]), targets[i], LANES * j)
        return context.get_dummy_value()

    return types.none(out, a, b, types.int64, types.int64, types.int64, rows, vectors), generate


@njit(fastmath=FAST, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _add_rows(out: Any, a: Any, b: Any, r: Any, inner: Any, cols: Any, rows: Any) -> None:
    """Few kinds of tile, each with at least eight sums under way on AVX2 or AVX-512: every kind costs seconds to compile."""
    c = 0
    if rows == 4:
        while c + 2 * LANES <= cols:
            _tile(out, a, b, r, c, inner, 4, 2)
            c += 2 * LANES
        if c < cols:
            _tile(out, a, b, r, c, inner, 4, 1)
        return
    while c + 4 * LANES <= cols:
        if rows == 2:
            _tile(out, a, b, r, c, inner, 2, 4)
        else:
            _tile(out, a, b, r, c, inner, 1, 4)
        c += 4 * LANES
    while c < cols:
        if rows == 2:
            _tile(out, a, b, r, c, inner, 2, 1)
        else:
            _tile(out, a, b, r, c, inner, 1, 1)
        c += LANES


@njit(fastmath=FAST, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def add_matmul(out: Any, a: Any, b: Any, rows: Any, inner: Any, cols: Any) -> None:
    """out[:rows, :cols] += a[:rows, :inner] @ b[:inner, :cols] in float32; cols is a multiple of 16.

    A row's sums run over `inner` in order, however rows are tiled, so that no row depends on its neighbours.
    """
    r = 0
    while r + 4 <= rows:
        _add_rows(out, a, b, r, inner, cols, 4)
        r += 4
    if r + 2 <= rows:
        _add_rows(out, a, b, r, inner, cols, 2)
        r += 2
    if r < rows:
        _add_rows(out, a, b, r, inner, cols, 1)


@intrinsic
def unpack16(typingctx: Any, codes: Any, at: Any, scale: Any, minimum: Any, out: Any, row: Any, low: Any, high: Any) -> Any:
    """Sixteen packed bytes codes[at:at+16] to out[row, low:low+16] (low nibbles) and out[row, high:high+16]."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        packed = _load(b, _pointer(context, b, signature.args[0], args[0], args[1]), 0, ir.VectorType(I8, LANES))
        fifteen, four = (ir.Constant(packed.type, [n] * LANES) for n in (15, 4))
        scales, minimums = _splat(b, args[2]), _splat(b, args[3])
        for nibbles, column in ((b.and_(packed, fifteen), args[6]), (b.lshr(packed, four), args[7])):
            numbers = b.uitofp(b.zext(nibbles, ir.VectorType(I32, LANES)), VECTOR)
            target = _pointer(context, b, signature.args[4], args[4], args[5], column)
            _store(b, _multiply_add(b, numbers, scales, minimums), target, 0)
        return context.get_dummy_value()

    i, f = types.int64, types.float32
    return types.none(codes, i, f, f, out, i, i, i), generate


@intrinsic
def widen16(typingctx: Any, raw: Any, at: Any, out: Any, row: Any, col: Any) -> Any:
    """Sixteen values raw[at:at+16], bf16 bits (uint16) or float32, to out[row, col:col+16]."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source = _pointer(context, b, signature.args[0], args[0], args[1])
        if signature.args[0].dtype == types.float32:
            values = _load(b, source, 0, VECTOR)
        else:
            bits = b.zext(_load(b, source, 0, ir.VectorType(I16, LANES)), ir.VectorType(I32, LANES))
            values = b.bitcast(b.shl(bits, ir.Constant(bits.type, [16] * LANES)), VECTOR)
        _store(b, values, _pointer(context, b, signature.args[2], args[2], args[3], args[4]), 0)
        return context.get_dummy_value()

    i = types.int64
    return types.none(raw, i, out, i, i), generate
