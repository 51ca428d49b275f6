"""What dead boots of trials left is found by its marks and ended; nobody else's is touched."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engine import leftovers, procfs, record, segments
from serve_apps.engine.leftovers import Process, dead_processes
from serve_apps.engine.spec import (
    BOOT_ID_VARIABLE,
    BOOTS_DIR_VARIABLE,
    FAKE_LAUNCHER,
    SUPERVISOR_VARIABLE,
    TRIAL_VARIABLE,
    EngineSpec,
)

BOOTS = Path("/state/boots")
OWNER = (1000, "pid:[1]")
GONE = "4194303:1"

# A replica with its supervisor, as Serve runs it; killed, it closes nothing.
SUPERVISOR = """
import sys, time
from serve_apps.engine.spec import EngineSpec
from serve_apps.engine.supervisor import EngineProcess
process = EngineProcess(EngineSpec.from_dict(__import__("json").loads(sys.argv[1])))
process.start()
print(process.boot_id, process._guard.pid, flush=True)
time.sleep(600)
"""
# A core that outlives everybody: ignores SIGTERM, has its own session and a title of vLLM's.
CORE = "trap '' TERM; while :; do sleep 1; done"


def seen(pid: int, *, parent: int = 1, **marks: str) -> Process:
    return Process(identity=f"{pid}:{pid * 10}", parent=parent, owner=OWNER, marks=marks)


def of_trial(pid: int, *, parent: int = 1, supervisor: str = GONE) -> Process:
    marks = {
        BOOT_ID_VARIABLE: "b1",
        TRIAL_VARIABLE: "study-1/trial-a",
        SUPERVISOR_VARIABLE: supervisor,
        BOOTS_DIR_VARIABLE: "/state/boots",
    }
    return seen(pid, parent=parent, **marks)


def chosen(*running: Process, owner: tuple[int, str] | None = OWNER) -> list[int]:
    found = dead_processes(running, owner, BOOTS)
    return sorted(process.pid for processes in found.values() for process in processes)


def test_dead_process_is_one_whose_supervisor_is_gone() -> None:
    supervisor = seen(7)

    assert chosen(of_trial(50), of_trial(51, supervisor=supervisor.identity), supervisor) == [50]
    assert dead_processes([of_trial(50)], OWNER, BOOTS) == {
        ("b1", "study-1/trial-a"): [of_trial(50)]
    }


def test_dead_process_whose_supervisors_id_another_has_by_now_is_found() -> None:
    assert chosen(of_trial(50, supervisor="7:69"), seen(7)) == [50]


def test_child_without_marks_goes_with_its_parent_and_one_with_other_marks_does_not() -> None:
    production = seen(53, parent=50, **{BOOT_ID_VARIABLE: "b2", SUPERVISOR_VARIABLE: GONE})

    assert chosen(seen(52, parent=51), seen(51, parent=50), of_trial(50), production) == [
        *(50, 51, 52),
    ]


@pytest.mark.parametrize("missing", sorted(leftovers.MARKS))
def test_process_without_all_marks_is_left_alone(missing: str) -> None:
    process = of_trial(50)
    marks = {name: value for name, value in process.marks.items() if name != missing}

    assert chosen(replace(process, marks=marks)) == []


def test_process_of_another_installation_is_left_alone() -> None:
    process = of_trial(50)
    marks = {**process.marks, BOOTS_DIR_VARIABLE: "/theirs/boots"}

    assert chosen(replace(process, marks=marks)) == []


@pytest.mark.parametrize("supervisor", ["", "7", "x:1", "7:x", "7:1:2"])
def test_process_whose_supervisor_is_no_identity_is_left_alone(supervisor: str) -> None:
    assert chosen(of_trial(50, supervisor=supervisor)) == []


@pytest.mark.parametrize("owner", [(0, "pid:[1]"), (1000, "pid:[2]"), None])
def test_process_of_another_user_or_container_is_left_alone(owner: tuple[int, str] | None) -> None:
    assert chosen(replace(of_trial(50), owner=owner)) == []
    assert chosen(of_trial(50), owner=None) == []


texts = st.sampled_from(
    ["", "b1", "/state/boots", "study-1/trial-a", "7:70", "8:80", GONE, "7:1", "x"]
)
names = st.sampled_from(sorted(leftovers.MARKS))

owners = st.sampled_from([OWNER, OWNER, OWNER, (0, "pid:[1]"), (1000, "pid:[2]"), None])


@st.composite
def machines(draw: st.DrawFn) -> list[Process]:
    pids = draw(st.lists(st.integers(2, 12), unique=True, max_size=10))
    return [
        Process(
            identity=f"{pid}:{pid * 10}",
            parent=draw(st.integers(1, 12)),
            owner=draw(owners),
            marks=draw(
                st.one_of(
                    st.just({}),
                    st.just(dict(of_trial(2).marks)),
                    st.just(dict(of_trial(2, supervisor="7:70").marks)),
                    st.dictionaries(names, texts),
                )
            ),
        )
        for pid in pids
    ]


@given(machines())
def test_no_choice_holds_a_foreign_process_or_one_that_is_answered_for(
    running: list[Process],
) -> None:
    by_pid = {process.pid: process for process in running}
    alive = {process.identity for process in running}

    for pid in chosen(*running):
        process = by_pid[pid]
        assert process.owner == OWNER
        visited = set()
        while not process.marks:  # then it descends from one that carries the marks
            assert process.pid not in visited
            visited.add(process.pid)
            process = by_pid[process.parent]
            assert process.owner == OWNER
        assert process.marks[BOOT_ID_VARIABLE]
        assert process.marks[TRIAL_VARIABLE]
        assert process.marks[BOOTS_DIR_VARIABLE] == str(BOOTS)
        assert process.marks[SUPERVISOR_VARIABLE] not in alive


@given(machines(), st.randoms())
def test_choice_does_not_depend_on_the_order(running: list[Process], rng: random.Random) -> None:
    mixed = list(running)
    rng.shuffle(mixed)

    assert chosen(*mixed) == chosen(*running)


class Site:
    """Trials' boots and neighbours on this machine."""

    def __init__(self, folder: Path) -> None:
        self.trial = f"study-{uuid.uuid4().hex[:8]}/trial-a"
        self.boots_dir = folder / "boots"
        self.logs = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def marks(self, supervisor: str) -> dict[str, str]:
        return {
            BOOT_ID_VARIABLE: "b1",
            TRIAL_VARIABLE: self.trial,
            SUPERVISOR_VARIABLE: supervisor,
            BOOTS_DIR_VARIABLE: str(self.boots_dir),
        }

    def replica(self) -> tuple[subprocess.Popen[bytes], int]:
        """Start a supervisor with a fake engine; return it and its guard's id."""
        spec = EngineSpec(
            model="m",
            served_model_name="s",
            log_path=str(self.logs / "{boot_id}.log"),
            launcher=FAKE_LAUNCHER,
            stop_timeout_s=1.0,
            trial=self.trial,
            boots_dir=str(self.boots_dir),
        )
        process = self.start(sys.executable, "-c", SUPERVISOR, json.dumps(spec.to_dict()))
        assert process.stdout is not None
        _, guard = process.stdout.readline().split()
        return process, int(guard)

    def find(self) -> list[leftovers.DeadBoot]:
        return leftovers.find(self.boots_dir, trial=self.trial)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", folder)
        found = Site(Path(folder))
        yield found
        for process in found.started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        assert not procfs.end(None, f"{TRIAL_VARIABLE}={found.trial}", grace_s=0.1)


def until(what: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_core_that_outlives_guard_and_supervisor_is_ended_and_a_neighbours_survives(
    site: Site,
) -> None:
    core = ("/bin/bash", "-c", CORE, "VLLM::EngineCore")
    ours = site.start(*core, **site.marks(GONE))
    neighbour = site.start(*core)
    production = site.start(*core, **{BOOT_ID_VARIABLE: "b1", SUPERVISOR_VARIABLE: GONE})
    me = procfs.identity(os.getpid())
    assert me is not None
    living = site.start(*core, **site.marks(me))
    until(lambda: len(site.find()) == 1)

    (boot,) = site.find()

    assert str(ours.pid) in {identity.partition(":")[0] for identity, _ in boot.processes}
    assert leftovers.end(boot, site.boots_dir, grace_s=0.2) == []
    assert ours.wait(5) == -signal.SIGKILL
    assert {neighbour.poll(), production.poll(), living.poll()} == {None}
    assert site.find() == []


def test_boot_whose_supervisor_lives_has_left_nothing(site: Site) -> None:
    site.replica()

    assert [path.suffix for path in site.boots_dir.iterdir()] == [".json"]
    assert site.find() == []


def test_supervisor_and_guard_killed_leave_what_is_found_and_removed(site: Site) -> None:
    supervisor, guard = site.replica()
    (file,) = record.files(site.boots_dir)
    boot = record.read(file)
    assert boot is not None
    shared = Path(f"/dev/shm/psm_{uuid.uuid4().hex[:8]}")
    shared.write_bytes(b"0" * 4096)
    keep_segment(file, shared)
    os.kill(guard, signal.SIGSTOP)  # it cannot clean up
    supervisor.kill()
    supervisor.wait()
    os.kill(guard, signal.SIGKILL)

    until(lambda: site.find() != [])
    (dead,) = site.find()

    assert dead.study_id == site.trial.partition("/")[0]
    assert dead.segments == ((str(shared), 4096),)
    assert dead.folder == boot.folder
    assert leftovers.end(dead, site.boots_dir, grace_s=1.0) == []
    assert not shared.exists()
    assert not Path(boot.folder).exists()
    assert list(site.boots_dir.iterdir()) == []


def test_trial_whose_replica_was_killed_is_gone_when_its_guard_is_done(site: Site) -> None:
    supervisor, _ = site.replica()
    supervisor.kill()

    assert leftovers.end_trial(site.trial, site.boots_dir, wait_s=15.0) == []
    assert procfs.members(None, f"{TRIAL_VARIABLE}={site.trial}") == []
    assert list(site.boots_dir.iterdir()) == []


def test_port_of_a_dead_boot_is_told_while_one_of_its_processes_lives(site: Site) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        write_record(site, port=holder.getsockname()[1])
        (alone,) = site.find()
        site.start("/bin/sleep", "600", **site.marks(GONE))
        until(lambda: bool(site.find()[0].processes))
        (held,) = site.find()

    assert alone.port is None
    assert held.port is not None


def keep_segment(file: Path, shared: Path) -> None:
    status = shared.stat()
    text = f"{status.st_dev} {status.st_ino} {shared.name}\n"
    segments.segments_file(file).write_text(text)


def write_record(site: Site, **changes: object) -> record.BootRecord:
    owner = procfs.owner(os.getpid())
    assert owner is not None
    boot = record.BootRecord(
        boot_id="b1",
        trial=site.trial,
        supervisor=GONE,
        machine_boot=record.machine_boot(),
        user=owner[0],
        pid_namespace=owner[1],
        folder="/nonexistent",
        port=1,
    )
    boot = replace(boot, **changes)  # type: ignore[arg-type]  # fields by name
    record.write(str(site.boots_dir), boot)
    return boot


@pytest.mark.parametrize("changes", [{"user": 4242}, {"pid_namespace": "pid:[2]"}])
def test_record_of_another_user_or_container_is_left_alone(
    site: Site, changes: dict[str, object]
) -> None:
    write_record(site, **changes)

    assert site.find() == []


def test_record_from_before_the_machine_was_restarted_claims_no_shared_memory(site: Site) -> None:
    me = procfs.identity(os.getpid())
    assert me is not None
    write_record(site, machine_boot="earlier", supervisor=me)
    shared = Path(f"/dev/shm/psm_{uuid.uuid4().hex[:8]}")
    shared.touch()
    keep_segment(site.boots_dir / "b1.json", shared)

    (dead,) = site.find()

    assert dead.segments == ()
    assert leftovers.end(dead, site.boots_dir) == []
    assert shared.exists()
    assert list(site.boots_dir.iterdir()) == []
    shared.unlink()


def test_record_that_names_a_folder_of_others_does_not_remove_it(site: Site) -> None:
    theirs = site.logs / "models"
    theirs.mkdir()
    write_record(site, folder=str(theirs))

    (dead,) = site.find()

    assert dead.folder is None
    assert leftovers.end(dead, site.boots_dir) == []
    assert theirs.exists()


RECORD = {
    "boot_id": "b1",
    "trial": "s/t",
    "supervisor": "1:2",
    "machine_boot": "",
    "user": 0,
    "pid_namespace": "n",
    "folder": "/f",
    "port": 1,
}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"boot_id": 1}', "\x00", "[" * 100_000),
        json.dumps({**RECORD, "folder": "/f\0"}),
        json.dumps({**RECORD, "supervisor": f"{'9' * 5_000}:1"}),
        json.dumps({**RECORD, "supervisor": "x"}),
    ],
)
def test_record_that_is_damaged_is_no_boot(site: Site, text: str) -> None:
    site.boots_dir.mkdir()
    (site.boots_dir / "b1.json").write_text(text)

    assert site.find() == []


def test_process_that_got_the_id_meanwhile_gets_no_signal(site: Site) -> None:
    neighbour = site.start("/bin/sleep", "600")
    looks = iter([[f"{neighbour.pid}:1"]])

    assert procfs.end_all(lambda: next(looks, []), grace_s=0.1) == []

    with pytest.raises(subprocess.TimeoutExpired):
        neighbour.wait(0.3)
