"""What the stand-in is asked to do: vLLM's command line, and knobs from the environment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PREFIX = "SPECPILOT_FAKE_"


class Fail(StrEnum):
    """How the stand-in misbehaves."""

    NO = ""
    EXIT = "exit"
    """Exits during the boot with a traceback in two processes, as an engine core does."""
    OUT_OF_MEMORY = "out_of_memory"
    STARTUP_CHECK = "startup_check"
    """Its check at the start finds too little memory free."""
    KV_CACHE = "kv_cache"
    """Nothing is left for the KV cache."""
    BAD_ARGUMENTS = "bad_arguments"
    HANG = "hang"
    """Boots for ever, without a further log line."""
    HANG_COMPLETIONS = "hang_completions"
    """/health says 200 and no completion ever comes."""
    EMPTY_COMPLETIONS = "empty_completions"
    LOOPING_COMPLETIONS = "looping_completions"
    """Completions are one token again and again."""
    WRONG_IDENTITY = "wrong_identity"
    """Serves under other names than asked, like an older server on the same port."""
    UNHEALTHY = "unhealthy"
    """Serves, but /health says 503."""


class Answers(StrEnum):
    """How the stand-in answers the questions of a chat that it knows: those of the canaries."""

    RIGHT = "right"
    GARBAGE = "garbage"
    """Wrong while it speculates: one symbol again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Knobs, each an environment variable `SPECPILOT_FAKE_<NAME>`."""

    boot_delay_s: float = 0.0
    fail: Fail = Fail.NO
    die_after_requests: int = 0
    """Exits (status 1) when it has answered so many completions; 0 is never."""
    oom_at_request: int = 0
    """Dies at its n-th completion as an engine core without memory; 0 is never. The first is
    the supervisor's own."""
    hang_after_requests: int = 0
    """Completions after so many get no token for ever, while /health says 200; 0 is never."""
    log_every_s: float = 0.0
    """A boot with a delay says something so often; 0 is silence."""
    stubborn_child: bool = False
    """Keeps a child process that ignores SIGTERM and left the process group."""
    acceptance: tuple[float, ...] = ()
    """Unconditional acceptance rate by draft position; () is a model, see `simulator`."""
    step_s: float = 0.004
    """Wall time of one step of one stream without drafts."""
    step_per_draft_s: float = 0.0002
    step_per_stream_s: float = 0.0002
    prefill_per_token_s: float = 0.00001
    displaced: float = 0.0
    """Share of the sampled tokens that go elsewhere while it speculates, 0 to 1: a lossy arm."""
    answers: Answers = Answers.RIGHT
    stop_after: int = 0
    """Answers end by themselves ("stop") after so many tokens unless `ignore_eos`; 0 is never."""
    kv_cache_tokens: int = 319_232
    version: str = "0.32.0"
    model_runner: str = "v2"
    draft_architecture: str = "DFlash2DraftModel"
    override_speculation: Mapping[str, Any] | None = None
    """JSON merged over the speculative config that is in force: a key that the engine ignores."""
    seed: int = 0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Knobs:
        """Return the knobs of an environment; an unknown one is an error."""
        known: dict[str, Callable[[str], Any]] = {
            "boot_delay_s": float,
            "fail": Fail,
            "die_after_requests": int,
            "oom_at_request": int,
            "hang_after_requests": int,
            "log_every_s": float,
            "stubborn_child": lambda text: text == "1",
            "acceptance": lambda text: tuple(float(part) for part in text.split(",") if part),
            "step_s": float,
            "step_per_draft_s": float,
            "step_per_stream_s": float,
            "prefill_per_token_s": float,
            "displaced": _share,
            "answers": Answers,
            "stop_after": int,
            "kv_cache_tokens": int,
            "version": str,
            "model_runner": str,
            "draft_architecture": str,
            "override_speculation": json.loads,
            "seed": int,
        }
        given = {
            name.removeprefix(PREFIX).lower(): text
            for name, text in env.items()
            if name.startswith(PREFIX)
        }
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ValueError(f"{PREFIX}{unknown[0].upper()}: unknown knob (known: {sorted(known)})")
        values: dict[str, Any] = {name: known[name](text) for name, text in given.items()}
        return cls(**values)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is no share from 0 to 1")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line, as far as the stand-in understands it."""

    model: str
    host: str
    port: int
    names: tuple[str, ...]
    max_model_len: int
    max_num_seqs: int
    seed: int
    speculative_config: dict[str, Any] | None
    max_logprobs: int = 20
    """Probabilities of a token that a request may want; -1 is the vocabulary."""

    @property
    def num_speculative_tokens(self) -> int:
        """Return the depth asked for, 0 without speculation."""
        return int((self.speculative_config or {}).get("num_speculative_tokens", 0))


def parse_command(argv: Sequence[str]) -> Asked:
    """Return the command line; options of vLLM that it does not know are passed over."""
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("subcommand", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", nargs="+", default=[])
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-logprobs", type=int, default=20)
    parser.add_argument("--speculative-config", type=json.loads)
    args, _ = parser.parse_known_args(argv)
    return Asked(
        model=args.model,
        host=args.host,
        port=args.port,
        names=tuple(args.served_model_name) or (args.model,),
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        seed=args.seed,
        max_logprobs=args.max_logprobs,
        speculative_config=args.speculative_config,
    )
