"""One GPU through NVML: a stand-in for the driver, with the errors of the real binding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from orchestrator.adapters.nvml import THROTTLE_REASONS, GpuReadings, NvmlGpu, throttle_names
from orchestrator.core.node_health import CHOSEN_REASONS, HARDWARE_SLOWDOWN, UNFIT_REASONS
from orchestrator.core.node_state import GpuProcess

GIB = 2**30
Answer = Any
"""What a call returns, an error that it raises, or ABSENT."""
ABSENT = object()
"""The binding has no such function."""
NOT_SUPPORTED = pynvml.NVMLError_NotSupported()
UUIDS = ("GPU-aaaa1111", "GPU-bbbb2222")


@dataclass
class FakeNvml:
    """The functions of ``pynvml`` on a machine with two GPUs, with the real error classes."""

    answers: dict[str, Answer] = field(default_factory=dict)
    """By function; what is not named is not supported."""
    calls: list[tuple[object, ...]] = field(default_factory=list)
    is_open: bool = False

    def nvmlInit(self) -> None:  # noqa: N802  NVML's name
        self.calls.append(("nvmlInit",))
        self._give("nvmlInit", None)
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.calls.append(("nvmlShutdown",))
        self.is_open = False
        self._give("nvmlShutdown", None)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self.calls.append(("nvmlDeviceGetHandleByIndex", index))
        if not self.is_open:
            raise pynvml.NVMLError_Uninitialized
        if index >= len(UUIDS):
            raise pynvml.NVMLError_InvalidArgument
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if uuid not in UUIDS:
            raise pynvml.NVMLError_NotFound
        return UUIDS.index(uuid)

    def nvmlDeviceGetUUID(self, device: int) -> str:  # noqa: N802
        return UUIDS[device]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or self.answers.get(name) is ABSENT:
            raise AttributeError(name)

        def call(*args: object) -> Any:
            self.calls.append((name, *args))
            return self._give(name, NOT_SUPPORTED)

        return call

    def _give(self, name: str, default: Answer) -> Any:
        answer = self.answers.get(name, default)
        if isinstance(answer, Exception):
            raise answer
        return answer


def read(answers: dict[str, Answer], gpu: int | str = 0) -> GpuReadings:
    return gpu_of(FakeNvml(answers), gpu).read()


def gpu_of(nvml: FakeNvml, gpu: int | str = 0) -> NvmlGpu:
    return NvmlGpu(gpu, process_name={4711: "VLLM::EngineCore"}.get, library=nvml)


def context(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, GpuReadings()),
        ({"nvmlInit": pynvml.NVMLError_LibraryNotFound()}, GpuReadings()),
        ({"nvmlInit": pynvml.NVMLError_DriverNotLoaded()}, GpuReadings()),
        ({"nvmlDeviceGetPowerUsage": 19_500}, GpuReadings(power_w=19.5)),
        ({"nvmlDeviceGetPowerUsage": ABSENT}, GpuReadings()),
        ({"nvmlDeviceGetPowerUsage": pynvml.NVMLError_Unknown()}, GpuReadings()),
        ({"nvmlDeviceGetClockInfo": 799}, GpuReadings(sm_clock_mhz=799.0)),
        ({"nvmlDeviceGetClockInfo": 0}, GpuReadings()),
        ({"nvmlDeviceGetMaxClockInfo": 3003}, GpuReadings(sm_clock_max_mhz=3003.0)),
        ({"nvmlDeviceGetMaxClockInfo": pynvml.NVMLError_NotFound()}, GpuReadings()),
        ({"nvmlDeviceGetTemperature": 61}, GpuReadings(temperature_c=61.0)),
        (
            {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=96, memory=0)},
            GpuReadings(utilisation=0.96),
        ),
        (
            {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0)},
            GpuReadings(utilisation=0.0),
        ),
        ({"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=2**32 - 1)}, GpuReadings()),
    ],
)
def test_nvml_what_the_board_does_not_tell_is_none_on_its_own(
    answers: dict[str, Answer], expected: GpuReadings
) -> None:
    assert read(answers) == expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"nvmlDeviceGetCurrentClocksEventReasons": 0}, ()),
        ({"nvmlDeviceGetCurrentClocksEventReasons": 0x1}, ()),
        ({"nvmlDeviceGetCurrentClocksEventReasons": 0x5}, ("SwPowerCap",)),
        (
            {
                "nvmlDeviceGetCurrentClocksEventReasons": ABSENT,
                "nvmlDeviceGetCurrentClocksThrottleReasons": 0x48,
            },
            ("HwSlowdown", "HwThermalSlowdown"),
        ),
        (
            {
                "nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVMLError_FunctionNotFound(),
                "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
            },
            (),
        ),
        ({}, None),
    ],
)
def test_nvml_throttle_reasons_under_both_names(
    answers: dict[str, Answer], expected: tuple[str, ...] | None
) -> None:
    assert read(answers).throttle_reasons == expected


def test_throttle_names_are_the_binding_s_and_unknown_bits_stay_visible() -> None:
    reasons = {
        name.removeprefix(prefix): value
        for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason")
        for name, value in vars(pynvml).items()
        if name.startswith(prefix)
    }

    assert {name: reasons[name] for name in THROTTLE_REASONS.values()} == {
        name: bit for bit, name in THROTTLE_REASONS.items()
    }
    assert throttle_names(1 << 63) == ("0x8000000000000000",)
    assert UNFIT_REASONS | CHOSEN_REASONS | {HARDWARE_SLOWDOWN} <= set(THROTTLE_REASONS.values())


def test_nvml_processes_of_both_kinds_are_merged_and_named() -> None:
    found = read(
        {
            "nvmlDeviceGetComputeRunningProcesses": [
                context(4711, 104 * GIB),
                context(9, 2**64 - 1),
                context(5, 10),
            ],
            "nvmlDeviceGetGraphicsRunningProcesses": [context(5, 12), context(3, None)],
            "nvmlSystemGetProcessName": pynvml.NVMLError_NotFound(),
        }
    ).processes

    assert found == (
        GpuProcess(pid=3, name=None, memory_bytes=None),
        GpuProcess(pid=5, name=None, memory_bytes=12),
        GpuProcess(pid=9, name=None, memory_bytes=None),
        GpuProcess(pid=4711, name="VLLM::EngineCore", memory_bytes=104 * GIB),
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("", "VLLM::EngineCore"),
        (UnicodeDecodeError("utf-8", b"\xc3", 0, 1, "cut"), "VLLM::EngineCore"),
    ],
)
def test_nvml_process_name_falls_back_to_the_kernel_s(name: Answer, expected: str) -> None:
    answers = {
        "nvmlDeviceGetComputeRunningProcesses": [context(4711, None)],
        "nvmlSystemGetProcessName": name,
    }

    assert [process.name for process in read(answers).processes or ()] == [expected]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"nvmlDeviceGetComputeRunningProcesses": []}, ()),
        ({"nvmlDeviceGetGraphicsRunningProcesses": []}, None),
        ({"nvmlDeviceGetComputeRunningProcesses": pynvml.NVMLError_NoPermission()}, None),
    ],
)
def test_nvml_processes_that_are_not_told_are_no_empty_list(
    answers: dict[str, Answer], expected: tuple[GpuProcess, ...] | None
) -> None:
    assert read(answers).processes == expected


def test_nvml_memory_of_the_board_is_not_asked_for() -> None:
    nvml = FakeNvml()

    gpu_of(nvml).read()

    assert not [call for call in nvml.calls if "Memory" in str(call[0])]


def test_nvml_is_opened_at_the_first_reading_and_kept() -> None:
    nvml = FakeNvml({"nvmlDeviceGetPowerUsage": 5_000})
    gpu = gpu_of(nvml)
    opened_by_construction = nvml.is_open

    with ThreadPoolExecutor(4) as pool:
        readings = list(pool.map(lambda _: gpu.read(), range(16)))

    assert not opened_by_construction
    assert {reading.power_w for reading in readings} == {5.0}
    assert nvml.calls.count(("nvmlInit",)) == 1
    assert nvml.calls.count(("nvmlDeviceGetHandleByIndex", 0)) == 1


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVMLError_GpuIsLost(),
        pynvml.NVMLError_Uninitialized(),
        pynvml.NVMLError_DriverNotLoaded(),
        pynvml.NVMLError_LibRmVersionMismatch(),
        pynvml.NVMLError_ResetRequired(),
    ],
)
@pytest.mark.parametrize("shutdown", [None, pynvml.NVMLError_Uninitialized()])
def test_nvml_lost_gpu_has_no_values_and_is_opened_again(
    error: Exception, shutdown: Answer
) -> None:
    nvml = FakeNvml({"nvmlDeviceGetPowerUsage": 5_000, "nvmlShutdown": shutdown})
    gpu = gpu_of(nvml)
    before = gpu.read()
    nvml.answers["nvmlDeviceGetTemperature"] = error
    lost = gpu.read()
    del nvml.answers["nvmlDeviceGetTemperature"]

    assert (before, lost, gpu.read()) == (before, GpuReadings(), before)
    assert nvml.calls.count(("nvmlInit",)) == 2


def test_nvml_that_comes_late_is_found_at_the_next_reading() -> None:
    nvml = FakeNvml(
        {"nvmlInit": pynvml.NVMLError_DriverNotLoaded(), "nvmlDeviceGetPowerUsage": 5_000}
    )
    gpu = gpu_of(nvml)
    absent = gpu.read()
    nvml.answers["nvmlInit"] = None

    assert (absent.power_w, gpu.read().power_w) == (None, 5.0)


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        (1, 1),
        ("1", 1),
        ("1,0", 1),
        (" 0 , 1", 0),
        ("GPU-bbbb2222", 1),
        ("GPU-b", 1),
        ("GPU-bbbb2222,GPU-aaaa1111", 1),
        ("GPU-cccc", None),
        ("2", None),
        ("", None),
        ("-1", None),
        (-1, None),
        ("NoDevFiles", None),
    ],
)
def test_nvml_gpu_is_the_one_that_cuda_visible_devices_names(
    gpu: int | str, device: int | None
) -> None:
    nvml = FakeNvml({"nvmlDeviceGetPowerUsage": 5_000})

    power_w = gpu_of(nvml, gpu).read().power_w

    asked: Sequence[object] = [c[1] for c in nvml.calls if c[0] == "nvmlDeviceGetPowerUsage"]
    assert asked == ([] if device is None else [device])
    assert power_w == (None if device is None else 5.0)
