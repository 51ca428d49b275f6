"""``clean`` on one machine, where no Ray runs."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import grpc
import pytest

from orchestrator import clean, cli, cluster
from orchestrator.adapters import node_leftovers
from orchestrator.adapters.node_tasks import NodeAnswer
from orchestrator.adapters.study_file import StudyFile
from orchestrator.clean_command import format_age, format_size
from orchestrator.core.leftovers import Condition, Kind
from orchestrator.errors import TransientError
from serve_apps.engine import procfs
from serve_apps.engine.spec import (
    BOOT_ID_VARIABLE,
    BOOTS_DIR_VARIABLE,
    SUPERVISOR_VARIABLE,
    TRIAL_VARIABLE,
)

Captured = pytest.CaptureFixture[str]
ENDED = "demo-1a2b3c4d-20261128-101500"
UNFINISHED = "demo-1a2b3c4d-20261129-101500"
UNKNOWN = "demo-1a2b3c4d-20261101-101500"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state folder with two studies and three folders of Tune; nobody's Ray is found."""
    folder = tmp_path / "state"
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(folder))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for study_id, has_verdict in ((ENDED, True), (UNFINISHED, False)):
        with StudyFile(study_id, print) as file:
            file.write({"has_verdict": has_verdict})
    for study_id in (ENDED, UNFINISHED, UNKNOWN):
        (folder / "tune" / study_id).mkdir(parents=True)
        (folder / "tune" / study_id / "result.json").write_text("x" * 2048)
    (folder / "logs").mkdir()
    (folder / "cache").mkdir()
    return folder


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def orphan(study_id: str, state: Path) -> subprocess.Popen[bytes]:
    marks = {
        BOOT_ID_VARIABLE: "b1",
        TRIAL_VARIABLE: f"{study_id}/trial-a",
        SUPERVISOR_VARIABLE: "4194303:1",
        BOOTS_DIR_VARIABLE: str(state / "boots"),
    }
    return subprocess.Popen(["/bin/sleep", "600"], env={**os.environ, **marks})


@pytest.fixture
def core(state: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = orphan(ENDED, state)
    yield process
    process.kill()
    process.wait()


def test_clean_without_yes_shows_and_touches_nothing(
    state: Path, capsys: Captured, core: subprocess.Popen[bytes]
) -> None:
    before = everything(state)

    assert cli.main(["clean"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "no running Ray answers: only this node was looked at" in lines[0]
    removed = lines[lines.index("to be removed:") : lines.index("left alone:")]
    assert any("boot b1" in line and f"{core.pid}: /bin/sleep 600" in line for line in removed)
    assert any(f"Tune folder {ENDED}" in line and "2.0 KiB" in line for line in removed)
    assert any(f"study state {ENDED}" in line for line in removed)
    kept = lines[lines.index("left alone:") :]
    assert any(f"study state {UNFINISHED}" in line and "resumed" in line for line in kept)
    assert any(f"Tune folder {UNKNOWN}" in line and "not known" in line for line in kept)
    assert lines[-1].startswith("nothing was touched; --yes removes the")
    assert everything(state) == before
    assert core.poll() is None


def test_clean_with_yes_removes_what_is_over_and_nothing_else(
    state: Path, capsys: Captured, core: subprocess.Popen[bytes]
) -> None:
    assert cli.main(["clean", "--yes"]) == 0

    assert core.wait(5) < 0
    assert "removed" in capsys.readouterr().out.splitlines()[-1]
    assert not (state / "tune" / ENDED).exists()
    assert not (state / "studies" / ENDED).exists()
    assert (state / "studies" / UNFINISHED / "state.json").exists()
    assert (state / "tune" / UNFINISHED).exists()
    assert (state / "tune" / UNKNOWN).exists()
    assert (state / "logs").exists()
    assert (state / "cache").exists()


def test_clean_of_a_named_study_removes_what_a_resume_would_need(state: Path) -> None:
    assert cli.main(["clean", "--study", UNFINISHED, "--yes"]) == 0

    assert not (state / "studies" / UNFINISHED).exists()
    assert not (state / "tune" / UNFINISHED).exists()
    assert (state / "studies" / ENDED).exists()


def test_clean_leaves_a_study_that_runs_even_if_it_is_named(state: Path, capsys: Captured) -> None:
    with StudyFile(UNFINISHED, print):
        assert cli.main(["clean", "--study", UNFINISHED, "--yes"]) == 0

    assert "its study runs" in capsys.readouterr().out
    assert (state / "studies" / UNFINISHED / "state.json").exists()
    assert (state / "tune" / UNFINISHED).exists()


def test_clean_of_a_clean_machine_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    assert cli.main(["clean", "--yes"]) == 0
    assert "nothing was found where it was looked" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../models", "a/b", "", "A", ENDED.upper(), f"{ENDED[:-1]}1"])
def test_clean_of_a_study_that_is_not_there_says_where_it_looked(
    state: Path, capsys: Captured, name: str
) -> None:
    before = everything(state)

    assert cli.main(["clean", "--yes", "--study", ENDED, "--study", name]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert f"--study: nothing of a study '{name}' is in {state}" in said.err
    assert everything(state) == before


@pytest.mark.parametrize("study_id", ["Demo-1A2B3C4D-20261128-101500", "a b\n\x1b[2Jfake: line"])
def test_clean_takes_every_study_as_it_shows_it(
    state: Path, capsys: Captured, study_id: str
) -> None:
    process = orphan(study_id, state)
    try:
        assert cli.main(["clean"]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "boot b1" in line)
        shown = line.split(" of ", 1)[1].rpartition(" (")[0]
        assert line.isprintable()

        assert cli.main(["clean", "--yes", "--study", shown]) == 0
        assert process.wait(5) < 0
    finally:
        process.kill()
        process.wait()


def test_clean_says_which_state_folder_it_looked_at(state: Path, capsys: Captured) -> None:
    assert cli.main(["clean"]) == 0

    assert f"state folder: {state}" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", ["tune", "studies"])
def test_clean_removes_nothing_behind_a_link(
    state: Path, tmp_path: Path, capsys: Captured, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (state / name).rename(elsewhere)
    (state / name).symlink_to(elsewhere)
    before = everything(elsewhere)

    assert cli.main(["clean", "--yes"]) == 1

    assert f"{state / name} is a link and is left alone" in capsys.readouterr().out
    assert everything(elsewhere) == before


def test_remove_of_what_has_become_a_link_meanwhile_leaves_it(state: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (state / "tune").rename(elsewhere)
    (state / "tune").symlink_to(elsewhere)

    (left,) = node_leftovers.remove(str(state), {Kind.TUNE: [ENDED]}, frozenset())

    assert f"{state / 'tune' / ENDED} cannot be removed" in left
    assert (elsewhere / ENDED / "result.json").exists()


@contextmanager
def listening(greeting: bytes) -> Iterator[str]:
    """Yield the address of what says something to whoever connects, and then waits."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection, suppress(ConnectionResetError):
                connection.sendall(greeting)
                while connection.recv(100):
                    pass

        thread = Thread(target=greet)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n"])
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_clean_asks_no_port_for_long_that_is_not_rays(
    state: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, greeting: bytes, scheme: str
) -> None:
    del state
    monkeypatch.setattr(cluster, "GRPC_S", 0.2)
    monkeypatch.setattr(cluster.ray, "init", never)
    with listening(greeting) as address:
        monkeypatch.setenv("RAY_ADDRESS", f"{scheme}{address}")

        assert cli.main(["clean"]) == 0

    (line,) = (line for line in capsys.readouterr().out.splitlines() if "no running Ray" in line)
    assert "what listens there is something else" in line
    assert address in line


def never(**_options: object) -> None:
    pytest.fail("Ray would try for more than a minute")


def test_ray_is_asked_where_a_server_speaks_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(cluster.ray, "init", lambda **options: asked.append(options["address"]))
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        monkeypatch.setenv("RAY_ADDRESS", address)
        cluster.connect()
    finally:
        server.stop(None)
    assert asked == [address]


def test_remove_of_a_study_that_was_taken_up_meanwhile_leaves_it(state: Path) -> None:
    names = {Kind.STATE: [ENDED], Kind.TUNE: [ENDED]}
    with StudyFile(ENDED, print):
        left = node_leftovers.remove(str(state), names, frozenset())

    assert len(left) == 2
    assert "another driver runs this study" in left[0]
    assert (state / "studies" / ENDED / "state.json").exists()


def test_remove_of_a_study_without_a_verdict_needs_its_name(state: Path) -> None:
    names = {Kind.STATE: [UNFINISHED]}

    (left,) = node_leftovers.remove(str(state), names, frozenset())
    assert "has no verdict" in left
    assert node_leftovers.remove(str(state), names, frozenset({UNFINISHED})) == []


def test_remove_follows_no_link(state: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (state / "tune" / "linked").symlink_to(models)

    found = node_leftovers.look(str(state)).found

    assert "linked" not in {item.name for item in found}


def test_state_that_cannot_be_read_is_no_study_that_is_over(state: Path) -> None:
    (state / "studies" / ENDED / "state.json").write_text("{")

    assert node_leftovers.look(str(state)).conditions == {
        ENDED: Condition.UNREADABLE,
        UNFINISHED: Condition.UNFINISHED,
    }


def test_sweep_ends_the_dead_boot_and_says_whose_it_was(
    state: Path, core: subprocess.Popen[bytes]
) -> None:
    (said,) = [
        text for text in node_leftovers.end_dead_boots(str(state / "boots")) if ENDED in text
    ]

    assert f"boot b1 of {ENDED}/trial-a" in said
    assert said.endswith("is gone")
    assert core.wait(5) < 0
    assert procfs.members(None, f"{TRIAL_VARIABLE}={ENDED}/trial-a") == []


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, ""), (0, "0 B"), (1023, "1023 B"), (2048, "2.0 KiB"), (2**31, "2.0 GiB")],
)
def test_size_is_told_in_its_unit(size: int | None, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(None, ""), (59, "0 min old"), (3660, "1 h 1 min old"), (90000, "1 d 1 h old")],
)
def test_age_is_told_in_its_two_largest_units(age_s: float | None, text: str) -> None:
    assert format_age(age_s) == text


@pytest.mark.parametrize("words", [[], ["--study", "guitar"]])
def test_folders_that_are_not_named_as_ours_are_nobodys_leftovers(
    state: Path, capsys: Captured, words: list[str]
) -> None:
    theirs = [
        state / "audit" / "2025-financial",
        state / "tune" / "guitar",
        state / "studies" / "x",
    ]
    for folder in theirs:
        folder.mkdir(parents=True)
        (folder / "file").write_text("theirs")

    cli.main(["clean", "--yes", *words])

    assert all((folder / "file").read_text() == "theirs" for folder in theirs)
    assert "financial" not in capsys.readouterr().out


def test_place_that_cannot_be_read_is_told_and_is_no_clean_machine(
    state: Path, capsys: Captured
) -> None:
    (state / "audit").write_text("a file")

    assert cli.main(["clean"]) == 1

    assert "audit cannot be read: Not a directory" in capsys.readouterr().out


def test_state_that_is_a_pipe_is_not_waited_for(state: Path, capsys: Captured) -> None:
    file = state / "studies" / UNFINISHED / "state.json"
    file.unlink()
    os.mkfifo(file)

    assert cli.main(["clean"]) == 0

    assert "the state of its study cannot be read" in capsys.readouterr().out


def test_leases_that_nobody_tells_are_told_and_are_no_clean_ray(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def silent() -> list[str]:
        raise TransientError("the reaper does not answer: it is busy")

    here = NodeAnswer(node="here", value=node_leftovers.look(str(state)))
    monkeypatch.setattr(clean, "connect", lambda: None)
    monkeypatch.setattr(clean, "is_claimed", lambda: False)
    monkeypatch.setattr(clean, "on_every_node", lambda *_args: [here])
    monkeypatch.setattr(clean, "trial_applications", list)
    monkeypatch.setattr("orchestrator.adapters.serve_reaper.leases", silent)

    assert cli.main(["clean"]) == 1

    said = capsys.readouterr().out
    assert "leases were not looked at: the reaper does not answer" in said
    assert f"Tune folder {UNKNOWN}" in said.partition("left alone:")[2]
