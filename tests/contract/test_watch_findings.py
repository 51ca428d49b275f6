"""What a watcher's findings owe it, in memory and on MLflow; and what the router's answer holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow_store import EXPERIMENT

from orchestrator.adapters.mlflow_findings import ID_TAG, MlflowFindings
from orchestrator.adapters.serve_production import request_page
from orchestrator.errors import TransientError
from orchestrator.fakes.watched import FakeFindings, FakeWatched
from orchestrator.fakes.world import FakeClock
from orchestrator.watch_ports import Findings, WatchFinding
from serve_apps.router.records import Records, Tally

pytestmark = [
    # The tables take up to half a minute on two busy cores.
    pytest.mark.timeout(180),
    # MLflow 3.17 on SQLAlchemy 2.1.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]

FINDING = WatchFinding(
    finding_id="step_time-v3-20260101-000000",
    kind="step_time",
    version=3,
    sentence="the step time is +12.0% from the verdict's",
    opened_utc_s=1.7e9,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What an outsider reads of one finding."""

    is_open: bool
    sentence: str
    study: str
    closed_because: str


@dataclass(frozen=True, slots=True)
class Kept:
    findings: Findings
    read: Callable[[], dict[str, Seen]]


def in_memory(_folder: Path) -> Kept:
    findings = FakeFindings()

    def read() -> dict[str, Seen]:
        return {
            key: Seen(item.closed_utc_s is None, item.sentence, item.study, item.closed_because)
            for (_, key), item in findings.kept.items()
        }

    return Kept(findings, read)


def on_mlflow(folder: Path) -> Kept:
    uri = f"sqlite:///{folder / 'ml.db'}"
    findings = MlflowFindings(uri, experiment=EXPERIMENT)

    def read() -> dict[str, Seen]:
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id], "tags.`specpilot.kind` = 'finding'")
        return {
            run.data.tags[ID_TAG]: Seen(
                run.info.status == "RUNNING",
                run.data.tags["mlflow.note.content"],
                run.data.tags.get("specpilot.finding_study", ""),
                run.data.tags.get("specpilot.finding_closed", ""),
            )
            for run in runs
        }

    return Kept(findings, read)


@pytest.mark.parametrize("make", [in_memory, on_mlflow])
def test_finding_is_one_run_from_opening_to_end(
    make: Callable[[Path], Kept], tmp_path: Path
) -> None:
    kept = make(tmp_path)
    kept.findings.tell("demo", FINDING)
    kept.findings.tell("demo", FINDING)
    kept.findings.tell("demo", replace(FINDING, finding_id="another"))
    assert kept.read() == {
        FINDING.finding_id: Seen(True, FINDING.sentence, "", ""),
        "another": Seen(True, FINDING.sentence, "", ""),
    }

    closed = replace(FINDING, closed_utc_s=1.7e9 + 60, closed_because="back", study="started")
    kept.findings.tell("demo", closed)
    kept.findings.tell("demo", closed)

    assert kept.read()[FINDING.finding_id] == Seen(False, FINDING.sentence, "started", "back")
    assert len(kept.read()) == 2


def test_requests_come_in_pages_and_lost_ones_are_counted() -> None:
    production = FakeWatched("v1", FakeClock())
    production.serve(60.0, streams=2)
    first = production.requests(0)
    production.serve(60.0, streams=2)
    second = production.requests(first.next)
    assert (len(first.requests), len(second.requests), second.lost) == (6, 6, 0)
    assert production.requests(second.next).requests == ()

    production.forget(2)
    late = production.requests(first.next)
    assert (late.next, late.lost, len(late.requests)) == (second.next, 4, 2)

    production.restart_router()
    anew = production.requests(second.next)
    assert (anew.next, anew.lost, anew.router == second.router) == (0, 0, False)


def test_answer_of_the_router_is_read_whole_or_not_at_all() -> None:
    records = Records(limit=1)
    for ended_at in (2.0, 2.5):
        records.add(
            started_at=1.0,
            ended_at=ended_at,
            temperature=None,
            streams_at_start=3,
            tokens=Tally("text/event-stream").tokens(),
        )

    page = request_page(records.since(0))

    assert (page.next, page.lost, page.requests[0].ended_at) == (2, 1, 2.5)
    assert page.requests[0].temperature is None
    assert page.router == request_page(records.since(2)).router
    assert page.router != request_page(Records().since(0)).router

    (record,) = records.since(0)["records"]
    counted = {**record, "output_tokens": 7, "output_tokens_from": "usage"}
    assert request_page({**records.since(0), "records": [counted]}).requests[0].output_tokens == 7
    assert record["output_tokens_from"] == "chunks"
    assert page.requests[0].output_tokens is None, "a chunk may hold many tokens"

    cut = records.since(0)
    del cut["records"][0]["streams_at_start"]
    for broken in ({}, cut, None):
        with pytest.raises(TransientError, match="cannot be read"):
            request_page(broken)
