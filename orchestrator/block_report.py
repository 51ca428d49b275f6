"""One measured block for people and for programs: a table, and a documented record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.codec import to_plain
from orchestrator.core.formulas import acceptance_rate_per_position, quantile
from orchestrator.core.node_state import Fitness
from orchestrator.core.quantities import quantities
from orchestrator.core.sampling import NEUTRAL
from orchestrator.core.types import Block
from orchestrator.measurement import Measured

SCHEMA = "specpilot.measure/1"
"""Changes when a key of the record changes its meaning; see docs/measure.md."""

MEASURED = (
    *("output_throughput", "stream_throughput", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s"),
    *("tpot_p50_s", "tpot_p95_s", "acceptance_length", "acceptance_rate"),
    *("acceptance_rate_per_position", "step_time_s", "effective_concurrency"),
)
"""Names of the quantities in the record, in its order."""

_MISSING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What was asked, beside the block."""

    url: str
    model: str
    workload: Mapping[str, object]
    sampling: Mapping[str, object]
    load: Mapping[str, object]
    acceptance_note: str | None
    """Why there is no acceptance; None where there is one."""
    warnings: tuple[str, ...] = ()
    """What makes a valid number doubtful, a sentence each."""


def derived(block: Block) -> dict[str, float | list[float | None] | None]:
    """Return the quantities of a block by their names; None where one is not known."""
    rates = acceptance_rate_per_position(block.counters)
    values: dict[str, float | list[float | None] | None] = {
        **quantities([block], speculates=bool(block.counters.num_drafts)),
        "stream_throughput": _inverse(quantile(block.tpot_s, 0.5)),
        "ttft_p99_s": quantile(block.ttft_s, 0.99),
        "tpot_p95_s": quantile(block.tpot_s, 0.95),
        "acceptance_rate_per_position": None if rates is None else list(rates),
        "effective_concurrency": block.effective_concurrency,
    }
    if block.counters.generation_tokens is None:
        # Without counters nobody knows how many tokens a step of this server emits.
        values["step_time_s"] = None
    return {name: values[name] for name in MEASURED}


def block_record(measured: Measured, setting: Setting, *, with_requests: bool) -> dict[str, object]:
    """Return the block as plain JSON types; docs/measure.md has its keys."""
    block = measured.block
    record: dict[str, object] = {
        "schema": SCHEMA,
        "valid": block.is_valid,
        "invalid": [to_plain(item) for item in block.invalid],
        "url": setting.url,
        "model": setting.model,
        "workload": dict(setting.workload),
        "sampling": dict(setting.sampling),
        "load": dict(setting.load),
        "measured": derived(block),
        "acceptance_note": setting.acceptance_note,
        "warnings": list(setting.warnings),
        "block": to_plain(block),
    }
    if with_requests:
        record["requests"] = [to_plain(item) for item in measured.records]
    return record


def format_block(block: Block, setting: Setting) -> list[str]:
    """Return the block as lines of a table."""
    values = derived(block)
    rows = [
        ("server", f"{setting.url}, model {setting.model}"),
        ("load", _load(block, setting)),
        ("sampling", _sampling(setting.sampling)),
        ("window", _window(block)),
        (
            "output throughput",
            _rate(values["output_throughput"], "tokens/s of all streams, by wall"),
        ),
        (
            "stream throughput",
            _rate(values["stream_throughput"], "tokens/s of one stream (1 / tpot)"),
        ),
        ("ttft", _times(values, "ttft", ("p50", "p95", "p99"), len(block.ttft_s))),
        ("tpot", _times(values, "tpot", ("p50", "p95"), len(block.tpot_s))),
        ("gap between chunks", _gaps(block)),
        ("acceptance length", _acceptance(values, setting)),
        *_positions(values),
        ("step time", _milliseconds(values["step_time_s"])),
        ("requests", _requests(block)),
        ("tokens", _tokens(block)),
        ("running at a time", _running(block)),
        *_cached(block),
        *_node(block),
    ]
    width = max(len(name) for name, _ in rows)
    verdict = ["valid"] if block.is_valid else ["NOT VALID: this block is no measurement"]
    verdict += [f"  {item.kind}: {item.detail}" for item in block.invalid]
    table = [f"{name:<{width}}  {text}" for name, text in rows]
    return [*table, *(f"warning: {text}" for text in setting.warnings), *verdict]


def _load(block: Block, setting: Setting) -> str:
    cell = block.cell
    how = f"{cell.streams} stream{'s' * (cell.streams != 1)}, closed loop"
    if cell.is_open_loop:
        how = f"{cell.request_rate:g} requests/s (Poisson), at most {cell.streams} at a time"
    return f"{how}, workload {setting.workload['name']} ({setting.workload['num_prompts']} prompts)"


def _sampling(sampling: Mapping[str, object]) -> str:
    """Return the parameters, without penalties that do nothing."""
    shown = [
        f"{key} {value}"
        for key, value in sampling.items()
        if not (key.endswith("_penalty") and value == NEUTRAL[key])
    ]
    return ", ".join(shown)


def _window(block: Block) -> str:
    if block.duration_s <= 0:
        return f"{_MISSING} (it never opened)"
    steady = "requests arriving" if block.cell.is_open_loop else "every stream busy"
    return f"{block.duration_s:.1f} s, {steady}"


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def _rate(value: object, unit: str) -> str:
    return f"{value:.1f} {unit}" if isinstance(value, float) else _MISSING


def _milliseconds(value: object) -> str:
    return f"{1000 * value:.1f} ms" if isinstance(value, float) else _MISSING


def _times(values: Mapping[str, object], name: str, which: tuple[str, ...], num_values: int) -> str:
    shown = [f"{q} {_milliseconds(values[f'{name}_{q}_s'])}" for q in which]
    return f"{', '.join(shown)} ({num_values} requests)" if num_values else _MISSING


def _gaps(block: Block) -> str:
    gaps = block.chunk_gap_s
    if gaps is None:
        return _MISSING
    return (
        f"p50 {1000 * gaps.p50:.1f} ms, p99 {1000 * gaps.p99:.1f} ms "
        f"({gaps.num_values} gaps; a chunk may hold several tokens)"
    )


def _acceptance(values: Mapping[str, object], setting: Setting) -> str:
    length, rate = values["acceptance_length"], values["acceptance_rate"]
    if not isinstance(length, float):
        return f"{_MISSING} ({setting.acceptance_note})" if setting.acceptance_note else _MISSING
    share = f", {rate:.1%} of the drafted tokens accepted" if isinstance(rate, float) else ""
    return f"{length:.3f} tokens a step{share}"


def _positions(values: Mapping[str, object]) -> list[tuple[str, str]]:
    rates = values["acceptance_rate_per_position"]
    if not isinstance(rates, list):
        return []
    shown = " ".join(_MISSING if rate is None else f"{rate:.3f}" for rate in rates)
    return [("accepted by position", shown)]


def _requests(block: Block) -> str:
    reasons = ", ".join(f"{count} {name}" for name, count in block.finish_reasons.items())
    parts = [f"{block.num_requests} (finish reasons: {reasons or 'none'})"]
    parts += [f"{block.num_failed} failed"] if block.num_failed else []
    parts += [f"{block.num_refused} refused"] if block.num_refused else []
    parts += [f"{count} x {text}" for text, count in block.errors.items()]
    return "; ".join(parts)


def _tokens(block: Block) -> str:
    audit = block.audit
    client = f"{audit.client_window} in the window, {audit.client_total} altogether"
    if audit.engine_total is None:
        return f"{client}; the engine's own count is not known"
    window = _MISSING if audit.engine_window is None else f"{audit.engine_window:.0f}"
    return f"{client}; the engine counts {window} and {audit.engine_total:.0f}"


def _running(block: Block) -> str:
    if block.effective_concurrency is None:
        return _MISSING
    return f"{block.effective_concurrency:.1f} requests, by the engine's gauge"


def _cached(block: Block) -> list[tuple[str, str]]:
    if not block.prompt_tokens:
        return []
    if block.cached_tokens is None:
        return [
            ("prompt tokens", f"{block.prompt_tokens}; the server does not say how many cached")
        ]
    share = block.cached_tokens / block.prompt_tokens
    return [("prompt tokens", f"{block.prompt_tokens}, {share:.1%} from the prefix cache")]


def _node(block: Block) -> list[tuple[str, str]]:
    if block.node is None:
        return []
    reason = "" if block.node.fitness is Fitness.FIT else f": {block.node.reason}"
    return [("node", f"{block.node.fitness}{reason}")]
