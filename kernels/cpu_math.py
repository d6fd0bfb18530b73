"""Scalar building blocks of the CPU kernels: bit-level conversions as LLVM instructions, and a vectorizable exp.

numba knows no bf16 and no float16 on the CPU; arrays carry their bits as uint16 (kv.as_array).
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

I8, I16, I32, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()

# No reassociation: a row's sums run in one written order, so that results do not depend on how rows are tiled.
FAST = {"contract", "nnan", "ninf", "nsz", "arcp"}


@intrinsic
def widen(typingctx: Any, x: Any) -> Any:
    """bf16 bits (uint16) or float32 -> float32."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if signature.args[0] == types.float32:
            return args[0]
        return b.bitcast(b.shl(b.zext(args[0], I32), ir.Constant(I32, 16)), F32)

    return types.float32(x), generate


@intrinsic
def narrow(typingctx: Any, x: Any, like: Any) -> Any:
    """float32 -> the type of `like`: bf16 bits, rounded to nearest even, or float32."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if signature.args[1] == types.float32:
            return args[0]
        bits = b.bitcast(args[0], I32)
        odd = b.and_(b.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
        rounded = b.add(b.add(bits, ir.Constant(I32, 0x7FFF)), odd)
        return b.trunc(b.lshr(rounded, ir.Constant(I32, 16)), I16)

    return like(types.float32, like), generate


@intrinsic
def half_to_float(typingctx: Any, x: Any) -> Any:
    """float16 bits (uint16) -> float32."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.fpext(b.bitcast(args[0], ir.HalfType()), F32)

    return types.float32(types.uint16), generate


@intrinsic
def float_to_half(typingctx: Any, x: Any) -> Any:
    """float32 -> float16 bits (uint16), rounded to nearest even."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.bitcast(b.fptrunc(args[0], ir.HalfType()), I16)

    return types.uint16(types.float32), generate


@intrinsic
def low_nibble(typingctx: Any, x: Any) -> Any:
    """uint8 -> its low four bits as float32."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.uitofp(b.zext(b.and_(args[0], ir.Constant(I8, 15)), I32), F32)

    return types.float32(types.uint8), generate


@intrinsic
def high_nibble(typingctx: Any, x: Any) -> Any:
    """uint8 -> its high four bits as float32."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.uitofp(b.zext(b.lshr(args[0], ir.Constant(I8, 4)), I32), F32)

    return types.float32(types.uint8), generate


@intrinsic
def power_of_two(typingctx: Any, x: Any) -> Any:
    """2**x for an integral float32 x in -126..127, by its exponent bits."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        exponent = b.add(b.fptosi(args[0], I32), ir.Constant(I32, 127))
        return b.bitcast(b.shl(exponent, ir.Constant(I32, 23)), F32)

    return types.float32(types.float32), generate


@njit(fastmath=FAST, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def exp(x: Any) -> Any:
    """exp for x <= 0 in float32, relative error below 2e-7: a polynomial after Cephes' expf, so that LLVM vectorizes it."""
    x = max(x, np.float32(-87.0))
    n = np.float32(math.floor(x * np.float32(1.44269504) + np.float32(0.5)))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1.0)) * power_of_two(n)
