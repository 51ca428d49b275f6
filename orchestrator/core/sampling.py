"""The sampling that an engine uses where a request says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from orchestrator.errors import ConfigError

NEUTRAL: Mapping[str, float | int | None] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "max_tokens": None,
}
"""vLLM's own defaults (``_DEFAULT_SAMPLING_PARAMS`` of its OpenAI protocol, 0.28 to 0.32)."""


MAX_TEMPERATURE = 2.0
"""vLLM refuses what is not 0 to this (``SamplingParams._verify_args``, 0.28), and so do the usual
APIs."""


def same_temperature(value: float) -> float:
    """Return the temperature to the six digits that name a cell (``Cell.key``).

    A client that counts in float32 sends 0.7 as 0.699999988.
    """
    return float(f"{value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """What is done to the distribution that tokens are drawn from, beside its temperature.

    Nothing is by default. The names are vLLM's, and those of the keys of ``load``.
    """

    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @classmethod
    def of(cls, stated: object) -> Self:
        """Return that of a record with fields of the same names."""
        return cls(**{item.name: getattr(stated, item.name) for item in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What an engine samples with by default, and where each value came from."""

    temperature: float
    top_p: float
    top_k: int
    """0 means no limit."""
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_tokens: int | None
    """Most tokens of an answer; None leaves it to the context."""
    sources: Mapping[str, str]
    """By field: ``generation_config.json``, ``config.json``, ``override_generation_config`` or
    ``vllm``."""

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON types, sources included."""
        return {**self.values(), "sources": dict(self.sources)}

    def values(self) -> dict[str, float | int | None]:
        """Return the parameters alone, by vLLM's names."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sources"}


def require_speculative(sampling: SamplingDefaults) -> None:
    """Check that drafts can be verified under these defaults.

    Raises:
        ConfigError: ``min_p`` is set, which vLLM ignores with a warning when it speculates: the
            arms of a study would sample from different distributions.
    """
    if sampling.min_p > 0:
        raise ConfigError(
            "min_p",
            f"{sampling.min_p:g} (from {sampling.sources['min_p']}) has no effect under "
            "speculation and has one without it",
            "set engine.args.generation_config=vllm, or min_p to 0 in override_generation_config",
        )
