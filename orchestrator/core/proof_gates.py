"""What the gates ``lossless`` and ``canaries`` make of proof boots, and which arms these set aside.

Both gates hold an arm against its control, the same build's baseline, which a proof boot of its own
looked at in the same way. What the control shows too says nothing of the arm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.codec import from_plain
from orchestrator.core.lossless.greedy import GreedySettings, judge_greedy
from orchestrator.core.lossless.judge import LosslessResult
from orchestrator.core.promotion import Gate
from orchestrator.core.proof import MAX_CHOICES, Demand, finding, proof_of
from orchestrator.core.proof_findings import (
    AuditFinding,
    CanaryFinding,
    GreedyFinding,
    TaskFinding,
    TextFinding,
)
from orchestrator.core.quality import (
    CanaryComparison,
    CanaryFault,
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

TEXT_ROOM = 5.0
"""How many times the displacement that a pass excludes the text may leave unseen where the audit
passes. The audit takes the target's probabilities as the engine verified with them; only the text
sees that these are not the target's."""

SAME = ("engine", "models", "platform")
"""Sections of the fingerprint that a proof boot and the arm's other boots must have in common; its
arguments and variables switch the audit on."""

NOT_LOOKED_AT = {
    LOSSLESS: "that the output follows the target's distribution is not shown",
    CANARIES: "no answer was checked for content",
}
CONTROL_ITSELF = "without speculation the target alone answers: this is the control"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofDemands:
    """What a promotion asks of the proof boots."""

    lossless: Demand = "reported"
    canaries: Demand = "reported"
    displacement: float = 0.01
    """Share of displaced tokens that a pass excludes, 0 to 1."""
    greedy: GreedySettings = field(default_factory=GreedySettings)
    tasks: TaskSettings = field(default_factory=TaskSettings)

    @property
    def any(self) -> bool:
        """Whether proof boots are asked for at all."""
        return self.lossless != "skipped" or self.canaries != "skipped"

    @property
    def num_boots(self) -> int:
        """Proof boots of one choice where nothing fails: its control's and its own."""
        return 2 if self.any else 0


NO_PROOF = ProofDemands(lossless="skipped", canaries="skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """The proof boots of a study and what is demanded of them."""

    boots: tuple[Boot, ...] = ()
    """Whatever their end."""
    lost: tuple[Arm, ...] = ()
    """Arms of proof boots that were lost with their process, once for each."""
    raced: tuple[Boot, ...] = ()
    """The boots that were measured, to see that what was proved is what was raced."""
    demands: ProofDemands = field(default_factory=ProofDemands)

    def __post_init__(self) -> None:
        """Count a boot that was not what was raced as one that failed: it proves nothing."""
        boots = tuple(_as_raced(boot, self.raced) for boot in self.boots)
        object.__setattr__(self, "boots", boots)

    def gates(self, arm: Arm) -> tuple[Gate, Gate]:
        """Ask both gates of an arm."""
        demands = self.demands
        return (
            self._gate(LOSSLESS, arm, demands.lossless, _Looked.lossless),
            self._gate(CANARIES, arm, demands.canaries, _Looked.canaries),
        )

    def set_aside(self, arms: Sequence[Arm]) -> Mapping[Arm, str]:
        """Return which arms cannot win by what the proofs show, and why.

        An arm whose output is shown not to be the target's takes along all arms of its build with
        the same draft rule and rejection rule, looked at or not: these two decide what is emitted,
        not the depth. One that answers otherwise than the control stands alone, and one that did
        not answer at all is not set aside: a connection may have been lost.
        """
        found: dict[Arm, str] = {}
        for arm in dict.fromkeys(boot.arm for boot in self.boots):
            lossless, canaries = self.gates(arm)
            if lossless.passed is False:
                found[arm] = f"{lossless.name}: {lossless.reason}"
                for other in arms:
                    if _rules(other) == _rules(arm):
                        found.setdefault(other, f"it has the rules of {arm.label}")
            elif canaries.passed is False and self._looked(arm).answers_otherwise:
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

    def floor(self, arm: Arm) -> float | None:
        """Return the numeric floor that the arm's control measured, in log odds, or None."""
        record = finding(self.control(arm), ProofPart.TEXT)
        return None if record is None else from_plain(TextFinding, record).floor

    def _gate(
        self, name: str, arm: Arm, demand: Demand, ask: Callable[[_Looked, bool], Gate]
    ) -> Gate:
        required = demand == "required"
        if demand == "skipped":
            return Gate(name=name, passed=None, reason=f"not tested: proof.{name} is skipped")
        if arm.is_baseline:
            return Gate(name=name, passed=True, reason=CONTROL_ITSELF)
        missing = self._missing(name, arm)
        if missing is None:
            return ask(self._looked(arm), required)
        if name == LOSSLESS and (rejected := self._rejected_before_its_end(arm)) is not None:
            return rejected
        # Where every choice that was looked at failed, one that was not is no better known.
        required = required or self._num_looked_at(arm) >= MAX_CHOICES
        return Gate(name=name, passed=None, reason=f"not tested: {missing}", required=required)

    def _rejected_before_its_end(self, arm: Arm) -> Gate | None:
        """Return the answer of a proof boot that rejected the arm and died afterwards, or None."""
        control = self.control(arm)
        if control is None or control.status is not BootStatus.OK:
            return None
        for boot in self.boots:
            is_same = not _differing(boot, self.raced)
            if boot.arm == arm and boot.status is BootStatus.FAILED and is_same:
                alive = replace(boot, status=BootStatus.OK)
                gate = _Looked(boot=alive, control=control, demands=self.demands).lossless(True)
                if gate.passed is False:
                    return gate
        return None

    def _num_looked_at(self, but: Arm) -> int:
        """Return how many other arms had proof boots."""
        return len({boot.arm for boot in self.boots if not boot.arm.is_baseline} - {but})

    def _looked(self, arm: Arm) -> _Looked:
        boot, control = proof_of(arm, self.boots), self.control(arm)
        assert boot is not None
        assert control is not None
        return _Looked(boot=boot, control=control, demands=self.demands)

    def _missing(self, name: str, arm: Arm) -> str | None:
        """Return why there is nothing to judge an arm by; None where there is."""
        boot, control = proof_of(arm, self.boots), self.control(arm)
        if boot is None and control is None and not self.lost:
            return NOT_LOOKED_AT[name]
        for whose, one in (("the control", control), ("the arm", boot)):
            if one is None:
                num_lost = sum(
                    lost == arm or (lost.is_baseline and lost.engine_build == arm.engine_build)
                    for lost in self.lost
                )
                lost = f" ({num_lost} were lost with their process)" if num_lost else ""
                return f"there is no proof boot of {whose}{lost}"
            if one.status is not BootStatus.OK:
                return f"the proof boot of {whose} {one.status.value}: {one.reason}"
        return None


def _as_raced(boot: Boot, raced: Sequence[Boot]) -> Boot:
    """Return a proof boot, as failed where it ended well and was not what was raced."""
    differing = _differing(boot, raced)
    if not differing or boot.status is not BootStatus.OK:
        return boot
    reason = f"it ran with another {', '.join(differing)} than was raced"
    return replace(boot, status=BootStatus.FAILED, reason=reason)


def _differing(boot: Boot, raced: Sequence[Boot]) -> list[str]:
    """Return the sections of the fingerprint in which a proof boot is not what was raced."""
    others = [
        item
        for item in raced
        if item.arm == boot.arm and item.sections and item.status is BootStatus.OK
    ]
    if not boot.sections or not others:
        return []
    return [
        name
        for name in SAME
        if all(boot.sections.get(name) != other.sections.get(name) for other in others)
    ]


def _rules(arm: Arm) -> tuple[str, str | None, str | None]:
    return arm.engine_build, arm.draft_sample_method, arm.rejection_sample_method


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What one part says of an arm's losslessness."""

    passed: bool | None
    words: str
    must_pass: bool = False
    """Whether the gate cannot pass without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """An arm and its control, both looked at in boots that ended well."""

    boot: Boot
    control: Boot
    demands: ProofDemands

    @property
    def answers_otherwise(self) -> bool:
        """Whether a canary or a task shows a fault of answers that came."""
        canaries = any(
            item.passed is False and item.arm.fault is not CanaryFault.LOST
            for item in self._canaries()
        )
        return canaries or any(item.passed is False for item in self._tasks())

    def lossless(self, required: bool) -> Gate:
        """Ask whether text, audit and greedy rule together show that nothing is lost."""
        text, audit = self._text(), self._audit()
        answers = [item for item in (text, audit) if item is not None]
        answers += self._greedy()
        rejected = [item.words for item in answers if item.passed is False]
        if rejected:
            return Gate(name=LOSSLESS, passed=False, reason="; ".join(rejected), required=required)
        reason = "; ".join(
            [
                *(item.words for item in answers),
                *self._notes(ProofPart.TEXT, ProofPart.AUDIT, ProofPart.GREEDY),
            ]
        )
        is_open = any(item.must_pass and item.passed is None for item in answers)
        by_audit = audit is not None and audit.passed and self._text_sees_enough()
        is_shown = (text is not None and text.passed) or by_audit
        passed = True if is_shown and not is_open else None
        reason = reason or NOT_LOOKED_AT[LOSSLESS]
        return Gate(name=LOSSLESS, passed=passed, reason=reason, required=required)

    def canaries(self, required: bool) -> Gate:
        """Ask whether answers and scores are as the control's."""
        gate = canaries_gate(self._canaries(), self._tasks(), required=required)
        notes = list(self._notes(ProofPart.CANARIES, ProofPart.TASKS))
        if not notes or gate.passed is False:
            return gate
        return replace(gate, passed=None, reason="; ".join(notes))

    def _text(self) -> _Answer | None:
        records = [finding(boot, ProofPart.TEXT) for boot in (self.boot, self.control)]
        found = [None if item is None else from_plain(TextFinding, item) for item in records]
        ours, theirs = found
        if ours is None:
            return None
        answer = _told("text", ours.result, None if theirs is None else theirs.result)
        return replace(answer, words="; ".join([answer.words, *ours.remarks]))

    def _text_sees_enough(self) -> bool:
        record = finding(self.boot, ProofPart.TEXT)
        seen = None if record is None else from_plain(TextFinding, record).result.seen
        return seen is not None and seen <= TEXT_ROOM * self.demands.displacement

    def _audit(self) -> _Answer | None:
        records = [finding(boot, ProofPart.AUDIT) for boot in (self.boot, self.control)]
        found = [None if item is None else from_plain(AuditFinding, item) for item in records]
        ours, theirs = found
        if ours is None:
            return None
        if ours.result is None:
            return _Answer(passed=None, words=f"audit: cannot attach: {ours.why_not}")
        return _told("audit", ours.result, None if theirs is None else theirs.result)

    def _greedy(self) -> Iterator[_Answer]:
        """Yield the greedy rule's answer where it was asked for, which a failed part shows too."""
        records = [finding(boot, ProofPart.GREEDY) for boot in (self.boot, self.control)]
        ours, theirs = records
        if ours is not None and theirs is not None:
            result = judge_greedy(
                from_plain(GreedyFinding, ours).agreement,
                from_plain(GreedyFinding, theirs).agreement,
                settings=self.demands.greedy,
            )
            passed = {"passed": True, "rejected": False}.get(result.kind)
            yield _Answer(passed=passed, words=f"greedy: {result.sentence}", must_pass=True)
        elif ours is not None or theirs is not None or list(self._notes(ProofPart.GREEDY)):
            words = "greedy: not of both the arm and the control"
            yield _Answer(passed=None, words=words, must_pass=True)

    def _canaries(self) -> tuple[CanaryComparison, ...]:
        """Compare the canaries that both were asked; none where the arm was asked none."""
        ours, theirs = (
            {item.name: item for item in from_plain(CanaryFinding, record).results}
            if (record := finding(one, ProofPart.CANARIES)) is not None
            else {}
            for one in (self.boot, self.control)
        )
        both = [compare_canary(ours[name], theirs[name]) for name in ours if name in theirs]
        if not both:
            return ()
        own, wanted = (
            None if one.facts is None else one.facts.max_model_len
            for one in (self.boot, self.control)
        )
        context = compare_canary(context_result(own, wanted), context_result(wanted, wanted))
        return (context, *both)

    def _tasks(self) -> tuple[TaskComparison, ...]:
        """Compare the scores of both; a task that one of them lacks is refused there."""
        sides = [
            {score.task: score for score in from_plain(TaskFinding, record).scores}
            if (record := finding(one, ProofPart.TASKS)) is not None
            else {}
            for one in (self.boot, self.control)
        ]
        names = dict.fromkeys(name for side in sides for name in side)
        ours, theirs = ([side.get(name, _unscored(name)) for name in names] for side in sides)
        pairs = zip(ours, theirs, strict=True)
        return tuple(compare_task(a, b, self.demands.tasks) for a, b in pairs)

    def _notes(self, *parts: ProofPart) -> Iterator[str]:
        """Yield why parts could not be looked at in either boot."""
        for whose, one in (("the arm", self.boot), ("the control", self.control)):
            for note in () if one.proof is None else one.proof.notes:
                if note.partition(":")[0] in parts:
                    yield f"of {whose}, {note}"


def _told(name: str, ours: LosslessResult, theirs: LosslessResult | None) -> _Answer:
    """Return what a result says beside the control's; without a scale it says nothing."""
    if theirs is None:
        words = f"{name}: the control was not looked at; of the arm: {ours.sentence}"
        return _Answer(passed=None, words=words, must_pass=True)
    if theirs.kind == "rejected":
        words = f"{name}: cannot tell, the control is rejected itself: {theirs.sentence}"
        return _Answer(passed=None, words=words, must_pass=True)
    passed = {"passed": True, "rejected": False}.get(ours.kind)
    return _Answer(passed=passed, words=f"{name}: {ours.sentence}")


def _unscored(task: str) -> TaskScore:
    return TaskScore(task=task, hits=0, total=0, refused="it was not run")
