"""A tracker on a real MLflow store, and a reader that asks MLflow itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mlflow import MlflowClient
from tracker_contract import SeenRun, Store

from orchestrator.adapters.mlflow_registry import MlflowRegistry
from orchestrator.adapters.mlflow_tracker import MlflowTracker

EXPERIMENT = "contract"


class MlflowReader:
    def __init__(self, uri: str) -> None:
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def run(self, run_id: str) -> SeenRun:
        run = self.client.get_run(run_id)
        history = self.client.get_metric_history(run_id, "block/streams")
        return SeenRun(
            name=run.info.run_name,
            status=run.info.status,
            parent_id=run.data.tags.get("mlflow.parentRunId"),
            params=run.data.params,
            num_blocks=len(history),
            tags=run.data.tags,
            metrics=run.data.metrics,
        )

    def artifact(self, run_id: str, name: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(self.client.download_artifacts(run_id, name, folder))
            return path.read_text(encoding="utf-8")

    def num_runs(self) -> int:
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
        return len(self.client.search_runs([experiment.experiment_id]))


def open_store(uri: str, *, experiment: str = EXPERIMENT) -> Store:
    return Store(
        tracker=MlflowTracker(uri, experiment=experiment),
        again=MlflowTracker(uri, experiment=experiment),
        reader=MlflowReader(uri),
        registry=MlflowRegistry(uri),
    )
