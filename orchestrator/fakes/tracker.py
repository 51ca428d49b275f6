"""A tracker and a registry in memory, with the rules of the real ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.core.secrecy import redact, redact_text, require_no_secret
from orchestrator.core.types import Block, Boot, BootStatus
from orchestrator.errors import TransientError
from orchestrator.ports import Version


@dataclass(slots=True, kw_only=True)
class FakeRun:
    """One run as a test sees it."""

    run_id: str
    name: str
    parent_id: str | None
    params: dict[str, object]
    status: str = "RUNNING"
    blocks: dict[str, Block] = field(default_factory=dict)
    """By block id."""
    boot: Boot | None = None
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)


class FakeTracker:
    """Implements ``ports.Tracker`` in memory."""

    def __init__(self) -> None:
        self.runs: dict[str, FakeRun] = {}
        self._studies: dict[str, str] = {}
        self._trials: dict[tuple[str, str], str] = {}

    def open_study(self, study_id: str, name: str, params: Mapping[str, object]) -> str:
        """Return the id of the study's run, found by ``study_id`` or created, and RUNNING."""
        run_id = self._studies.get(study_id)
        if run_id is None:
            run_id = self._studies[study_id] = self._create(name, None)
        run = self.runs[run_id]
        run.status = "RUNNING"
        run.params = _told(params) | run.params
        return run_id

    def open_trial(self, study_run_id: str, trial_id: str, params: Mapping[str, object]) -> str:
        """Return the id of the trial's run, found by ``trial_id`` or created."""
        self._run(study_run_id)
        run_id = self._trials.get((study_run_id, trial_id))
        if run_id is None:
            run_id = self._create(trial_id, study_run_id)
            self._trials[study_run_id, trial_id] = run_id
        run = self.runs[run_id]
        run.params = _told(params) | run.params
        return run_id

    def log_block(self, run_id: str, block: Block) -> None:
        """Store one block; a second call with the same id changes nothing."""
        self._run(run_id).blocks.setdefault(block.block_id, block)

    def close_trial(self, run_id: str, boot: Boot, artifacts: Mapping[str, str]) -> None:
        """Store the boot and missing blocks and end its run; an ended run keeps its status."""
        run = self._run(run_id)
        if run.boot is not None:
            return
        run.boot = boot
        for block in boot.blocks:
            run.blocks.setdefault(block.block_id, block)
        run.artifacts |= _texts(artifacts)
        if run.status == "RUNNING":
            run.status = "FINISHED" if boot.status is BootStatus.OK else "FAILED"

    def block_counts(self, study_run_id: str) -> Mapping[str, int]:
        """Return how often each block is stored in the runs of a study's trials, by block id."""
        self._run(study_run_id)
        trials = (run for run in self.runs.values() if run.parent_id == study_run_id)
        return Counter(block_id for run in trials for block_id in run.blocks)

    def drop_trials(self, study_run_id: str, kept: Collection[str]) -> None:
        """End as failed the runs of a study's trials, those with the ids ``kept`` excepted."""
        self._run(study_run_id)
        for trial in self.runs.values():
            if trial.parent_id == study_run_id and trial.name not in kept:
                trial.status = "FAILED"

    def close_study(
        self,
        run_id: str,
        *,
        succeeded: bool,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        artifacts: Mapping[str, str],
    ) -> None:
        """Store the verdict and end the study's run, and those of trials that died in it."""
        for trial in self.runs.values():
            if trial.parent_id == run_id and trial.status == "RUNNING":
                trial.status = "FAILED"
        run = self._run(run_id)
        run.tags |= _texts(tags)
        run.metrics |= metrics
        run.artifacts |= _texts(artifacts)
        run.status = "FINISHED" if succeeded else "FAILED"

    def run_url(self, run_id: str) -> str:
        """Return an address that leads nowhere."""
        return f"memory://runs/{run_id}"

    def _create(self, name: str, parent_id: str | None) -> str:
        run_id = f"run-{len(self.runs)}"
        self.runs[run_id] = FakeRun(run_id=run_id, name=name, parent_id=parent_id, params={})
        return run_id

    def _run(self, run_id: str) -> FakeRun:
        if run_id not in self.runs:
            raise TransientError(f"there is no run '{run_id}'")
        return self.runs[run_id]


class FakeRegistry:
    """Implements ``ports.Registry`` in memory."""

    def __init__(self) -> None:
        self._versions: dict[str, list[Version]] = {}
        self._aliases: dict[tuple[str, str], int] = {}

    def create_version(
        self, model_name: str, run_id: str, config: Mapping[str, object], tags: Mapping[str, str]
    ) -> Version:
        """Register one configuration; it must be JSON, as for the real registry."""
        require_no_secret("the serving configuration", config)
        versions = self._versions.setdefault(model_name, [])
        version = Version(
            model_name=model_name,
            version=len(versions) + 1,
            config=json.loads(json.dumps(config)),
            tags=_texts(tags),
            run_id=run_id,
        )
        versions.append(version)
        return version

    def by_alias(self, model_name: str, alias: str) -> Version | None:
        """Return the version that the alias names, or None."""
        number = self._aliases.get((model_name, alias))
        return None if number is None else self.by_number(model_name, number)

    def by_number(self, model_name: str, version: int) -> Version | None:
        """Return one version, or None."""
        versions = self._versions.get(model_name, [])
        return versions[version - 1] if 1 <= version <= len(versions) else None

    def find(self, model_name: str, tags: Mapping[str, str]) -> Version | None:
        """Return the newest version that has all these tags, or None."""
        versions = reversed(self._versions.get(model_name, []))
        return next((item for item in versions if tags.items() <= item.tags.items()), None)

    def set_alias(self, model_name: str, alias: str, version: int) -> None:
        """Point the alias to a version.

        Raises:
            TransientError: There is no such version.
        """
        self._require(model_name, version)
        self._aliases[model_name, alias] = version

    def delete_alias(self, model_name: str, alias: str) -> None:
        """Remove the alias; no error when it does not exist."""
        self._aliases.pop((model_name, alias), None)

    def set_tag(self, model_name: str, version: int, key: str, value: str) -> None:
        """Set one tag of a version.

        Raises:
            TransientError: There is no such version.
        """
        found = self._require(model_name, version)
        changed = replace(found, tags={**found.tags, key: redact_text(value)})
        self._versions[model_name][version - 1] = changed

    def _require(self, model_name: str, version: int) -> Version:
        found = self.by_number(model_name, version)
        if found is None:
            raise TransientError(f"there is no version {version} of '{model_name}'")
        return found


def _told(params: Mapping[str, object]) -> dict[str, object]:
    told = redact(params)
    assert isinstance(told, dict)
    return told


def _texts(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: redact_text(text) for name, text in texts.items()}
