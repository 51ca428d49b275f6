"""What a canary's answers say. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.canaries.questions import Check
from orchestrator.canaries.reply import Reply
from orchestrator.core.lines import folded
from orchestrator.core.quality import CanaryFault, CanaryResult
from orchestrator.load.answer import shorten
from orchestrator.load.sanity import Garbage, garbage_kind

MAX_EVIDENCE_CHARS = 160
"""Longest answer that is shown."""

Fault = tuple[CanaryFault, str]


def judge(name: str, answers: Sequence[tuple[Reply, Check]]) -> CanaryResult:
    """Return whether a canary passed.

    Any answer that is garbage, cut, refused or none fails it. Answers that are text but wrong fail
    it when they are the majority: one of three wrong is what a model may do, and numeric noise can
    turn one token.

    Args:
        name: The canary.
        answers: Every answer with the check of its question; at least one.
    """
    found = [(reply, _fault(reply, check)) for reply, check in answers]
    bad = [(reply, fault) for reply, fault in found if fault is not None]
    hard = [(reply, fault) for reply, fault in bad if fault[0] is not CanaryFault.WRONG]
    num_good = len(found) - len(bad)
    if not hard and 2 * len(bad) <= len(found):
        reason = f"{num_good} of {len(found)} answers are right"
        return CanaryResult(name=name, passed=True, reason=reason, evidence=shown(found[0][0].text))
    reply, (fault, reason) = (hard or bad)[0]
    return CanaryResult(
        name=name,
        passed=False,
        reason=f"{len(bad)} of {len(found)}: {reason}" if len(found) > 1 else reason,
        fault=fault,
        evidence=shown(reply.text),
    )


def shown(text: str) -> str:
    """Return a text on one line, cut to ``MAX_EVIDENCE_CHARS``."""
    return shorten(folded(text), MAX_EVIDENCE_CHARS)


def _fault(reply: Reply, check: Check) -> Fault | None:
    """Return what is wrong with an answer, the worst first, or None."""
    if reply.is_cut:
        return CanaryFault.TRUNCATED, reply.problem or "the stream ended before the answer did"
    if reply.problem is not None:
        return _refusal(reply.status), f"HTTP {reply.status}: {shown(reply.problem)}"
    is_limited = reply.finish_reason == "length"
    kind = garbage_kind(reply.text)
    # An answer that its limit cut may end within a character.
    if kind is not None and not (is_limited and kind is Garbage.CUT_CHARACTER):
        return CanaryFault.GARBAGE, f"no text: {kind}"
    if is_limited:
        return CanaryFault.TRUNCATED, "the answer did not end within its limit of tokens"
    wrong = check(reply)
    return None if wrong is None else (CanaryFault.WRONG, wrong)


def _refusal(status: int) -> CanaryFault:
    """Return what an answer without an answer means.

    400, 404, 405, 415, 422 and 501 say that this server does not do such a thing; a key that is
    wrong, a server that is full or broken say nothing of it.
    """
    is_unsupported = status in (400, 404, 405, 415, 422, 501)
    return CanaryFault.UNSUPPORTED if is_unsupported else CanaryFault.LOST
