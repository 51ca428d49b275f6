"""Go on with a study whose driver ended before the verdict, if it still asks the same."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.adapters.study_file import StudyFile, states_left, studies_dir
from orchestrator.core.codec import from_plain
from orchestrator.core.journal import Records
from orchestrator.core.lines import first_of
from orchestrator.core.premises import Premises, differences
from orchestrator.core.secrecy import redact_texts
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError, TransientError
from orchestrator.incumbent import with_incumbent
from orchestrator.journal import StudyState
from orchestrator.ports import Tracker
from orchestrator.prepare import Prepared, identity
from orchestrator.race_searcher import SavedRace

BUDGET = ("max_boots", "max_hours")
"""Of ``search``: what a resumed study may be given more of."""
MAX_CHANGES = 5
"""Differences that a refusal names; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a study asks, by which a new driver knows it again."""

    configuration: dict[str, Any]
    tracking: dict[str, Any]
    arms: tuple[str, ...]
    """Their keys."""
    incumbent: str | None
    """Its key."""
    premises: dict[str, Premises]
    """By engine build."""
    proof_workload: str
    """Digest of the prompts."""


def new_study_id(prepared: Prepared) -> str:
    """Return the id of a study that begins now, which none before it has on this node.

    A clock that was set back gives a time twice.
    """
    named = f"{prepared.study_id}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    ids = (named if number == 1 else f"{named}-{number}" for number in itertools.count(1))
    return next(study_id for study_id in ids if not (studies_dir() / study_id).exists())


def load_state(file: StudyFile) -> StudyState:
    """Return the state of a study.

    Raises:
        ConfigError: There is none that can be read.
    """
    try:
        state = from_plain(StudyState, file.read())
        from_plain(Asked, state.asks)
        if state.race is not None:
            from_plain(SavedRace, state.race)
        if state.records is not None:
            from_plain(Records, state.records)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"--resume {file.study_id}", f"its state is of another shape: {error}",
            "begin the study anew",
        ) from error  # fmt: skip
    return state


def read_state(file: StudyFile) -> StudyState:
    """Return the state of a study that is not done yet.

    Raises:
        ConfigError: There is none that can be read, or the tracker has its verdict.
    """
    state = load_state(file)
    if state.has_verdict:
        raise ConfigError(
            f"--resume {file.study_id}", "the study has its verdict, and nothing is left to do",
            "see MLflow and `status` for it, or leave --resume out for a new study",
        )  # fmt: skip
    return state


def unfinished(prefix: str) -> list[str]:
    """Return the ids of studies without a verdict that no driver runs, oldest first.

    Args:
        prefix: ``Prepared.study_id``: name and digest of what they ask.
    """
    left = states_left(prefix).items()
    return [name for name, state in left if state.get("has_verdict") is False]


def asked(
    prepared: Prepared, premises: Mapping[str, Premises], incumbent: Arm | None
) -> dict[str, Any]:
    """Return all that must be the same for boots to be counted together, as plain JSON.

    What a boot ran on besides (driver, engine files) is in its fingerprint, by which the race tells
    odd boots apart.
    """
    tracking = prepared.config.tracking
    plain = {
        "configuration": identity(prepared.config),
        "tracking": {
            "experiment": tracking.experiment,
            "registered_model": tracking.registered_model,
        },
        "arms": [arm.key for arm in with_incumbent(prepared.arms, incumbent)],
        "incumbent": None if incumbent is None else incumbent.key,
        "premises": {build: item.to_dict() for build, item in premises.items()},
        "proof_workload": prepared.proof_workload.digest,
    }
    # As it is kept: what is compared with it later was written without secrets.
    return dict(json.loads(json.dumps(redact_texts(plain))))


def require_same(state: StudyState, asks: Mapping[str, Any]) -> None:
    """See that a study still asks what it asked; its budget may have been raised.

    A budget is not what is measured. The bound that ends the selection holds at whatever number of
    boots one looks, a choice that was made stays, and the number of its fresh boots was fixed
    before the first of them. After the verdict was shown it counts as the rest: going on until one
    likes it would be choosing the result.

    Raises:
        ConfigError: It does not; the text says in words what is different.
    """
    before = state.asks if state.verdict is not None else _with_budget(state.asks, asks)
    changes = list(_changes(before, asks))
    if not changes:
        return
    told = first_of(changes, MAX_CHANGES, apart="; ", last="; ")
    raise ConfigError(
        f"--resume {state.study_id}", f"it is not the study that was begun: {told}",
        "put that back, or leave --resume out for a new study",
    )  # fmt: skip


def take_over(state: StudyState, tracker: Tracker) -> None:
    """End the tracking runs of boots that did not reach the study.

    Raises:
        ConfigError: The tracker does not have the study.
    """
    try:
        tracker.drop_trials(state.run_id, state.trial_ids)
    except TransientError as error:
        raise ConfigError(
            "tracking.uri", f"the run of {state.study_id} cannot be gone on with ({error})",
            "name the MLflow that the study was begun with",
        ) from error  # fmt: skip


def _with_budget(before: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was asked, with those parts of the budget that are larger now."""
    configuration, given = before["configuration"], now["configuration"].get("search", {})
    was = configuration.get("search", {})
    raised = {
        key: given[key]
        for key in BUDGET
        if key in given and key in was and _limit(given[key]) > _limit(was[key])
    }
    if not raised:
        return before
    return {**before, "configuration": {**configuration, "search": {**was, **raised}}}


def _limit(value: float | None) -> float:
    """Return a part of the budget as a number; None is no limit."""
    return math.inf if value is None else value


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    was, given = _flat(before["configuration"]), _flat(now["configuration"])
    was |= _flat(before["tracking"], "tracking.")
    given |= _flat(now["tracking"], "tracking.")
    for key in sorted(was.keys() | given.keys()):
        if was.get(key) != given.get(key):
            yield f"{key} was {_shown(was.get(key))} and is {_shown(given.get(key))}"
    for build in before["premises"].keys() & now["premises"].keys():
        old, new = (Premises.from_dict(asks["premises"][build]) for asks in (before, now))
        yield from differences(old, new)
    if before["proof_workload"] != now["proof_workload"]:
        yield "the prompts of proof.workload have changed"
    yield from (f"arm {key} is gone" for key in before["arms"] if key not in now["arms"])
    yield from (f"arm {key} is new" for key in now["arms"] if key not in before["arms"])
    if before["incumbent"] != now["incumbent"]:
        was_serving, serves = before["incumbent"] or "nothing", now["incumbent"] or "nothing"
        yield f"production served {was_serving} and serves {serves}"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted keys."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def _shown(value: object) -> str:
    return "not set" if value is None else json.dumps(value)
