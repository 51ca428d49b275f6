"""The whole study by `ray job submit`, on the shipped stand-in engine."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from demo_study import QUICK_PROMOTION, STAND_IN, STUDY, local_cluster
from mlflow import MlflowClient
from mlflow.entities import Run
from ray.job_submission import JobSubmissionClient

from infra.chaos.clients import Clients
from infra.chaos.site import Site
from infra.demo import local_settings, run_study, submit
from infra.local.cluster import LocalCluster
from orchestrator import cli
from orchestrator.config import load_config
from orchestrator.exit_status import ExitStatus
from orchestrator.ports import Version

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FAST = [*STAND_IN, "load.streams=[1]", "load.block_s=1", "policy.soak_s=1", QUICK_PROMOTION]
MODEL = "specpilot-demo"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("state")) as local:
        yield local


@pytest.fixture(scope="module")
def settings(cluster: LocalCluster) -> list[str]:
    return [*FAST, *local_settings(cluster, load_config(STUDY, FAST))]


def test_study_whose_driver_was_killed_goes_on_promotes_and_keeps_its_champion(
    cluster: LocalCluster,
    settings: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F17: the finished boots are kept, the one under way is done again."""
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(cluster.state_dir))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", cluster.mlflow_uri)
    kill_driver(cluster, settings)
    (before,) = states(cluster)
    resume = ["--resume", before["study_id"]]

    assert cli.main(["study", str(STUDY), *settings, "load.block_s=2", *resume]) == 2
    assert "load.block_s was 1" in capfd.readouterr().err
    assert run_study(cluster, STUDY, [*settings, *resume]) == 0

    output = capfd.readouterr().out
    assert "MODELLED by gb10_model" in output
    assert_counts_each_boot_once(cluster, before)
    champion = assert_promoted(cluster)

    assert cli.main(["study", str(STUDY), *settings, *resume]) == 2
    assert "has its verdict" in capfd.readouterr().err

    assert run_study(cluster, STUDY, settings) == ExitStatus.NO_GO

    output = capfd.readouterr().out
    assert "nothing is promoted" in output
    held = MlflowClient(cluster.mlflow_uri).get_model_version_by_alias(MODEL, "champion")
    assert held.version == champion
    assert complete(cluster)[1] == f"specpilot-v{champion}"

    assert run_study(cluster, STUDY, [*settings, "engine.args.max_num_seqs=4"]) == 2

    assert "cannot be compared" in capfd.readouterr().out


def assert_counts_each_boot_once(cluster: LocalCluster, before: dict[str, Any]) -> None:
    """Of a resumed study: what it had is kept, and what it counts is what MLflow holds."""
    assert not [name for name in applications(cluster) if name.startswith("trial-")]
    (after,) = states(cluster)
    assert after["has_verdict"]
    boots = after["race"]["boots"]
    num_kept = len(before["race"]["boots"])
    assert boots[:num_kept] == before["race"]["boots"]
    assert len({boot["trial_id"] for boot in boots}) == len(boots) > num_kept
    assert len({(str(boot["arm"]), boot["replicate"]) for boot in boots}) == len(boots)
    client = MlflowClient(cluster.mlflow_uri)
    study = client.get_run(after["run_id"])
    assert study.info.status == "FINISHED"
    assert study.data.tags["specpilot.study_id"] == before["study_id"]
    runs = {run.info.run_id: run for run in children_of(client, after["run_id"])}
    counted = {after["records"]["runs"][boot["trial_id"]]: boot for boot in boots}
    assert after["records"]["pending"] == []
    assert counted.keys() <= runs.keys()
    others = [runs[run_id] for run_id in runs.keys() - counted.keys()]
    # The boot under way may have had no run yet.
    assert {run.info.status for run in others if "proof" not in run.data.params} <= {"FAILED"}
    assert measured_of(after) == stored_of(runs.values())
    for run_id, boot in counted.items():
        tags = runs[run_id].data.tags
        assert runs[run_id].info.status == "FINISHED"
        assert {value for key, value in tags.items() if key.startswith("specpilot.block.")} == {
            block["block_id"] for block in boot["blocks"]
        }


def measured_of(state: dict[str, Any]) -> Counter[str]:
    """Return the ids of all blocks that the study has measured."""
    return Counter(item for ids in state["records"]["measured"].values() for item in ids)


def stored_of(runs: Iterable[Run]) -> Counter[str]:
    """Return the ids of the blocks in the runs of its trials."""
    tags = (tag for run in runs for tag in run.data.tags.items())
    return Counter(value for key, value in tags if key.startswith("specpilot.block."))


def assert_promoted(cluster: LocalCluster) -> str:
    """Return the champion's version: it serves, proved, and its arm was booted afresh."""
    client = MlflowClient(cluster.mlflow_uri)
    champion = client.get_model_version_by_alias(MODEL, "champion")
    assert champion.tags["specpilot.step_time"] == "modelled"
    assert champion.tags["specpilot.gate.lossless"] == "passed"
    assert champion.tags["specpilot.incumbent"] == "none"
    text, version = complete(cluster)
    assert text
    assert version == f"specpilot-v{champion.version}"
    (state,) = states(cluster)
    children = children_of(client, state["run_id"])
    proofs = [run for run in children if "proof" in run.data.params]
    assert {run.info.status for run in proofs} == {"FINISHED"}
    assert [run.data.metrics["lossless/audit_attached"] for run in proofs] == [0, 0]
    assert all(run.data.metrics["lossless/text_p_value"] > 0.0005 for run in proofs)
    boots = Counter(
        run.data.params["arm"]
        for run in children
        if run not in proofs and run.info.status == "FINISHED"
    )
    assert len(boots) == 3
    assert boots.total() <= load_config(STUDY, FAST).search.max_boots
    # The one that chose it, and two fresh ones at least.
    assert boots[champion.tags["specpilot.arm_label"]] >= 3
    return str(champion.version)


def kill_driver(cluster: LocalCluster, settings: list[str]) -> None:
    """Run a study until two boots are back and a third is under way, and kill its driver."""
    client = JobSubmissionClient(cluster.dashboard_url, headers=cluster.auth_headers())
    submit(cluster, "killed", ["python", "-m", "orchestrator", "study", str(STUDY), *settings])
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        races = [state["race"] for state in states(cluster) if state["race"] is not None]
        if races and len(races[0]["boots"]) >= 2 and races[0]["cut"]:
            break
        assert not client.get_job_status("killed").is_terminal(), client.get_job_logs("killed")
        time.sleep(0.2)
    driver = client.get_job_info("killed").driver_info
    assert driver is not None
    os.kill(int(driver.pid), signal.SIGKILL)
    while not client.get_job_status("killed").is_terminal():
        time.sleep(0.2)


def states(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Return what the studies of the cluster have kept, read as anybody may read it."""
    files = sorted((cluster.state_dir / "studies").glob("*/state.json"))
    return [json.loads(file.read_bytes().partition(b"\n")[2]) for file in files]


def applications(cluster: LocalCluster) -> list[str]:
    """Return the names of all Serve applications."""
    request = urllib.request.Request(
        f"{cluster.dashboard_url}/api/serve/applications/", headers=cluster.auth_headers()
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return list(json.load(answer)["applications"])


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


@pytest.fixture(scope="module")
def site(cluster: LocalCluster, settings: list[str]) -> Site:
    return Site(cluster=cluster, study=STUDY, settings=settings)


def champion_of(site: Site) -> Version:
    """Return what serves, after promoting something where nothing does."""
    champion = site.registry.by_alias(MODEL, "champion")
    if champion is not None:
        return champion
    first = site.register()
    status, said = site.command("promote", "--registered-version", str(first.version))
    assert status == 0, said
    return first


def test_version_gets_a_share_then_all_and_one_command_goes_back(
    cluster: LocalCluster, site: Site
) -> None:
    """Clients are answered all the time."""
    first, second = champion_of(site), site.register()
    apps = [f"specpilot-v{version.version}" for version in (first, second)]
    number = ["--registered-version", str(second.version)]

    status, said = site.command("promote", *number, "--dry-run")
    assert (status, "decision: name it challenger; boot it" in said) == (0, True), said
    assert complete(cluster)[1] == apps[0]

    with Clients(cluster.production_url, "specpilot", streams=2) as tally:
        canary = ["policy.canary_share=0.4", "policy.canary_s=60", "policy.canary_requests=5"]
        status, said = site.command("promote", *canary, *number)
        assert status == 0, said
        assert "soak passed: at 8 requests at a time" in said
        assert "giving it 40% of the traffic" in said
        assert complete(cluster)[1] == apps[1]

        status, said = site.command("rollback")
        assert status == 0, said
        assert complete(cluster)[1] == apps[0]
    assert tally.num_bad == 0, tally.words()
    assert set(tally.answered) == set(apps)

    holders = {alias: site.registry.by_alias(MODEL, alias) for alias in ("champion", "previous")}
    numbers = {alias: found.version for alias, found in holders.items() if found is not None}
    assert numbers == {"champion": first.version, "previous": second.version}
    status, said = site.command("status")
    assert "serves since " in said
    assert f"{apps[0]}: RUNNING, weight 1" in said
    assert "premises of the champion: all hold" in said

    status, said = site.command("promote", "load.top_p=0.9", *number)
    assert status == 2, said
    assert "its premises do not hold: the sampling was " in said


def lose_production(cluster: LocalCluster) -> None:
    """Declare nothing any more: what Serve is left with after its head node was lost."""
    request = urllib.request.Request(
        f"{cluster.dashboard_url}/api/serve/applications/",
        data=json.dumps({"applications": []}).encode(),
        headers={**cluster.auth_headers(), "content-type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=60).close()
    deadline = time.monotonic() + 120
    while any(name.startswith("specpilot") for name in applications(cluster)):
        assert time.monotonic() < deadline, applications(cluster)
        time.sleep(0.2)


def test_lost_champion_is_brought_back_from_the_registry_alone(
    cluster: LocalCluster, site: Site
) -> None:
    champion = champion_of(site)
    lose_production(cluster)

    status, said = site.command("sync")

    assert status == 0, said
    assert f"version {champion.version} serves again" in said
    assert complete(cluster)[1] == f"specpilot-v{champion.version}"
    assert site.champion() == champion.version

    status, said = site.command("sync")
    assert status == 0, said
    assert f"version {champion.version} is the champion and serves already" in said

    status, said = site.command("premises")
    assert status == 0, said
    status, said = site.command("premises", "search.draft_sample_method=[greedy]")
    assert status == 3, said
    assert "STALE      speed" in said
    assert "stands     kv" in said


def children_of(client: MlflowClient, run_id: str) -> list[Run]:
    """Return the runs of a study's boots."""
    experiment_id = client.get_run(run_id).info.experiment_id
    return list(
        client.search_runs(
            [experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'", max_results=100
        )
    )
