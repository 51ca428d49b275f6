"""What must hold after a study, whatever died in it: looked up in its state, MLflow and /proc."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from infra.chaos.site import Site, environment
from orchestrator.adapters.mlflow_names import FAILURE_TAG, PARENT_TAG, TRIAL_TAG
from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.adapters.serve_engine import TRIAL_PREFIX
from orchestrator.adapters.serve_reaper import LEASE_S, LOOK_S
from orchestrator.adapters.state import Folder
from orchestrator.adapters.study_file import StudyFile
from orchestrator.errors import OrchestratorError
from orchestrator.journal import StudyState, check_journal
from orchestrator.resume import load_state
from serve_apps.engine import leftovers

GONE_WITHIN_S = LEASE_S + 4 * LOOK_S
"""A dead trial's application lives until its lease has run out, and is then taken down."""
_DONE = re.compile(r": done on node ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is not as it must be."""

    lost: Sequence[str] = ()
    """Ids of blocks that were measured and are not in MLflow."""
    double: Sequence[str] = ()
    """Ids of blocks that are there more than once."""
    orphans: Sequence[str] = ()
    """What is left of the study's trials."""
    wrong: Sequence[str] = ()
    """Everything else, in words."""
    failures: Sequence[str] = ()
    """Kinds of the boots that failed, as MLflow has them."""


def look(site: Site, study_id: str, said: Sequence[str]) -> Findings:
    """Return what is not right with a study that is over.

    Args:
        site: Where it ran.
        study_id: Of the study.
        said: Lines of all its drivers.
    """
    uri, experiment = site.cluster.mlflow_uri, site.config.tracking.experiment
    orphans = _orphans(site)
    try:
        with environment("SPECPILOT_STATE_DIR", str(site.cluster.state_dir)):
            file = StudyFile(study_id, lambda _text: None)
            with file:
                state = load_state(file)
        blocks = check_journal(state, MlflowTracker(uri, experiment=experiment))
    except OrchestratorError as error:
        return Findings(orphans=orphans, wrong=[f"its blocks cannot be looked up: {error}"])
    client = MlflowClient(uri)
    study = client.get_run(state.run_id)
    wrong = [f"MLflow has block {block}, which nobody measured" for block in blocks.unknown]
    if not state.has_verdict:
        wrong.append("its state has no verdict")
    if study.info.status != "FINISHED":
        wrong.append(f"its run is {study.info.status}")
    boots = _boots(state)
    runs = _children(client, study)
    wrong += _uncounted(boots, runs)
    num_told = len(_DONE.findall("".join(said)))
    num_kept = sum(boot["status"] == "ok" for boot in boots)
    if num_told > num_kept:
        wrong.append(f"{num_told} boots were told to be done and {num_kept} are kept")
    return Findings(
        lost=blocks.lost,
        double=blocks.double,
        orphans=orphans,
        wrong=wrong,
        failures=sorted(run.data.tags[FAILURE_TAG] for run in runs if FAILURE_TAG in run.data.tags),
    )


def _boots(state: StudyState) -> list[dict[str, Any]]:
    race = state.race or {"boots": [], "proofs": {}}
    proofs = [boot for item in race["proofs"].values() for boot in item["ended"]]
    return [*race["boots"], *proofs]


def _uncounted(boots: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> list[str]:
    """Return what MLflow says of boots that the study does not say."""
    counted = {boot["trial_id"] for boot in boots}
    wrong = []
    for run in runs:
        trial_id = run.data.tags.get(TRIAL_TAG)
        if run.info.status == "RUNNING":
            wrong.append(f"the run of trial {trial_id} is RUNNING")
        elif run.info.status == "FINISHED" and trial_id not in counted:
            wrong.append(f"trial {trial_id} is FINISHED and was not counted")
    return wrong


def _children(client: MlflowClient, study: Run) -> list[Run]:
    query = f"tags.`{PARENT_TAG}` = '{study.info.run_id}'"
    found: list[Run] = client.search_runs([study.info.experiment_id], query)
    return found


def _orphans(site: Site) -> list[str]:
    """Return what is left of trials when all that should go has had its time."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := _left(site)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def _left(site: Site) -> list[str]:
    dead = leftovers.find(site.cluster.state_dir / Folder.BOOTS)
    return [
        *(f"shared memory {path}" for boot in dead for path, _ in boot.segments),
        *(f"port {boot.port}" for boot in dead if boot.port is not None),
        *(f"process {pid}" for pid in site.trial_engines()),
        *(f"application {name}" for name in _applications(site) if name.startswith(TRIAL_PREFIX)),
        *(f"folder {folder}" for folder in _socket_folders(site)),
        *(f"record {record.name}" for record in (site.cluster.state_dir / Folder.BOOTS).glob("*")),
    ]


def _applications(site: Site) -> list[str]:
    try:
        return site.applications()
    except OSError as error:  # they are unknown, and that is no cleanliness
        return [f"{TRIAL_PREFIX}unknown: {error}"]


def _socket_folders(site: Site) -> Iterator[Path]:
    """Yield the folders of sockets that boots of trials have left; their logs name the boots."""
    for log in (site.cluster.state_dir / Folder.LOGS).glob(f"{TRIAL_PREFIX}*.log"):
        boot_id = log.stem.rpartition("-")[2]
        yield from Path(tempfile.gettempdir()).glob(f"specpilot-{boot_id}-*")
