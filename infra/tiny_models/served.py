"""Acceptance as a running engine counts it on the held-out prompts, and the text that it emitted.

    python -m infra.tiny_models.served --url http://127.0.0.1:8000 --out served.json

`python -m infra.tiny_models expect --served served.json` then says what the two models should have
shown on that very text. Runs in the engine's environment; the engine serves nothing else meanwhile.
"""

import argparse
import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orchestrator.core.exposition import EngineCounters, delta, parse_counters
from orchestrator.core.formulas import acceptance_length

PROMPTS = Path(__file__).parent / "heldout_prompts.jsonl"
REQUEST_DEADLINE_S = 600.0


def counters(url: str) -> EngineCounters:
    """Return the engine's counters."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        return parse_counters(answer.read().decode())


def complete(url: str, body: dict[str, Any]) -> dict[str, list[int]]:
    """Return the prompt's and the emitted token ids of one completion."""
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps({"ignore_eos": True, "return_token_ids": True, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_DEADLINE_S) as answer:
        choice = json.load(answer)["choices"][0]
    return {"prompt": choice["prompt_token_ids"], "emitted": choice["token_ids"]}


def bodies(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one request body per prompt, each with a seed of its own."""
    lines = PROMPTS.read_text(encoding="ascii").splitlines()[: arguments.prompts]
    return [
        {
            "model": arguments.model,
            "prompt": json.loads(line)["prompt"],
            "max_tokens": arguments.tokens,
            "temperature": arguments.temperature,
            "seed": arguments.seed + index,
        }
        for index, line in enumerate(lines)
    ]


def _parser() -> argparse.ArgumentParser:
    """Return the command line parser."""
    parser = argparse.ArgumentParser(prog="python -m infra.tiny_models.served", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the emitted text")
    parser.add_argument("--model", default="specpilot", help="name that the engine serves")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=160, help="tokens emitted per prompt")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draft", default="probabilistic", help="the engine's draft rule")
    parser.add_argument("--rejection", default="standard", help="the engine's rejection rule")
    return parser


def main(argv: list[str]) -> int:
    """Serve every prompt once, print the counted acceptance and write the text."""
    arguments = _parser().parse_args(argv)
    before = counters(arguments.url)
    with ThreadPoolExecutor(arguments.streams) as pool:
        texts = list(pool.map(lambda body: complete(arguments.url, body), bodies(arguments)))
    counted = delta(before, counters(arguments.url))
    length = acceptance_length(counted)
    if length is None or not counted.num_drafts:
        sys.stderr.write("the engine drafted nothing\n")
        return 1
    shares = [x / counted.num_drafts for x in counted.num_accepted_tokens_per_pos or ()]
    positions = " ".join(f"{share:.3f}" for share in shares)
    sys.stdout.write(
        f"counted {length:.3f} over {counted.num_drafts:.0f} steps, per position {positions}\n"
    )
    kept = {key: getattr(arguments, key) for key in ("temperature", "draft", "rejection")}
    arguments.out.write_text(json.dumps({**kept, "texts": texts}), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
