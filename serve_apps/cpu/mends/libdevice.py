"""libdevice: its functions have an empty body under the interpreter and return None.

vLLM's kernels use `log1p` (0.28) and `isnan` (NaN metrics); both get NumPy's meaning.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

from typing import Any

import numpy as np
from triton.language.extra import libdevice


def apply(interpreter: Any) -> None:
    """Give `log1p` and `isnan` a meaning on interpreter tensors."""
    tl = interpreter.tl

    def log1p(value: Any, **_: Any) -> Any:
        handle = interpreter.interpreter_semantic.builder.unary_op(value.handle, np.log1p)
        return tl.core.tensor(handle, value.type)

    def isnan(value: Any, **_: Any) -> Any:
        # The compiled function returns int32, and callers convert it.
        return (value != value).to(tl.int32)  # NaN is the value unlike itself

    libdevice.log1p = log1p
    libdevice.isnan = isnan
