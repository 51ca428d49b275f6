"""Command line: build both models, or evaluate those that exist.

python -m infra.tiny_models build --out DIR
python -m infra.tiny_models evaluate --models DIR
"""

import argparse
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


def build(out: Path) -> None:
    """Train tokenizer, target and draft, and write them and the prompts to out."""
    target_recipe, draft_recipe = recipe.TargetRecipe(), recipe.DraftRecipe()
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


def _parser() -> argparse.ArgumentParser:
    """Return the command line parser."""
    parser = argparse.ArgumentParser(prog="python -m infra.tiny_models", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build", help="train both models")
    builder.add_argument("--out", type=Path, default=HERE)
    scorer = commands.add_parser("evaluate", help="score the models that exist")
    scorer.add_argument("--models", type=Path, default=HERE)
    scorer.add_argument("--prompts", type=int, default=64, help="held-out prompts to continue")
    return parser


def main(argv: list[str]) -> int:
    """Run one command; return the exit status."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    if arguments.command == "build":
        build(arguments.out)
    else:
        sys.stdout.write(evaluate_folder(arguments.models, arguments.prompts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
