"""The smallest case in which block verification errs by using a uniform twice: two steps.

    python -m serve_apps.audit.drive_block --requests 4096

runs the `rejection_sample` of this Python's build, or of an unpacked wheel that its path begins
with. Both tokens are equally likely whatever came before, and the draft proposes token 0 twice,
greedily. By hand, with u_1 and u_2 the uniforms of the two drafts' positions: the chances are
h_1 = 1/3 and h_2 = 1/4, and the longest i with u_i <= h_i is accepted. The text begins with token 1
if neither is, u_1 > 1/3 and u_2 > 1/4: half of the time, as it should be. The next step begins at
the second draft's position. Where it draws anew, token 0 is next with probability 1/2. Where it
takes u_2 again, which is now known to be above 1/4, its first draft is accepted by u_2 <= 1/3 in
(1/3 - 1/4) / (3/4) = 1/9 of the cases, and token 0 is next with probability
1 - (1 - 1/9) (1 - 1/4) = 1/3.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

import argparse
import json
import os
import sys
from typing import Any

import numpy as np

from serve_apps.audit.drive import CANNOT_DRIVE, NotDrivableError, build_version, interpreted
from serve_apps.cpu import environment

DEPTH = 2
LOSSLESS, USED_TWICE = 1 / 2, 1 / 3
"""Probability of token 0 behind a first token 1."""


def main() -> int:
    """Print the counts as one line of JSON and return the exit status."""
    grammar = argparse.ArgumentParser(prog="python -m serve_apps.audit.drive_block")
    grammar.add_argument("--requests", type=int, default=4096)
    grammar.add_argument("--seed", type=int, default=0)
    args = grammar.parse_args()
    os.environ.update(environment(kv_cache_gib=None))
    try:
        version = build_version()
        with interpreted(version):
            zeros, count = second_tokens(args.requests, seed=args.seed)
    except NotDrivableError as fault:
        sys.stderr.write(f"cannot drive: {fault}\n")
        return CANNOT_DRIVE
    found = {
        "version": version, "first_was_1": count, "then_0": zeros, "share": zeros / count,
        "lossless": LOSSLESS, "if_used_twice": USED_TWICE,
    }  # fmt: skip
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def second_tokens(num_requests: int, *, seed: int) -> tuple[int, int]:
    """Return how often token 0 came behind a first token 1, and how often token 1 came first."""
    import torch  # noqa: PLC0415

    from serve_apps.audit.drive_build import Sampling, Slots  # noqa: PLC0415

    rng = np.random.default_rng(seed)
    slots = Slots(
        temperature=torch.ones(num_requests),
        seeds=torch.from_numpy(rng.integers(0, 1 << 62, num_requests)),
        last_sampled=torch.zeros((num_requests, 1), dtype=torch.int64),
    )
    sampling = Sampling()
    place = rng.integers(0, 4096, num_requests)
    first = _first_tokens(sampling, slots, np.arange(num_requests), place)
    others = np.flatnonzero(first == 1)
    second = _first_tokens(sampling, slots, others, place[others] + 1)
    return int((second == 0).sum()), len(others)


def _first_tokens(sampling: Any, slots: Any, requests: Any, place: Any) -> Any:
    """Verify two drafts of token 0 behind position `place`; return the first emitted tokens."""
    import torch  # noqa: PLC0415

    from serve_apps.audit.drive_build import Batch  # noqa: PLC0415

    rows, count = DEPTH + 1, len(requests)
    batch = Batch(
        slots=torch.from_numpy(requests.astype(np.int32)),
        tokens=torch.zeros(count * rows, dtype=torch.int64),
        positions=torch.from_numpy((place[:, None] + np.arange(rows)).ravel()),
        starts=torch.arange(0, count * rows + 1, rows, dtype=torch.int32),
        num_rows=np.full(count, rows, np.int32),
    )
    logits = torch.zeros((count * rows, 2))
    emitted, _ = sampling.verify(logits, None, batch, slots, depth=DEPTH, block=True)
    return emitted[:, 0].numpy()


if __name__ == "__main__":
    sys.exit(main())
