"""A promotion's decision and what serves, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from orchestrator.core.promise import Promise
from orchestrator.core.promotion import Gate
from orchestrator.core.remote_code import RemoteCode, remote_code, remote_code_note
from orchestrator.core.takeover import PromotionStep, steps_of
from orchestrator.ports import ProductionState, Version
from orchestrator.promotion_course import Course
from orchestrator.promotion_record import (
    CANARY_TAG,
    GATE_PREFIX,
    GATE_REASON_PREFIX,
    LIVE_GATES,
    OUTAGE_NOT_KNOWN,
    OUTAGE_TAG,
    REASON_TAG,
    SINCE_TAG,
    STEP_TAG,
    THROUGHPUT_TAG,
)

_DONE = {
    "challenger": "name it challenger",
    "stopped": "answer clients 503, drain and end what serves",
    "booted": "boot it",
    "verified": "verify it through the production path",
    "measured": "measure it there and compare with its promise",
    "soaked": "give it as many requests as it may run",
    "canary": "give it a share of the traffic",
    "shifted": "shift all traffic to it",
    "drained": "wait for the last answers of what served",
    "aliased": "move the aliases",
    "retired": "end what served before",
}
_FIRST = {
    "back": "would be undone",
    "finish": "would be ended: its version is the champion",
    "forget": "would be forgotten: another version was promoted since",
}


def describe(version: Version) -> str:
    """Return one line about a registered version."""
    tags = version.tags
    return (
        f"version {version.version} of {version.model_name}: "
        f"{tags.get('specpilot.arm_label', '?')} on vLLM "
        f"{tags.get('specpilot.engine_build', '?')}, study {tags.get('specpilot.study_id', '?')}, "
        f"step times {tags.get('specpilot.step_time', '?')}: "
        f"{tags.get('specpilot.claim', 'no claim recorded')}"
    )


def gate_lines(version: Version) -> list[str]:
    """Return every gate of the version's study with its answer and reason."""
    gates = {
        tag.removeprefix(GATE_PREFIX): text
        for tag, text in version.tags.items()
        if tag.startswith(GATE_PREFIX) and tag not in LIVE_GATES and not tag.endswith("_reason")
    }
    if not gates:
        return ["  no gate is recorded: it was not registered by a study"]
    width = max(len(name) for name in gates)
    return [
        f"  {name:<{width}}  {text:<9}  "
        f"{version.tags.get(GATE_REASON_PREFIX + name, 'no reason recorded')}"
        for name, text in gates.items()
    ]


def promise_line(promise: Promise | None) -> str:
    """Return what the version is held to in production."""
    if promise is None:
        return "  promise: none is recorded"
    if promise.missing is not None:
        return f"  promise: {promise.missing}"
    parts = []
    if promise.step_time is not None:
        most = promise.step_time.mean * promise.step_time.factor(1.0, promise.confidence)
        parts.append(
            f"at most {1000 * most:.1f} ms a step (mean {1000 * promise.step_time.mean:.1f})"
        )
    if promise.acceptance is not None:
        least = promise.acceptance.mean / promise.acceptance.factor(
            promise.acceptance.weight, promise.confidence
        )
        parts.append(
            f"at least {least:.2f} tokens a step (mean {promise.acceptance.mean:.2f}) over as many "
            "drafts as its study's"
        )
    held = " and ".join(parts) or "nothing: times are modelled and nothing is drafted"
    return f"  promise in {promise.cell.key}: {held}"


def format_decision(
    course: Course,
    *,
    promise: str,
    premises: Gate,
    outage: str | None,
    settings: Mapping[str, object],
) -> list[str]:
    """Return what a promotion would do, and why, line by line.

    Args:
        course: What was decided.
        promise: Of ``promise_line``.
        premises: Whether what its evidence depends on still holds.
        outage: What is expected of an outage, in words; None where there is none.
        settings: The policy's values that matter, by dotted key.
    """
    champion = course.champion
    serves = "nothing" if champion is None else describe(champion)
    lines = [f"would {course.kind} {describe(course.version)}", f"serves now: {serves}"]
    lines += ["gates of its study:", *gate_lines(course.version), promise]
    lines.append(f"  premises {_answer(premises)}: {premises.reason}")
    lines += [f"  {key}={_typed(value)}" for key, value in settings.items()]
    lines += _first(course)
    if outage is not None:
        lines.append(outage)
    return [*lines, f"decision: {_decided(course)}", "nothing was done"]


def _typed(value: object) -> str:
    """Return a setting's value as it is typed behind a study file."""
    return value if isinstance(value, str) else json.dumps(value)


def _first(course: Course) -> list[str]:
    """Return what would be put right before."""
    lines, found = [], course.found
    if found is not None and course.first != "none":
        what = f"{found.record.noun} of version {found.record.version}"
        lines.append(
            f"first: the {what} was cut off after '{found.step.value}' and {_FIRST[course.first]}"
        )
    if course.ends:
        lines.append(
            f"first: {', '.join(course.ends)}, which an earlier promotion left, would be ended"
        )
    return lines


def _decided(course: Course) -> str:
    number, found, outset = course.version.version, course.found, course.outset
    if course.refusal is not None:
        return f"it cannot begin: {course.refusal}"
    if course.then == "stand":
        return f"nothing: version {number} is the champion and serves"
    if course.then == "reapply":
        return f"bring version {number} back: it is the champion, and production does not serve it"
    if outset is None:
        assert found is not None
        steps = _words(found.record.steps_after(found.step))
        return f"go on with what was cut off after '{found.step.value}': {steps}"
    champion = None if course.champion is None else course.champion.version
    return _words(steps_of(course.kind, outset.mode, champion))


def _words(steps: Sequence[PromotionStep]) -> str:
    return "; ".join(_DONE[step.value] for step in steps)


def format_status(
    holders: Mapping[str, Version | None], state: ProductionState, url: str
) -> list[str]:
    """Return what serves, since when and on which evidence.

    Args:
        holders: Version by alias.
        state: Production as it is.
        url: Of the production route; asked for by the caller where something is declared.
    """
    lines: list[str] = []
    for alias, version in holders.items():
        lines.append(f"{alias}: {'none' if version is None else describe(version)}")
        if version is not None:
            lines += [f"  {line}" for line in _history(version, is_champion=alias == "champion")]
            trusted = remote_code_note(_remote_code(version))
            lines += [] if trusted is None else [f"  {trusted}"]
    if state.router_status is None:
        return [*lines, "production: nothing is declared"]
    lines.append(f"production: {url} is {state.router_status}")
    for app, status in state.engines.items():
        lines.append(f"  {app}: {status}, weight {state.weights.get(app, 0.0):g}")
    return lines


def _remote_code(version: Version) -> RemoteCode:
    args = version.config.get("args")
    return remote_code(args if isinstance(args, Mapping) else {})


def _answer(gate: Gate) -> str:
    return {True: "hold", False: "do not hold", None: "not shown"}[gate.passed]


def _history(version: Version, *, is_champion: bool) -> Sequence[str]:
    tags, lines = version.tags, list[str]()
    if is_champion and SINCE_TAG in tags:
        lines.append(f"serves since {tags[SINCE_TAG]}")
    for gate in LIVE_GATES if is_champion else ():
        if gate in tags:
            name, reason = gate.removeprefix(GATE_PREFIX), tags.get(f"{gate}_reason", "")
            lines.append(f"{name} {tags[gate]}: {reason}")
    if is_champion and THROUGHPUT_TAG in tags:
        lines.append(f"{tags[THROUGHPUT_TAG]} output tokens/s through the production path")
    if is_champion and CANARY_TAG in tags:
        lines.append(f"canary: {tags[CANARY_TAG]}")
    if is_champion and OUTAGE_TAG in tags:
        known = tags[OUTAGE_TAG] != OUTAGE_NOT_KNOWN
        took = f"took {tags[OUTAGE_TAG]} s" if known else "is not known: the clock was set back"
        lines.append(f"the outage of its promotion {took}")
    step, told = tags.get(STEP_TAG), tags.get(REASON_TAG)
    if step is not None and step not in ("retired", "failed"):
        lines.append(f"its promotion stands at '{step}': under way, or cut off")
    elif not is_champion and told is not None:
        lines.append(f"last promotion: {told}")
    return lines
