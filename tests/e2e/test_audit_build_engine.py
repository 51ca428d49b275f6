"""Real builds driven by `audit-build`: what is known of each shows, and tells them apart."""

import json
import sys
from pathlib import Path

import pytest
from cpu_engine import NEEDS_ENGINE, ROOT

from orchestrator import cli

pytestmark = NEEDS_ENGINE

OLD = ROOT / ".engines" / "0.28.0"
NUM_TOKENS = 25_600


def audited(
    build: Path, rules: str, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, str]]:
    """Return the exit status and the verdicts by rule."""
    arguments = ["--rules", rules, "--tokens", str(NUM_TOKENS), "--json", *more]
    status = cli.main(["audit-build", str(build), *arguments])
    found = json.loads(capsys.readouterr().out)
    verdicts = {rule["rule"]: rule["result"]["kind"] for rule in found["audit"]["rules"]}
    return status, verdicts


def test_build_of_today_is_rejected_by_blocks_and_not_token_by_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rules = "probabilistic+standard,greedy+block,probabilistic+block"
    status, verdicts = audited(Path(sys.prefix), rules, capsys)
    assert status == 1
    assert verdicts == {
        "probabilistic+standard": "cannot_tell",
        "greedy+block": "rejected",
        "probabilistic+block": "rejected",
    }


def test_drafts_by_position_are_driven_too(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--drafter", "dflash")
    status, verdicts = audited(Path(sys.prefix), "probabilistic+standard", capsys, *more)
    assert (status, verdicts) == (3, {"probabilistic+standard": "cannot_tell"})


@pytest.mark.skipif(not OLD.is_dir(), reason="make engine VERSION=0.28.0 makes it")
def test_old_build_is_rejected_for_the_noise_that_draft_and_recovery_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, verdicts = audited(OLD, "greedy+standard,probabilistic+standard", capsys)
    assert status == 1
    assert verdicts == {"greedy+standard": "cannot_tell", "probabilistic+standard": "rejected"}
