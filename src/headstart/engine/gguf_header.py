"""Metadata and tensors of a GGUF file, without loading it.

libllama checks that a file is well-formed, but aborts on some that are. These are detected here
first.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, TypeVar
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from headstart.engine.library import api
from headstart.types.errors import ModelError, plain_text

_ARRAY = 9
T = TypeVar("T", np.float32, np.int64)
# numpy's codes for GGUF's integer and boolean types
_NUMBERS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 7: "?", 10: "u8", 11: "i8"}


def check_file(path: Path) -> None:
    """Reject what libllama would refuse with less helpful messages.

    Raises:
        ModelError: missing, a folder, unreadable, too short, not GGUF, or its name is not text.
    """
    if (name := plain_text(str(path))) != str(path):
        raise ModelError(f"the path {name} is not in UTF-8; rename the file, or name a link to it")
    try:
        with path.open("rb") as file:
            head = file.read(24)
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read: {error.strerror}") from None
    if not head:
        raise ModelError(f"{path} is empty; download it again")
    if head[:4] != b"GGUF":
        raise ModelError(
            f"{path} is not a GGUF file (it does not begin with GGUF); convert the model first"
        )
    if len(head) < 24:
        raise ModelError(f"{path} is cut off after {len(head)} bytes; download it again")


class GgufHeader:
    """The metadata of one file."""

    def __init__(self, path: Path) -> None:
        """Read the metadata.

        Raises:
            ModelError: it is missing or not a GGUF file.
        """
        check_file(path)
        self.path = path
        self._file = api.gguf_init_from_file(str(path).encode(), api.gguf_init_params(True, None))
        if not self._file:
            raise ModelError(f"{path} cannot be read as a GGUF file; download it again")
        finalize(self, api.gguf_free, self._file)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """A text value; empty if it is missing."""
        index = self._find(key)
        if index < 0 or api.gguf_get_kv_type(self._file, index) != 8:  # a string
            return ""
        found: bytes = api.gguf_get_val_str(self._file, index)
        return found.decode("utf-8", "replace")

    def number(self, key: str, default: int = 0) -> int:
        """A number or boolean; the largest of several."""
        return max(self.numbers(key), default=default)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Numbers or booleans, one or an array; empty if missing."""
        index = self._find(key)
        if index < 0:
            return ()
        kind = api.gguf_get_kv_type(self._file, index)
        if kind == _ARRAY:
            count = api.gguf_get_arr_n(self._file, index)
            number = _NUMBERS.get(api.gguf_get_arr_type(self._file, index))
            address = api.gguf_get_arr_data(self._file, index) if number and count else 0
        else:
            count, number = 1, _NUMBERS.get(kind)
            address = api.gguf_get_val_data(self._file, index) if number else 0
        if not address or number is None:
            return ()
        memory: Any = (ctypes.c_char * (count * np.dtype(number).itemsize)).from_address(address)
        return tuple(map(int, np.frombuffer(memory, number)))

    def count(self, key: str) -> int:
        """Length of an array; 0 if missing."""
        index = self._find(key)
        if index < 0 or api.gguf_get_kv_type(self._file, index) != _ARRAY:
            return 0
        return int(api.gguf_get_arr_n(self._file, index))

    def shape(self, tensor: str) -> tuple[int, ...]:
        """A tensor's dimensions in libllama's order, innermost first; empty if missing."""
        index = self._tensor(tensor)
        if index < 0:
            return ()
        dimensions = list(api.gguf_get_tensor_ne(self._file, index)[:4])
        while len(dimensions) > 1 and dimensions[-1] == 1:
            dimensions.pop()
        return tuple(dimensions)

    def values(self, tensor: str, kind: type[T]) -> NDArray[T] | None:
        """A tensor of 64-bit integers or 32-bit floats, flat; None if missing, truncated or of
        another type.
        """
        index = self._tensor(tensor)
        wanted = {np.float32: 0, np.int64: 27}[kind]  # ggml's type ids
        if index < 0 or api.gguf_get_tensor_type(self._file, index) != wanted:
            return None
        start, size = self._place(index)
        with self.path.open("rb") as file:
            file.seek(start)
            data = file.read(size)
        return np.frombuffer(data, kind) if len(data) == size else None

    @property
    def is_cut_off(self) -> bool:
        """Whether the file ends before its last tensor does."""
        last = int(api.gguf_get_n_tensors(self._file)) - 1
        return last >= 0 and self.path.stat().st_size < sum(self._place(last))

    def _place(self, index: int) -> tuple[int, int]:
        """Where in the file a tensor begins, and its bytes."""
        start = int(api.gguf_get_data_offset(self._file))
        start += int(api.gguf_get_tensor_offset(self._file, index))
        return start, int(api.gguf_get_tensor_size(self._file, index))

    def _find(self, key: str) -> int:
        return int(api.gguf_find_key(self._file, key.encode()))

    def _tensor(self, name: str) -> int:
        return int(api.gguf_find_tensor(self._file, name.encode()))
