"""A study whose driver ends before its verdict: what is kept, and what a new driver makes of it."""

from __future__ import annotations

import errno
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from core_samples import BASELINE, make_arm, make_block, make_boot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.tune.search import Searcher
from study_stage import WEIGHTS, Cluster, make_plan, result_of

from orchestrator import cli, commands
from orchestrator.adapters.study_file import FORMAT, StudyFile, studies_dir
from orchestrator.config import CONF_DIR, StudyConfig, load_config
from orchestrator.core.build_verdict import VerdictSettings, decide_builds
from orchestrator.core.codec import from_plain
from orchestrator.core.promotion import GateSettings
from orchestrator.core.proof_gates import ProofDemands, Proofs
from orchestrator.core.race_state import RaceSettings
from orchestrator.core.types import Arm, BootStatus, Proof
from orchestrator.errors import ConfigError, StudyStopped, TransientError
from orchestrator.events import Printer
from orchestrator.fakes.board import BootFault, Faults
from orchestrator.fakes.tracker import FakeTracker
from orchestrator.fakes.world import FakeClock
from orchestrator.prepare import premises, prepare
from orchestrator.race_searcher import RaceSearcher
from orchestrator.resume import (
    Journal,
    StudyState,
    asked,
    read_state,
    require_same,
    take_over,
    tracked,
    unfinished,
)
from orchestrator.study import RaceResult

DEMO = CONF_DIR / "study" / "demo.yaml"
BEST, GOOD = make_arm(7, "probabilistic", "block"), make_arm(7, "greedy", "standard")
PLAN = replace(
    make_plan((BASELINE, GOOD, BEST), race=RaceSettings(max_boots=12, seed=1)),
    demands=ProofDemands(),
)
ID = "demo-1a2b3c4d-20260101-000000"


ASKS: dict[str, Any] = {
    "configuration": {}, "tracking": {}, "arms": [], "incumbent": None, "premises": {},
    "proof_workload": "w",
}  # fmt: skip
RACE: dict[str, Any] = {
    "boots": [], "spent_s": [], "lost": [], "cut": [], "trial_ids": [], "choices": [],
    "passed_s": 1.5, "proofs": {},
}  # fmt: skip


class Killed(BaseException):
    """The driver is no more."""


@dataclass
class Driver:
    """A study's drivers, one after the other, each killed wherever the dice say so."""

    seed: int
    is_whole: bool = False
    """Whether boots are trials on the fake board; else they are made up, which takes less time."""
    issued: list[tuple[Arm, int, bool]] = field(default_factory=list)
    num_kills: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.cluster = Cluster({GOOD: Faults(boot=BootFault.TRANSIENT, failing_boots=1)})
        self.tracker = self.cluster.tracker
        self.disk: str | None = None

    def tick(self) -> None:
        """Go on, or die here."""
        if self.num_kills < 8 and self.rng.random() < 0.04:
            self.num_kills += 1
            raise Killed

    def keep(self, state: Mapping[str, Any]) -> None:
        """Write the state; death comes before it or after it, and the file is whole."""
        self.tick()
        self.disk = json.dumps(state)
        self.tick()

    def run(self) -> tuple[RaceSearcher, RaceResult]:
        """Start drivers until one lives to the end of the race."""
        while True:
            with suppress(Killed):
                return self.drive()

    def drive(self) -> tuple[RaceSearcher, RaceResult]:
        """Do what the driver does, and Tune in it."""
        searcher = RaceSearcher(PLAN, lambda _id, _name: None, keep=self.keep)
        race = None if self.disk is None else json.loads(self.disk)
        if race is not None:
            searcher.set_out_from(race)
        run_id = self.cluster.run_id
        take_over(StudyState(study_id=ID, run_id=run_id, asks=ASKS, race=race), self.tracker)
        running: dict[str, dict[str, Any]] = {}
        num_parallel = 1 + self.seed % 3
        while True:
            trial_id = f"{self.rng.getrandbits(32):08x}"
            config = searcher.suggest(trial_id) if len(running) < num_parallel else None
            if config == Searcher.FINISHED:
                break
            if isinstance(config, dict):
                arm = from_plain(Arm, config["arm"])
                self.issued.append((arm, config["replicate"], config["is_proof"]))
                running[trial_id] = config
            else:
                first = next(iter(running))
                boot = self.cluster.boot if self.is_whole else self.made_up
                result = boot(first, running.pop(first), self.tick)
                searcher.on_trial_result(first, result)
                searcher.on_trial_complete(first, result)
        raced = RaceResult(boots=searcher.boots, choices=searcher.choices, proofs=searcher.proofs)
        return searcher, tracked(raced, self.tracker, run_id, lambda _text: None)

    def made_up(
        self, trial_id: str, config: Mapping[str, Any], tick: Callable[[], None]
    ) -> dict[str, Any]:
        """Do with the tracker what a trial does, which goes on where the tracker is away."""
        rng, arm = self.rng, from_plain(Arm, config["arm"])
        status = BootStatus.OK if rng.random() < 0.9 else BootStatus.FAILED
        boot = replace(
            make_boot(arm, (), replicate=config["replicate"], status=status),
            trial_id=trial_id,
            proof=Proof(findings={}) if config["is_proof"] else None,
        )
        if rng.random() < 0.9:
            run_id = self.tracker.open_trial(self.cluster.run_id, trial_id, {})
            boot = replace(boot, run_id=run_id)
        for index, cell in enumerate(() if config["is_proof"] else WEIGHTS):
            tick()
            seconds = rng.lognormvariate(0, 0.02) / (2 + arm.num_speculative_tokens)
            tokens = 3000 + rng.randrange(300)
            block = make_block(
                arm, cell=cell, seconds_per_token=seconds, tokens=tokens, index=index
            )
            block = replace(block, block_id=f"{trial_id}/{index}", boot_id=trial_id)
            boot = replace(boot, blocks=(*boot.blocks, block))
            if boot.run_id is not None and rng.random() < 0.9:
                self.tracker.log_block(boot.run_id, block)
        tick()
        if boot.run_id is not None and rng.random() < 0.9:
            self.tracker.close_trial(boot.run_id, boot, {})
        tick()
        return result_of(boot)


def assert_counted_once(driver: Driver) -> None:
    """See that the study ends, and that each boot is there once, whoever was killed before."""
    searcher, raced = driver.run()
    boots = {boot.trial_id: boot for boot in (*raced.boots, *raced.proofs)}
    assert len(boots) == len(raced.boots) + len(raced.proofs)
    assert len(set(driver.issued)) == len(driver.issued), "a number was used twice"
    runs = {run.name: run for run in driver.tracker.runs.values() if run.parent_id}
    assert set(boots) <= set(runs)
    for name, run in runs.items():
        if name in boots:
            is_ok = boots[name].status is BootStatus.OK
            assert set(run.blocks) == {block.block_id for block in boots[name].blocks}
            assert run.status == ("FINISHED" if is_ok else "FAILED")
        else:
            assert run.status == "FAILED", "it is a dead driver's"
    blocks = Counter(block for run in runs.values() for block in run.blocks)
    assert set(blocks.values()) <= {1}
    found = decide_builds(
        PLAN.question,
        raced.boots,
        settings=VerdictSettings(gates=GateSettings(), confidence=0.95, premises={}),
        choices=raced.choices,
        proofs=Proofs(boots=raced.proofs),
    )
    assert found.production.kind in ("promote", "keep", "no_difference", "no_result")
    assert found.production.winner in (None, *(choice.arm for choice in raced.choices.values()))
    assert searcher.stop_reason
    assert len(raced.boots) <= PLAN.race.max_boots


@pytest.mark.parametrize("batch", range(10))
def test_study_whose_driver_is_killed_at_any_moment_counts_each_boot_once(batch: int) -> None:
    """F17, E09, G01: what counts is in the tracker once, by its id, and nothing stays RUNNING."""
    drivers = [Driver(seed) for seed in range(batch * 30, batch * 30 + 30)]
    for driver in drivers:
        assert_counted_once(driver)

    assert sum(driver.num_kills for driver in drivers) > 60


@pytest.mark.parametrize("seed", range(3))
def test_study_of_whole_trials_whose_driver_is_killed_counts_each_boot_once(seed: int) -> None:
    assert_counted_once(Driver(seed, is_whole=True))


def test_boots_that_the_tracker_does_not_take_count_all_the_same() -> None:
    tracker, said = FakeTracker(), list[str]()
    run_id = tracker.open_study(ID, ID, {})
    lost, gone = make_boot(BEST, ()), replace(make_boot(GOOD, ()), run_id="deleted")
    raced = RaceResult(boots=(lost, gone), choices={})

    found = tracked(raced, tracker, run_id, said.append)

    assert [boot.trial_id for boot in found.boots] == [lost.trial_id, gone.trial_id]
    (run,) = (run for run in tracker.runs.values() if run.parent_id == run_id)
    assert found.boots[0].run_id == run.run_id
    assert (run.status, run.params["arm"]) == ("FINISHED", BEST.label)
    assert len(said) == 1
    assert gone.trial_id in said[0]


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


def kept(study_id: str = ID, *, has_verdict: bool = False) -> Path:
    """Write the state of a study and let it go; return the file."""
    with StudyFile(study_id, silent) as file:
        journal = Journal(file, StudyState(study_id=study_id, run_id="run-0", asks=ASKS))
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
        Journal(file, state).keep(RACE | {"passed_s": 2.0})

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


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(state=anything, key=st.sampled_from(["", *ASKS, *RACE, "asks", "race", "has_verdict"]))
@pytest.mark.usefixtures("state_dir")
def test_state_of_a_foreign_shape_with_its_digest_is_refused_in_one_line(
    state: Any, key: str
) -> None:
    whole: dict[str, Any] = {
        "study_id": ID, "run_id": "run-0", "asks": ASKS, "has_verdict": False, "race": RACE,
    }  # fmt: skip
    for part in ("asks", "race"):
        if key in whole[part]:
            whole[part] = whole[part] | {key: state}
    written(state if not key else whole | ({key: state} if key in whole else {}))
    said: list[str] = []

    with suppress(ConfigError), StudyFile(ID, said.append) as file:
        found = read_state(file)
        require_same(found, ASKS)
        RaceSearcher(PLAN, lambda _id, _name: None).set_out_from(found.race or RACE)
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
        journal = Journal(file, StudyState(study_id=ID, run_id="run-0", asks=ASKS))
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
def test_study_with_its_verdict_is_refused() -> None:
    kept(has_verdict=True)

    assert "has its verdict" in refusal_of(ID).problem


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
        journal = Journal(file, StudyState(study_id=ID, run_id="run-0", asks=ASKS))
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
        ("search.max_boots=99", ("search.max_boots was ", "and is 99")),
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
        journal = Journal(file, StudyState(study_id=ID, run_id="run-0", asks=ASKS))
        if is_kept:
            journal.keep(None)
        ending: Any = Ending(Away(), journal, printer)

        commands.give_up(ending, StudyStopped("stopped"), "python -m orchestrator study s", no_ray)

    lines = sink.getvalue().splitlines()
    hint = f"to resume: python -m orchestrator study s --resume {ID}"
    assert [line.endswith(hint) for line in lines] == [True, False, False][not is_kept :]
    assert "MLflow does not answer" in lines[-2]
    assert "Ray has gone" in lines[-1]


def test_end_of_a_study_closes_its_run() -> None:
    tracker = FakeTracker()
    run_id = tracker.open_study(ID, ID, {})
    printer = Printer(sink=io.StringIO(), clock=FakeClock(), started_s=0.0)
    journal = Journal(StudyFile(ID, silent), StudyState(study_id=ID, run_id=run_id, asks=ASKS))
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

    def record(_config: StudyConfig, *, resume: str | None, command: str) -> int:
        asked_for.append((resume, command))
        return 0

    monkeypatch.setattr(commands, "study", record)
    typed = ["study", str(DEMO), "load.streams=[1, 2]"]

    assert cli.main([*typed, "--resume", ID]) == 0
    assert cli.main(typed) == 0
    command = f"python -m orchestrator study {DEMO} 'load.streams=[1, 2]'"
    assert asked_for == [(ID, command), (None, command)]
