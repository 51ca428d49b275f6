"""What every tracker and registry owes the study: run on the fakes and on MLflow."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, replace
from typing import Protocol

import pytest
from records import FACTS, block, boot

from orchestrator.core.types import BootStatus
from orchestrator.errors import ConfigError, TransientError
from orchestrator.fakes.tracker import FakeTracker
from orchestrator.ports import Registry, Tracker


@dataclass(frozen=True, slots=True)
class SeenRun:
    """What an outsider reads of one run."""

    name: str
    status: str
    parent_id: str | None
    params: dict[str, str]
    num_blocks: int
    tags: dict[str, str]
    metrics: dict[str, float]


class Reader(Protocol):
    """Reads a store from outside, by means that are not the tracker's."""

    def run(self, run_id: str) -> SeenRun: ...

    def artifact(self, run_id: str, name: str) -> str: ...

    def num_runs(self) -> int: ...


class FakeReader:
    def __init__(self, tracker: FakeTracker) -> None:
        self._tracker = tracker

    def run(self, run_id: str) -> SeenRun:
        run = self._tracker.runs[run_id]
        return SeenRun(
            name=run.name,
            status=run.status,
            parent_id=run.parent_id,
            params={key: str(value) for key, value in run.params.items()},
            num_blocks=len(run.blocks),
            tags=run.tags,
            metrics=run.metrics,
        )

    def artifact(self, run_id: str, name: str) -> str:
        return self._tracker.runs[run_id].artifacts[name]

    def num_runs(self) -> int:
        return len(self._tracker.runs)


@dataclass(frozen=True, slots=True)
class Store:
    """A tracker with a reader of what it stored, and a second tracker on the same store."""

    tracker: Tracker
    again: Tracker
    reader: Reader
    registry: Registry
    model: str = field(default_factory=lambda: f"model-{uuid.uuid4().hex}")
    """Name of a registered model that nobody else uses."""


class TrackerContract:
    def test_open_study_twice_gives_one_run(self, store: Store) -> None:
        first = store.tracker.open_study("s1", "my study", {"seed": 1})
        second = store.again.open_study("s1", "my study", {"seed": 1})
        other = store.tracker.open_study("s2", "my study", {"seed": 2})

        assert first == second != other
        seen = store.reader.run(first)
        assert (seen.name, seen.status, seen.parent_id) == ("my study", "RUNNING", None)
        assert seen.params["seed"] == "1"

    def test_open_trial_twice_gives_one_child_run(self, store: Store) -> None:
        study = store.tracker.open_study("s1", "s", {})
        params = {"num_speculative_tokens": 7, "draft_sample_method": "probabilistic"}
        first = store.tracker.open_trial(study, "t1", params)
        second = store.again.open_trial(study, "t1", params)
        other = store.tracker.open_trial(study, "t2", params)

        assert first == second != other
        seen = store.reader.run(first)
        assert seen.parent_id == study
        assert seen.params["num_speculative_tokens"] == "7"
        assert store.reader.num_runs() == 3

    def test_open_trial_of_one_name_in_two_studies_gives_two_runs(self, store: Store) -> None:
        studies = [store.tracker.open_study(name, "s", {}) for name in ("s1", "s2")]
        trials = {store.tracker.open_trial(study, "t1", {}) for study in studies}

        assert len(trials) == 2

    def test_open_again_with_other_params_keeps_the_first(self, store: Store) -> None:
        study = store.tracker.open_study("s1", "s", {"a": 1})
        store.tracker.open_study("s1", "s", {"a": 2, "b": 3})

        params = store.reader.run(study).params
        assert (params["a"], params["b"]) == ("1", "3")

    def test_log_block_twice_stores_it_once(self, store: Store) -> None:
        run = self.open_trial(store)
        for tracker in (store.tracker, store.again, store.tracker):
            tracker.log_block(run, block(0))
        store.tracker.log_block(run, block(1))

        assert store.reader.run(run).num_blocks == 2

    def test_block_counts_has_each_block_of_the_studys_trials(self, store: Store) -> None:
        study = store.tracker.open_study("s1", "s", {})
        runs = [store.tracker.open_trial(study, name, {}) for name in ("t1", "t2")]
        other = store.tracker.open_trial(store.tracker.open_study("s2", "s", {}), "t1", {})
        assert store.tracker.block_counts(study) == {}
        for tracker in (store.tracker, store.again):
            tracker.log_block(runs[0], block(0))
        bad = block(1, invalid_reason="other traffic")
        store.tracker.close_trial(runs[0], boot(block(0), bad), {})
        store.tracker.log_block(runs[1], replace(block(0), block_id="another"))
        store.tracker.log_block(other, replace(block(0), block_id="elsewhere"))

        assert store.again.block_counts(study) == {
            block(0).block_id: 1, bad.block_id: 1, "another": 1,
        }  # fmt: skip
        store.tracker.log_block(runs[1], block(0))
        assert store.tracker.block_counts(study)[block(0).block_id] == 2
        with pytest.raises(TransientError):
            store.tracker.block_counts("0" * 32)

    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            (BootStatus.OK, "FINISHED"),
            (BootStatus.FAILED, "FAILED"),
            (BootStatus.NOT_IN_FORCE, "FAILED"),
            (BootStatus.INFEASIBLE, "FAILED"),
        ],
    )
    def test_close_trial_only_an_ok_boot_is_finished(
        self, store: Store, status: BootStatus, expected: str
    ) -> None:
        run = self.open_trial(store)
        record = boot(status=status, reason="said so", facts=None)
        store.tracker.close_trial(run, record, {})

        assert store.reader.run(run).status == expected

    def test_close_trial_failed_run_is_never_finished_later(self, store: Store) -> None:
        run = self.open_trial(store)
        killed = boot(status=BootStatus.FAILED, reason="the trial's process is gone")
        store.tracker.close_trial(run, killed, {})
        store.again.close_trial(run, boot(block(0)), {})

        assert store.reader.run(run).status == "FAILED"

    def test_close_trial_stores_blocks_that_could_not_be_logged_before(self, store: Store) -> None:
        run = self.open_trial(store)
        store.tracker.log_block(run, block(1))
        store.tracker.close_trial(run, boot(block(0), block(1), block(2)), {})

        assert store.reader.run(run).num_blocks == 3

    def test_close_trial_keeps_its_artifacts(self, store: Store) -> None:
        run = self.open_trial(store)
        store.tracker.close_trial(run, boot(block(0)), {"engine_log_tail.txt": "one\ntwo\n"})

        assert store.reader.artifact(run, "engine_log_tail.txt") == "one\ntwo\n"

    def test_unknown_numbers_never_break_a_block_or_a_boot(self, store: Store) -> None:
        run = self.open_trial(store)
        bad = block(0, duration_s=float("nan"), ttft_s=(float("inf"), float("nan")))
        store.tracker.log_block(run, bad)
        facts = replace(FACTS, kv_max_concurrency=float("nan"), kv_cache_tokens=None)
        store.tracker.close_trial(run, boot(bad, facts=facts), {})

        assert store.reader.run(run).status == "FINISHED"

    @pytest.mark.parametrize(("succeeded", "expected"), [(True, "FINISHED"), (False, "FAILED")])
    def test_close_study_stores_the_verdict(
        self, store: Store, succeeded: bool, expected: str
    ) -> None:
        study = store.tracker.open_study("s1", "s", {})
        store.tracker.close_study(
            study,
            succeeded=succeeded,
            tags={"verdict": "winner"},
            metrics={"gain": 0.25},
            artifacts={"report.md": "# Report"},
        )

        seen = store.reader.run(study)
        assert seen.status == expected
        assert seen.tags["verdict"] == "winner"
        assert seen.metrics["gain"] == 0.25
        assert store.reader.artifact(study, "report.md") == "# Report"

    def test_close_study_ends_the_run_of_a_trial_that_was_killed(self, store: Store) -> None:
        study = store.tracker.open_study("s1", "s", {})
        killed = store.tracker.open_trial(study, "t1", {})
        ended = store.tracker.open_trial(study, "t2", {})
        store.tracker.close_trial(ended, boot(), {})
        other = store.tracker.open_trial(store.tracker.open_study("s2", "s", {}), "t1", {})

        store.tracker.close_study(study, succeeded=True, tags={}, metrics={}, artifacts={})

        assert store.reader.run(killed).status == "FAILED"
        assert store.reader.run(ended).status == "FINISHED"
        assert store.reader.run(other).status == "RUNNING"

    def test_drop_trials_fails_all_but_those_that_are_kept(self, store: Store) -> None:
        study = store.tracker.open_study("s1", "s", {})
        killed, ended, kept, closing = (
            store.tracker.open_trial(study, name, {}) for name in ("t1", "t2", "t3", "t4")
        )
        for run in (ended, kept):
            store.tracker.close_trial(run, boot(), {})
        other = store.tracker.open_trial(store.tracker.open_study("s2", "s", {}), "t1", {})

        for tracker in (store.tracker, store.again):
            tracker.drop_trials(study, {"t3", "t4"})

        seen = {run: store.reader.run(run).status for run in (study, killed, ended, kept, closing)}
        assert seen == {
            study: "RUNNING",
            killed: "FAILED",
            ended: "FAILED",
            kept: "FINISHED",
            closing: "RUNNING",
        }
        assert store.reader.run(other).status == "RUNNING"
        store.tracker.close_trial(killed, boot(), {})
        assert store.reader.run(killed).status == "FAILED"
        store.tracker.close_trial(closing, boot(), {})
        assert store.reader.run(closing).status == "FINISHED"

    def test_drop_trials_of_an_unknown_study_is_a_transient_error(self, store: Store) -> None:
        with pytest.raises(TransientError):
            store.tracker.drop_trials("0" * 32, ())

    def test_open_study_again_after_its_end_is_running(self, store: Store) -> None:
        study = store.tracker.open_study("s1", "s", {})
        store.tracker.close_study(study, succeeded=False, tags={}, metrics={}, artifacts={})
        store.again.open_study("s1", "s", {})

        assert store.reader.run(study).status == "RUNNING"

    def test_unknown_run_is_a_transient_error(self, store: Store) -> None:
        with pytest.raises(TransientError):
            store.tracker.log_block("0" * 32, block(0))

    def test_run_url_names_the_run(self, store: Store) -> None:
        study = store.tracker.open_study("s1", "s", {})

        assert study in store.tracker.run_url(study)

    def test_no_secret_is_stored(self, store: Store) -> None:
        study = store.tracker.open_study("s1", "s", SECRET_PARAMS)
        trial = store.tracker.open_trial(study, "t1", SECRET_PARAMS)
        store.tracker.close_trial(trial, replace(boot(), run_id=trial), SECRET_TEXTS)
        tags = {"note": f"see https://u:{PLANTED}@h/x", "arm": '{"num_speculative_tokens": 7}'}
        store.tracker.close_study(
            study, succeeded=True, tags=tags, metrics={}, artifacts=SECRET_TEXTS
        )

        for run_id in (study, trial):
            run = store.reader.run(run_id)
            told = [store.reader.artifact(run_id, name) for name in SECRET_TEXTS]
            assert PLANTED not in repr((run.params, run.tags, told))
            assert "mlflow:5000" in repr(run.params)
            assert "GB10" in repr(run.params)
            assert told[0].endswith("\nup")
            assert told[2] == SECRET_TEXTS["fine.json"]
        assert store.reader.run(study).tags["arm"] == tags["arm"]

    def open_trial(self, store: Store) -> str:
        study = store.tracker.open_study("s1", "s", {})
        return store.tracker.open_trial(study, "t1", {})


PLANTED = "PlantedSecret0123456789"
"""Stands in the places where secrets are met; in no store may it be found."""
SECRET_PARAMS: dict[str, object] = {
    "engine": {"args": {"api_key": PLANTED, "max_num_seqs": 4}, "env": {"HF_TOKEN": PLANTED}},
    "tracking": {"uri": f"http://bob:{PLANTED}@mlflow:5000"},
    "command": ["vllm", "serve", "--api-key", PLANTED, "--port", "8000"],
    "node": {"engine_token": "GB10"},
    "block_tokens": None,
    "ray.job_config": json.dumps({"env_vars": {"HF_TOKEN": PLANTED}, "x": "y" * 9000}),
}
SECRET_TEXTS = {
    "engine_log_tail.txt": f"args: {{'api_key': ['{PLANTED}', 'b'], 'hf_token': '{PLANTED}'}}\nup",
    "broken.json": f'{{"api_key": "{PLANTED}", "api_key": null}}',
    "fine.json": '{"api_key": null,  "prompt_tokens": 3, "cached_tokens": null}',
}


CONFIG = {"arm": {"num_speculative_tokens": 7}, "args": {"max_model_len": 4096}}


class RegistryContract:
    def test_versions_count_up_and_keep_their_own_config(self, store: Store) -> None:
        run = store.tracker.open_study("s1", "s", {})
        first = store.registry.create_version(store.model, run, CONFIG, {"gain": "0.2"})
        second = store.registry.create_version(store.model, run, {"arm": None}, {})

        assert (first.version, second.version) == (1, 2)
        found = store.registry.by_number(store.model, 1)
        assert found is not None
        assert found.config == CONFIG
        assert found.tags == {"gain": "0.2"}
        assert found.run_id == run
        assert found == first

    def test_configuration_with_a_secret_is_refused_and_a_tag_is_redacted(
        self, store: Store
    ) -> None:
        run = store.tracker.open_study("s1", "s", {})
        with pytest.raises(ConfigError, match=r"env\.HF_TOKEN") as error:
            store.registry.create_version(store.model, run, {"env": {"HF_TOKEN": PLANTED}}, {})
        assert PLANTED not in str(error.value)

        store.registry.create_version(store.model, run, CONFIG, {"note": f"token={PLANTED}"})
        store.registry.set_tag(store.model, 1, "why", f"--api-key {PLANTED}")
        found = store.registry.by_number(store.model, 1)
        assert found is not None
        assert found.tags == {"note": "token=(secret)", "why": "--api-key (secret)"}

    def test_alias_moves_and_goes(self, store: Store) -> None:
        run = store.tracker.open_study("s1", "s", {})
        for _ in range(2):
            store.registry.create_version(store.model, run, CONFIG, {})

        store.registry.set_alias(store.model, "champion", 1)
        store.registry.set_alias(store.model, "champion", 2)
        store.registry.set_alias(store.model, "previous", 1)

        champion = store.registry.by_alias(store.model, "champion")
        previous = store.registry.by_alias(store.model, "previous")
        assert champion is not None
        assert previous is not None
        assert (champion.version, previous.version) == (2, 1)
        store.registry.delete_alias(store.model, "champion")
        assert store.registry.by_alias(store.model, "champion") is None

    def test_what_does_not_exist_is_none_or_nothing(self, store: Store) -> None:
        assert store.registry.by_alias("nothing", "champion") is None
        assert store.registry.by_number("nothing", 1) is None
        store.registry.delete_alias("nothing", "champion")
        run = store.tracker.open_study("s1", "s", {})
        store.registry.create_version(store.model, run, CONFIG, {})
        assert store.registry.by_alias(store.model, "champion") is None
        for number in (-1, 0, 2, 10**20, 10**400):
            assert store.registry.by_number(store.model, number) is None
        store.registry.delete_alias(store.model, "champion")

    def test_set_alias_to_a_missing_version_is_an_error(self, store: Store) -> None:
        run = store.tracker.open_study("s1", "s", {})
        store.registry.create_version(store.model, run, CONFIG, {})

        with pytest.raises(TransientError):
            store.registry.set_alias(store.model, "champion", 9)

    def test_find_gives_the_newest_version_with_all_the_tags(self, store: Store) -> None:
        assert store.registry.find(store.model, {"study": "s1"}) is None
        run = store.tracker.open_study("s1", "s", {})
        arm = '{"draft": "it\'s", "depth": 7}'
        for tags in ({"study": "s1", "arm": arm}, {"study": "s1"}, {"study": "s2", "arm": arm}):
            store.registry.create_version(store.model, run, CONFIG, tags)

        def number(tags: dict[str, str]) -> int | None:
            found = store.registry.find(store.model, tags)
            return None if found is None else found.version

        assert number({"study": "s1", "arm": arm}) == 1
        assert number({"study": "s1"}) == 2
        assert number({"arm": arm}) == 3
        assert number({"study": "s3"}) is None

    def test_set_tag_changes_one_tag(self, store: Store) -> None:
        run = store.tracker.open_study("s1", "s", {})
        store.registry.create_version(store.model, run, CONFIG, {"a": "1", "b": "2"})
        store.registry.set_tag(store.model, 1, "b", "3")

        found = store.registry.by_number(store.model, 1)
        assert found is not None
        assert found.tags == {"a": "1", "b": "3"}
