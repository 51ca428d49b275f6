"""Request-steps per second of the CPU execution, per pair of draft and verification rule.

    python -m infra.bench.cpu_steps [--streams 4] [--seconds 20] [--dtype float32]

Boots the real engine over HTTP once per rule pair (and once without speculation), keeps the
given number of streams busy, and reads the engine's own counters before and after a window.
A request-step is one draft of one request: its rate is the delta of
`vllm:spec_decode_num_drafts` by wall time. The speeds mean nothing for a GPU; they say how
long a study on a CPU takes. The CPU time per request-step, over all processes of the engine,
hardly depends on what else the machine does, and so tells a slow engine from a busy machine.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.local.processes import end_group
from orchestrator.core.exposition import EngineCounters, delta, parse_counters
from orchestrator.core.formulas import acceptance_length, output_throughput
from orchestrator.core.types import CounterSnapshot
from serve_apps.cpu import environment

_MODELS = Path(__file__).resolve().parents[1] / "tiny_models"
_RULES = (
    None,
    ("greedy", "standard"),
    ("greedy", "block"),
    ("probabilistic", "standard"),
    ("probabilistic", "block"),
)
_BOOT_DEADLINE_S = 240.0
_WARM_UP_S = 8.0
_PROMPTS = ("def parse(line):\n", "class Reader:\n", "import os\n", "for name in names:\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asked for."""

    target: Path
    draft: Path
    streams: int
    seconds: float
    num_speculative_tokens: int
    temperature: float
    dtype: str
    port: int
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One engine's figures over one window."""

    rule: tuple[str, str] | None
    boot_s: float
    window_s: float
    cpu_s: float
    counters: CounterSnapshot
    """Difference over the window."""

    def row(self) -> str:
        """Return the figures as one line of the table; a dash where nothing was counted."""
        name = "none" if self.rule is None else " + ".join(self.rule)
        drafts, tokens_per_step = self.counters.num_drafts, acceptance_length(self.counters)
        throughput = output_throughput(self.counters.generation_tokens, self.window_s)
        steps = f"{drafts / self.window_s:.1f}" if drafts else "-"
        length = "-" if tokens_per_step is None else f"{tokens_per_step:.3f}"
        tokens = "-" if throughput is None else f"{throughput:.1f}"
        cost = f"{1000 * self.cpu_s / drafts:.1f}" if drafts else "-"
        return f"{name:26}{steps:>16}{tokens:>10}{length:>19}{cost:>13}{self.boot_s:>8.1f}"


def command(options: Options, rule: tuple[str, str] | None) -> list[str]:
    """Return the command line that serves the tiny target under a rule pair."""
    words = [
        sys.executable, "-m", "serve_apps.cpu.launch", "serve", str(options.target),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(options.port),
        "--enforce-eager", "--max-model-len", "1024",
        "--max-num-seqs", str(max(8, options.streams)),
        # A drafting kernel pads up to this many tokens, sixteen at a time, at every step.
        "--max-num-batched-tokens", "512",
        "--dtype", options.dtype, "--no-enable-prefix-caching", "--generation-config", "vllm",
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if rule is not None:
        draft, rejection = rule
        config = {
            "method": "dflash",
            "model": str(options.draft),
            "num_speculative_tokens": options.num_speculative_tokens,
            "draft_sample_method": draft,
            "rejection_sample_method": rejection,
        }
        words += ["--speculative-config", json.dumps(config)]
    return words


def complete(port: int, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> None:
    """Send one completion and wait for its end."""
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "seed": seed,
        "temperature": temperature, "ignore_eos": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def read_counters(port: int) -> EngineCounters:
    """Return the engine's counters now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return parse_counters(answer.read().decode())


def cpu_seconds(group: int) -> float:
    """Return the CPU time that the processes of a group have used so far."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        # After the name: state, parent, group, ...; user and system time are fields 14 and 15.
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def engine(options: Options, rule: tuple[str, str] | None) -> Iterator[tuple[float, int]]:
    """Boot an engine and end its process group afterwards.

    Yields:
        Seconds from the start of the process to its first completion, and its process group.

    Raises:
        RuntimeError: The engine ended or did not answer in time; the log says why.
    """
    started = time.monotonic()
    with options.log.open("ab") as log:
        process = subprocess.Popen(
            command(options, rule),
            env={**os.environ, **environment()},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_ready(options.port, process, started, options.log)
        yield time.monotonic() - started, process.pid
    finally:
        end_group(process)


def _wait_ready(port: int, process: subprocess.Popen[bytes], started: float, log: Path) -> None:
    while time.monotonic() - started < _BOOT_DEADLINE_S:
        if process.poll() is not None:
            raise RuntimeError(f"the engine ended with code {process.returncode}, see {log}")
        try:
            complete(port, "x", max_tokens=1, temperature=0.0, seed=0)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(f"the engine did not answer in {_BOOT_DEADLINE_S:.0f} s, see {log}")


def measure(options: Options, rule: tuple[str, str] | None) -> Measurement:
    """Boot one engine, keep the streams busy, and return the figures of one window."""
    with engine(options, rule) as (boot_s, group):
        stop = threading.Event()
        streams = [
            threading.Thread(target=_stream, args=(options, index, stop), daemon=True)
            for index in range(options.streams)
        ]
        for stream in streams:
            stream.start()
        time.sleep(_WARM_UP_S)
        before, began, used = read_counters(options.port), time.monotonic(), cpu_seconds(group)
        time.sleep(options.seconds)
        after, window_s = read_counters(options.port), time.monotonic() - began
        cpu_s = cpu_seconds(group) - used
        stop.set()
        for stream in streams:
            stream.join(timeout=120)
    return Measurement(
        rule=rule, boot_s=boot_s, window_s=window_s, cpu_s=cpu_s, counters=delta(before, after)
    )


def _stream(options: Options, index: int, stop: threading.Event) -> None:
    for turn in range(1_000_000):
        if stop.is_set():
            return
        prompt = _PROMPTS[(index + turn) % len(_PROMPTS)]
        complete(
            options.port,
            prompt,
            max_tokens=64,
            temperature=options.temperature,
            seed=1000 * index + turn,
        )


def parse(arguments: Sequence[str] | None) -> Options:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", type=Path, default=_MODELS / "target")
    parser.add_argument("--draft", type=Path, default=_MODELS / "draft")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="of one window")
    parser.add_argument("--num-speculative-tokens", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--port", type=int, default=18190)
    parser.add_argument("--log", type=Path, default=Path("cpu_steps.log"), help="engines' output")
    return Options(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every rule pair and print the table."""
    options = parse(arguments)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    write = sys.stdout.write
    write(
        f"{options.streams} streams, {options.num_speculative_tokens} draft tokens, "
        f"T {options.temperature}, {options.dtype}, {os.cpu_count()} cores, "
        f"load average at start {load}\n"
    )
    write(
        f"{'draft + verification':26}{'request-steps/s':>16}{'tokens/s':>10}"
        f"{'acceptance length':>19}{'CPU ms/step':>13}{'boot s':>8}\n"
    )
    for rule in _RULES:
        write(measure(options, rule).row() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
