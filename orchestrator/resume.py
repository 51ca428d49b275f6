"""Go on with a study whose driver ended before the verdict, if it still asks the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.adapters.study_file import StudyFile, states_left
from orchestrator.core.codec import from_plain
from orchestrator.core.premises import Premises, differences
from orchestrator.core.types import Arm, Boot
from orchestrator.errors import ConfigError, TransientError
from orchestrator.events import Emit
from orchestrator.incumbent import with_incumbent
from orchestrator.ports import Tracker
from orchestrator.prepare import Prepared, identity
from orchestrator.race_searcher import SavedRace
from orchestrator.study import RaceResult
from orchestrator.trial import boot_params

MAX_CHANGES = 5
"""Differences that a refusal names; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyState:
    """What a new driver must know of a study.

    Whoever changes what is in it, or in the race's state, changes ``study_file.FORMAT``.
    """

    study_id: str
    run_id: str
    """Of the study in the tracker."""
    asks: Mapping[str, Any]
    """Of ``asked``."""
    has_verdict: bool = False
    race: Mapping[str, Any] | None = None
    """Of ``RaceSearcher.state``; None before its first decision."""

    @property
    def trial_ids(self) -> set[str]:
        """Trials whose boots came back: those that count."""
        race = self.race
        if race is None:
            return set()
        ended = [boot for proofs in race["proofs"].values() for boot in proofs["ended"]]
        return {str(boot["trial_id"]) for boot in [*race["boots"], *ended]}


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


@dataclass(slots=True)
class Journal:
    """Keeps the state of a study under way in its file."""

    file: StudyFile
    state: StudyState

    @property
    def can_resume(self) -> bool:
        """Whether a new driver could go on from what is on the disk."""
        return self.file.is_kept and not self.state.has_verdict

    def keep(self, race: Mapping[str, Any] | None) -> None:
        """Keep the race's state."""
        self._write(replace(self.state, race=race))

    def conclude(self) -> None:
        """Keep that the verdict is stored: there is nothing left to resume.

        On a disk that is full the state goes: a study that is done must not be gone on with.
        """
        self._write(replace(self.state, has_verdict=True))
        if not self.file.is_kept:
            self.file.drop()

    def _write(self, state: StudyState) -> None:
        self.state = state
        self.file.write({item.name: getattr(state, item.name) for item in fields(state)})


def new_study_id(prepared: Prepared) -> str:
    """Return the id of a study that begins now."""
    return f"{prepared.study_id}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"


def read_state(file: StudyFile) -> StudyState:
    """Return the state of a study that has no verdict yet.

    Raises:
        ConfigError: There is none that can be read, or it has its verdict.
    """
    try:
        state = from_plain(StudyState, file.read())
        from_plain(Asked, state.asks)
        if state.race is not None:
            from_plain(SavedRace, state.race)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"--resume {file.study_id}", f"its state is of another shape: {error}",
            "begin the study anew",
        ) from error  # fmt: skip
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
    return dict(json.loads(json.dumps(plain)))


def require_same(state: StudyState, asks: Mapping[str, Any]) -> None:
    """See that a study still asks what it asked.

    Raises:
        ConfigError: It does not; the text says in words what is different.
    """
    changes = list(_changes(state.asks, asks))
    if not changes:
        return
    more = len(changes) - MAX_CHANGES
    told = "; ".join(changes[:MAX_CHANGES]) + (f"; and {more} more" if more > 0 else "")
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


def tracked(raced: RaceResult, tracker: Tracker, study_run_id: str, say: Emit) -> RaceResult:
    """Give the tracker what it missed of the boots while it was away; return them with their runs.

    What it has stays as it is, and a boot that it does not take counts all the same.
    """

    def told(boot: Boot) -> Boot:
        params = boot_params(boot.arm, boot.replicate, node_id=boot.node_id, trial_id=boot.trial_id)
        try:
            run_id = boot.run_id or tracker.open_trial(study_run_id, boot.trial_id, params)
            found = replace(boot, run_id=run_id)
            tracker.close_trial(run_id, found, {})
        except TransientError as error:
            say(f"trial {boot.trial_id} is not tracked: {error}")
            return boot
        return found

    return replace(
        raced, boots=tuple(map(told, raced.boots)), proofs=tuple(map(told, raced.proofs))
    )


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
