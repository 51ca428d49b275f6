"""Two engine builds in one study: a verdict each, and what the build changes as a contrast."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from core_samples import (
    BASELINE,
    BOARD,
    CELL,
    make_arm,
    make_block,
    make_boot,
    make_boots,
    make_facts,
)

from orchestrator.build_report import (
    APART,
    MODELLED,
    findings_markdown,
    format_study_verdict,
    study_markdown,
)
from orchestrator.core.build_findings import find_builds, summarise_builds
from orchestrator.core.build_verdict import StudyVerdict, VerdictSettings, decide_builds
from orchestrator.core.findings import find
from orchestrator.core.findings_text import findings_lines
from orchestrator.core.premises import Premises
from orchestrator.core.promotion import GateSettings
from orchestrator.core.race_state import Choice, RaceQuestion
from orchestrator.core.summary import summarise
from orchestrator.core.types import Arm, BoardModel, Boot
from orchestrator.core.verdict import decide
from orchestrator.report import (
    WIDTH,
    format_results_table,
    format_verdict,
    verdict_markdown,
)

NEW, OLD = "0.32.0", "0.28.0"
BLOCK, GREEDY = make_arm(7), make_arm(7, "greedy", "standard")


def old(arm: Arm) -> Arm:
    return replace(arm, engine_build=OLD)


ARMS = (BASELINE, GREEDY, BLOCK, *map(old, (BASELINE, GREEDY, BLOCK)))
PREMISES = Premises(
    engine_build=NEW,
    engine_args_digest="a",
    target_digest="b",
    draft_digest=None,
    node_kind="cpu",
    workload_digest="c",
    sampling={},
    step_time="measured",
    board_model=None,
    specpilot_version="0.1.0",
)
SETTINGS = VerdictSettings(
    gates=GateSettings(),
    confidence=0.95,
    premises={NEW: PREMISES, OLD: replace(PREMISES, engine_build=OLD)},
)


def boots_of(scores: Mapping[Arm, Sequence[float]], lengths: Mapping[str, float]) -> list[Boot]:
    return [
        replace(
            boot,
            trial_id=f"{arm.key}-{boot.replicate}",
            facts=make_facts(arm, engine_version=arm.engine_build),
        )
        for arm, values in scores.items()
        for boot in make_boots(arm, values, length=lengths[arm.engine_build])
    ]


def study(scale: float = 1.0, *, spread: float = 0.01) -> list[Boot]:
    """Return a study in which the old build has ``scale`` times the seconds of the new one."""
    luck = (-spread, 0.0, spread)
    scores: dict[Arm, list[float]] = {}
    for arm, seconds in ((BASELINE, 0.08), (GREEDY, 0.05), (BLOCK, 0.03)):
        scores[arm] = [seconds * (1 + 0.01 * share) for share in (-1, 0, 1)]
        scores[old(arm)] = [seconds * scale * (1 + share) for share in luck]
    return boots_of(scores, {NEW: 3.0, OLD: 2.5})


def choose(arm: Arm, boots: Sequence[Boot]) -> Choice:
    first = next(boot.trial_id for boot in boots if boot.arm == arm)
    return Choice(arm=arm, stop="winner", reason="", chosen_by=(first,), fresh_boots=2)


def ask(
    arms: Sequence[Arm] = ARMS, incumbent: Arm | None = None, board: BoardModel | None = None
) -> RaceQuestion:
    return RaceQuestion(arms=tuple(arms), incumbent=incumbent, weights={CELL: 1.0}, board=board)


def answer(
    boots: Sequence[Boot],
    *,
    arms: Sequence[Arm] = ARMS,
    incumbent: Arm | None = None,
    board: BoardModel | None = None,
) -> StudyVerdict:
    choices = {arm.engine_build: choose(arm, boots) for arm in (BLOCK, old(BLOCK)) if arm in arms}
    question = ask(arms, incumbent, board)
    return decide_builds(question, boots, settings=SETTINGS, choices=choices)


def test_decide_builds_of_one_build_is_its_verdict_to_the_letter() -> None:
    boots = [boot for boot in study() if boot.arm.engine_build == NEW]
    found = answer(boots, arms=ARMS[:3], incumbent=GREEDY)
    choice = choose(BLOCK, boots)
    alone = decide(
        ARMS[:3],
        boots=boots,
        weights={CELL: 1.0},
        board=None,
        incumbent=GREEDY,
        settings=GateSettings(),
        confidence=0.95,
        premises=PREMISES,
        chosen=BLOCK,
        chosen_by=choice.chosen_by,
    )
    question = ask(ARMS[:3], GREEDY)

    assert found.production == alone
    assert (found.contrasts, found.changes) == ((), ())
    assert found.to_dict() == alone.to_dict()
    assert format_study_verdict(found) == format_verdict(alone)
    assert study_markdown(found) == verdict_markdown(alone)
    assert summarise_builds(question, boots) == summarise(
        ARMS[:3], boots=boots, weights={CELL: 1.0}, board=None
    )
    plain = find(
        ARMS[:3], boots=boots, weights={CELL: 1.0}, board=None, incumbent=GREEDY, confidence=0.95
    )
    assert find_builds(question, boots, confidence=0.95) == {NEW: plain}
    assert findings_markdown({NEW: plain}) == "\n".join(findings_lines(plain))


def test_decide_builds_each_build_is_ranked_by_itself() -> None:
    """A02: the same configuration on two versions is never pooled and never ranked together."""
    boots = study(0.5)
    found = answer(boots)

    assert list(found.verdicts) == [NEW, OLD]
    for build, verdict in found.verdicts.items():
        assert {item.summary.arm.engine_build for item in verdict.ranking} == {build}
        own = [boot for boot in boots if boot.arm.engine_build == build]
        assert verdict == answer(own, arms=[a for a in ARMS if a.engine_build == build]).production
        assert verdict.winner is not None
        assert verdict.premises is not None
        assert verdict.premises.engine_build == build
    assert found.production.winner == BLOCK, "however fast the other build is"


def test_decide_builds_other_build_s_boots_change_no_interval() -> None:
    wide, tight = answer(study(spread=0.2)), answer(study(spread=0.001))

    assert wide.production == tight.production


def test_decide_builds_build_is_a_contrast_of_the_same_configuration() -> None:
    found = answer(study(1.2))

    assert [(item.arm, item.base) for item in found.contrasts] == [
        (old(arm), arm) for arm in (BASELINE, GREEDY, BLOCK)
    ]
    for item in found.contrasts:
        assert item.contrast.speedup == pytest.approx(1 / 1.2, rel=1e-3)
        assert item.contrast.excludes_zero
        assert item.contrast.num_boots == (3, 3)
    ours, theirs = found.contrasts[-1].lengths[CELL.temperature]
    assert ours == pytest.approx(2.51, abs=0.01)
    assert theirs == pytest.approx(3.01, abs=0.01)


def test_decide_builds_production_s_build_is_the_incumbent_s() -> None:
    found = answer(study(0.9), incumbent=old(GREEDY))

    assert found.build == OLD
    assert found.production.reference == old(GREEDY)
    assert found.verdicts[NEW].reference == BASELINE
    assert found.verdicts[NEW].incumbent is None
    (change,) = found.changes
    assert change.arm == BLOCK


def test_decide_builds_change_of_build_is_asked_of_the_other_s_choice_by_all_gates() -> None:
    """The other build must beat what serves when the study has ended: its own new winner."""
    (change,) = answer(study(0.8)).changes

    assert (change.arm, change.reference) == (old(BLOCK), BLOCK)
    assert change.passes
    assert [gate.name for gate in change.gates][:2] == ["better", "cells"]
    assert change.contrast.speedup == pytest.approx(1.25, rel=1e-3)
    assert change.verdict.winner == old(BLOCK)
    assert change.verdict.premises is not None
    assert change.verdict.premises.engine_build == OLD


@pytest.mark.parametrize("scale", [1.0, 1.3])
def test_decide_builds_other_build_that_is_not_faster_does_not_pass(scale: float) -> None:
    (change,) = answer(study(scale)).changes

    assert not change.passes


def test_decide_builds_faster_than_the_baseline_is_not_enough_to_change_the_build() -> None:
    """Its choice beats its own baseline by far and is slower than what serves."""
    found = answer(study(1.3), incumbent=BLOCK)

    assert found.verdicts[OLD].kind == "promote"
    assert found.production.kind == "keep"
    assert not found.changes[0].passes


def test_decide_builds_odd_platform_between_builds_is_in_no_contrast() -> None:
    """Another driver on the boards of one build is no property of that build."""
    sections = {"engine": "a", "models": "a", "load": "a", "environment": "a", "platform": "a"}
    boots = [
        replace(
            boot,
            sections=sections
            if boot.arm.engine_build == NEW
            else {**sections, "engine": "b", "platform": "b"},
        )
        for boot in study(0.8)
    ]
    found = answer(boots)

    assert found.verdicts[OLD].winner == old(BLOCK), "within the build all is alike"
    assert found.contrasts == ()
    assert found.changes == ()


def test_decide_builds_board_model_knows_no_build_and_changes_none() -> None:
    boots = [
        make_boot(
            arm, [make_block(arm, length=length + luck, index=n) for n in range(2)], replicate=r
        )
        for arm, length in ((BLOCK, 3.0), (old(BLOCK), 3.5))
        for r, luck in enumerate((0.0, 0.05, 0.1))
    ]
    boots += [make_boot(arm, [make_block(arm)]) for arm in (BASELINE, old(BASELINE))]
    boots = [replace(b, trial_id=f"{b.arm.key}-{b.replicate}") for b in boots]
    found = answer(boots, arms=(BASELINE, BLOCK, old(BASELINE), old(BLOCK)), board=BOARD)

    assert found.changes == ()
    ratio = {item.arm: item.contrast.speedup for item in found.contrasts}
    assert ratio[old(BASELINE)] == 1.0
    assert ratio[old(BLOCK)] == pytest.approx(3.55 / 3.05, rel=0.01)
    assert MODELLED in " ".join(" ".join(format_study_verdict(found)).split())


def test_report_of_two_builds_names_the_build_of_everything() -> None:
    boots = study(0.8)
    found, question = answer(boots, incumbent=BLOCK), ask(incumbent=BLOCK)
    lines = format_study_verdict(found)
    text = "\n".join(lines)

    assert all(len(line) <= WIDTH and line.isascii() for line in lines)
    assert lines[0] == "vLLM 0.32.0, which serves now"
    assert "vLLM 0.28.0" in lines
    assert f"verdict: FASTEST {BLOCK.label}" in lines
    assert "PROMOTE" not in text, "nothing is promoted: not in this build, and not that build"
    assert APART in " ".join(text.split())
    assert "vLLM 0.28.0 against 0.32.0" in text
    assert "2.51 against 3.01" in text
    assert f"Against {BLOCK.key}, 0.28.0/{BLOCK.label} is 1.25 times as fast" in " ".join(
        text.split()
    )
    rows = format_results_table(summarise_builds(question, boots), board=None)
    assert sum(line.startswith("0.28.0/") for line in rows) == 6
    document = study_markdown(found)
    assert document.startswith("# vLLM 0.32.0, which serves now\n\n## Verdict: KEEP")
    assert f"## Verdict: FASTEST {BLOCK.label}" in document
    assert "| vLLM 0.28.0 against 0.32.0 |" in document
    record = json.loads(json.dumps(found.to_dict()))
    assert set(record["builds"]) == {NEW, OLD}
    assert record["build_changes"][0]["passes"] is True
    assert record["kind"] == "keep"


def test_report_of_two_builds_says_why_a_build_is_not_proposed() -> None:
    text = " ".join(" ".join(format_study_verdict(answer(study(1.3)))).split())

    assert "No change of build is proposed: " in text


def test_findings_of_two_builds_stand_apart() -> None:
    found = find_builds(ask(), study(0.8), confidence=0.95)

    assert list(found) == [NEW, OLD]
    for build, findings in found.items():
        assert findings.leader is not None
        assert findings.leader.engine_build == build
        assert all(curve.best.engine_build == build for curve in findings.curves)
    text = findings_markdown(found)
    assert text.startswith("# vLLM 0.32.0\n\n## Findings")
    assert "# vLLM 0.28.0\n\n## Findings" in text


def test_findings_of_two_builds_together_are_a_fault() -> None:
    """A mean effect over two builds would be an effect in neither."""
    with pytest.raises(AssertionError, match="one engine build"):
        find(ARMS, boots=study(), weights={CELL: 1.0}, board=None, incumbent=None, confidence=0.95)
