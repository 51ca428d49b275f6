"""Under which names vLLM publishes what ``CounterSnapshot`` holds.

From 0.28 to 0.33 the names are the same. How that is known, by version:

    0.28.0  text scraped from a CPU engine (``tests/data/exposition``)
    0.29.0  read in the wheel: ``v1/metrics/loggers.py``, ``v1/spec_decode/metrics.py``
    0.30.0  read
    0.31.0  read
    0.32.0  text scraped from a CPU engine
    0.33.0  text of its own ``PrometheusStatLogger`` with two engines, run without an engine (there
            is no CPU build of it)

All of them write a ``_created`` twin beside each counter and one ``process_start_time_seconds``.
With several API servers behind one port prometheus_client writes neither.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSIONS = ("0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
"""The versions of vLLM that the table speaks of."""

PROCESS_START = "process_start_time_seconds"
"""When the API server's process, which holds the counters, was started; Unix time."""
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
"""Counter with a label ``position``, from 0; only with speculation."""
_COUNTER_ENDING = "_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of the exposition, one sample for each ``engine`` label."""

    field: str
    """Field of ``CounterSnapshot``."""
    name: str
    versions: tuple[str, ...] = VERSIONS
    """Versions that publish it; empty for a name that older ones had."""
    needs_speculation: bool = False

    @property
    def is_counter(self) -> bool:
        """Whether it only ever grows; else it is a gauge."""
        return self.name.endswith(_COUNTER_ENDING)


SERIES = (
    Series(field="generation_tokens", name="vllm:generation_tokens_total"),
    Series(field="prompt_tokens", name="vllm:prompt_tokens_total"),
    Series(
        field="num_drafts",
        name="vllm:spec_decode_num_drafts_total",
        needs_speculation=True,
    ),
    Series(
        field="num_draft_tokens",
        name="vllm:spec_decode_num_draft_tokens_total",
        needs_speculation=True,
    ),
    Series(
        field="num_accepted_tokens",
        name="vllm:spec_decode_num_accepted_tokens_total",
        needs_speculation=True,
    ),
    Series(field="num_accepted_tokens_per_pos", name=PER_POSITION, needs_speculation=True),
    Series(field="prefix_cache_queries", name="vllm:prefix_cache_queries_total"),
    Series(field="prefix_cache_hits", name="vllm:prefix_cache_hits_total"),
    Series(field="num_preemptions", name="vllm:num_preemptions_total"),
    Series(field="num_requests_running", name="vllm:num_requests_running"),
    Series(field="num_requests_waiting", name="vllm:num_requests_waiting"),
    Series(field="kv_cache_usage", name="vllm:kv_cache_usage_perc"),
    # Deprecated by vLLM's pull request 18354, which brought the name above; some wrote both.
    Series(field="kv_cache_usage", name="vllm:gpu_cache_usage_perc", versions=()),
)
"""All that is read; of several names for one field the first that is there counts."""


def names_in(version: str, *, speculates: bool = True) -> dict[str, str]:
    """Return the names that an engine publishes, by field of ``CounterSnapshot``.

    Args:
        version: vLLM's version, for example ``0.32.0``.
        speculates: Whether it drafts; else it has no series of drafts.

    Raises:
        KeyError: The table does not know the version.
    """
    minor = ".".join(version.split(".")[:2])
    if minor not in VERSIONS:
        raise KeyError(f"the names of vLLM {version} are not known, only of {', '.join(VERSIONS)}")
    return {
        series.field: series.name
        for series in SERIES
        if minor in series.versions and (speculates or not series.needs_speculation)
    }


def created_twin(name: str) -> str:
    """Return the name of the gauge that says when a counter was made."""
    return name.removesuffix(_COUNTER_ENDING) + "_created"
