"""MLflow as tracker.

Only ``MlflowClient`` is used: the fluent API keeps a run in a thread-local stack, and the driver
and its journal's thread have the runs of several trials open at once.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from orchestrator.adapters.mlflow_client import make_client, translated
from orchestrator.adapters.mlflow_names import (
    BLOCK_METRIC,
    BLOCK_TAG,
    CLOSED_TAG,
    DEAD_TRIAL_TAGS,
    DROPPED_TRIAL_TAGS,
    FAILURE_TAG,
    FINGERPRINT_TAG,
    KIND_TAG,
    PARENT_TAG,
    REASON_TAG,
    STATUS_TAG,
    STUDY_TAG,
    TRIAL_TAG,
    flatten_params,
    legal_key,
    quoted,
)
from orchestrator.adapters.tracking_uri import REMOTE_SCHEMES, artifact_location
from orchestrator.adapters.trial_metrics import Point, block_points, boot_points
from orchestrator.core.secrecy import redact, redact_text
from orchestrator.core.types import Block, Boot, BootStatus
from orchestrator.errors import ConfigError

# Limits of MLflow 3.17 (mlflow/utils/validation.py).
MAX_TAG_CHARS = 8000
MAX_BATCH_METRICS = 1000
MAX_BATCH_PARAMS = 100


class MlflowTracker:
    """One parent run a study, one child run a boot; implements ``ports.Tracker``.

    No secret leaves for the store: parameters, tags and artifacts pass ``core.secrecy.redact``.
    Every method raises TransientError when MLflow does not do its part.

    Args:
        uri: Address that ``check`` returned.
        experiment: Name of the experiment, created when missing.
    """

    def __init__(self, uri: str, *, experiment: str) -> None:
        self._uri = uri
        self._experiment = experiment
        self._client = make_client(uri)

    @cached_property
    def _experiment_id(self) -> str:
        """Id of the experiment, asked for at its first use."""
        return self._find_or_create_experiment()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address only: a copy in another process makes its own connections."""
        return partial(MlflowTracker, self._uri, experiment=self._experiment), ()

    def open_study(self, study_id: str, name: str, params: Mapping[str, object]) -> str:
        """Return the id of the study's run, found by ``study_id`` or created, and RUNNING."""
        with translated():
            tags = {KIND_TAG: "study", STUDY_TAG: study_id}
            run = self._find(tags)
            if run is None:
                run = self._create(name, tags)
            elif run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, status="RUNNING")
            self._log_params(run, params)
            return str(run.info.run_id)

    def open_trial(self, study_run_id: str, trial_id: str, params: Mapping[str, object]) -> str:
        """Return the id of the trial's run, found by ``trial_id`` or created."""
        with translated():
            tags = {KIND_TAG: "trial", PARENT_TAG: study_run_id, TRIAL_TAG: trial_id}
            run = self._find(tags)
            if run is None:
                study = self._client.get_run(study_run_id).data.tags.get(STUDY_TAG, "")
                run = self._create(trial_id, tags | {STUDY_TAG: study})
            self._log_params(run, params)
            return str(run.info.run_id)

    def log_block(self, run_id: str, block: Block) -> None:
        """Store one block in one batch; a second call with the same id changes nothing."""
        with translated():
            self._log_missing_blocks(self._client.get_run(run_id), [block])

    def close_trial(self, run_id: str, boot: Boot, artifacts: Mapping[str, str]) -> None:
        """Store the boot's facts, summary and any block that is missing, and end its run.

        The run is FINISHED for an ok boot only. A run that already ended keeps its status, so
        that a late cleanup cannot turn a failed trial into a finished one.
        """
        with translated():
            run, status = self._client.get_run(run_id), str(boot.status)
            if CLOSED_TAG in run.data.tags:
                # An earlier call may have been cut off just before the run's end.
                status = run.data.tags.get(STATUS_TAG, status)
            else:
                self._log_boot(run, boot, artifacts)
            if run.info.status == "RUNNING":
                ended = "FINISHED" if status == BootStatus.OK else "FAILED"
                self._client.set_terminated(run_id, status=ended)

    def _log_boot(self, run: Run, boot: Boot, artifacts: Mapping[str, str]) -> None:
        run_id = run.info.run_id
        self._log_missing_blocks(run, boot.blocks)
        metrics = _metrics(boot_points(boot), run.info.start_time)
        for start in range(0, len(metrics), MAX_BATCH_METRICS):
            batch = metrics[start : start + MAX_BATCH_METRICS]
            self._client.log_batch(run_id, metrics=batch)
        self._log_artifacts(run_id, _boot_artifacts(boot) | dict(artifacts))
        tags = {STATUS_TAG: str(boot.status), REASON_TAG: boot.reason, CLOSED_TAG: "true"}
        if boot.fingerprint is not None:
            tags[FINGERPRINT_TAG] = boot.fingerprint
        if boot.failure is not None:
            tags[FAILURE_TAG] = str(boot.failure)
        self._set_tags(run_id, tags)

    def block_counts(self, study_run_id: str) -> dict[str, int]:
        """Return how often each block is stored in the runs of a study's trials, by block id.

        A block is a tag with its id and a point of each metric at its index. One that has no point
        is not there.
        """
        with translated():
            self._client.get_run(study_run_id)
            counts: Counter[str] = Counter()
            for run in self._trials(study_run_id):
                history = self._client.get_metric_history(run.info.run_id, BLOCK_METRIC)
                points = Counter(point.step for point in history)
                for key, block_id in run.data.tags.items():
                    if key.startswith(BLOCK_TAG):
                        counts[block_id] += points[int(key.removeprefix(BLOCK_TAG))]
            return dict(counts)

    def _trials(self, study_run_id: str) -> Iterator[Run]:
        query, page = f"tags.`{PARENT_TAG}` = '{study_run_id}'", None
        while True:
            found = self._client.search_runs([self._experiment_id], query, page_token=page)
            yield from found
            page = found.token
            if not page:
                return

    def drop_trials(self, study_run_id: str, kept: Collection[str]) -> None:
        """End as FAILED the runs of a study's trials, those with the ids ``kept`` excepted."""
        with translated():
            self._client.get_run(study_run_id)
            for run in list(self._trials(study_run_id)):
                if run.info.status != "FAILED" and run.data.tags.get(TRIAL_TAG) not in kept:
                    self._fail(run, DROPPED_TRIAL_TAGS)

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
        with translated():
            self._close_dead_trials(run_id)
            points = [Point(key=key, value=value) for key, value in metrics.items()]
            begun_ms = self._client.get_run(run_id).info.start_time
            self._client.log_batch(run_id, metrics=_metrics(points, begun_ms))
            self._log_artifacts(run_id, artifacts)
            self._set_tags(run_id, tags)
            self._client.set_terminated(run_id, status="FINISHED" if succeeded else "FAILED")

    def _close_dead_trials(self, study_run_id: str) -> None:
        """End what a killed trial could not; a study is closed after the last of its trials.

        A request whose answer was lost may have made a run beside the one that was used: that goes.
        """
        runs = list(self._trials(study_run_id))
        ended = {run.data.tags.get(TRIAL_TAG) for run in runs if run.info.status != "RUNNING"}
        for run in runs:
            if run.info.status != "RUNNING":
                continue
            tags = run.data.tags
            is_empty = not any(key.startswith(BLOCK_TAG) for key in tags)
            if is_empty and tags.get(TRIAL_TAG) in ended:
                self._client.delete_run(run.info.run_id)
            else:
                self._fail(run, DEAD_TRIAL_TAGS)

    def _fail(self, run: Run, tags: Mapping[str, str]) -> None:
        self._set_tags(run.info.run_id, tags)
        self._client.set_terminated(run.info.run_id, status="FAILED")

    def run_url(self, run_id: str) -> str:
        """Return the address of a run in the tracking UI; a local store has none of its own."""
        if self._uri.startswith(REMOTE_SCHEMES):
            with translated():
                return f"{redact_text(self._uri)}/#/experiments/{self._experiment_id}/runs/{run_id}"
        return f"{redact_text(self._uri)}#{run_id}"

    def _find_or_create_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                place = artifact_location(self._uri)
                return str(self._client.create_experiment(self._experiment, place))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(self._experiment)
        if found is None or found.lifecycle_stage != "active":
            raise ConfigError(
                "tracking.experiment", f"'{self._experiment}' was deleted", "restore or rename it"
            )
        return str(found.experiment_id)

    def _find(self, tags: Mapping[str, str]) -> Run | None:
        query = " and ".join(f"tags.`{key}` = {quoted(value)}" for key, value in tags.items())
        # The oldest: a request to create a run whose answer was lost may have made another one.
        found = self._client.search_runs(
            [self._experiment_id], query, max_results=1, order_by=["attributes.start_time ASC"]
        )
        return found[0] if found else None

    def _create(self, name: str, tags: Mapping[str, str]) -> Run:
        return self._client.create_run(self._experiment_id, tags=dict(tags), run_name=name)

    def _log_params(self, run: Run, params: Mapping[str, object]) -> None:
        """Log what the run lacks; a parameter can be written once only."""
        told = redact(params)
        assert isinstance(told, dict)
        rows = [
            Param(key, value)
            for key, value in flatten_params(told).items()
            if key not in run.data.params
        ]
        for start in range(0, len(rows), MAX_BATCH_PARAMS):
            batch = rows[start : start + MAX_BATCH_PARAMS]
            self._client.log_batch(run.info.run_id, params=batch)

    def _log_missing_blocks(self, run: Run, blocks: Sequence[Block]) -> None:
        known = {value for key, value in run.data.tags.items() if key.startswith(BLOCK_TAG)}
        for block in blocks:
            if block.block_id not in known:
                self._client.log_batch(
                    run.info.run_id,
                    metrics=_metrics(block_points(block), run.info.start_time),
                    tags=[RunTag(f"{BLOCK_TAG}{block.index}", block.block_id)],
                )

    def _log_artifacts(self, run_id: str, artifacts: Mapping[str, str]) -> None:
        for name, text in artifacts.items():
            self._client.log_text(run_id, redact_text(text), name)

    def _set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        told = {legal_key(key): redact_text(value) for key, value in tags.items()}
        rows = [RunTag(key, value[:MAX_TAG_CHARS]) for key, value in told.items()]
        if rows:
            self._client.log_batch(run_id, tags=rows)


def _metrics(points: Sequence[Point], begun_ms: int) -> list[Metric]:
    """Return points in MLflow's form, all with the time at which their run began.

    MLflow stores a point once that comes twice with the same time, as after a lost answer; and no
    clock that jumps puts one block before another, which its step does not.
    """
    return [
        Metric(legal_key(point.key), point.value, begun_ms, point.step)
        for point in points
        if math.isfinite(point.value)
    ]


def _boot_artifacts(boot: Boot) -> dict[str, str]:
    blocks = [asdict(block) for block in boot.blocks]
    files = {"blocks.json": json.dumps(blocks, indent=1)}
    if boot.facts is not None:
        files["engine_facts.json"] = json.dumps(asdict(boot.facts), indent=1, default=str)
    return files
