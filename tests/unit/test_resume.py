"""A study whose driver ends before its verdict: what is kept, and what a new driver makes of it."""

from __future__ import annotations

import errno
import io
import json
import threading
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from core_samples import make_arm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_scene import ASKS, ID, PLAN

from orchestrator import cli, commands
from orchestrator.adapters.study_file import FORMAT, StudyFile, studies_dir
from orchestrator.config import CONF_DIR, StudyConfig, load_config
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError, StudyStopped, TransientError
from orchestrator.events import Printer
from orchestrator.fakes.tracker import FakeTracker
from orchestrator.fakes.world import FakeClock
from orchestrator.journal import Journal, StudyState
from orchestrator.prepare import premises, prepare
from orchestrator.race_searcher import RaceSearcher
from orchestrator.resume import (
    asked,
    load_state,
    new_study_id,
    read_state,
    require_same,
    take_over,
    unfinished,
)
from orchestrator.stopping import Stop

DEMO = CONF_DIR / "study" / "demo.yaml"
RACE: dict[str, Any] = {
    "boots": [], "spent_s": [], "lost": [], "cut": [], "stopped": [], "trial_ids": [],
    "choices": [], "passed_s": 1.5, "proofs": {},
}  # fmt: skip


def test_tracker_that_does_not_know_the_study_is_refused() -> None:
    state = StudyState(study_id=ID, run_id="elsewhere", asks=ASKS)

    with pytest.raises(ConfigError, match=r"tracking\.uri.*begun with"):
        take_over(state, FakeTracker())


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    return tmp_path / "state"


def silent(text: str) -> None:
    raise AssertionError(text)


def journal_on(file: StudyFile) -> Journal:
    state = StudyState(study_id=file.study_id, run_id="run-0", asks=ASKS)
    return Journal(file, state, FakeTracker())


def kept(study_id: str = ID, *, has_verdict: bool = False) -> Path:
    """Write the state of a study and let it go; return the file."""
    with StudyFile(study_id, silent) as file:
        journal = journal_on(file)
        journal.keep(RACE)
        assert journal.can_resume
        if has_verdict:
            journal.conclude()
            assert not journal.can_resume
    return studies_dir() / study_id / "state.json"


def refusal_of(study_id: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught, StudyFile(study_id, silent) as file:
        read_state(file)
    assert caught.value.where == f"--resume {study_id}"
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.usefixtures("state_dir")
def test_state_is_read_as_it_was_written_last() -> None:
    kept()

    with StudyFile(ID, silent) as file:
        state = read_state(file)
        Journal(file, state, FakeTracker()).keep(RACE | {"passed_s": 2.0})

    with StudyFile(ID, silent) as file:
        assert read_state(file) == replace(state, race=RACE | {"passed_s": 2.0})
        assert file.is_kept


@pytest.mark.usefixtures("state_dir")
def test_write_that_was_cut_off_leaves_the_state_before() -> None:
    path = kept()
    path.with_suffix(".new").write_bytes(path.read_bytes()[:40])

    with StudyFile(ID, silent) as file:
        assert read_state(file).race == RACE


@pytest.mark.usefixtures("state_dir")
def test_state_that_is_not_whole_is_refused_wherever_it_was_cut() -> None:
    path = kept()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert "is damaged" in refusal_of(ID).problem


@pytest.mark.usefixtures("state_dir")
@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (b"run-0", b"run-1", "is damaged"),
        (b"{", b"\xff", "is damaged"),
        (b"{", b"[" * 100_000, "is damaged"),
        (FORMAT.encode(), b"specpilot.study/0", "another version, as specpilot.study/0"),
    ],
)
def test_state_that_was_changed_or_is_of_another_version_is_refused(
    old: bytes, new: bytes, word: str
) -> None:
    path = kept()
    path.write_bytes(path.read_bytes().replace(old, new, 1))

    assert word in refusal_of(ID).problem


def written(state: object) -> None:
    """Write a state of any shape, with its digest."""
    path = kept()
    body = json.dumps(state).encode()
    head = json.dumps({"format": FORMAT, "sha256": sha256(body).hexdigest()}).encode()
    path.write_bytes(head + b"\n" + body)


RECORDS: dict[str, Any] = {"pending": [], "measured": {}, "runs": {}}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


KEYS = ["", *ASKS, *RACE, *RECORDS, "asks", "race", "has_verdict", "verdict", "records"]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(state=anything, key=st.sampled_from(KEYS))
@pytest.mark.usefixtures("state_dir")
def test_state_of_a_foreign_shape_with_its_digest_is_refused_in_one_line(
    state: Any, key: str
) -> None:
    whole: dict[str, Any] = {
        "study_id": ID, "run_id": "run-0", "asks": ASKS, "has_verdict": False, "race": RACE,
        "verdict": None, "records": RECORDS,
    }  # fmt: skip
    for part in ("asks", "race", "records"):
        if key in whole[part]:
            whole[part] = whole[part] | {key: state}
    written(state if not key else whole | ({key: state} if key in whole else {}))
    said: list[str] = []

    with suppress(ConfigError), StudyFile(ID, said.append) as file:
        found = read_state(file)
        require_same(found, ASKS)
        RaceSearcher(PLAN, lambda _id, _name: None).set_out_from(found.race or RACE)
        Journal(file, found, FakeTracker())
    assert set(unfinished("demo-1a2b3c4d")) <= {ID}


@pytest.mark.usefixtures("state_dir")
@pytest.mark.parametrize("state", [[], "x", {"a": 1}, {"has_verdict": "no"}, None])
def test_state_of_another_shape_says_so(state: object) -> None:
    written(state)

    told = refusal_of(ID)

    assert "of another shape" in told.problem or "holds no state" in told.problem
    assert unfinished("demo-1a2b3c4d") == []


@pytest.mark.usefixtures("state_dir")
def test_study_that_has_its_verdict_and_a_full_disk_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[str] = []
    with StudyFile(ID, said.append) as file:
        journal = journal_on(file)
        journal.keep(RACE)
        monkeypatch.setattr("os.fsync", full)
        journal.conclude()
        assert not journal.can_resume

    assert len(said) == 1
    assert unfinished("demo-1a2b3c4d") == []
    assert "no state of such a study" in refusal_of(ID).problem


@pytest.mark.usefixtures("state_dir")
@pytest.mark.parametrize("study_id", ["none", "../state", "", "a/b", ID])
def test_study_that_is_not_known_is_refused(study_id: str) -> None:
    (studies_dir() / ID).mkdir(parents=True)

    assert "no state of such a study" in refusal_of(study_id).problem


@pytest.mark.usefixtures("state_dir")
def test_study_with_its_verdict_is_refused_and_can_be_looked_at() -> None:
    kept(has_verdict=True)

    assert "has its verdict" in refusal_of(ID).problem
    with StudyFile(ID, silent) as file:
        assert load_state(file).has_verdict


@pytest.mark.usefixtures("state_dir")
def test_study_has_one_driver_at_a_time() -> None:
    kept()

    with StudyFile(ID, silent) as file:
        assert "another driver runs this study" in refusal_of(ID).problem
        read_state(file)
    with StudyFile(ID, silent) as file:
        read_state(file)


def test_state_that_cannot_be_written_is_told_once_and_costs_the_resume_only(
    state_dir: Path,
) -> None:
    state_dir.write_text("a file where the folder should be")
    said: list[str] = []

    with StudyFile(ID, said.append) as file:
        journal = journal_on(file)
        for _ in range(3):
            journal.keep(RACE)
            assert not journal.can_resume
        assert len(said) == 1
        assert "cannot be written" in said[0]
        state_dir.unlink()
        journal.keep(RACE)
        assert journal.can_resume

    with StudyFile(ID, silent) as file:
        assert read_state(file).race == RACE


@pytest.mark.usefixtures("state_dir")
def test_unfinished_studies_are_those_of_the_configuration_that_nobody_runs() -> None:
    ids = [f"demo-1a2b3c4d-2026010{day}-000000" for day in range(1, 6)]
    for study_id in ids:
        kept(study_id, has_verdict=study_id == ids[1])
    kept("demo-99999999-20260101-000000")
    kept(ids[2]).write_text("damaged")

    with StudyFile(ids[3], silent):
        assert unfinished("demo-1a2b3c4d") == [ids[0], ids[4]]
    assert unfinished("demo-1a2b3c4d") == [ids[0], ids[3], ids[4]]


@pytest.fixture
def inputs(target_folder: Path, draft_folder: Path, workload_file: Path) -> list[str]:
    return [
        f"target.path={target_folder}",
        f"draft.path={draft_folder}",
        f"load.workload={workload_file}",
    ]


def asks_of(config: StudyConfig, incumbent: Arm | None = None) -> dict[str, Any]:
    prepared = prepare(config, models_must_exist=True)
    builds = prepared.config.engine.build_names
    return asked(prepared, {build: premises(prepared, build) for build in builds}, incumbent)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "load.block_s=99",
            (
                "load.block_s was ",
                "and is 99",
            ),
        ),
        ("load.streams=[1]", ("load.streams was ", "and is [1]")),
        ("search.num_speculative_tokens=[6]", ("arm ", "is gone")),
        ("engine.args.max_num_seqs=4", ("engine.args.max_num_seqs", "the digest of the engine")),
        ("search.max_boots=9", ("search.max_boots was ", "and is 9")),
        ("search.max_hours=9", ("search.max_hours was not set and is 9",)),
        ("tracking.experiment=other", ('tracking.experiment was "demo" and is "other"',)),
    ],
)
@pytest.mark.usefixtures("state_dir")
def test_study_that_was_changed_is_refused_in_words(
    override: str, words: tuple[str, ...], inputs: list[str]
) -> None:
    state = StudyState(study_id=ID, run_id="run-0", asks=asks_of(load_config(DEMO, inputs)))

    with pytest.raises(ConfigError) as caught:
        require_same(state, asks_of(load_config(DEMO, [*inputs, override])))
    for word in words:
        assert word in caught.value.problem


@pytest.mark.usefixtures("state_dir")
def test_study_whose_settings_look_like_secrets_can_be_resumed(inputs: list[str]) -> None:
    """What is kept has none; what it is compared with must be cut in the same way."""
    source = "node.board_model.source=https://forums.example.org/t/1?page=2"
    now = asks_of(load_config(DEMO, [*inputs, source]))
    state = StudyState(study_id=ID, run_id="run-0", asks=now)
    with StudyFile(ID, silent) as file:
        file.write({item.name: getattr(state, item.name) for item in fields(state)})

        require_same(load_state(file), now)


@pytest.mark.usefixtures("state_dir")
@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([], ["search.max_boots=99"]),
        (["search.max_hours=5"], ["search.max_hours=9"]),
        (["search.max_hours=5"], ["search.max_hours=null", "search.max_boots=99"]),
    ],
)
def test_budget_may_be_raised_until_the_verdict_is_shown(
    before: list[str], now: list[str], inputs: list[str]
) -> None:
    state = StudyState(
        study_id=ID, run_id="run-0", asks=asks_of(load_config(DEMO, [*inputs, *before]))
    )
    more = asks_of(load_config(DEMO, [*inputs, *now]))

    require_same(state, more)

    with pytest.raises(ConfigError, match="max_"):
        require_same(replace(state, verdict="# Keep"), more)
    with pytest.raises(ConfigError, match="max_"):
        require_same(replace(state, asks=more), state.asks)
    with pytest.raises(ConfigError, match=r"the study that was begun: load\.block_s"):
        require_same(state, asks_of(load_config(DEMO, [*inputs, *now, "load.block_s=99"])))


@pytest.mark.usefixtures("state_dir")
def test_study_that_begins_has_an_id_of_its_own_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.gmtime", lambda: (2026, 1, 1, 0, 0, 0, 3, 1, 0))
    prepared: Any = SimpleNamespace(study_id="demo-1a2b3c4d")

    ids = []
    for _ in range(3):
        ids.append(new_study_id(prepared))
        kept(ids[-1])

    assert ids == [ID, f"{ID}-2", f"{ID}-3"]


@pytest.mark.usefixtures("state_dir")
def test_study_whose_files_or_incumbent_changed_is_refused_in_words(
    inputs: list[str], target_folder: Path, workload_file: Path
) -> None:
    config = load_config(DEMO, inputs)
    state = StudyState(study_id=ID, run_id="run-0", asks=asks_of(config))
    elsewhere = load_config(DEMO, [*inputs, "production.http_port=8123", "tracking.uri=http://h"])
    require_same(state, asks_of(elsewhere))
    (target_folder / "model.safetensors").write_bytes(b"other weights")
    workload_file.write_text('{"prompt": "another"}\n')

    with pytest.raises(ConfigError) as caught:
        require_same(state, asks_of(config, incumbent=make_arm(5)))

    for word in (
        "the target model's digest was",
        "the workload's digest was",
        f"arm {make_arm(5).key} is new",
        f"production served nothing and serves {make_arm(5).key}",
    ):
        assert word in caught.value.problem


def test_refusal_names_the_first_changes_and_counts_the_rest() -> None:
    before: dict[str, Any] = {
        "configuration": {f"k{n}": n for n in range(8)},
        "tracking": {},
        "premises": {},
        "proof_workload": "a",
        "arms": [],
        "incumbent": None,
    }
    now = {**before, "configuration": {}, "proof_workload": "b"}

    with pytest.raises(ConfigError, match=r"k0 was 0 and is not set; .*; and 4 more;"):
        require_same(StudyState(study_id=ID, run_id="run-0", asks=before), now)


class Away(FakeTracker):
    """A tracker that cannot be reached when the study is closed."""

    def close_study(self, run_id: str, **_rest: Any) -> None:
        raise TransientError(f"MLflow does not answer for {run_id}")


@dataclass
class Ending:
    """What ``give_up`` sees of a study under way."""

    tracker: FakeTracker
    journal: Journal
    printer: Printer
    run_id: str = "run-0"
    study_id: str = ID


def no_ray() -> None:
    raise RuntimeError("Ray has gone")


@pytest.mark.usefixtures("state_dir")
@pytest.mark.parametrize("is_kept", [True, False])
def test_end_of_a_study_says_how_to_resume_and_what_could_not_be_closed(*, is_kept: bool) -> None:
    sink = io.StringIO()
    printer = Printer(sink=sink, clock=FakeClock(), started_s=0.0)
    with StudyFile(ID, silent) as file:
        journal = journal_on(file)
        if is_kept:
            journal.keep(None)
        ending: Any = Ending(Away(), journal, printer)

        commands.give_up(ending, StudyStopped("stopped"), "python -m orchestrator study s", no_ray)

    lines = sink.getvalue().splitlines()
    hint = f"to resume: python -m orchestrator study s --resume {ID}"
    assert [line.endswith(hint) for line in lines] == [True, False, False][not is_kept :]
    assert "Ray has gone" in lines[-2]
    assert "MLflow does not answer" in lines[-1]


@pytest.mark.usefixtures("state_dir")
def test_end_of_a_study_waits_for_nothing_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped MLflow takes a request and never answers; so may Serve."""
    monkeypatch.setattr(commands, "CLOSE_S", 0.05)
    monkeypatch.setattr(commands, "SWEEP_S", 0.05)
    for_ever = threading.Event()

    class Hanging(FakeTracker):
        def close_study(self, *_args: Any, **_rest: Any) -> None:
            for_ever.wait()

    sink = io.StringIO()
    with StudyFile(ID, silent) as file:
        journal = journal_on(file)
        journal.keep(None)
        journal.keep_verdict("# Keep")
        ending: Any = Ending(Hanging(), journal, Printer(sink=sink, clock=FakeClock(), started_s=0))

        commands.give_up(ending, TransientError("away"), "again", for_ever.wait)

    lines = sink.getvalue().splitlines()
    assert len(lines) == 3
    assert (
        f"the verdict is kept and the tracker lacks it; to finish: again --resume {ID}" in lines[0]
    )
    assert "may be left, which `clean` shows: no answer within" in lines[1]
    assert "stays open: no answer within" in lines[2]
    for_ever.set()


def test_end_of_a_study_closes_its_run() -> None:
    tracker = FakeTracker()
    run_id = tracker.open_study(ID, ID, {})
    printer = Printer(sink=io.StringIO(), clock=FakeClock(), started_s=0.0)
    journal = journal_on(StudyFile(ID, silent))
    ending: Any = Ending(tracker, journal, printer, run_id=run_id)

    commands.give_up(ending, KeyboardInterrupt(), "again", lambda: None)

    assert tracker.runs[run_id].status == "FAILED"
    assert tracker.runs[run_id].tags["reason"] == "KeyboardInterrupt"


@pytest.mark.usefixtures("state_dir")
@pytest.mark.parametrize(
    ("study_id", "word"),
    [("none", "no state of such a study"), (ID, "has its verdict"), ("d-1", "is damaged")],
)
def test_resume_that_cannot_be_is_one_line_and_status_2(
    study_id: str, word: str, inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kept(has_verdict=True)
    kept("d-1").write_text("{")

    assert cli.main(["study", str(DEMO), *inputs, "--resume", study_id]) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"error: --resume {study_id}: ")
    assert word in output.err
    assert output.err.count("\n") == 1


def test_command_to_resume_with_is_the_one_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[tuple[str | None, str]] = []

    def record(_config: StudyConfig, *, resume: str | None, command: str, stop: Stop) -> int:
        assert not stop.is_asked
        asked_for.append((resume, command))
        return 0

    monkeypatch.setattr(commands, "study", record)
    typed = ["study", str(DEMO), "load.streams=[1, 2]"]

    assert cli.main([*typed, "--resume", ID]) == 0
    assert cli.main(typed) == 0
    command = f"python -m orchestrator study {DEMO} 'load.streams=[1, 2]'"
    assert asked_for == [(ID, command), (None, command)]
