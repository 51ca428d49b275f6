"""Loads and stores by address: one NumPy view of the process's memory per element type."""

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Journal = list[tuple[Array, Array, Array]]

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
    memory: Array = np.frombuffer(raw, dtype=dtype)  # type: ignore[call-overload]  # a ctypes buffer
    return memory


class Accessor:
    """Reads and writes elements of one type at int64 addresses."""

    __slots__ = ("_memory", "_scratch", "_scratch_address", "_shift", "dtype")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._memory = view(dtype)
        self._shift = dtype.itemsize.bit_length() - 1
        # Masked-off lanes read here, so that one unconditional gather serves all of them.
        self._scratch = np.zeros(16, np.float64)
        self._scratch_address = self._scratch.ctypes.data

    def _index(self, address: Array) -> Array:
        # Addresses are aligned: arguments and loaded pointers are checked where they enter.
        offset = address - _BASE
        return offset >> self._shift if self._shift else offset

    def load(self, address: Array) -> Array:
        """Return the elements at the addresses, in their shape."""
        return self._memory.take(self._index(address))

    def load_masked(self, address: Array, mask: Array, other: Array | None) -> Array:
        """Return elements where the mask holds, else `other` (zero when None)."""
        if mask.all():
            loaded = self.load(address)
            if loaded.ndim == 1 or loaded.shape[1:] == mask.shape[1:] or mask.size == 1:
                return loaded
            return np.broadcast_to(loaded, np.broadcast_shapes(loaded.shape, mask.shape))
        safe = np.where(mask, address, self._scratch_address)
        loaded = self.load(safe)
        return np.where(mask, loaded, self.dtype.type(0) if other is None else other)

    def store(self, journal: Journal, address: Array, value: Array) -> None:
        """Write the values at the addresses; the last of equal addresses wins."""
        index = self._index(address)
        journal.append((self._memory, index, self._memory.take(index)))
        self._memory[index] = value

    def store_masked(self, journal: Journal, address: Array, value: Array, mask: Array) -> None:
        """Write the values where the mask holds."""
        if not mask.all():
            address, value, mask = np.broadcast_arrays(address, value, mask)
            address, value = address[mask], value[mask]
        self.store(journal, address, value)


@functools.cache
def accessor(dtype: np.dtype[Any]) -> Accessor:
    """Return the process's accessor for an element type."""
    return Accessor(dtype)
