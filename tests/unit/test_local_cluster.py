"""The local cluster's hold on its state folder, and the demo's way out; no server is started."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import demo
from infra.local.cluster import LocalCluster, Ports
from infra.local.processes import TAG, PortInUseError, StartError, StateDirError

SILENT = "import sys, time; print(flush=True); time.sleep(60)"


@pytest.fixture
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_start_mlflow", "_start_ray", "_start_serve", "_wait_mlflow"):
        monkeypatch.setattr(LocalCluster, name, lambda _self: None)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


@pytest.mark.usefixtures("no_servers")
def test_second_cluster_in_one_state_folder_is_refused_until_the_first_ends(
    tmp_path: Path,
) -> None:
    first = LocalCluster(state_dir=tmp_path, ports=Ports())
    first.start()
    recorded = (tmp_path / "local.json").read_text()
    second = LocalCluster(state_dir=tmp_path, ports=Ports())

    with pytest.raises(StateDirError, match="another local cluster uses this folder"):
        second.start()

    assert second.stop() == []
    assert (tmp_path / "local.json").read_text() == recorded
    assert first.stop() == []
    second.start()
    assert second.stop() == []


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_state_folder_that_cannot_be_made_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StateDirError, match=f"{name}.*SPECPILOT_STATE_DIR"):
        LocalCluster(state_dir=tmp_path / name, ports=Ports()).start()


def test_full_disk_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: LocalCluster) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalCluster, "_record", full)
    cluster = LocalCluster(state_dir=tmp_path, ports=Ports())

    with pytest.raises(StateDirError, match="No space left"):
        cluster.start()

    assert cluster.temp_dir is not None
    assert not cluster.temp_dir.exists()


def test_port_in_use_frees_the_state_folder(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(PortInUseError):
        LocalCluster(state_dir=tmp_path, ports=Ports(http=taken_port)).start()
    with pytest.raises(PortInUseError):
        LocalCluster(state_dir=tmp_path, ports=Ports(http=taken_port)).start()


@pytest.mark.usefixtures("no_servers")
def test_predecessor_that_was_killed_is_ended_whoever_has_its_process_id_now(
    tmp_path: Path,
) -> None:
    left = subprocess.Popen(
        [sys.executable, "-c", SILENT], env={TAG: "left"}, stdout=subprocess.PIPE
    )
    assert left.stdout is not None
    left.stdout.readline()  # its environment is that of the new program now
    state = {"tag": "left", "owner": 1, "temp_dir": str(tmp_path / "sp-left")}
    (tmp_path / "local.json").write_text(json.dumps(state))
    cluster = LocalCluster(state_dir=tmp_path, ports=Ports())

    cluster.start()

    left.stdout.close()
    assert left.wait(timeout=5) == -signal.SIGTERM
    assert cluster.stop() == []


class FakeCluster(LocalCluster):
    """Fails to start as told."""

    failure: BaseException = StartError("")

    def start(self) -> None:
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (PortInUseError("p"), 2),
        (StateDirError("s"), 2),
        (StartError("x"), 1),
        (KeyboardInterrupt(), 1),
    ],
)
def test_demo_that_cannot_start_says_so_in_its_status(
    failure: BaseException, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCluster, "failure", failure)
    monkeypatch.setattr(demo, "LocalCluster", FakeCluster)
    monkeypatch.setattr(sys, "argv", ["demo", "--state-dir", str(tmp_path)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    assert demo.main() == status


def test_port_out_of_range_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "--http-port", "99999"])

    with pytest.raises(SystemExit, match="2"):
        demo.main()
    assert "99999 is no port" in capsys.readouterr().err


class Gone(io.StringIO):
    """A pipe whose reader ended."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_reader_that_went_away_interrupts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Gone())

    with pytest.raises(KeyboardInterrupt):
        demo.show("nobody reads this")

    demo.show("nor this, and the end goes on")
    sys.stdout.close()
