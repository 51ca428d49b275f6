"""What must hold after a study, whatever died in it: looked up in its state, MLflow and /proc."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from infra.chaos.site import Site
from orchestrator.adapters.kept_file import read_kept
from orchestrator.adapters.mlflow_names import BLOCK_TAG, PARENT_TAG
from orchestrator.adapters.serve_engine import TRIAL_PREFIX
from orchestrator.adapters.serve_reaper import LEASE_S, LOOK_S
from orchestrator.adapters.study_file import FORMAT

GONE_WITHIN_S = LEASE_S + 4 * LOOK_S
"""A dead trial's application lives until its lease has run out, and is then taken down."""
BLOCK_METRIC = "block/output_tokens"
"""Of every block one point."""
_DONE = re.compile(r": done on node ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is not as it must be."""

    lost: Sequence[str] = ()
    """Ids of blocks that a counted boot has and MLflow has not."""
    double: Sequence[str] = ()
    """Ids of blocks that are there twice."""
    orphans: Sequence[str] = ()
    """What is left of the study's trials."""
    wrong: Sequence[str] = ()
    """Everything else, in words."""


def look(site: Site, study_id: str, said: Sequence[str]) -> Findings:
    """Return what is not right with a study that is over.

    Args:
        site: Where it ran.
        study_id: Of the study.
        said: Lines of all its drivers.
    """
    orphans = _orphans(site)
    try:
        state = read_kept(site.cluster.state_dir / "studies" / study_id / "state.json", FORMAT)
    except (OSError, ValueError) as error:
        return Findings(orphans=orphans, wrong=[f"its state cannot be read: {error}"])
    client = MlflowClient(site.cluster.mlflow_uri)
    study = client.get_run(state["run_id"])
    wrong = []
    if not state["has_verdict"]:
        wrong.append("its state has no verdict")
    if study.info.status != "FINISHED":
        wrong.append(f"its run is {study.info.status}")
    boots = _boots(state)
    runs = {run.info.run_id: run for run in _children(client, study)}
    wrong += _uncounted(boots, runs)
    num_told = len(_DONE.findall("".join(said)))
    num_kept = sum(boot["status"] == "ok" for boot in boots)
    if num_told > num_kept:
        wrong.append(f"{num_told} boots were told to be done and {num_kept} are kept")
    measured = [block["block_id"] for boot in boots for block in boot["blocks"]]
    stored = {run_id: _block_ids(run) for run_id, run in runs.items()}
    lost = [
        block["block_id"]
        for boot in boots
        for block in boot["blocks"]
        if block["block_id"] not in stored.get(boot["run_id"], ())
    ]
    every = Counter(measured) | Counter(block for ids in stored.values() for block in ids)
    double = [block for block, number in every.items() if number > 1]
    for boot in boots:
        points = client.get_metric_history(boot["run_id"], BLOCK_METRIC)
        if len(points) > len(boot["blocks"]):
            double += [f"{len(points)} points of {len(boot['blocks'])} blocks"]
    return Findings(lost=lost, double=double, orphans=orphans, wrong=wrong)


def _boots(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    race = state["race"] or {"boots": [], "proofs": {}}
    proofs = [boot for item in race["proofs"].values() for boot in item["ended"]]
    return [*race["boots"], *proofs]


def _uncounted(boots: Sequence[Mapping[str, Any]], runs: Mapping[str, Run]) -> list[str]:
    """Return what MLflow says of boots that the study does not say."""
    counted = {boot["run_id"] for boot in boots}
    wrong = [f"a boot without a run: {boot['trial_id']}" for boot in boots if not boot["run_id"]]
    for run_id, run in runs.items():
        if run.info.status == "RUNNING":
            wrong.append(f"the run of trial {run.info.run_name} is RUNNING")
        elif run.info.status == "FINISHED" and run_id not in counted:
            wrong.append(f"trial {run.info.run_name} is FINISHED and was not counted")
    return wrong


def _children(client: MlflowClient, study: Run) -> list[Run]:
    query = f"tags.`{PARENT_TAG}` = '{study.info.run_id}'"
    found: list[Run] = client.search_runs([study.info.experiment_id], query)
    return found


def _block_ids(run: Run) -> list[str]:
    return [value for key, value in run.data.tags.items() if key.startswith(BLOCK_TAG)]


def _orphans(site: Site) -> list[str]:
    """Return what is left of trials when all that should go has had its time."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := _left(site)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def _left(site: Site) -> list[str]:
    return [
        *(f"process {pid}" for pid in site.trial_engines()),
        *(f"application {name}" for name in _applications(site) if name.startswith(TRIAL_PREFIX)),
        *(f"folder {folder}" for folder in _socket_folders(site)),
    ]


def _applications(site: Site) -> list[str]:
    try:
        return site.applications()
    except OSError as error:  # they are unknown, and that is no cleanliness
        return [f"{TRIAL_PREFIX}unknown: {error}"]


def _socket_folders(site: Site) -> Iterator[Path]:
    """Yield the folders of sockets that boots of trials have left; their logs name the boots."""
    for log in (site.cluster.state_dir / "logs").glob(f"{TRIAL_PREFIX}*.log"):
        boot_id = log.stem.rpartition("-")[2]
        yield from Path(tempfile.gettempdir()).glob(f"specpilot-{boot_id}-*")
