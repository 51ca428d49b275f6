"""Drives one engine build's sampling kernels and writes what they did: a process of `audit-build`.

    python -m serve_apps.audit.drive --out FOLDER --rule greedy+block --tokens 100000

runs in the Python that has the build, or whose path begins with the build's unpacked wheel, with
TRITON_INTERPRET=1 and without a GPU. FOLDER gets `chain.npy`, the target's logits, the rule's
records (`records`) and its texts; the last line on standard output says in JSON what was done.
This file imports the standard library only until it is known that the build can be driven.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

CANNOT_DRIVE = 3
"""Exit status where the build's code is not as known; the reason is the last line of stderr."""
NEEDED = ("vllm", "torch", "triton", "numpy")
KNOWN_VERSIONS = ((0, 28), (0, 33))
"""First and last minor version of vLLM whose way of passing seeds and positions was read."""

_BACKEND = "[triton.backends]\ncpu = serve_apps.cpu.triton_backend\n"
_STATED = re.compile(r"^__version__ .*?['\"]([^'\"\n]+)", re.MULTILINE)
_MINOR = re.compile(r"(\d+)\.(\d+)")


class NotDrivableError(RuntimeError):
    """This Python's build cannot be driven; the text says in one clause why."""


def main() -> int:
    """Drive the asked rule and return the exit status."""
    args = _arguments()
    try:
        version = build_version(any_version=args.any_version)
        with interpreted(version):
            _drive(args, version)
    except NotDrivableError as fault:
        sys.stderr.write(f"cannot drive: {' '.join(str(fault).split())}\n")
        return CANNOT_DRIVE
    return 0


def build_version(*, any_version: bool = False) -> str:
    """Return the version of the vLLM that an import would find, without importing it.

    Args:
        any_version: Take versions that were not read, too.

    Raises:
        NotDrivableError: A package is missing, or the version is unknown.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise NotDrivableError(f"{sys.executable} has no {name}: install it there")
    spec = importlib.util.find_spec("vllm")
    stated = Path(spec.origin).with_name("_version.py") if spec and spec.origin else None
    found = _STATED.search(stated.read_text("utf-8")) if stated and stated.is_file() else None
    if found is None:
        raise NotDrivableError("its package vllm states no version in vllm/_version.py")
    version = found.group(1)
    if not (any_version or is_known(version)):
        first, last = (".".join(map(str, minor)) for minor in KNOWN_VERSIONS)
        raise NotDrivableError(
            f"vLLM {version} is none of the versions that were read, {first} to {last}; "
            "--any-version drives what looks the same"
        )
    return version


def is_known(version: str) -> bool:
    """Return whether a version's minor version is within `KNOWN_VERSIONS`."""
    first, last = KNOWN_VERSIONS
    found = _MINOR.match(version)
    return found is not None and first <= (int(found.group(1)), int(found.group(2))) <= last


@contextmanager
def interpreted(version: str) -> Iterator[None]:
    """Let the build's kernels run in Triton's interpreter, mended, while this lasts.

    Raises:
        NotDrivableError: The interpreter or the build's code is not as known.
    """
    with tempfile.TemporaryDirectory(prefix="specpilot-alias-") as alias:
        write_stand_in(Path(alias), version)
        sys.path.insert(0, alias)
        from serve_apps.audit import drive_build  # noqa: PLC0415  # torch, behind the alias
        from serve_apps.cpu import plugin  # noqa: PLC0415  # Triton, behind the alias

        try:
            plugin.mend()
            yield
        except (drive_build.CannotDriveError, plugin.UnknownTritonError, ImportError) as fault:
            raise NotDrivableError(str(fault)) from fault
        finally:
            sys.path.remove(alias)


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
    import numpy as np  # noqa: PLC0415  # known to be there by now

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
    import numpy as np  # noqa: PLC0415

    from serve_apps.audit.records import (  # noqa: PLC0415  # numpy
        KINDS,
        RecordHeader,
        RecordWriter,
        rows_of,
    )

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
    grammar.add_argument("--any-version", action="store_true", help="also versions never read")
    return grammar.parse_args()


if __name__ == "__main__":
    sys.exit(main())
