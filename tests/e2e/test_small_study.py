"""A small study end to end: real vLLM, real draft, Ray, Serve and MLflow, to what serves."""

from __future__ import annotations

import json
import shlex
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from demo_study import QUICK_PROMOTION, SMALL, STUDY, local_cluster
from mlflow import MlflowClient
from mlflow.entities import Run

from infra.demo import curl_line, local_settings, run_study
from infra.local.cluster import LocalCluster
from orchestrator.config import load_config

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SETTINGS = [
    *SMALL,
    "search.draft_sample_method=[probabilistic]",
    "search.max_boots=4",
    "load.streams=[2]",
    "load.block_s=5",
    "policy.soak_s=3",
    QUICK_PROMOTION,
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "state") as local:
        yield local


def test_study_on_the_real_engine_ends_with_the_winner_serving(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = [*SETTINGS, *local_settings(cluster, load_config(STUDY, SETTINGS))]

    status = run_study(cluster, STUDY, settings)

    output = capfd.readouterr().out
    assert status == 0, output
    assert "MODELLED by gb10_model" in output
    client = MlflowClient(cluster.mlflow_uri)
    champion = client.get_model_version_by_alias("specpilot-demo", "champion")
    assert champion.tags["specpilot.arm_label"] == "probabilistic+block-7"
    assert champion.tags["specpilot.step_time"] == "modelled"
    assert champion.tags["specpilot.gate.lossless"] == "passed"
    assert champion.tags["specpilot.gate.soak"] == "passed"
    _assert_tracked(client)
    _assert_serves(cluster, f"specpilot-v{champion.version}")


def _assert_tracked(client: MlflowClient) -> None:
    experiment = client.get_experiment_by_name("demo")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    trials = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    boots = [run for run in trials if "proof" not in run.data.params]
    speculating = [run for run in boots if run.data.params["num_speculative_tokens"] == "7"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len(speculating) == 3
    for run in speculating:
        assert run.data.metrics["c2_t0.7/acceptance_length"] > 1.5
        assert run.data.metrics["kv_cache_tokens"] > 0
        assert run.data.params["rejection_sample_method"] == "block"
    _assert_proved([run for run in trials if "proof" in run.data.params])


def _assert_proved(runs: Sequence[Run]) -> None:
    """The control and the choice were looked at, by their texts and by the engine's own steps."""
    assert {run.data.params["num_speculative_tokens"] for run in runs} == {"0", "7"}
    for run in runs:
        assert run.data.params["proof"] == "text audit canaries"
        assert run.data.metrics["lossless/audit_attached"] == 1
        for part in ("text", "audit"):
            assert run.data.metrics[f"lossless/{part}_p_value"] > 0.0005
        assert "lossless/numeric_floor" in run.data.metrics


def _assert_serves(cluster: LocalCluster, version: str) -> None:
    """Ask production as the last lines of the demo tell a person to."""
    body = shlex.split(curl_line(cluster, "specpilot"), comments=True)[-1]
    request = urllib.request.Request(
        f"{cluster.production_url}/v1/completions",
        data=body.encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.headers["x-specpilot-version"] == version
        data = json.load(answer)
    assert data["model"] == "specpilot"
    assert data["usage"]["completion_tokens"] == 32
