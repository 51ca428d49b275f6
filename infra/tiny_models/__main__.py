"""Command line: build both models, evaluate those that exist, or say what served text should show.

python -m infra.tiny_models build --out DIR [--steps 4]
python -m infra.tiny_models evaluate --models DIR
python -m infra.tiny_models expect --served FILE
"""

import argparse
import json
import logging
import os
import shutil
import sys
from pathlib import Path

import torch

from infra.tiny_models import convert, corpus, evaluate, prompts, recipe, tokenizer
from infra.tiny_models.train_draft import train_draft
from infra.tiny_models.train_target import perplexity, save_target, train_target

HERE = Path(__file__).parent
PROMPT_FILE = "heldout_prompts.jsonl"
PERPLEXITY_TOKENS = 131_072  # of about 267,000 held out


def _replace(source: Path, destination: Path) -> None:
    """Put a finished folder or file in place of an old one; a README there is kept."""
    card = destination / "README.md"
    if card.exists() and not (source / "README.md").exists():
        shutil.copy(card, source / "README.md")
    old = destination.with_name(destination.name + ".old")
    if destination.is_dir():
        destination.rename(old)
    source.rename(destination)
    shutil.rmtree(old, ignore_errors=True)


def build(out: Path, num_steps: int | None) -> None:
    """Train tokenizer, target and draft, and write them and the prompts to out.

    Args:
        out: Folder to fill; what it holds is replaced at the end.
        num_steps: Steps of each training at most, to try the build out; None for the real one.
    """
    target_recipe, draft_recipe = recipe.TargetRecipe(), recipe.DraftRecipe()
    if num_steps is not None:
        target_recipe, draft_recipe = recipe.shortened(target_recipe, draft_recipe, num_steps)
    documents = corpus.standard_library() + corpus.standard_library(tests=True)
    trained = [d for d in documents if not d.held_out]
    tok = tokenizer.train_tokenizer(trained, target_recipe.vocab_size)
    stream = tokenizer.token_stream(tok, trained)
    end_id = tokenizer.token_id(tok, recipe.END_OF_TEXT)
    mask_id = tokenizer.token_id(tok, recipe.MASK)
    work = out / f".building.{os.getpid()}"
    work.mkdir(parents=True)
    save_target(train_target(stream, target_recipe, end_id), tok, work / "target")
    target = convert.load_target(work / "target")
    draft = train_draft(target, stream, draft_recipe, mask_id)
    convert.save_draft(draft, work / "draft")
    prompts.write_prompts(prompts.heldout_prompts(tok, documents), work / PROMPT_FILE)
    for name in ("target", "draft", PROMPT_FILE):
        _replace(work / name, out / name)
    work.rmdir()


def evaluate_folder(models: Path, num_prompts: int) -> str:
    """Return the scores of the models in a folder as Markdown.

    Args:
        models: Folder with target, draft and prompts.
        num_prompts: How many of the held-out prompts to continue.
    """
    target = convert.load_target(models / "target")
    draft = convert.load_draft(models / "draft", target)
    tok = tokenizer.load_tokenizer(models / "target")
    texts = [p["prompt"] for p in prompts.read_prompts(models / PROMPT_FILE)]
    encoded = [torch.tensor(tok.encode(text)) for text in texts[:num_prompts]]
    documents = corpus.standard_library() + corpus.standard_library(tests=True)
    held_out = [d for d in documents if d.held_out]
    stream = tokenizer.token_stream(tok, held_out)
    characters = sum(len(d.text) for d in held_out) / len(stream)
    return "\n".join(
        [
            f"held-out perplexity {perplexity(target, stream[:PERPLEXITY_TOKENS]):.2f} per token "
            f"of {characters:.2f} characters",
            "",
            evaluate.report(evaluate.evaluate_pair(target, draft, encoded)),
        ]
    )


def expect_served(models: Path, served: Path) -> str:
    """Return the acceptance to expect on text that `infra.tiny_models.served` wrote, as a line."""
    target = convert.load_target(models / "target")
    draft = convert.load_draft(models / "draft", target)
    found = json.loads(served.read_text(encoding="ascii"))
    texts = [(torch.tensor(t["prompt"]), torch.tensor(t["emitted"])) for t in found["texts"]]
    result = evaluate.expected_on(
        target,
        draft,
        texts,
        temperature=found["temperature"],
        rule=(found["draft"], found["rejection"]),
    )
    return f"expected {evaluate.line(result)}"


def _parser() -> argparse.ArgumentParser:
    """Return the command line parser."""
    parser = argparse.ArgumentParser(prog="python -m infra.tiny_models", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build", help="train both models")
    builder.add_argument("--out", type=Path, help="default: the models of this repo")
    builder.add_argument("--steps", type=int, help="few steps, to try the build out; needs --out")
    scorer = commands.add_parser("evaluate", help="score the models that exist")
    scorer.add_argument("--models", type=Path, default=HERE)
    scorer.add_argument("--prompts", type=int, default=64, help="held-out prompts to continue")
    expecter = commands.add_parser("expect", help="what served text should show")
    expecter.add_argument("--models", type=Path, default=HERE)
    expecter.add_argument("--served", type=Path, required=True)
    return parser


def main(argv: list[str]) -> int:
    """Run one command; return the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    if arguments.command == "build":
        if arguments.steps is not None and arguments.out is None:
            parser.error("--steps makes models of no use: name a folder for them with --out")
        build(arguments.out or HERE, arguments.steps)
    elif arguments.command == "expect":
        sys.stdout.write(expect_served(arguments.models, arguments.served) + "\n")
    else:
        sys.stdout.write(evaluate_folder(arguments.models, arguments.prompts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
