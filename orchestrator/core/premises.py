"""The conditions that a conclusion depends on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from orchestrator.core.codec import from_plain
from orchestrator.core.remote_code import RemoteCode
from orchestrator.errors import ConfigError

WORDS = {
    "engine_build": "the engine build",
    "engine_args_digest": "the digest of the engine arguments",
    "target_digest": "the target model's digest",
    "draft_digest": "the draft model's digest",
    "remote_code": "code from the model's folder (trust_remote_code)",
    "node_kind": "the kind of node",
    "workload_digest": "the workload's digest",
    "sampling": "the sampling",
    "step_time": "the source of step times",
    "board_model": "the board model",
    "specpilot_version": "the version of specpilot",
}
"""What each premise is, in words."""

SERVED = ("engine_build", "engine_args_digest", "target_digest", "draft_digest", "remote_code")
"""Premises that say what is served; the others say where and how it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What must be unchanged for a conclusion to stand; None where it does not apply."""

    engine_build: str
    engine_args_digest: str
    target_digest: str
    draft_digest: str | None
    remote_code: RemoteCode = "off"
    """Whether engines run code that comes with the model; earlier versions did not say."""
    node_kind: str
    workload_digest: str
    sampling: Mapping[str, float]
    """Sampling parameters that all requests share, for example top_p and top_k."""
    step_time: Literal["measured", "modelled"]
    board_model: str | None
    """Name of the board model behind modelled step times."""
    specpilot_version: str

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON types."""
        values: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "sampling": dict(self.sampling)}

    @classmethod
    def from_dict(cls, data: object) -> Premises:
        """Return the premises of ``to_dict``.

        Raises:
            ConfigError: It is no such record, or one that another version wrote.
        """
        try:
            return from_plain(cls, data)
        except ValueError as error:
            raise ConfigError(
                "premises", str(error), "ask the study again with this version"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The premises as a study file and one machine show them now."""

    values: Mapping[str, object]
    """In the form of ``Premises.to_dict``, without those that cannot be told here."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why the others cannot be told, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One premise of a conclusion beside the world."""

    name: str
    words: str
    """What it is, for example ``the engine build``."""
    state: Literal["holds", "changed", "unknown"]
    sentence: str
    """Its value, now and before; why it cannot be told where it is unknown."""


def compare(held: Premises, world: World) -> tuple[Compared, ...]:
    """Return every premise with whether it still holds, in the order of ``Premises``."""
    return tuple(
        _unknown(name, world.unknown[name])
        if name in world.unknown
        else beside(name, WORDS[name], before, world.values[name])
        for name, before in held.to_dict().items()
    )


def beside(name: str, words: str, before: object, after: object) -> Compared:
    """Return one premise that can be told.

    Args:
        name: Of the premise.
        words: What it is.
        before: Its value when something was concluded.
        after: Its value now.
    """
    if before == after:
        sentence = f"{words} is {_shown(before)}"
        return Compared(name=name, words=words, state="holds", sentence=sentence)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        before, after = _apart(before, after), _apart(after, before)
    sentence = f"{words} was {_shown(before)} and is {_shown(after)}"
    return Compared(name=name, words=words, state="changed", sentence=sentence)


def differences(
    a: Premises, b: Premises, *, names: Collection[str] = tuple(WORDS)
) -> tuple[str, ...]:
    """Return one sentence for each premise of ``a`` that no longer holds in ``b``.

    Args:
        a: The earlier ones.
        b: The later ones.
        names: Premises that count.
    """
    return tuple(
        item.sentence
        for item in compare(a, World(values=b.to_dict()))
        if item.state == "changed" and item.name in names
    )


def _unknown(name: str, reason: str) -> Compared:
    words = WORDS[name]
    return Compared(name=name, words=words, state="unknown", sentence=f"{words}: {reason}")


def _apart(own: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Return what the other one does not have as it is here."""
    return {key: own[key] for key in own if key not in other or own[key] != other[key]}


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value)) or "empty"
    return "none" if value is None else str(value)
