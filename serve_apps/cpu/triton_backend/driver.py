"""The driver half of the backend: says whether it is active, and that the target is a CPU."""

# mypy: disable-error-code="import-untyped,import-not-found"

import os
from pathlib import Path
from typing import Any, ClassVar

import triton.backends.driver as base
from triton.backends.compiler import GPUTarget

# A device node appears as soon as a GPU driver is loaded; looking for it needs no CUDA call
# (which would be unsafe before a fork) and no torch.
_GPU_DEVICE_NODES = ("/dev/nvidiactl", "/dev/kfd")


class CpuDriver(base.DriverBase):  # type: ignore[misc]  # Triton has no types
    """Driver that is active only under the interpreter on a machine without a GPU."""

    target: ClassVar[str] = "cpu"

    @staticmethod
    def is_active() -> bool:
        """Return whether kernels are interpreted here.

        An active second driver makes Triton refuse to choose on a GPU machine, so both
        conditions are needed: the interpreter was asked for, and no GPU driver is loaded.
        """
        if os.environ.get("TRITON_INTERPRET") != "1":
            return False
        return not any(Path(node).exists() for node in _GPU_DEVICE_NODES)

    def get_current_target(self) -> GPUTarget:
        """Return the target that names this backend."""
        return GPUTarget(self.target, 0, 0)

    def get_active_torch_device(self) -> Any:
        """Return torch's CPU device."""
        import torch  # noqa: PLC0415  # importing torch here would load it in every process

        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Refuse: only a compiled launcher needs C++ types."""
        raise NotImplementedError(f"the interpreter needs no C++ type for {ty}")

    def get_benchmarker(self) -> Any:
        """Refuse: autotuning an interpreted kernel measures nothing."""
        raise NotImplementedError("an interpreted kernel is not benchmarked")

    def get_device_interface(self) -> Any:
        """Return torch's CPU module, which has the stream calls of a device interface."""
        import torch  # noqa: PLC0415

        return torch.cpu

    def get_empty_cache_for_benchmark(self) -> Any:
        """Refuse: see `get_benchmarker`."""
        raise NotImplementedError("an interpreted kernel is not benchmarked")

    def allocate_default_profile_scratch(self, size: int, alignment: int, stream: Any) -> Any:
        """Refuse: the interpreter has no profiler."""
        raise NotImplementedError(f"no profile scratch of {size} bytes ({alignment}, {stream})")

    def get_current_device(self) -> int:
        """Return the only device's index."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the null stream, whatever the device."""
        del device
        return 0
