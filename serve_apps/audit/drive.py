"""Drives one engine build's sampling kernels and writes what they did: a process of `audit-build`.

    python -m serve_apps.audit.drive --out FOLDER --rule greedy+block --tokens 100000

runs in the Python that has the build, or whose path begins with the build's unpacked wheel, with
TRITON_INTERPRET=1 and without a GPU. FOLDER gets `chain.npy`, the target's logits, the rule's
records (`records`) and its texts; the last line on standard output says in JSON what was done.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from serve_apps.audit.records import KINDS, RecordHeader, RecordWriter, rows_of

CANNOT_DRIVE = 3
"""Exit status where the build's code is not as known; the reason is the last line of stderr."""

_BACKEND = "[triton.backends]\ncpu = serve_apps.cpu.triton_backend\n"
_VERSION = re.compile(r"^__version__ .*?['\"]([^'\"\n]+)", re.MULTILINE)


def main() -> int:
    """Drive the asked rule and return the exit status."""
    args = _arguments()
    version = build_version()
    if version is None:
        return _refuse("there is no vllm in this Python")
    with tempfile.TemporaryDirectory(prefix="specpilot-alias-") as alias:
        write_stand_in(Path(alias), version)
        sys.path.insert(0, alias)
        from serve_apps.audit import drive_build  # noqa: PLC0415  # torch, behind the alias
        from serve_apps.cpu import plugin  # noqa: PLC0415

        try:
            plugin.mend()
            _drive(args, version)
        except (drive_build.CannotDriveError, plugin.UnknownTritonError, ImportError) as fault:
            return _refuse(str(fault))
    return 0


def build_version() -> str | None:
    """Return the version of the vLLM that an import would find, without importing it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    stated = Path(spec.origin).with_name("_version.py")
    found = _VERSION.search(stated.read_text("utf-8")) if stated.is_file() else None
    return found.group(1) if found else None


def write_stand_in(folder: Path, version: str) -> None:
    """Write the metadata of a CPU build: vLLM asks them for its platform, Triton for its backend.

    The kernels are the same files in a build for GPUs and in one for CPUs; the platform decides
    whether vLLM takes Triton to be usable here.
    """
    public = version.partition("+")[0]
    info = folder / f"vllm-{public}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {public}+cpu\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    (info / "entry_points.txt").write_text(_BACKEND, encoding="utf-8")


def _drive(args: argparse.Namespace, version: str) -> None:
    from serve_apps.audit import drive_build, drive_markov, drive_steps  # noqa: PLC0415

    chain = drive_markov.make_chain(
        seed=args.chain_seed,
        vocabulary=args.vocabulary,
        depth=args.depth,
        num_candidates=args.candidates,
    )
    np.save(args.out / "chain.npy", chain.target_logits)
    sampling = drive_build.Sampling()
    requests = drive_steps.make_requests(
        -(-args.tokens // args.text_length),
        text_length=args.text_length,
        vocabulary=chain.vocabulary,
        seed=args.seed,
    )
    rule = drive_steps.RULES[args.rule]
    drafter = None
    if rule.draft != drive_steps.NONE:
        drafter = drive_build.Drafter(
            args.drafter,
            chain,
            num_slots=drive_steps.num_slots_for(args.rows),
            probabilistic=rule.draft == "probabilistic",
        )
    run = drive_steps.Run(
        rule, chain, requests, sampling=sampling, drafter=drafter, num_rows=args.rows
    )
    _report(rule, run, requests, args, version)


def _report(rule: Any, run: Any, requests: Any, args: argparse.Namespace, version: str) -> None:
    """Run a rule to its end, write its files and say so in one line."""
    header = RecordHeader(
        engine_version=version,
        rejection_sample_method=rule.rejection,
        draft_sample_method=rule.draft,
        limit_rows=len(KINDS) * run.texts.size,
    )
    writer = RecordWriter(args.out / f"{rule.name}.rows", header)
    started = time.process_time()
    for step, (observed, slots) in enumerate(run.steps()):
        writer.append(rows_of(observed, step=step, slots=slots))
    cpu_s = time.process_time() - started
    np.savez(
        args.out / f"{rule.name}.npz",
        texts=run.texts.astype(np.int32),
        prompt_tokens=requests.prompt_tokens,
        temperatures=requests.temperatures,
    )
    done = {"rule": rule.name, "version": version, "cpu_s": cpu_s, **asdict(run.counts)}
    sys.stdout.write(json.dumps(done) + "\n")


def _arguments() -> argparse.Namespace:
    grammar = argparse.ArgumentParser(prog="python -m serve_apps.audit.drive")
    grammar.add_argument("--out", type=Path, required=True, help="an empty folder")
    grammar.add_argument("--rule", required=True)
    grammar.add_argument("--tokens", type=int, required=True, help="at least")
    grammar.add_argument("--drafter", default="dflash2")
    grammar.add_argument("--seed", type=int, default=0, help="of the requests")
    grammar.add_argument("--chain-seed", type=int, default=0)
    grammar.add_argument("--rows", type=int, default=256, help="requests at a time")
    grammar.add_argument("--text-length", type=int, default=128)
    grammar.add_argument("--vocabulary", type=int, default=96)
    grammar.add_argument("--depth", type=int, default=7)
    grammar.add_argument("--candidates", type=int, default=16)
    return grammar.parse_args()


def _refuse(why: str) -> int:
    sys.stderr.write(f"cannot drive: {why}\n")
    return CANNOT_DRIVE


if __name__ == "__main__":
    sys.exit(main())
