"""GGUF files: the header, the metadata and dequantized tensors.

The layout is that of the GGUF specification (ggml, docs/gguf.md), versions 2 and 3. The `gguf` package knows the
quantized formats and dequantizes; the header is parsed here because that package's reader makes an array object of
every string, which takes seconds for a vocabulary of 150,000 tokens where this takes tenths.
"""

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import InputDataError, Problem

if TYPE_CHECKING:
    import torch

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CHUNK = 1 << 17  # elements dequantized at once: few enough to stay in cache, enough to drown numpy's call overhead
_SERIAL = 1 << 15  # elements torch converts without waking its thread pool, whose waits cost more than the work


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies. `shape` is row-major (the file's order reversed); `offset` counts from the file's start."""

    shape: tuple[int, ...]
    kind: int  # a gguf.GGMLQuantizationType
    offset: int


class GgufFile:
    """A GGUF file, mapped into memory. Raises InputDataError where it is damaged, truncated or of an unknown kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # writable views, the file untouched
        except (OSError, ValueError) as error:
            raise self.error(f"cannot be read: {error}") from error
        cursor = _Cursor(self._data)
        try:
            tensor_count, pair_count = self._start(cursor)
            self.metadata: dict[str, Any] = {cursor.string(): cursor.value() for _ in range(pair_count)}
            infos = [(cursor.string(), *cursor.tensor_info()) for _ in range(tensor_count)]
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise self.error(f"damaged or truncated at byte {cursor.position} of its header") from error
        if self.metadata.get("split.count", 1) > 1:
            raise self.error("one part of a split model", "join the parts first (llama-gguf-split --merge)")
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-cursor.position // alignment) * alignment
        self.tensors = {name: GgufTensor(shape, kind, start + offset) for name, shape, kind, offset in infos}
        self._check_extents()

    def error(self, message: str, hint: str = "fetch it again") -> InputDataError:
        """An InputDataError about this file."""
        return InputDataError(Problem(self.path.name, message, hint))

    def read_into(self, name: str, out: "torch.Tensor") -> None:
        """Dequantizes a tensor into `out`, which is contiguous, of the tensor's shape and of any floating type.

        Raises InputDataError where the quantization has no dequantizer.
        """
        import numpy as np
        import torch
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

        tensor = self.tensors[name]
        kind = GGMLQuantizationType(tensor.kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        blocks = math.prod(tensor.shape) // block
        raw = np.frombuffer(self._data, np.uint8, blocks * block_bytes, tensor.offset).reshape(blocks, block_bytes)
        flat = out.view(-1)
        step = max(1, _CHUNK // block)
        for first in range(0, blocks, step):
            # One long row: `dequantize` works through groups of rows, and its cost is per group.
            chunk = raw[first : first + step].reshape(1, -1)
            try:
                values = dequantize(chunk, kind)
            except NotImplementedError as error:
                raise self.error(f"tensor {name} is of type {kind.name}, which cannot be read", "use another quant") from error
            target = flat[first * block : first * block + values.size]
            source = torch.from_numpy(values.reshape(-1))
            for to, of in zip(torch.split(target, _SERIAL), torch.split(source, _SERIAL), strict=True):
                to.copy_(of)

    def _start(self, cursor: "_Cursor") -> tuple[int, int]:
        """Checks magic and version; numbers of tensors and of metadata pairs."""
        magic, version = cursor.take("4sI")
        if magic != b"GGUF":
            raise self.error("not a GGUF file")
        if version not in (2, 3):
            raise self.error(f"GGUF version {version} is not supported", "versions 2 and 3, little-endian, are")
        tensor_count, pair_count = cursor.take("QQ")
        return tensor_count, pair_count

    def _check_extents(self) -> None:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        known = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
        for name, tensor in self.tensors.items():
            if tensor.kind not in known:
                raise self.error(f"tensor {name} is of unknown type {tensor.kind}", "update the gguf package")
            block, block_bytes = known[tensor.kind]
            if not tensor.shape or tensor.shape[-1] % block:
                kind = GGMLQuantizationType(tensor.kind).name
                raise self.error(f"tensor {name} of shape {list(tensor.shape)} does not divide into blocks of {kind}")
            end = tensor.offset + math.prod(tensor.shape) // block * block_bytes
            if end > len(self._data):
                raise self.error(f"truncated: tensor {name} ends at byte {end:,}, the file at {len(self._data):,}")


class _Cursor:
    """Reads little-endian values one after another. struct.error at the end of the data."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self._data, self.position)
        self.position += struct.calcsize("<" + layout)
        return values

    def string(self) -> str:
        (length,) = self.take("Q")
        if length > len(self._data) - self.position:
            raise struct.error("a string past the end")
        self.position += length
        return self._data[self.position - length : self.position].decode()

    def value(self) -> Any:
        (kind,) = self.take("I")
        return self._of(kind)

    def tensor_info(self) -> tuple[tuple[int, ...], int, int]:
        (dimensions,) = self.take("I")
        shape = self.take(f"{dimensions}Q")
        kind, offset = self.take("IQ")
        return tuple(reversed(shape)), kind, offset

    def _of(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.take(_SCALARS[kind])[0]
        item_kind, length = self.take("IQ")
        if length > len(self._data) - self.position:
            raise struct.error("an array past the end")
        if item_kind in _SCALARS:
            return list(self.take(f"{length}{_SCALARS[item_kind]}"))
        read: Callable[[], Any] = self.string if item_kind == _STRING else lambda: self._of(item_kind)
        return [read() for _ in range(length)]
