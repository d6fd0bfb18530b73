"""Shape and size of KV pages: what planning needs to know of them, without a tensor library."""

from dataclasses import dataclass
from typing import Literal

KvDtype = Literal["int4", "bf16", "float32"]


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape and type of the pages of one model."""

    layers: int
    kv_heads: int
    head_dim: int
    page_size: int = 32
    dtype: KvDtype = "int4"

    def __post_init__(self) -> None:
        if self.page_size not in (16, 32, 64, 128):
            raise ValueError(f"page_size {self.page_size}: must be 16, 32, 64 or 128")
        if self.head_dim % 16:
            raise ValueError(f"head_dim {self.head_dim}: must be a multiple of 16")

    @property
    def group(self) -> int:
        """Channels of a value that share a scale."""
        return 64 if self.head_dim % 64 == 0 else self.head_dim

    @property
    def raw_bytes(self) -> int:
        """Bytes of one number on a raw page."""
        return 4 if self.dtype == "float32" else 2

    @property
    def raw_page_bytes(self) -> int:
        """Bytes of one raw page over all layers."""
        return 2 * self.layers * self.kv_heads * self.page_size * self.head_dim * self.raw_bytes

    @property
    def sealed_page_bytes(self) -> int:
        """Bytes of one sealed page over all layers."""
        if self.dtype != "int4":
            return self.raw_page_bytes
        codes = self.page_size * self.head_dim
        scales = 4 * (self.head_dim + self.page_size * self.head_dim // self.group)
        return self.layers * self.kv_heads * (codes + scales)

    @property
    def bf16_page_bytes(self) -> int:
        """Bytes of the same tokens in a bf16 cache."""
        return 4 * self.layers * self.kv_heads * self.page_size * self.head_dim
