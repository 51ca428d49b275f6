"""MLflow as tracker and registry; the only file that imports mlflow.

Only ``MlflowClient`` is used: the fluent API keeps a run in a thread-local stack, which two trials
in one process would share.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlflow.telemetry
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from orchestrator.adapters.mlflow_names import (
    BLOCK_TAG,
    CLOSED_TAG,
    DEAD_TRIAL_TAGS,
    DROPPED_TRIAL_TAGS,
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
from orchestrator.adapters.tracking_uri import REMOTE_SCHEMES, artifact_location, check
from orchestrator.adapters.trial_metrics import Point, block_points, boot_points
from orchestrator.core.secrecy import redact, redact_text, require_no_secret
from orchestrator.core.types import Block, Boot, BootStatus
from orchestrator.errors import ConfigError, TransientError
from orchestrator.ports import Version

__all__ = ["MlflowRegistry", "MlflowTracker", "check", "make_client"]

# Limits of MLflow 3.17 (mlflow/utils/validation.py).
MAX_TAG_CHARS = 8000
MAX_BATCH_METRICS = 1000
MAX_BATCH_PARAMS = 100
MAX_VERSION = 2**31
"""Versions are 32-bit numbers in MLflow's own tables."""

CLIENT_SETTINGS = {
    # A server that is down must cost seconds; MLflow's own defaults wait for many minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Settings that MLflow takes from the environment only; what the user set there wins."""


def make_client(uri: str) -> MlflowClient:
    """Return a quiet client whose calls end within seconds when the server is down."""
    for key, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(key, value)
    mlflow.telemetry.set_telemetry_client()  # type: ignore[no-untyped-call]  # MLflow's
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with _translated():
            return MlflowClient(tracking_uri=uri, registry_uri=uri)
    except TransientError as error:
        cause = error.__cause__
        if isinstance(cause, DatabaseError) and not isinstance(cause, OperationalError):
            raise ConfigError(
                "tracking.uri", f"{redact_text(uri)} is damaged, or is no database of MLflow",
                "put a copy of it back, or name another",
            ) from error  # fmt: skip
        raise


class MlflowTracker:
    """One parent run a study, one child run a boot; implements ``ports.Tracker``.

    No secret leaves for the store: parameters, tags and artifacts pass ``core.secrecy.redact``.
    Every method raises TransientError when MLflow does not do its part; a trial that measured
    well goes on without it.

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
        """Id of the experiment, asked for at its first use.

        A trial makes its tracker before it boots, and must boot without MLflow, too.
        """
        return self._find_or_create_experiment()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address only: a copy in another process makes its own connections."""
        return partial(MlflowTracker, self._uri, experiment=self._experiment), ()

    def open_study(self, study_id: str, name: str, params: Mapping[str, object]) -> str:
        """Return the id of the study's run, found by ``study_id`` or created, and RUNNING."""
        with _translated():
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
        with _translated():
            tags = {KIND_TAG: "trial", PARENT_TAG: study_run_id, TRIAL_TAG: trial_id}
            run = self._find(tags)
            if run is None:
                study = self._client.get_run(study_run_id).data.tags.get(STUDY_TAG, "")
                run = self._create(trial_id, tags | {STUDY_TAG: study})
            self._log_params(run, params)
            return str(run.info.run_id)

    def log_block(self, run_id: str, block: Block) -> None:
        """Store one block in one batch; a second call with the same id changes nothing."""
        with _translated():
            self._log_missing_blocks(self._client.get_run(run_id), [block])

    def close_trial(self, run_id: str, boot: Boot, artifacts: Mapping[str, str]) -> None:
        """Store the boot's facts, summary and any block that is missing, and end its run.

        The run is FINISHED for an ok boot only. A run that already ended keeps its status, so
        that a late cleanup cannot turn a failed trial into a finished one.
        """
        with _translated():
            run = self._client.get_run(run_id)
            if CLOSED_TAG in run.data.tags:
                return
            self._log_missing_blocks(run, boot.blocks)
            metrics = _metrics(boot_points(boot))
            for start in range(0, len(metrics), MAX_BATCH_METRICS):
                batch = metrics[start : start + MAX_BATCH_METRICS]
                self._client.log_batch(run_id, metrics=batch)
            self._log_artifacts(run_id, _boot_artifacts(boot) | dict(artifacts))
            tags = {STATUS_TAG: str(boot.status), REASON_TAG: boot.reason, CLOSED_TAG: "true"}
            if boot.fingerprint is not None:
                tags[FINGERPRINT_TAG] = boot.fingerprint
            self._set_tags(run_id, tags)
            if run.info.status == "RUNNING":
                status = "FINISHED" if boot.status is BootStatus.OK else "FAILED"
                self._client.set_terminated(run_id, status=status)

    def drop_trials(self, study_run_id: str, kept: Collection[str]) -> None:
        """End as FAILED the runs of a study's trials, those with the ids ``kept`` excepted."""
        with _translated():
            self._client.get_run(study_run_id)
            query = f"tags.`{PARENT_TAG}` = '{study_run_id}' and attributes.status != 'FAILED'"
            for run in self._client.search_runs([self._experiment_id], query):
                if run.data.tags.get(TRIAL_TAG) not in kept:
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
        with _translated():
            self._close_dead_trials(run_id)
            points = [Point(key=key, value=value) for key, value in metrics.items()]
            self._client.log_batch(run_id, metrics=_metrics(points))
            self._log_artifacts(run_id, artifacts)
            self._set_tags(run_id, tags)
            self._client.set_terminated(run_id, status="FINISHED" if succeeded else "FAILED")

    def _close_dead_trials(self, study_run_id: str) -> None:
        """End what a killed trial could not; a study is closed after the last of its trials."""
        query = f"tags.`{PARENT_TAG}` = '{study_run_id}' and attributes.status = 'RUNNING'"
        for run in self._client.search_runs([self._experiment_id], query):
            self._fail(run, DEAD_TRIAL_TAGS)

    def _fail(self, run: Run, tags: Mapping[str, str]) -> None:
        self._set_tags(run.info.run_id, tags)
        self._client.set_terminated(run.info.run_id, status="FAILED")

    def run_url(self, run_id: str) -> str:
        """Return the address of a run in the tracking UI; a local store has none of its own."""
        if self._uri.startswith(REMOTE_SCHEMES):
            with _translated():
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
        found = self._client.search_runs([self._experiment_id], query, max_results=1)
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
                    metrics=_metrics(block_points(block)),
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


class MlflowRegistry:
    """Registered serving configurations; implements ``ports.Registry``.

    Args:
        uri: Address that ``check`` returned.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._client = make_client(uri)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address only."""
        return MlflowRegistry, (self._uri,)

    def create_version(
        self, model_name: str, run_id: str, config: Mapping[str, object], tags: Mapping[str, str]
    ) -> Version:
        """Register one configuration with its evidence.

        The configuration is an artifact of the run, in a folder named by its digest: two versions
        from one run never share a file.

        Raises:
            ConfigError: There is a secret in it: without it production would serve something
                else, and with it everybody who reads the registry would know it.
        """
        require_no_secret("the serving configuration", config)
        text = json.dumps(config, indent=2, sort_keys=True)
        folder = f"serving_config/{sha256(text.encode()).hexdigest()[:16]}"
        with _translated():
            self._client.log_text(run_id, text, f"{folder}/config.json")
            self._ensure_model(model_name)
            created = self._client.create_model_version(
                model_name,
                source=f"runs:/{run_id}/{folder}",
                run_id=run_id,
                tags={legal_key(key): redact_text(value) for key, value in tags.items()},
            )
            return self._version(created)

    def by_alias(self, model_name: str, alias: str) -> Version | None:
        """Return the version that the alias names, or None."""
        with _translated():
            try:
                return self._version(self._client.get_model_version_by_alias(model_name, alias))
            except MlflowException as error:
                _ignore_missing(error)
                return None

    def by_number(self, model_name: str, version: int) -> Version | None:
        """Return one version, or None."""
        if not 0 < version < MAX_VERSION:
            return None  # a store that counts in fewer bits than the number has would complain
        with _translated():
            try:
                return self._version(self._client.get_model_version(model_name, str(version)))
            except MlflowException as error:
                _ignore_missing(error)
                return None

    def set_alias(self, model_name: str, alias: str, version: int) -> None:
        """Point the alias to a version, in one atomic call."""
        with _translated():
            self._client.set_registered_model_alias(model_name, alias, str(version))

    def delete_alias(self, model_name: str, alias: str) -> None:
        """Remove the alias; no error when it does not exist."""
        with _translated():
            try:
                self._client.delete_registered_model_alias(model_name, alias)
            except MlflowException as error:
                _ignore_missing(error)

    def set_tag(self, model_name: str, version: int, key: str, value: str) -> None:
        """Set one tag of a version."""
        with _translated():
            self._client.set_model_version_tag(model_name, str(version), key, redact_text(value))

    def _ensure_model(self, name: str) -> None:
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _version(self, found: ModelVersion) -> Version:
        match = re.fullmatch(r"runs:/([0-9a-f]+)/(.+)", found.source or "")
        if match is None:
            raise ConfigError(
                f"{found.name} version {found.version}",
                f"its source '{found.source}' is no serving configuration",
                "remove the alias from it or register the configuration by a study",
            )
        with tempfile.TemporaryDirectory() as folder:
            name = f"{match[2]}/config.json"
            path = Path(self._client.download_artifacts(match[1], name, folder))
            config = _serving_config(path, found)
        return Version(
            model_name=found.name,
            version=int(found.version),
            config=config,
            tags=dict(found.tags),
            run_id=found.run_id,
        )


def _serving_config(path: Path, found: ModelVersion) -> dict[str, Any]:
    """Return the serving configuration in a file.

    Raises:
        ConfigError: The file is damaged.
    """
    try:
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("it holds no mapping")
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"version {found.version} of '{found.name}'",
            f"its config.json is damaged ({error})",
            f"put the file back into the artifacts of run {found.run_id}, or remove the version",
        ) from error
    return config


def _metrics(points: Sequence[Point]) -> list[Metric]:
    now_ms = int(time.time() * 1000)
    return [
        Metric(legal_key(point.key), point.value, now_ms, point.step)
        for point in points
        if math.isfinite(point.value)
    ]


def _boot_artifacts(boot: Boot) -> dict[str, str]:
    blocks = [asdict(block) for block in boot.blocks]
    files = {"blocks.json": json.dumps(blocks, indent=1)}
    if boot.facts is not None:
        files["engine_facts.json"] = json.dumps(asdict(boot.facts), indent=1, default=str)
    return files


def _ignore_missing(error: MlflowException) -> None:
    # The SQL store calls a missing alias an invalid parameter.
    if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
        raise error


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        # What follows the first line is SQL, or a server's page.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TransientError(f"MLflow: {redact_text(reason)}") from error
