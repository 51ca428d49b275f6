"""The node contract on the fake and on this machine, and what Linux and NVML may lack."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.adapters.node import GpuReadings, LocalNode, parse_meminfo, read_nvml
from orchestrator.fakes.world import FakeNode
from orchestrator.ports import Node

MEMINFO = """MemTotal:       125829120 kB
MemFree:         41943040 kB
MemAvailable:   102760448 kB
HugePages_Total:       3
"""


@pytest.fixture(params=["fake", "local"])
def node(request: pytest.FixtureRequest) -> Node:
    if request.param == "fake":
        return FakeNode("n1", kind="gb10")
    return LocalNode("n1", kind="gb10")


class TestNodeContract:
    def test_snapshot_names_the_node(self, node: Node) -> None:
        state = node.snapshot()

        assert (state.node_id, state.kind) == ("n1", "gb10")
        assert state.hostname

    def test_snapshot_memory_is_bytes_and_within_the_total(self, node: Node) -> None:
        state = node.snapshot()

        assert state.mem_available_bytes is not None
        assert state.mem_total_bytes is not None
        assert 2**20 < state.mem_available_bytes <= state.mem_total_bytes

    def test_snapshot_load_is_not_negative(self, node: Node) -> None:
        load = node.snapshot().load_average_1m

        assert load is not None
        assert load >= 0


def test_local_node_without_kernel_files_or_gpu_has_no_values(tmp_path: Path) -> None:
    node = LocalNode("n1", kind="gb10", proc=tmp_path, read_gpu=GpuReadings)

    state = node.snapshot()

    assert state.mem_available_bytes is None
    assert state.mem_total_bytes is None
    assert state.load_average_1m is None
    assert (state.sm_clock_mhz, state.power_w, state.temperature_c) == (None, None, None)


def test_local_node_reads_available_memory_not_free_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "loadavg").write_text("1.25 0.80 0.50 2/345 6789\n")
    readings = GpuReadings(sm_clock_mhz=799.0, power_w=19.5)

    state = LocalNode("n1", kind="gb10", proc=tmp_path, read_gpu=lambda: readings).snapshot()

    assert state.mem_available_bytes == 98 * 2**30
    assert state.mem_total_bytes == 120 * 2**30
    assert state.load_average_1m == 1.25
    assert (state.sm_clock_mhz, state.power_w, state.temperature_c) == (799.0, 19.5, None)


@pytest.mark.parametrize("text", ["", "garbage\n", "MemTotal: many kB\n", "MemTotal\n"])
def test_parse_meminfo_of_no_numbers_is_empty(text: str) -> None:
    assert parse_meminfo(text) == {}


def test_parse_meminfo_counts_without_unit_stay_counts() -> None:
    assert parse_meminfo(MEMINFO)["HugePages_Total"] == 3


class FakeNvmlError(Exception):
    pass


def nvml(**functions: Any) -> SimpleNamespace:
    """Return a stand-in for the bindings, which CI has not; unnamed calls are not supported."""

    def unsupported(*_: object) -> float:
        raise FakeNvmlError("Not Supported")

    names = [
        "nvmlInit",
        "nvmlShutdown",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetTemperature",
    ]
    constants = {"NVMLError": FakeNvmlError, "NVML_CLOCK_SM": 1, "NVML_TEMPERATURE_GPU": 0}
    return SimpleNamespace(**(dict.fromkeys(names, unsupported) | constants | functions))


def up(**functions: Any) -> SimpleNamespace:
    base: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
    }
    return nvml(**(base | functions))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (None, GpuReadings()),
        (nvml(), GpuReadings()),
        (nvml(nvmlInit=lambda: None, nvmlShutdown=lambda: None), GpuReadings()),
        (up(), GpuReadings()),
        (up(nvmlDeviceGetPowerUsage=lambda _handle: 19_500), GpuReadings(power_w=19.5)),
        (
            up(
                nvmlDeviceGetClockInfo=lambda _handle, _kind: 799,
                nvmlDeviceGetTemperature=lambda _handle, _kind: 61,
            ),
            GpuReadings(sm_clock_mhz=799.0, temperature_c=61.0),
        ),
    ],
)
def test_read_nvml_what_the_board_does_not_tell_is_none(
    monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace | None, expected: GpuReadings
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)

    assert read_nvml() == expected
