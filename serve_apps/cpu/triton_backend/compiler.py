"""The compiler half of the backend: present because Triton demands one, and never compiles."""

# mypy: disable-error-code="import-untyped,import-not-found"

from types import ModuleType
from typing import Any

import triton.backends.compiler as base
from triton.backends.compiler import GPUTarget

_REFUSAL = "the cpu backend only interprets: set TRITON_INTERPRET=1 before triton is imported"


class CpuBackend(base.BaseBackend):  # type: ignore[misc]  # Triton has no types
    """Backend that refuses every compilation with the way out in its message."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        """Return whether the target names this backend."""
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        """Return the identity of this backend's (absent) code generator."""
        return "cpu-interpreter"

    def parse_options(self, options: dict[str, Any]) -> object:
        """Refuse to compile."""
        raise NotImplementedError(_REFUSAL)

    def add_stages(self, stages: dict[str, Any], options: object, language: Any) -> None:
        """Refuse to compile."""
        raise NotImplementedError(_REFUSAL)

    def load_dialects(self, context: Any) -> None:
        """Load nothing: there is no code generator."""

    def get_module_map(self) -> dict[str, ModuleType]:
        """Return no replacement: the interpreter's libdevice is mended by the plugin."""
        return {}
