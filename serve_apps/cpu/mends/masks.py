"""Integer masks: the interpreter's gather and scatter accept boolean masks only.

A compiled kernel takes any integer as a mask after truncation to one bit; Triton's semantic
layer does not convert in the interpreter and the C++ part answers "mask has unsupported dtype".
"""

from typing import Any

import numpy as np


def apply(interpreter: Any) -> None:
    """Convert masks to boolean in front of every masked load and store."""
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def boolean(mask: Any) -> Any:
        if mask.data.dtype == np.bool_:
            return mask
        return interpreter.TensorHandle(mask.data.astype(np.bool_), interpreter.tl.int1)

    def masked_load(
        self: Any, ptrs: Any, mask: Any, other: Any, cache_policy: Any, is_volatile: Any
    ) -> Any:
        return load(self, ptrs, boolean(mask), other, cache_policy, is_volatile)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, cache_policy: Any) -> Any:
        return store(self, ptrs, value, boolean(mask), cache_policy)

    builder.create_masked_load = masked_load
    builder.create_masked_store = masked_store
