"""States on a node's disk: what is judged for secrets, and that a stored one is still read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journal_scene import ASKS, ID, PLAN

from orchestrator.adapters import kept_file
from orchestrator.adapters.kept_file import KeptFile, locked
from orchestrator.adapters.study_file import FORMAT, StudyFile
from orchestrator.core.codec import from_plain
from orchestrator.core.journal import Records
from orchestrator.errors import ConfigError
from orchestrator.fakes.tracker import FakeTracker
from orchestrator.journal import Journal, check_journal
from orchestrator.race_searcher import RaceSearcher
from orchestrator.resume import read_state, require_same

STORED = Path(__file__).parents[1] / "data" / "study_state" / f"{FORMAT.rpartition('/')[2]}.json"
PLANTED = "PlantedSecret0123456789"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a study's folder with the state that is stored beside the tests."""
    folder = tmp_path / ID
    folder.mkdir()
    shutil.copy(STORED, folder / "state.json")
    return folder


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the texts that are looked through for secrets."""
    found: list[str] = []
    real = kept_file.redact_text

    def counted(text: str) -> str:
        found.append(text)
        return real(text)

    monkeypatch.setattr(kept_file, "redact_text", counted)
    return found


def test_stored_state_is_read_and_gone_on_with(stored: Path) -> None:
    """One driver died with two boots ended, and with the first block of a third."""
    with StudyFile(ID, pytest.fail, folder=stored) as file:
        state = read_state(file)
        require_same(state, ASKS)
        searcher = RaceSearcher(PLAN, lambda _id, _name: None)
        searcher.set_out_from(state.race or {})
        records = from_plain(Records, state.records)
        tracker = FakeTracker()
        run_id = tracker.open_study(ID, ID, {})
        state = replace(state, run_id=run_id)
        journal = Journal(file, state, tracker)

        assert [boot.replicate for boot in searcher.boots] == [0, 0]
        assert [len(boot.blocks) for boot in searcher.boots] == [2, 2]
        assert [len(ids) for ids in records.measured.values()] == [2, 2, 1]
        assert journal.state.trial_ids == {"00000000", "00000001"}
        assert {entry.trial_id for entry in records.pending} == {"00000001", "00000002"}
        told = [entry for entry in records.pending if entry.boot is not None]
        assert all("engine_log_tail.txt" in entry.artifacts for entry in told)
        assert searcher.suggest("00000003") not in (None, RaceSearcher.FINISHED)
        assert journal.replay()
        check = check_journal(journal.state, tracker)
        assert (check.lost, check.double) == (records.measured["00000000"], ()), "told before"


@pytest.mark.parametrize("version", ["1", "3", "2.1", "x"])
def test_state_of_another_version_is_refused_in_one_line(stored: Path, version: str) -> None:
    path = stored / "state.json"
    other = f"specpilot.study/{version}"
    path.write_bytes(path.read_bytes().replace(FORMAT.encode(), other.encode(), 1))

    with pytest.raises(ConfigError) as refusal, StudyFile(ID, pytest.fail, folder=stored) as file:
        file.read()

    assert f"was written by another version, as {other} and not {FORMAT}" in refusal.value.problem
    assert "\n" not in str(refusal.value)


def test_only_what_is_new_in_a_state_is_judged(tmp_path: Path, judged: list[str]) -> None:
    file, folder = KeptFile(tmp_path / "state.json", "form/1"), locked(tmp_path)
    old = {"reasons": [f"reason {number}" for number in range(50)]}
    file.write(old, folder=folder)
    num_judged = len(judged)

    file.write(old | {"told": "--api-key " + PLANTED}, folder=folder)

    assert judged[num_judged:] == ["told", "--api-key " + PLANTED]
    assert file.read() == old | {"told": "--api-key (secret)"}


def test_secret_is_never_written_however_often_the_state_is(tmp_path: Path) -> None:
    file, folder = KeptFile(tmp_path / "state.json", "form/1"), locked(tmp_path)
    state: dict[str, Any] = {"reasons": []}
    for number in range(4):
        state["reasons"] += [f"--api-key {PLANTED}{number}", f"--api-key {PLANTED}"]
        file.write(state, folder=folder)
        assert PLANTED.encode() not in file.path.read_bytes()


def test_write_that_fails_judges_nothing_twice_and_leaves_the_last(
    tmp_path: Path, judged: list[str]
) -> None:
    file, folder = KeptFile(tmp_path / "state.json", "form/1"), locked(tmp_path)
    file.write({"a": "one"}, folder=folder)
    (tmp_path / "state.new").mkdir()

    with pytest.raises(OSError, match=r"state\.new"):
        file.write({"a": "two"}, folder=folder)
    assert file.read() == {"a": "one"}
    (tmp_path / "state.new").rmdir()
    file.write({"a": "two"}, folder=folder)

    assert file.read() == {"a": "two"}
    assert judged == ["a", "one", "two"]
