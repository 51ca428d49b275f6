"""The conditions that a conclusion depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


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
        raise NotImplementedError

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Premises:
        """Return the premises of ``to_dict``.

        Raises:
            ConfigError: A key is missing or unknown: the record was written by another version.
        """
        raise NotImplementedError


def differences(a: Premises, b: Premises) -> tuple[str, ...]:
    """Return one sentence for each premise of ``a`` that no longer holds in ``b``."""
    raise NotImplementedError
