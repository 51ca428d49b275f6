"""What proof boots found, in records, and what the gates ``lossless`` and ``canaries`` make of it.

Both gates hold an arm against its control, the same build's baseline, which a proof boot of its own
looked at in the same way. What the control shows too says nothing of the arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.codec import from_plain
from orchestrator.core.lossless.greedy import (
    Agreement,
    GreedyResult,
    GreedySettings,
    judge_greedy,
)
from orchestrator.core.lossless.judge import LosslessResult
from orchestrator.core.promotion import Gate
from orchestrator.core.proof import Demand, proof_of
from orchestrator.core.quality import (
    CanaryComparison,
    CanaryResult,
    TaskComparison,
    TaskScore,
    TaskSettings,
    canaries_gate,
    compare_canary,
    compare_task,
    context_result,
)
from orchestrator.core.types import Arm, Boot, BootStatus, ProofPart

LOSSLESS, CANARIES = "lossless", "canaries"
"""Names of the two gates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFinding:
    """Of ``ProofPart.TEXT``: the text test of an arm, or of a control by itself."""

    result: LosslessResult
    floor: float | None
    """Log odds by which numerics may move an event. Of a control: as measured, None where it could
    not be. Of an arm: the control's, by which it was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Of ``ProofPart.AUDIT``: the engine's own verification steps."""

    why_not: str | None
    """Why the audit could not attach to the engine; None where it did."""
    result: LosslessResult | None
    """None where it did not attach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyFinding:
    """Of ``ProofPart.GREEDY``: tokens at temperature 0 that were compared with the scorer's."""

    agreement: Agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryFinding:
    """Of ``ProofPart.CANARIES``."""

    results: tuple[CanaryResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinding:
    """Of ``ProofPart.TASKS``."""

    scores: tuple[TaskScore, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofDemands:
    """What a promotion asks of the proof boots."""

    lossless: Demand = "reported"
    canaries: Demand = "reported"
    greedy: GreedySettings = field(default_factory=GreedySettings)
    tasks: TaskSettings = field(default_factory=TaskSettings)

    @property
    def any(self) -> bool:
        """Whether proof boots are asked for at all."""
        return self.lossless != "off" or self.canaries != "off"

    @property
    def num_boots(self) -> int:
        """Proof boots of one choice where nothing fails: its control's and its own."""
        return 2 if self.any else 0


NO_PROOF = ProofDemands(lossless="off", canaries="off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """The proof boots of a study and what is demanded of them."""

    boots: tuple[Boot, ...] = ()
    demands: ProofDemands = field(default_factory=ProofDemands)

    def gates(self, arm: Arm) -> tuple[Gate, Gate]:
        """Ask both gates of an arm."""
        return _lossless(arm, self), _canaries(arm, self)

    def set_aside(self, arms: Sequence[Arm]) -> Mapping[Arm, str]:
        """Return which arms cannot win by what the proofs show, and why.

        An arm whose output is shown not to be the target's takes along all arms of its build with
        the same draft rule and rejection rule: these two decide what is emitted, not the depth. One
        that fails a canary stands alone. Arms that were not looked at are not set aside.
        """
        found: dict[Arm, str] = {}
        for arm in dict.fromkeys(boot.arm for boot in self.boots):
            lossless, canaries = self.gates(arm)
            if lossless.passed is False:
                found[arm] = f"{lossless.name}: {lossless.reason}"
                for other in arms:
                    if _rules(other) == _rules(arm):
                        found.setdefault(other, f"it has the rules of {arm.label}")
            elif canaries.passed is False:
                found[arm] = f"{canaries.name}: {canaries.reason}"
        return {arm: found[arm] for arm in arms if arm in found}

    def control(self, arm: Arm) -> Boot | None:
        """Return the proof boot of the arm's control; None without one."""
        return next(
            (
                proof_of(boot.arm, self.boots)
                for boot in self.boots
                if boot.arm.is_baseline and boot.arm.engine_build == arm.engine_build
            ),
            None,
        )


def finding(boot: Boot | None, part: ProofPart) -> Mapping[str, object] | None:
    """Return the record of one part of a proof boot that ended well; None without one."""
    if boot is None or boot.proof is None or boot.status is not BootStatus.OK:
        return None
    return boot.proof.findings.get(part)


def text_floor(control: Boot | None) -> float | None:
    """Return the numeric floor that a control's proof boot measured, in log odds, or None."""
    record = finding(control, ProofPart.TEXT)
    return None if record is None else from_plain(TextFinding, record).floor


def proof_values(boot: Boot) -> dict[str, float | None]:
    """Return the numbers of a proof boot by name, for the tracking UI; empty of another boot."""
    values: dict[str, float | None] = {}
    if (record := finding(boot, ProofPart.TEXT)) is not None:
        text = from_plain(TextFinding, record)
        values |= _result_values("text", text.result)
        values["lossless/numeric_floor"] = text.floor
    if (record := finding(boot, ProofPart.AUDIT)) is not None:
        audit = from_plain(AuditFinding, record).result
        values["lossless/audit_attached"] = float(audit is not None)
        values |= {} if audit is None else _result_values("audit", audit)
    if (record := finding(boot, ProofPart.GREEDY)) is not None:
        counted = from_plain(GreedyFinding, record).agreement
        values["lossless/greedy_tokens"] = float(counted.num_tokens)
        values["lossless/greedy_disagreements"] = float(counted.num_disagreements)
    if (record := finding(boot, ProofPart.CANARIES)) is not None:
        for item in from_plain(CanaryFinding, record).results:
            values[f"canary/{item.name}"] = None if item.passed is None else float(item.passed)
    if (record := finding(boot, ProofPart.TASKS)) is not None:
        for score in from_plain(TaskFinding, record).scores:
            values[f"task/{score.task}"] = score.rate
    return values


def _result_values(name: str, result: LosslessResult) -> dict[str, float | None]:
    values = {
        "p_value": result.p_value,
        "tokens": float(result.num_tokens),
        "displacement": result.displacement,
        "seen": result.seen,
    }
    return {f"lossless/{name}_{key}": value for key, value in values.items()}


def _rules(arm: Arm) -> tuple[str, str | None, str | None]:
    return arm.engine_build, arm.draft_sample_method, arm.rejection_sample_method


def _lossless(arm: Arm, proofs: Proofs) -> Gate:
    demand = proofs.demands.lossless
    required = demand == "required"
    if demand == "off":
        return Gate(name=LOSSLESS, passed=None, reason="not tested: proof.lossless is off")
    if arm.is_baseline:
        return Gate(name=LOSSLESS, passed=True, reason="nothing is drafted: the target alone emits")
    boot, control = proof_of(arm, proofs.boots), proofs.control(arm)
    missing = _missing(boot, control)
    if missing is not None:
        reason = f"not tested: {missing or NOT_TESTED}"
        return Gate(name=LOSSLESS, passed=None, reason=reason, required=required)
    found = list(_answers(boot, control, proofs.demands))
    rejected = [item.words for item in found if item.passed is False]
    if rejected:
        return Gate(name=LOSSLESS, passed=False, reason="; ".join(rejected), required=required)
    reason = "; ".join(item.words for item in found)
    if any(item.passed is None and item.must_pass for item in found):
        return Gate(name=LOSSLESS, passed=None, reason=reason, required=required)
    passed = any(item.passed and item.tests_distribution for item in found) or None
    return Gate(name=LOSSLESS, passed=passed, reason=reason or NOT_TESTED, required=required)


NOT_TESTED = "that the output follows the target's distribution is not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What one part says of an arm's losslessness."""

    passed: bool | None
    words: str
    tests_distribution: bool = True
    must_pass: bool = False
    """Whether the gate cannot pass without it."""


def _answers(boot: Boot | None, control: Boot | None, demands: ProofDemands) -> Iterator[_Answer]:
    yield from _told("text", _text(boot), _text(control))
    yield from _audited(boot, control)
    for note in _notes(boot, control, ProofPart.TEXT, ProofPart.AUDIT):
        yield _Answer(passed=None, words=note)
    for note in _notes(boot, control, ProofPart.GREEDY):
        yield _Answer(passed=None, words=note, tests_distribution=False, must_pass=True)
    ours, theirs = finding(boot, ProofPart.GREEDY), finding(control, ProofPart.GREEDY)
    if ours is None and theirs is None:
        return
    if ours is None or theirs is None:
        side = "the control" if theirs is None else "the arm"
        words = f"greedy: {side} was not looked at"
        yield _Answer(passed=None, words=words, tests_distribution=False, must_pass=True)
        return
    result = _greedy(ours, theirs, demands.greedy)
    yield _Answer(
        passed={"passed": True, "rejected": False}.get(result.kind),
        words=f"greedy: {result.sentence}",
        tests_distribution=False,
        must_pass=True,
    )


def _told(
    name: str, ours: LosslessResult | None, theirs: LosslessResult | None
) -> Iterator[_Answer]:
    """Yield what a result says beside the control's."""
    if ours is None:
        return
    if theirs is None:
        words = f"{name}: the control was not looked at; of the arm: {ours.sentence}"
        yield _Answer(passed=None, words=words, must_pass=True)
    elif theirs.kind == "rejected":
        words = f"{name}: cannot tell, the control is rejected itself: {theirs.sentence}"
        yield _Answer(passed=None, words=words, must_pass=True)
    else:
        passed = {"passed": True, "rejected": False}.get(ours.kind)
        yield _Answer(passed=passed, words=f"{name}: {ours.sentence}")


def _audited(boot: Boot | None, control: Boot | None) -> Iterator[_Answer]:
    ours, theirs = finding(boot, ProofPart.AUDIT), finding(control, ProofPart.AUDIT)
    if ours is None:
        return
    found = from_plain(AuditFinding, ours)
    if found.why_not is not None:
        yield _Answer(passed=None, words=f"audit: cannot attach: {found.why_not}")
        return
    yield from _told(
        "audit",
        found.result,
        None if theirs is None else from_plain(AuditFinding, theirs).result,
    )


def _text(boot: Boot | None) -> LosslessResult | None:
    record = finding(boot, ProofPart.TEXT)
    return None if record is None else from_plain(TextFinding, record).result


def _greedy(
    ours: Mapping[str, object], theirs: Mapping[str, object], settings: GreedySettings
) -> GreedyResult:
    return judge_greedy(
        from_plain(GreedyFinding, ours).agreement,
        from_plain(GreedyFinding, theirs).agreement,
        settings=settings,
    )


def _canaries(arm: Arm, proofs: Proofs) -> Gate:
    demand = proofs.demands.canaries
    required = demand == "required"
    if demand == "off":
        return Gate(name=CANARIES, passed=None, reason="not tested: proof.canaries is off")
    boot, control = proof_of(arm, proofs.boots), proofs.control(arm)
    missing = _missing(boot, control)
    if missing is not None:
        reason = f"not tested: {missing or 'no answer was checked for content'}"
        return Gate(name=CANARIES, passed=None, reason=reason, required=required)
    canaries = _compared(boot, control)
    tasks = _tasks(boot, control, proofs.demands.tasks)
    gate = canaries_gate(canaries, tasks, required=required)
    notes = list(_notes(boot, control, ProofPart.CANARIES, ProofPart.TASKS))
    if not notes or gate.passed is False:
        return gate
    return replace(gate, passed=None, reason="; ".join(notes))


def _notes(boot: Boot | None, control: Boot | None, *parts: ProofPart) -> Iterator[str]:
    """Yield why parts could not be looked at in either boot."""
    for whose, one in (("the arm", boot), ("the control", control)):
        if one is not None and one.proof is not None:
            for note in one.proof.notes:
                if note.partition(":")[0] in parts:
                    yield f"of {whose}, {note}"


def _missing(boot: Boot | None, control: Boot | None) -> str | None:
    """Return why there is nothing to judge; "" where no proof boot was made at all, else None."""
    if boot is None:
        return ""
    for whose, one in (("the arm", boot), ("the control", control)):
        if one is None:
            return f"there is no proof boot of {whose}"
        if one.status is not BootStatus.OK:
            return f"the proof boot of {whose} {one.status.value}: {one.reason}"
    return None


def _compared(boot: Boot | None, control: Boot | None) -> tuple[CanaryComparison, ...]:
    """Compare the canaries that both were asked; none where the arm was asked none."""
    ours, theirs = (
        {item.name: item for item in from_plain(CanaryFinding, record).results}
        if (record := finding(one, ProofPart.CANARIES)) is not None
        else {}
        for one in (boot, control)
    )
    both = [compare_canary(ours[name], theirs[name]) for name in ours if name in theirs]
    if not both:
        return ()
    own, wanted = (
        None if one is None or one.facts is None else one.facts.max_model_len
        for one in (boot, control)
    )
    context = compare_canary(context_result(own, wanted), context_result(wanted, wanted))
    return (context, *both)


def _tasks(
    boot: Boot | None, control: Boot | None, settings: TaskSettings
) -> tuple[TaskComparison, ...]:
    """Compare the scores of both; a task that one of them lacks is refused there."""
    sides = [
        {score.task: score for score in from_plain(TaskFinding, record).scores}
        if (record := finding(one, ProofPart.TASKS)) is not None
        else {}
        for one in (boot, control)
    ]
    names = dict.fromkeys(name for side in sides for name in side)
    ours, theirs = ([side.get(name, _unscored(name)) for name in names] for side in sides)
    return tuple(compare_task(a, b, settings) for a, b in zip(ours, theirs, strict=True))


def _unscored(task: str) -> TaskScore:
    return TaskScore(task=task, hits=0, total=0, refused="it was not run")
