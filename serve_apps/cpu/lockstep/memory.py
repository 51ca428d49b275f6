"""Loads and stores by address: one NumPy view of the process's memory per element type."""

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# The views begin one page up, since NumPy refuses a null pointer, and end where user space does.
_BASE = 4096
_END = 1 << 47


@functools.cache
def view(dtype: np.dtype[Any]) -> Array:
    """Return an array of the given element type over the whole address space.

    Element i lies at address 4096 + i * itemsize. Touching an address that nobody mapped is a
    segmentation fault, exactly as in the interpreter's own loads.
    """
    count = (_END - _BASE) // dtype.itemsize
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(_BASE)
    return np.frombuffer(raw, dtype=dtype)


class Accessor:
    """Reads and writes elements of one type at int64 addresses."""

    __slots__ = ("_memory", "_scratch", "_shift", "dtype")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._memory = view(dtype)
        self._shift = dtype.itemsize.bit_length() - 1
        # Masked-off lanes read here, so that one unconditional gather serves all of them.
        self._scratch = np.zeros(64, np.uint8)

    def _index(self, address: Array) -> Array:
        offset = address - _BASE
        if offset.size and int(np.bitwise_or.reduce(offset, axis=None)) & (self.dtype.itemsize - 1):
            raise ValueError(f"misaligned address for {self.dtype}")
        return offset >> self._shift if self._shift else offset

    def load(self, address: Array) -> Array:
        """Return the elements at the addresses, in their shape."""
        return self._memory.take(self._index(address))

    def load_masked(self, address: Array, mask: Array, other: Array | None) -> Array:
        """Return elements where the mask holds, else `other` (zero when None)."""
        if mask.all():
            loaded = self.load(address)
            shape = np.broadcast_shapes(address.shape, mask.shape)
            return loaded if loaded.shape == shape else np.broadcast_to(loaded, shape)
        safe = np.where(mask, address, self._scratch.ctypes.data)
        loaded = self.load(safe)
        return np.where(mask, loaded, self.dtype.type(0) if other is None else other)

    def store(self, address: Array, value: Array) -> None:
        """Write the values at the addresses; the last of equal addresses wins."""
        self._memory[self._index(address)] = value

    def store_masked(self, address: Array, value: Array, mask: Array) -> None:
        """Write the values where the mask holds."""
        if mask.all():
            shape = np.broadcast_shapes(address.shape, value.shape, mask.shape)
            self.store(np.broadcast_to(address, shape), value)
            return
        address, value, mask = np.broadcast_arrays(address, value, mask)
        self._memory[self._index(address[mask])] = value[mask]


@functools.cache
def accessor(dtype: np.dtype[Any]) -> Accessor:
    """Return the process's accessor for an element type."""
    return Accessor(dtype)
