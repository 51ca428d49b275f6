"""The conditions that a conclusion depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from orchestrator.core.codec import from_plain
from orchestrator.errors import ConfigError

_WORDS = {
    "engine_build": "the engine build",
    "engine_args_digest": "the digest of the engine arguments",
    "target_digest": "the target model's digest",
    "draft_digest": "the draft model's digest",
    "node_kind": "the kind of node",
    "workload_digest": "the workload's digest",
    "sampling": "the sampling",
    "step_time": "the source of step times",
    "board_model": "the board model",
    "specpilot_version": "the version of specpilot",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What must be unchanged for a conclusion to stand; None where it does not apply."""

    engine_build: str
    engine_args_digest: str
    target_digest: str
    draft_digest: str | None
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


def differences(a: Premises, b: Premises) -> tuple[str, ...]:
    """Return one sentence for each premise of ``a`` that no longer holds in ``b``."""
    before, after = a.to_dict(), b.to_dict()
    return tuple(
        f"{_WORDS[name]} was {_shown(before[name])} and is {_shown(after[name])}"
        for name in before
        if before[name] != after[name]
    )


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value)) or "empty"
    return "none" if value is None else str(value)
