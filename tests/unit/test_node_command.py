"""``node``: the state as a table or JSON, the verdicts, the exit status."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from orchestrator.core.codec import from_plain
from orchestrator.core.node_state import GpuProcess, NodeState
from orchestrator.fakes.world import FakeNode, fake_node_state
from orchestrator.node_command import add_parser, run

GIB = 2**30


def parse(*words: str) -> argparse.Namespace:
    root = argparse.ArgumentParser()
    add_parser(root.add_subparsers(dest="command"))
    return root.parse_args(["node", *words])


def node(**changes: object) -> FakeNode:
    state = replace(fake_node_state("n1", kind="gb10"), **changes)  # type: ignore[arg-type]
    return FakeNode(script=[state])


def test_node_prints_state_and_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(parse(), node=node())

    out = capsys.readouterr().out
    assert status == 0
    assert "node               n1 (gb10)\n" in out
    assert "SM clock           2400 MHz of 3003 MHz\n" in out
    assert "load average       0.50 on 20 cores\n" in out
    assert "throttled by       nothing\n" in out
    assert "fit to measure on  yes\n" in out
    assert "fit to boot on     yes\n" in out


def test_node_value_that_is_not_told_is_a_dash_and_no_zero(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(parse(), node=node(power_w=None, throttle_reasons=None, gpu_processes=None))

    out = capsys.readouterr().out
    for name in ("power", "throttled by", "on the GPU"):
        assert f"{name:<17}  -\n" in out


def test_node_with_an_orphaned_engine_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    orphan = GpuProcess(pid=4711, name="VLLM::EngineCore", memory_bytes=104 * GIB)
    shell = GpuProcess(pid=12, name="gnome-shell", memory_bytes=None)

    status = run(parse(), node=node(gpu_processes=(orphan, shell)))

    out = capsys.readouterr().out
    assert status == 1
    assert "on the GPU         pid 4711, VLLM::EngineCore, 104.0 GiB\n" in out
    assert "                   pid 12, gnome-shell, -\n" in out
    assert "fit to measure on  yes\n" in out
    assert "fit to boot on     unfit: another engine holds the GPU" in out


def test_node_process_that_wipes_the_screen_is_shown_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = GpuProcess(pid=12, name="a\n\x1b[2Jfit to boot on     yes", memory_bytes=None)

    run(parse(), node=node(gpu_processes=(named,)))

    assert r"pid 12, a\n\x1b[2Jfit" in capsys.readouterr().out


def test_node_that_is_doubtful_is_status_0_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(parse("--engine-gib", "98"), node=node())

    assert status == 0
    assert "fit to boot on     degraded: reclaimable page cache" in capsys.readouterr().out


def test_node_floor_is_asked_of_measuring_too(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(parse("--floor-gib", "100.5"), node=node())

    assert status == 1
    assert "fit to measure on  unfit: 100.0 GiB" in capsys.readouterr().out


def test_node_json_is_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    source = node(temperature_c=None)
    run(parse("--json"), node=source)

    plain = json.loads(capsys.readouterr().out)
    assert from_plain(NodeState, plain["state"]) == replace(
        fake_node_state("n1", kind="gb10"), temperature_c=None
    )
    assert plain["measure"] == plain["boot"] == {"fitness": "fit", "reason": ""}


@pytest.mark.parametrize("size", ["0", "-1", "many", "inf", "nan"])
def test_node_size_that_is_none_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse("--engine-gib", size)

    assert stopped.value.code == 2
    assert "no size in GiB" in capsys.readouterr().err


def test_node_of_this_machine_is_read_without_ray_or_mlflow() -> None:
    code = (
        "import argparse, sys\n"
        "from orchestrator.node_command import add_parser, run\n"
        "root = argparse.ArgumentParser()\n"
        "add_parser(root.add_subparsers())\n"
        "run(root.parse_args(['node', '--kind', 'cpu']))\n"
        "assert not {'ray', 'mlflow', 'torch'} & set(sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "(cpu)" in done.stdout
