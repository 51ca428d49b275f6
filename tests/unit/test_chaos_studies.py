"""Studies under faults: what is drawn, recorded and counted; the faults need a cluster."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from infra.chaos.faults import CUT_S, Ground, Kind, Striker, draw
from infra.chaos.namespace import Namespace
from infra.chaos.site import Site
from infra.chaos.studies import line, read, table
from infra.chaos.study_run import StudyRecord
from orchestrator.core.codec import from_plain

RIGHT = StudyRecord(
    seed=3,
    study_id="demo-1a2b3c4d-20261130-101500",
    faults=["driver killed at 4.2 s", "MLflow killed at 9.0 s"],
    missed=[],
    starts=[-9, 3],
    lost_blocks=0,
    double_blocks=0,
    orphans=[],
    answered=120,
    failed=0,
    wrong=[],
    seconds=40.5,
    failures=[],
)


def test_the_same_seed_draws_the_same_faults() -> None:
    kinds = list(Kind)

    first, second = (draw(random.Random("chaos/7"), kinds, length_s=45.0) for _ in range(2))

    assert first == second
    assert first != draw(random.Random("chaos/8"), kinds, length_s=45.0)


def test_every_kind_comes_at_every_time_of_a_study() -> None:
    drawn = [draw(random.Random(f"chaos/{seed}"), list(Kind), length_s=45.0) for seed in range(400)]

    faults = [fault for plan in drawn for fault in plan]
    assert {len(plan) for plan in drawn} == {1, 2, 3}
    assert all(plan == sorted(plan, key=lambda fault: fault.at_s) for plan in drawn)
    assert min(Counter(fault.kind for fault in faults).values()) > 20
    assert {int(fault.at_s // 9) for fault in faults} == {0, 1, 2, 3, 4}
    assert all(CUT_S[0] <= fault.lasts_s <= CUT_S[1] for fault in faults)


def test_what_is_done_only_where_asked_for_is_not_drawn_otherwise() -> None:
    site = cast(Site, SimpleNamespace(cluster=SimpleNamespace(start_mlflow=lambda: None)))

    kinds = Striker(site, Ground(network=Namespace(name="sp-none", pair=0))).kinds

    assert {*Kind} - {*kinds} == {Kind.HEAD, Kind.DISK, Kind.MEMORY}
    assert Kind.NETWORK not in Striker(site, Ground()).kinds


def test_record_of_an_earlier_run_is_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "chaos-studies.jsonl").read_text().splitlines()[0]
    assert "failed_headless" not in text

    record = from_plain(StudyRecord, json.loads(text))

    assert (record.failed_headless, [*record.failures]) == (0, [])


def test_a_study_is_right_only_if_nothing_is_wrong() -> None:
    assert RIGHT.is_right
    for change in (
        {"lost_blocks": 1},
        {"double_blocks": 1},
        {"orphans": ["process 12"]},
        {"failed": 1},
        {"wrong": ["no verdict after 600 s"]},
    ):
        assert not replace(RIGHT, **change).is_right  # type: ignore[arg-type]  # one field each


def test_results_are_read_back_and_counted(tmp_path: Path) -> None:
    bad = replace(
        RIGHT, seed=1, lost_blocks=2, orphans=["process 12"], faults=["raylet killed at 1.0 s"]
    )
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(asdict(record)) + "\n" for record in (RIGHT, bad)))

    records = read(file)
    rows = dict(row.rsplit(maxsplit=1) for row in table(records, left=[99]))

    assert records == [bad, RIGHT]
    counts = {name.strip(): int(number) for name, number in rows.items()}
    assert counts["studies"] == 2
    assert counts["drivers started"] == 4
    assert counts["faults"] == 3
    assert counts["driver killed"] == counts["MLflow killed"] == counts["raylet killed"] == 1
    assert counts["replica killed"] == 0
    assert (counts["lost blocks"], counts["double blocks"], counts["orphans"]) == (2, 0, 2)
    assert counts["production requests answered"] == 240


def test_a_line_says_what_was_done_and_what_is_wrong() -> None:
    assert line(RIGHT).startswith("ok")
    assert "exits -9 3; driver killed at 4.2 s, MLflow killed at 9.0 s" in line(RIGHT)
    wrong = line(replace(RIGHT, wrong=["its run is RUNNING"], orphans=["process 12"]))
    assert wrong.startswith("WRONG")
    assert wrong.endswith("its run is RUNNING; process 12")
