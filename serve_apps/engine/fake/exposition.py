"""The stand-in's /metrics, under vLLM's names, and its resolved config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_apps.engine.fake.knobs import Asked, Knobs
from serve_apps.engine.fake.simulator import Simulator

_BLOCK = 16


def kv_capacity(asked: Asked, knobs: Knobs, config: Mapping[str, Any] | None) -> tuple[int, float]:
    """Return tokens, and concurrency at full length; a draft takes its share of the memory."""
    share = 1.0
    if config:
        share -= 0.05 + 0.002 * int(config.get("num_speculative_tokens") or 0)
        share -= 0.01 if config.get("draft_sample_method") == "probabilistic" else 0.0
    tokens = int(knobs.kv_cache_tokens * share) // _BLOCK * _BLOCK
    return tokens, tokens / asked.max_model_len


def resolved_config(
    asked: Asked, knobs: Knobs, speculation: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what /server_info shows, in the shape of vLLM's dump."""
    tokens, concurrency = kv_capacity(asked, knobs, speculation)
    return {
        "model_config": {
            "model": asked.model,
            "served_model_name": list(asked.names),
            "max_model_len": asked.max_model_len,
            "dtype": "torch.bfloat16",
            "seed": asked.seed,
        },
        "cache_config": {
            "block_size": _BLOCK,
            "num_gpu_blocks": tokens // _BLOCK,
            "kv_cache_size_tokens": tokens,
            "kv_cache_max_concurrency": concurrency,
        },
        "scheduler_config": {"max_num_seqs": asked.max_num_seqs, "max_num_batched_tokens": 2048},
        "parallel_config": {"tensor_parallel_size": 1},
        "speculative_config": None if speculation is None else dict(speculation),
    }


def _counter(name: str, samples: Mapping[str, float], created: float) -> list[str]:
    """Return a counter's lines: one `_total` and one `_created` twin per label set."""
    lines = [f"# HELP {name}_total {name}", f"# TYPE {name}_total counter"]
    lines += [f"{name}_total{{{labels}}} {float(value)}" for labels, value in samples.items()]
    lines += [f"# HELP {name}_created {name}", f"# TYPE {name}_created gauge"]
    return lines + [f"{name}_created{{{labels}}} {created}" for labels in samples]


def _gauge(name: str, labels: str, value: float) -> list[str]:
    return [f"# HELP {name} {name}", f"# TYPE {name} gauge", f"{name}{{{labels}}} {value}"]


def exposition(simulator: Simulator, resolved: Mapping[str, Any]) -> str:
    """Return the Prometheus text."""
    labels = f'engine="0",model_name="{simulator.asked.names[0]}"'
    counts, created = simulator.counts, simulator.created
    cache = resolved["cache_config"]
    info = ",".join(f'{key}="{value}"' for key, value in sorted(cache.items()))
    lines = _gauge("vllm:cache_config_info", f'engine="0",{info}', 1.0)
    lines += _gauge("vllm:num_requests_running", labels, simulator.running)
    lines += _gauge("vllm:num_requests_waiting", labels, simulator.waiting)
    usage = simulator.running / max(1.0, cache["kv_cache_max_concurrency"])
    lines += _gauge("vllm:kv_cache_usage_perc", labels, min(1.0, usage))
    plain = {
        "vllm:prompt_tokens": counts["prompt_tokens"],
        "vllm:generation_tokens": counts["generation_tokens"],
        "vllm:num_preemptions": 0,
        "vllm:prefix_cache_queries": counts["prompt_tokens"],
        "vllm:prefix_cache_hits": 0,
    }
    if simulator.depth:
        plain["vllm:spec_decode_num_drafts"] = counts["drafts"]
        plain["vllm:spec_decode_num_draft_tokens"] = counts["draft_tokens"]
        plain["vllm:spec_decode_num_accepted_tokens"] = counts["accepted_tokens"]
        lines += _counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            {
                f'{labels},position="{position}"': float(value)
                for position, value in enumerate(simulator.accepted_by_position)
            },
            created,
        )
    for name, value in plain.items():
        lines += _counter(name, {labels: value}, created)
    model = simulator.asked.names[0]
    finished = {
        f'engine="0",finished_reason="{reason}",model_name="{model}"': simulator.finished[reason]
        for reason in ("stop", "length", "abort", "error")
    }
    lines += _counter("vllm:request_success", finished, created)
    return "\n".join(lines) + "\n"
