"""Whether what an engine says of its KV cache's capacity agrees with itself.

An engine says it twice, in the labels of ``vllm:cache_config_info`` and in its log, and each time
as two figures, tokens and the most requests of full length at a time. All four are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.types import EngineFacts

TOLERANCE = 0.01
"""Largest relative distance of figures that agree. The log rounds the concurrency to two decimals,
which is half of this at most, since an engine refuses to start when not one request fits."""


def check_capacity(facts: EngineFacts) -> str | None:
    """Return what does not agree and which figure stands; None where nothing contradicts.

    A note, not an error: the block is as valid as before. What the engine does not say is not
    compared.

    - Gauge against log, within 1 %: the gauge's figures stand. It has each engine's own, and the
      smallest counts; a log shows whichever engine wrote last.
    - tokens / max_model_len against the concurrency, within 1 %: the concurrency stands. It counts
      the blocks that every kind of layer needs for one request. Layers of a hybrid model (sliding
      window, state space) need blocks that do not grow with the request, and tokens that were
      computed as if they did understate or overstate what fits. vLLM 0.28 to 0.33 compute the
      tokens from the concurrency, so that the two differ in logs of older builds and in forks.
    """
    return "; ".join((*_sources(facts), *_figures(facts))) or None


def _sources(facts: EngineFacts) -> Iterator[str]:
    tokens, logged = facts.kv_cache_tokens, facts.kv_cache_tokens_log
    if _are_apart(tokens, logged):
        yield (
            f"the KV cache holds {tokens:,} tokens by the engine's gauge and {logged:,} by its "
            "log; the gauge's figure stands"
        )
    requests, said = facts.kv_max_concurrency, facts.kv_max_concurrency_log
    if _are_apart(requests, said):
        yield (
            f"the KV cache holds {requests:.2f} requests of full length by the engine's gauge and "
            f"{said:.2f} by its log; the gauge's figure stands"
        )


def _figures(facts: EngineFacts) -> Iterator[str]:
    tokens, requests = facts.kv_cache_tokens, facts.kv_max_concurrency
    if tokens is None or not facts.max_model_len:
        return
    by_tokens = tokens / facts.max_model_len
    if _are_apart(by_tokens, requests):
        yield (
            f"the KV cache's {tokens:,} tokens are {by_tokens:.2f} requests of "
            f"{facts.max_model_len:,}, and the engine says {requests:.2f}: a hybrid model, whose "
            "layers do not all keep a request's every token; the concurrency stands"
        )


def _are_apart(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return False
    return abs(first - second) > TOLERANCE * max(abs(first), abs(second))
