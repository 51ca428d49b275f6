"""The node contract on the fake and on this machine, and what Linux may lack."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import pytest

from orchestrator.adapters.cgroup import memory_available
from orchestrator.adapters.node import LocalNode
from orchestrator.adapters.nvml import GpuReadings
from orchestrator.adapters.procfs import (
    count_cores,
    page_cache_bytes,
    parse_load_average,
    parse_meminfo,
    process_name,
    swap_used_bytes,
)
from orchestrator.core.node_state import GpuProcess
from orchestrator.fakes.world import FakeNode, fake_node_state
from orchestrator.ports import Node

GIB = 2**30
MEMINFO = """MemTotal:       125829120 kB
MemFree:        41943040 kB
MemAvailable:   102760448 kB
Buffers:         2097152 kB
Cached:         62914560 kB
SwapTotal:      16777216 kB
SwapFree:       15728640 kB
Shmem:           4194304 kB
SReclaimable:    1048576 kB
HugePages_Total:       3
"""


def local_node(proc: Path) -> LocalNode:
    return LocalNode("n1", kind="gb10", proc=proc, read_gpu=GpuReadings)


class NodeContract:
    """What every node promises; a subclass says which."""

    @pytest.fixture
    def node(self) -> Node:
        raise NotImplementedError

    def test_snapshot_names_the_node(self, node: Node) -> None:
        state = node.snapshot()

        assert (state.node_id, state.kind) == ("n1", "gb10")
        assert state.hostname

    def test_available_memory_alone_is_within_the_total(self, node: Node) -> None:
        available = node.memory_available()

        assert available is not None
        assert 0 <= available <= (node.snapshot().mem_total_bytes or 0)

    def test_snapshot_memory_is_bytes_and_within_the_total(self, node: Node) -> None:
        state = node.snapshot()

        assert state.mem_total_bytes is not None
        for part in (state.mem_available_bytes, state.mem_free_bytes, state.page_cache_bytes):
            assert part is not None
            assert 0 <= part <= state.mem_total_bytes
        assert state.mem_available_bytes is not None
        assert state.mem_available_bytes > 2**20
        assert state.swap_used_bytes is not None
        assert state.swap_used_bytes >= 0

    def test_snapshot_load_is_not_negative_and_has_cores_to_stand_on(self, node: Node) -> None:
        state = node.snapshot()

        assert state.load_average_1m is not None
        assert state.load_average_1m >= 0
        assert state.num_cores is not None
        assert state.num_cores >= 1

    def test_snapshot_gpu_values_are_unknown_or_possible(self, node: Node) -> None:
        state = node.snapshot()

        for value in (state.sm_clock_mhz, state.sm_clock_max_mhz, state.power_w):
            assert value is None or value > 0
        assert state.utilisation is None or 0 <= state.utilisation <= 1
        assert not any("idle" in name.lower() for name in state.throttle_reasons or ())
        pids = [process.pid for process in state.gpu_processes or ()]
        assert len(pids) == len(set(pids))

    def test_snapshot_from_several_threads_is_of_one_node(self, node: Node) -> None:
        with ThreadPoolExecutor(4) as pool:
            states = list(pool.map(lambda _: node.snapshot(), range(8)))

        assert {(state.node_id, state.num_cores) for state in states} == {
            ("n1", states[0].num_cores)
        }


class TestFakeNode(NodeContract):
    @pytest.fixture
    def node(self) -> Node:
        return FakeNode("n1", kind="gb10")


class TestLocalNode(NodeContract):
    @pytest.fixture
    def node(self) -> Node:
        return LocalNode("n1", kind="gb10")


def test_fake_node_reports_its_script_then_its_state() -> None:
    hot = replace(fake_node_state(), temperature_c=95.0)
    node = FakeNode(script=[hot])

    states = [node.snapshot(), node.snapshot()]
    node.state = replace(node.state, sm_clock_mhz=799.0)

    assert states == [hot, fake_node_state()]
    assert node.snapshot().sm_clock_mhz == 799.0
    assert node.num_snapshots == 3


def test_local_node_without_kernel_files_or_gpu_has_no_values(tmp_path: Path) -> None:
    state = local_node(tmp_path).snapshot()

    named = {"node_id", "kind", "hostname"}
    assert {getattr(state, item.name) for item in fields(state) if item.name not in named} == {None}


def test_local_node_tells_free_available_and_reclaimable_memory_apart(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "loadavg").write_text("1.25 0.80 0.50 2/345 6789\n")
    (tmp_path / "stat").write_text("cpu  9 9\ncpu0 4 4\ncpu1 5 5\nintr 1\n")

    state = local_node(tmp_path).snapshot()

    assert state.mem_available_bytes == 98 * GIB
    assert state.mem_free_bytes == 40 * GIB
    assert state.mem_total_bytes == 120 * GIB
    assert state.page_cache_bytes == (60 - 4 + 2 + 1) * GIB
    assert state.swap_used_bytes == 1 * GIB
    assert (state.load_average_1m, state.num_cores) == (1.25, 2)


def test_local_node_takes_over_all_that_the_gpu_tells(tmp_path: Path) -> None:
    process = GpuProcess(pid=7, name="VLLM::EngineCore", memory_bytes=None)
    readings = GpuReadings(
        sm_clock_mhz=799.0,
        sm_clock_max_mhz=3003.0,
        power_w=19.5,
        temperature_c=61.0,
        utilisation=0.96,
        throttle_reasons=("SwPowerCap",),
        processes=(process,),
    )

    state = LocalNode("n1", kind="gb10", proc=tmp_path, read_gpu=lambda: readings).snapshot()

    assert (state.sm_clock_mhz, state.sm_clock_max_mhz) == (799.0, 3003.0)
    assert (state.power_w, state.temperature_c, state.utilisation) == (19.5, 61.0, 0.96)
    assert (state.throttle_reasons, state.gpu_processes) == (("SwPowerCap",), (process,))


@pytest.mark.parametrize("text", ["", "garbage\n", "MemTotal: many kB\n", "MemTotal\n"])
def test_parse_meminfo_of_no_numbers_is_empty(text: str) -> None:
    assert parse_meminfo(text) == {}


def test_parse_meminfo_counts_without_unit_stay_counts() -> None:
    assert parse_meminfo(MEMINFO)["HugePages_Total"] == 3


@pytest.mark.parametrize(
    ("memory", "expected"),
    [({}, None), ({"Buffers": 9}, None), ({"Cached": 5}, 5), ({"Cached": 5, "Shmem": 7}, 0)],
)
def test_page_cache_is_what_can_be_dropped(memory: dict[str, int], expected: int | None) -> None:
    assert page_cache_bytes(memory) == expected


@pytest.mark.parametrize(
    ("memory", "expected"),
    [({}, None), ({"SwapTotal": 5}, None), ({"SwapTotal": 0, "SwapFree": 0}, 0)],
)
def test_swap_used_without_swap_is_0_and_untold_is_none(
    memory: dict[str, int], expected: int | None
) -> None:
    assert swap_used_bytes(memory) == expected


@pytest.mark.parametrize("text", ["", "\n", "much 0.1\n"])
def test_load_and_cores_that_are_not_told_are_none(text: str) -> None:
    assert parse_load_average(text) is None
    assert count_cores(text) is None


def test_process_name_is_the_command_else_the_short_name_else_none(tmp_path: Path) -> None:
    for pid, cmdline, comm in [(1, "VLLM::EngineCore\0\0", "VLLM::EngineCor"), (2, "", "kworker")]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text(cmdline)
        (tmp_path / str(pid) / "comm").write_text(comm + "\n")

    names = [process_name(pid, tmp_path) for pid in (1, 2, 3)]

    assert names == ["VLLM::EngineCore", "kworker", None]


def write_group(folder: Path, names: tuple[str, str], limit: str, used: int, stat: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def in_container(tmp_path: Path, own: str) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(own)
    (proc / "meminfo").write_text(MEMINFO)
    return proc


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
HOST = 102760448 * 1024


@pytest.mark.parametrize(
    ("limit", "available"),
    [(str(16 * GIB), 16 * GIB - 6 * GIB + GIB), (str(500 * GIB), HOST), ("max", HOST)],
)
def test_memory_of_a_container_is_what_its_limit_leaves(
    tmp_path: Path, limit: str, available: int
) -> None:
    proc = in_container(tmp_path, "0::/\n")
    stat = f"anon 1\ninactive_file {GIB}\n"
    write_group(tmp_path / "sys/fs/cgroup", V2, limit, 6 * GIB, stat)

    state = local_node(proc).snapshot()

    assert state.mem_available_bytes == available
    assert local_node(proc).memory_available() == available
    assert state.mem_total_bytes == 120 * GIB


def test_smallest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    proc = in_container(tmp_path, "0::/pod/engine\n")
    root = tmp_path / "sys/fs/cgroup"
    write_group(root / "pod" / "engine", V2, "max", GIB, "")
    write_group(root / "pod", V2, str(8 * GIB), 2 * GIB, "")

    assert local_node(proc).snapshot().mem_available_bytes == 6 * GIB


@pytest.mark.parametrize("place", ["", "docker/abc"], ids=["own mount", "path of the host"])
def test_limit_of_version_1_is_found_and_none_is_none(tmp_path: Path, place: str) -> None:
    own = "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n"
    proc = in_container(tmp_path, own)
    group = tmp_path / "sys/fs/cgroup/memory" / place
    stat = f"inactive_file 5\ntotal_inactive_file {GIB}\n"
    write_group(group, V1, str(8 * GIB), 9 * GIB, stat)
    assert local_node(proc).snapshot().mem_available_bytes == 0

    write_group(group, V1, "9223372036854771712", 9 * GIB, stat)
    assert local_node(proc).snapshot().mem_available_bytes == HOST


def test_limit_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert memory_available(tmp_path / "proc") is None
    proc = in_container(tmp_path, "nonsense\n0::/\n4:memory:/\n")
    write_group(tmp_path / "sys/fs/cgroup", V2, "odd", 1, "")
    assert memory_available(proc) is None
    (proc / "meminfo").write_text("MemTotal: 1 kB\n")
    assert local_node(proc).snapshot().mem_available_bytes is None
    assert local_node(proc).memory_available() is None
