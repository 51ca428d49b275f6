"""Smallest reproduction: verification by blocks uses a position's random numbers twice.

    python -m infra.audit.stale [--python .engines/0.28.0/bin/python]

An engine takes the uniform number that accepts a draft from (request's seed, position), and the
noise that draws the draft as well. Token-wise verification looks at positions up to the first
rejection, and those are emitted: no number has a say twice. Verification by blocks draws at every
position of the block, keeps the last one that passes, and emits up to there. The uniforms behind it
were seen to fail, `u > h`, the drafts there had a say in it, and the next step verifies the same
positions with the same numbers. They are no fresh draws any more, and the text is biased.

Two tokens, a target that gives each one half whatever the text, and drafts from (0.9, 0.1): every
sequence must be fair coins. The build's own verification kernel is called as the engine calls it,
step after step, with the position moved on by what was emitted. Uniforms: a request has
one seed, as in the engine (kept), or another one at every step (fresh). Noise of drafts: drawn here
by position (kept, as 0.28 to 0.32 draw it) or in every step (fresh). 0.33.0 mixes the depth within
the block into both seeds: its row is "uniforms kept, noise of drafts fresh", and is not biased.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from serve_apps.cpu import environment

PROJECT = Path(__file__).resolve().parents[2]
TARGET, DRAFT = (0.5, 0.5), (0.9, 0.1)
DEPTH = 2
NUM_SEQUENCES = 8000
CASES = tuple(product(("standard", "block"), (False, True), (False, True)))
"""Rule, whether uniforms are kept by position, whether the noise of drafts is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how often the second token repeats the first, by rule; it must be one half."""
    parser = argparse.ArgumentParser(prog="python -m infra.audit.stale")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of a build")
    found = reproduce(parser.parse_args(arguments).python)
    print(f"vLLM {found['version']}: P(second token is the first one again), to be 0.5")
    for case in found["cases"]:
        print(line(case))
    return 0


def line(case: dict[str, Any]) -> str:
    """Return one case in a line."""
    uniforms, drafts = ("kept" if case[key] else "fresh" for key in ("uniforms", "drafts"))
    share = case["repeats"] / case["sequences"]
    return (
        f"  {case['rule']:9} uniforms {uniforms:6} noise of drafts {drafts:6} {share:.3f}   "
        f"z = {score(case):+.1f}"
    )


def score(case: dict[str, Any]) -> float:
    """Return how many standard deviations the repeats are from one half of the sequences."""
    num: int = case["sequences"]
    return float((case["repeats"] - num / 2) / math.sqrt(num / 4))


def reproduce(python: Path, *, num_sequences: int = NUM_SEQUENCES) -> dict[str, Any]:
    """Run all cases on a build's kernel, in a process of its own: the interpreter is patched.

    Args:
        python: Interpreter of the build.
        num_sequences: Of every case.

    Raises:
        subprocess.CalledProcessError: The build's modules do not run here.
    """
    paths = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [str(python), "-c", f"from infra.audit.stale import child; child({num_sequences})"],
        env={**os.environ, **environment(), "PYTHONPATH": paths},
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        check=True,
    )
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def child(num_sequences: int) -> None:
    """Print all cases as JSON; runs in the build's environment."""
    from serve_apps.cpu import launch, plugin  # noqa: PLC0415  # patches the interpreter for good

    # A build under another name than vllm chooses no platform, and then has no Triton.
    alias = launch.alias_directory()
    if alias is not None:
        sys.path.append(str(alias))
    plugin.mend()
    kernels = importlib.import_module("vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils")
    cases = [
        {
            "rule": rule,
            "uniforms": uniforms,
            "drafts": drafts,
            "sequences": num_sequences,
            "repeats": repeats(
                kernels.rejection_sample,
                num_sequences,
                rule=rule,
                keep_uniforms=uniforms,
                keep_drafts=drafts,
            ),
        }
        for rule, uniforms, drafts in CASES
    ]
    version = importlib.import_module("vllm").__version__
    print(json.dumps({"version": version, "cases": cases}))


def repeats(
    rejection_sample: Any, num: int, *, rule: str, keep_uniforms: bool, keep_drafts: bool
) -> int:
    """Return how many of the sequences have the same token twice at their beginning.

    Args:
        rejection_sample: The build's.
        num: Sequences.
        rule: standard or block.
        keep_uniforms: Whether a request has one seed, and not another at every step.
        keep_drafts: Whether a position's draft is drawn with the same noise in every step.
    """
    torch: Any = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(1)
    rows = DEPTH + 1
    text = torch.full((num, 2 * rows), -1)
    length = torch.zeros(num, dtype=torch.int64)
    going = torch.arange(num)
    while len(going):
        if not keep_uniforms or len(going) == num:
            seeds = torch.randint(2**62, (num,), generator=generator)
        if not keep_drafts or len(going) == num:
            noise = torch.rand(num, 2 * rows, generator=generator)
        places = length[going, None] + torch.arange(rows)
        drafts = (noise[going].gather(1, places[:, :-1]) >= DRAFT[0]).long()
        sampled, counts = verify(rejection_sample, torch, drafts, places, seeds[going], rule)
        kept = torch.arange(rows) < counts[:, None]
        requests = going[:, None].expand_as(places)
        text[requests[kept], places[kept]] = sampled[kept]
        length[going] += counts
        going = going[length[going] < 2]
    return int((text[:, 0] == text[:, 1]).sum())


def verify(
    rejection_sample: Any, torch: Any, drafts: Any, places: Any, seeds: Any, rule: str
) -> tuple[Any, Any]:
    """Return (tokens, how many of them) that the kernel emits, one step of every sequence.

    Args:
        rejection_sample: The build's.
        torch: The build's.
        drafts: [num, DEPTH]
        places: [num, DEPTH + 1], positions.
        seeds: [num]
        rule: standard or block.
    """
    num, rows = places.shape
    fed = torch.cat([torch.zeros(num, 1, dtype=torch.int64), drafts], 1)
    result: tuple[Any, Any] = rejection_sample(
        torch.tensor(TARGET).log().expand(num * rows, 2).contiguous(),
        torch.tensor(DRAFT).log().expand(num, DEPTH, 2).contiguous(),
        fed.view(-1),
        torch.arange(num + 1, dtype=torch.int32) * rows,
        places.reshape(-1),
        torch.arange(num),
        torch.arange(num).repeat_interleave(rows),
        torch.arange(rows, dtype=torch.int32).repeat(num),
        torch.ones(num),
        seeds,
        DEPTH,
        use_block_verification=rule == "block",
    )
    return result


if __name__ == "__main__":
    sys.exit(main())
