"""The only door to tensor operations: the best implementation of each for a device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from .linear import Linear as Linear

Backend = Literal["cpu", "plain"]


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of every operation; see kernels/plain.py for what each does."""

    rms_norm: Callable[..., Tensor]
    silu_mul: Callable[..., Tensor]
    rope_append: Callable[..., Tensor]
    seal_pages: Callable[..., None]
    paged_attention: Callable[..., Tensor]
    best_tokens: Callable[..., Tensor]
    draw_tokens: Callable[..., Tensor]


def choose(backend: Backend) -> Ops:
    """The operations of a backend. `plain` runs anywhere, slowly; `cpu` has compiled kernels where they win."""
    from . import plain

    table: dict[str, Any] = {name: getattr(plain, name) for name in Ops.__slots__}
    if backend == "cpu":
        from . import cpu_append, cpu_attention, cpu_sampling

        for module in (cpu_append, cpu_attention, cpu_sampling):
            table.update({name: getattr(module, name) for name in Ops.__slots__ if hasattr(module, name)})
    return Ops(**table)
