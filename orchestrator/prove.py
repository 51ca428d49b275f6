"""What a proof boot looks at, on the engine that is up: text, audit, greedy rule, answers, tasks.

The tokens of a boot are scored by the same engine: scoring is a prefill, which does not speculate,
and the control, which nothing was drafted for, is looked at in the same way in a boot of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.adapters import audit_folder
from orchestrator.canaries.run import CanarySettings, run_canaries
from orchestrator.canaries.scored import ScoreSettings, score_tasks
from orchestrator.canaries.wire import Server
from orchestrator.core.codec import to_plain
from orchestrator.core.lossless.greedy import GreedySettings
from orchestrator.core.lossless.judge import LosslessTest
from orchestrator.core.proof_findings import (
    AuditFinding,
    CanaryFinding,
    GreedyFinding,
    TaskFinding,
    TextFinding,
)
from orchestrator.core.quality import CanaryFault, TaskScore
from orchestrator.core.types import EngineFacts, ProofPart
from orchestrator.errors import ConfigError, MeasurementError, TransientError
from orchestrator.load.scoring import TokenServer
from orchestrator.lossless import (
    Look,
    check_control,
    floor_remarks,
    rank_remarks,
    run_text_test,
)
from orchestrator.lossless_answers import TextTest
from orchestrator.lossless_greedy import measure_agreement
from orchestrator.ports import Finding
from serve_apps.audit.records import attachment


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlan:
    """What is asked of one proof boot, and how it is judged."""

    model: str
    """Served model name."""
    is_control: bool
    """Whether the boot's own text test gives the numeric floor."""
    floor: float | None
    """Of an arm: what its control measured, in log odds; None where it measured none."""
    text: TextTest
    """At temperature 1; its ``control_tokens`` are those of a control."""
    greedy_tokens: int
    """Output tokens at temperature 0."""
    greedy: GreedySettings = field(default_factory=GreedySettings)
    canaries: CanarySettings = field(default_factory=CanarySettings)
    tasks: tuple[Path, ...] = ()
    """YAML files, as ``find_task`` returns them."""
    scoring: ScoreSettings = field(default_factory=ScoreSettings)
    audit_folder: Path | None = None
    """Where the engine's audit writes; None for a boot without it."""


class EngineProver:
    """Looks at the parts of a proof; implements ``ports.Prover``.

    Args:
        plan: What is asked.
        tell: Hears a line of progress.
    """

    def __init__(self, plan: ProofPlan, tell: Callable[[str], None] = lambda _line: None) -> None:
        self._plan = plan
        self._tell = tell
        self._num_tokens = 0
        self._parts: dict[ProofPart, Callable[[str], Finding]] = {
            ProofPart.TEXT: self._text,
            ProofPart.AUDIT: self._audit,
            ProofPart.GREEDY: self._greedy,
            ProofPart.CANARIES: self._canaries,
            ProofPart.TASKS: self._tasks,
        }

    def prove(self, part: ProofPart, facts: EngineFacts) -> Finding:
        """Look at one part on the engine that is up.

        Raises:
            TransientError: The engine does not answer, or not as the part needs; the text says why.
        """
        try:
            return self._parts[part](facts.base_url)
        except (ConfigError, MeasurementError, ValueError, OSError) as error:
            # What was found before must not be lost for a file or a number that cannot be read.
            raise TransientError(str(error)) from error

    def close(self) -> None:
        """Remove what the audit wrote."""
        if self._plan.audit_folder is not None:
            shutil.rmtree(self._plan.audit_folder, ignore_errors=True)

    def _text(self, url: str) -> Finding:
        plan, server = self._plan, self._server(url)
        if plan.is_control:
            check = check_control(server, plan.text, on_look=self._look)
            self._num_tokens = check.result.num_tokens
            remarks = floor_remarks(check.floor)
            found = TextFinding(result=check.result, floor=check.floor, remarks=remarks)
        else:
            judging = replace(plan.text.judging, floor=plan.floor or 0.0)
            test = replace(plan.text, judging=judging, control_tokens=0)
            outcome = run_text_test(server, server, test, on_look=self._look)
            self._num_tokens = outcome.result.num_tokens
            remarks = (*rank_remarks(outcome.num_top), *floor_remarks(plan.floor))
            found = TextFinding(result=outcome.result, floor=plan.floor, remarks=remarks)
        return Finding(record=to_plain(found), sentence=found.result.sentence)

    def _audit(self, _url: str) -> Finding:
        folder = self._plan.audit_folder
        if folder is None:
            raise TransientError("the boot was made without the audit")
        if not self._num_tokens:
            raise TransientError("no tokens were sampled for it")
        attached = attachment(folder)
        if not attached.attached:
            found = AuditFinding(why_not=attached.why, result=None)
            return Finding(record=to_plain(found), sentence=f"cannot attach: {attached.why}")
        test = LosslessTest(self._plan.text.judging)
        test.update(audit_folder.observations(audit_folder.all_rows(folder)))
        result = test.result(self._num_tokens)
        if result.kind != "rejected" and audit_folder.is_truncated(folder):
            raise TransientError("its records end before the text does: fewer proof.max_tokens")
        found = AuditFinding(why_not=None, result=result)
        return Finding(record=to_plain(found), sentence=result.sentence)

    def _greedy(self, url: str) -> Finding:
        plan = self._plan
        test = replace(
            plan.text, temperature=0.0, token_budget=plan.greedy_tokens, control_tokens=0
        )
        counted = measure_agreement(self._server(url), test, plan.greedy)
        sentence = (
            f"{counted.num_disagreements:,} of {counted.num_tokens:,} greedy tokens are not the "
            f"scorer's choice, {counted.num_near_ties:,} more are near ties"
        )
        return Finding(record=to_plain(GreedyFinding(agreement=counted)), sentence=sentence)

    def _canaries(self, url: str) -> Finding:
        results = run_canaries(self._named(url), self._plan.canaries, tell=self._tell)
        if all(item.fault is CanaryFault.LOST for item in results if item.passed is not None):
            raise TransientError(f"not one was answered: {results[0].reason}")
        passed = [item.name for item in results if item.passed]
        sentence = f"{len(passed)} of {len(results)} answer as asked: {', '.join(passed) or 'none'}"
        return Finding(record=to_plain(CanaryFinding(results=results)), sentence=sentence)

    def _tasks(self, url: str) -> Finding:
        plan = self._plan
        scores = score_tasks(self._named(url), plan.tasks, plan.scoring, tell=self._tell)
        return Finding(
            record=to_plain(TaskFinding(scores=scores)), sentence=", ".join(map(_scored, scores))
        )

    def _server(self, url: str) -> TokenServer:
        name = "the control" if self._plan.is_control else "the arm"
        return TokenServer(base_url=url, model=self._plan.model, name=name)

    def _named(self, url: str) -> Server:
        return Server(base=url, model=self._plan.model)

    def _look(self, whose: str, look: Look) -> None:
        self._tell(f"{whose}: {look.num_tokens:,} tokens, p = {look.p_value:.2g}")


def _scored(score: TaskScore) -> str:
    return f"{score.task}: {score.refused or f'{score.hits} of {score.total}'}"
