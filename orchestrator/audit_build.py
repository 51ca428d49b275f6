"""Audit of an engine build before it is booted anywhere: its own sampling kernels, driven, judged.

The build's code runs in child processes (`serve_apps.audit.drive`), in the Python that has it or
behind its unpacked wheel. They leave records and texts in a temporary folder; what is judged here
is only what they left.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

import serve_apps
from orchestrator.audit_build_text import Displacement, TextEvidence, Texts
from orchestrator.audit_build_wheel import unpack
from orchestrator.core.codec import from_plain
from orchestrator.core.lossless.judge import LosslessResult, LosslessSettings, judge
from orchestrator.core.lossless.observations import Observations
from orchestrator.errors import ConfigError, MeasurementError
from serve_apps.audit.records import read_records
from serve_apps.cpu import environment

RULES = (
    "none",
    "greedy+standard",
    "probabilistic+standard",
    "greedy+block",
    "probabilistic+block",
)
DRAFTERS = ("dflash2", "dflash")
CANNOT_DRIVE = 3
"""Exit status of a child whose build's code is not as known."""
PROJECT = Path(serve_apps.__file__).resolve().parents[1]
POLL_S = 0.2
KILL_GRACE_S = 10.0
TEXT_LENGTH = 128
REMEDY = "docs/audit-build.md names the builds that are known, and what they need"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is driven and how it is judged."""

    rules: tuple[str, ...] = RULES
    num_tokens: int = 200_000
    """Of each rule, rounded up to whole texts of `TEXT_LENGTH`."""
    seed: int = 0
    """Of prompts and of the requests' seeds; a second run with it is a duplicate."""
    num_processes: int = 2
    drafter: str = "dflash2"
    vocabulary: int = 96
    timeout_s: float = 3600.0
    any_version: bool = False
    """Drive versions of vLLM that were never read, too, where their functions look as known."""
    judging: LosslessSettings = field(default_factory=LosslessSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAudit:
    """One rule's run and its verdict."""

    rule: str
    drafted_steps: int
    """Steps of one request that verified drafts."""
    accepted: int
    """Draft tokens accepted."""
    rejections: int
    """Steps of one request that rejected a draft."""
    cpu_s: float
    """Processor time of the run, imports left out."""
    displacement: Displacement | None
    """Of the text; None with fewer than two texts."""
    result: LosslessResult

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a verification step, the bonus token counted; None without drafts."""
        return 1 + self.accepted / self.drafted_steps if self.drafted_steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildAudit:
    """All rules of one build."""

    version: str
    """As the build says it."""
    rules: tuple[RuleAudit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """The line that a child writes when it is through."""

    rule: str
    version: str
    """Of vLLM."""
    cpu_s: float
    drafted_steps: int
    accepted: int
    rejections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """How a build is reached: by an interpreter, and a folder that goes before its packages."""

    source: Path
    python: Path
    unpacked: Path | None = None


def audit_build(
    source: Path, plan: Plan, *, tell: Callable[[str], None] = lambda _: None
) -> BuildAudit:
    """Drive and judge a build.

    Args:
        source: A wheel, or the folder of a virtual environment.
        plan: What is driven.
        tell: Takes a line when a rule has been driven.

    Raises:
        ConfigError: There is no such build, or its code cannot be driven.
        MeasurementError: It took longer than the plan's timeout.
    """
    with _scratch() as folder:
        build = open_build(source, folder)
        done = _drive(build, plan, folder, tell)
        try:
            audits = tuple(judge_rule(folder / name, done[name], plan.judging) for name in done)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as fault:
            problem = f"what a process left cannot be read: {fault}"
            raise ConfigError(str(source), problem, REMEDY) from fault
    return BuildAudit(version=done[plan.rules[0]].version, rules=audits)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a folder for as long as this lasts.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        scratch = tempfile.TemporaryDirectory(prefix="specpilot-build-")
    except OSError as fault:
        problem = f"no folder can be made for them: {fault.strerror}"
        raise ConfigError("temporary files", problem, "set TMPDIR to one with room") from fault
    with scratch as name:
        yield Path(name)


def open_build(source: Path, folder: Path) -> Build:
    """Return how to reach a build, its wheel unpacked below a folder.

    Raises:
        ConfigError: It is neither a wheel nor a virtual environment.
    """
    if source.is_file() and source.suffix == ".whl":
        unpacked = folder / "wheel"
        unpacked.mkdir()
        unpack(source, unpacked)
        return Build(source=source, python=Path(sys.executable), unpacked=unpacked)
    # Not resolved: the link in a virtual environment is what makes it one.
    python = source.absolute() / "bin" / "python"
    if os.access(python, os.X_OK):
        return Build(source=source, python=python)
    problem = "is neither a wheel nor a folder with bin/python"
    if not source.exists():
        problem = "does not exist"
    raise ConfigError(str(source), problem, "give a wheel of vLLM or a virtual environment")


def judge_rule(folder: Path, done: Driven, settings: LosslessSettings) -> RuleAudit:
    """Judge what a driven rule left in a folder.

    Args:
        folder: With the rule's records, texts and chain.
        done: The line that the child wrote when it was through.
        settings: Of the judge.

    Raises:
        OSError: A file is missing.
        ValueError, KeyError, EOFError, BadZipFile: A file is of another kind.
    """
    rule = done.rule
    with np.load(folder / f"{rule}.npz") as stored:
        texts = Texts(
            tokens=stored["texts"].astype(np.int64),
            prompt_tokens=stored["prompt_tokens"],
            temperatures=stored["temperatures"].astype(np.float64),
            target_logits=np.load(folder / "chain.npy").astype(np.float64),
        )
    evidence = TextEvidence(texts)
    seen = {
        kind: Observations(x=x, m=m)
        for kind, (x, m) in read_records(folder / f"{rule}.rows").by_kind().items()
    }
    result = judge(
        {**seen, **evidence.observations()}, num_tokens=texts.tokens.size, settings=settings
    )
    return RuleAudit(
        rule=rule,
        drafted_steps=done.drafted_steps,
        accepted=done.accepted,
        rejections=done.rejections,
        cpu_s=done.cpu_s,
        displacement=evidence.displacement(),
        result=result,
    )


def _drive(
    build: Build, plan: Plan, folder: Path, tell: Callable[[str], None]
) -> dict[str, Driven]:
    """Run every rule in a child, some at a time; return their last lines in the rules' order."""
    waiting, done = list(plan.rules), dict[str, Driven]()
    running: dict[str, subprocess.Popen[bytes]] = {}
    deadline = time.monotonic() + plan.timeout_s
    with _ended(running):
        while waiting or running:
            while waiting and len(running) < plan.num_processes:
                rule = waiting.pop(0)
                running[rule] = _start(build, plan, rule, folder)
            for rule in [r for r, child in running.items() if child.poll() is not None]:
                done[rule] = _outcome(build, folder / rule, running.pop(rule).returncode)
                tell(f"{rule}: driven, {done[rule].cpu_s:.0f} s of processor time")
            if time.monotonic() > deadline:
                raise MeasurementError(
                    f"{', '.join(running)}: not driven within {plan.timeout_s:.0f} s; "
                    "give fewer --tokens or a longer --timeout"
                )
            time.sleep(POLL_S)
    return {rule: done[rule] for rule in plan.rules}


@contextmanager
def _ended(running: Mapping[str, subprocess.Popen[bytes]]) -> Iterator[None]:
    """End whatever child still runs when the block is left."""
    try:
        yield
    finally:
        for child in running.values():
            child.terminate()
        for child in running.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(KILL_GRACE_S)
            if child.poll() is None:
                child.kill()
                child.wait()


def _start(build: Build, plan: Plan, rule: str, folder: Path) -> subprocess.Popen[bytes]:
    out = folder / rule
    out.mkdir()
    command = [
        str(build.python), "-m", "serve_apps.audit.drive", "--out", str(out), "--rule", rule,
        "--tokens", str(plan.num_tokens), "--text-length", str(TEXT_LENGTH),
        "--seed", str(plan.seed), "--drafter", plan.drafter, "--vocabulary", str(plan.vocabulary),
        *(["--any-version"] if plan.any_version else []),
    ]  # fmt: skip
    environ = {**child_environment(build, os.environ), "TMPDIR": str(out)}
    with (out / "stdout").open("wb") as stdout, (out / "stderr").open("wb") as stderr:
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=out,
                env=environ,
            )  # fmt: skip
        except OSError as fault:
            problem = f"its {build.python.name} does not start: {fault.strerror}"
            raise ConfigError(str(build.source), problem, "give a working environment") from fault


def child_environment(build: Build, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return a child's variables: the interpreter, no GPU, and the build before all else."""
    path = [str(part) for part in (build.unpacked, PROJECT) if part is not None]
    kept = {n: v for n, v in inherited.items() if not n.startswith(("PYTHON", "VLLM_"))}
    return {
        **kept,
        **environment(kv_cache_gib=None),
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": os.pathsep.join(path),
    }


def _outcome(build: Build, out: Path, status: int) -> Driven:
    """Return a finished child's last line.

    Raises:
        ConfigError: It could not drive the build.
    """
    said, errors = _lines(out / "stdout"), _lines(out / "stderr")
    if status == 0 and said:
        with suppress(ValueError, RecursionError):
            return _driven(said[-1], out.name)
    if status < 0:
        problem = f"a process was ended by signal {-status}; memory may have run out"
    elif status == 0 or not errors:
        problem = f"a process ended with status {status} and no result"
    else:
        problem = errors[-1] if status == CANNOT_DRIVE else f"its code failed here: {errors[-1]}"
    raise ConfigError(str(build.source), problem, REMEDY)


def _driven(line: str, rule: str) -> Driven:
    """Return what a child's last line says.

    Raises:
        ValueError: It is not the line of a child that drove this rule.
    """
    told, names = json.loads(line), {item.name for item in fields(Driven)}
    if not isinstance(told, dict):
        raise ValueError("it is no record")
    done = from_plain(Driven, {key: value for key, value in told.items() if key in names})
    if done.rule != rule or not math.isfinite(done.cpu_s):
        raise ValueError(f"it is not of {rule}")
    return done


def _lines(path: Path) -> Sequence[str]:
    return [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
