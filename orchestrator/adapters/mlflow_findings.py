"""A watcher's findings in MLflow: one run each, RUNNING while the finding is open."""

from __future__ import annotations

from orchestrator.adapters.mlflow_client import translated
from orchestrator.adapters.mlflow_names import KIND_TAG
from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.watch_ports import WatchFinding

ID_TAG = "specpilot.finding_id"
MODEL_TAG = "specpilot.registered_model"
NOTE_TAG = "mlflow.note.content"
"""What the UI shows as the run's description."""


class MlflowFindings(MlflowTracker):
    """Implements ``watch_ports.Findings`` in the experiment of the studies."""

    def tell(self, model_name: str, finding: WatchFinding) -> None:
        """Store the finding as it is now; a second call with the same id changes its run."""
        own = {KIND_TAG: "finding", MODEL_TAG: model_name, ID_TAG: finding.finding_id}
        tags = {
            NOTE_TAG: finding.sentence,
            "specpilot.finding": finding.kind,
            "specpilot.version": str(finding.version),
        }
        if finding.study:
            tags["specpilot.finding_study"] = finding.study
        if finding.closed_utc_s is not None:
            tags["specpilot.finding_closed"] = finding.closed_because
        with translated():
            run = self._find(own) or self._create(finding.finding_id, own)
            self._set_tags(run.info.run_id, tags)
            if finding.closed_utc_s is not None:
                end_ms = round(1000 * finding.closed_utc_s)
                self._client.set_terminated(run.info.run_id, status="FINISHED", end_time=end_ms)
