"""The `vllm.general_plugins` entry point: mends what is interpreted in every engine process.

Inert unless TRITON_INTERPRET=1 and vLLM runs on its CPU platform.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

import os

from serve_apps.cpu.boot import apply_start_method

# Versions whose interpreter was read and tested with these mends.
TESTED_TRITON_VERSIONS = ("3.9.0",)


class UnknownTritonError(RuntimeError):
    """This Triton's interpreter was never tested with the mends; install a tested one."""


def register() -> None:
    """Mend interpreter and CPU kernels, once per process; do nothing where nothing is interpreted.

    Raises:
        UnknownTritonError: Triton is of a version that the mends were not tested with.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from vllm.platforms import current_platform  # noqa: PLC0415  # heavy, and absent elsewhere

    if not current_platform.is_cpu():
        return
    apply_start_method(type(current_platform))
    mend()
    from vllm import _custom_ops  # noqa: PLC0415

    from serve_apps.cpu.mends import stacked_weights  # noqa: PLC0415

    stacked_weights.apply(_custom_ops)


def mend() -> None:
    """Apply every mend to Triton's interpreter in this process; a second call does nothing.

    Raises:
        UnknownTritonError: Triton is of a version that the mends were not tested with.
    """
    import triton  # noqa: PLC0415  # only where kernels are interpreted
    from triton.runtime import interpreter  # noqa: PLC0415

    from serve_apps.cpu.mends import bfloat16, launching, libdevice, masks, patching  # noqa: PLC0415

    if triton.__version__ not in TESTED_TRITON_VERSIONS:
        known = ", ".join(TESTED_TRITON_VERSIONS)
        raise UnknownTritonError(
            f"triton {triton.__version__}: the interpreter's mends were tested with {known} only"
        )
    if getattr(interpreter, "specpilot_mended", False):
        return
    for module in (masks, bfloat16, libdevice, patching, launching):
        module.apply(interpreter)
    interpreter.specpilot_mended = True
