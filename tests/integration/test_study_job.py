"""The whole study by `ray job submit`, on the shipped stand-in engine."""

from __future__ import annotations

import json
import os
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from infra.demo import local_settings, run_study
from infra.local.cluster import LocalCluster, Ports
from infra.local.processes import members
from orchestrator.config import load_config

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
STUDY = Path("conf/study/demo.yaml")
FAST = [
    "engine.launcher=serve_apps.engine.fake",
    "search.num_speculative_tokens=[7]",
    "search.rejection_sample_method=[block]",
    "load.temperatures=[0.7]",
    "load.streams=[1]",
    "load.block_s=1",
    "production.verify_requests=2",
]
MODEL = "specpilot-demo"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    local = LocalCluster(state_dir=tmp_path_factory.mktemp("state"), ports=Ports())
    local.start()
    yield local
    sessions = frozenset(os.getsid(server.process.pid) for server in local.servers if server.alive)
    assert local.stop() == [], "processes of the cluster survived"
    assert members(local.tag, sessions) == []


@pytest.fixture(scope="module")
def settings(cluster: LocalCluster) -> list[str]:
    return [*FAST, *local_settings(cluster, load_config(STUDY, FAST))]


def complete(cluster: LocalCluster) -> tuple[str, str]:
    """Return the text of one completion and the version that answered."""
    body = {"model": "specpilot", "prompt": "def f(", "max_tokens": 8}
    request = urllib.request.Request(
        f"{cluster.production_url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        version = answer.headers["x-specpilot-version"]
        return json.load(answer)["choices"][0]["text"], version


def test_study_promotes_keeps_its_champion_and_brings_it_back(
    cluster: LocalCluster, settings: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    client = MlflowClient(cluster.mlflow_uri)

    assert run_study(cluster, STUDY, settings) == 0

    output = capfd.readouterr().out
    assert "MODELLED by gb10_model" in output
    champion = client.get_model_version_by_alias(MODEL, "champion")
    assert champion.tags["specpilot.step_time"] == "modelled"
    assert champion.tags["specpilot.gate.lossless"] == "passed"
    text, version = complete(cluster)
    assert text
    assert version == f"specpilot-v{champion.version}"
    children = _children(client)
    assert {run.info.status for run in children} == {"FINISHED"}
    proofs = [run for run in children if "proof" in run.data.params]
    assert [run.data.metrics["lossless/audit_attached"] for run in proofs] == [0, 0]
    assert all(run.data.metrics["lossless/text_p_value"] > 0.0005 for run in proofs)
    boots = Counter(run.data.params["arm"] for run in children if run not in proofs)
    assert len(boots) == 3
    assert boots.total() <= load_config(STUDY, FAST).search.max_boots
    # The one that chose it, and two fresh ones at least.
    assert boots[champion.tags["specpilot.arm_label"]] >= 3

    assert run_study(cluster, STUDY, settings) == 3

    output = capfd.readouterr().out
    assert "nothing is promoted" in output
    assert client.get_model_version_by_alias(MODEL, "champion").version == champion.version
    assert complete(cluster)[1] == version

    assert run_study(cluster, STUDY, [*settings, "engine.args.max_num_seqs=4"]) == 2

    assert "cannot be compared" in capfd.readouterr().out


def _children(client: MlflowClient) -> list[Run]:
    experiment = client.get_experiment_by_name("demo")
    assert experiment is not None
    return list(
        client.search_runs(
            [experiment.experiment_id], "tags.`mlflow.parentRunId` LIKE '%'", max_results=100
        )
    )
