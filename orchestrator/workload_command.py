"""What ``workload import``, ``workload card`` and ``workload show`` do."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.adapters.tokenizer import FolderTokenizer
from orchestrator.errors import ConfigError, reported_at
from orchestrator.load.prompts import Prompt, to_item
from orchestrator.load.random_text import random_reason
from orchestrator.load.workload import Workload, load_workload, read_prompts
from orchestrator.load.workload_card import (
    Card,
    TokenLengths,
    card_path,
    card_text,
    new_card,
    read_card,
    renewed,
    token_lengths,
)
from orchestrator.load.workload_import import (
    Candidate,
    Imported,
    Limits,
    collect,
    from_openai_log,
    from_sharegpt,
    from_text_file,
    report,
)

DEFAULT_TEXT_CHARS = 4000
"""Characters of a text file that become its prompt unless --max-chars says otherwise."""

MAX_FILE_BYTES = 64 << 20
"""Text files beyond this size are skipped: they are data."""

DESCRIPTION = """\
A workload is a JSONL file of prompts, {"id", "category", "prompt"} or {"id", "category",
"messages"} a line, and a card beside it that says where the text comes from.
"""

FORMATS = {
    "openai-log": "JSON lines of request bodies, or of objects with one under body or request",
    "sharegpt": "a JSON array or JSON lines of conversations",
    "text": "a folder of text files, one prompt from the beginning of each",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``workload`` and its actions to the command line."""
    text = "import prompts, write a workload's card, or show what it holds"
    root = subparsers.add_parser("workload", help=text, description=DESCRIPTION)
    actions = root.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_import(actions)
    text = "write the card beside a workload; what was written by hand stays"
    card = actions.add_parser("card", help=text, description=text)
    text = "print counts, categories, digest and lengths"
    show = actions.add_parser("show", help=text, description=text)
    for sub in (card, show):
        sub.add_argument("file", type=Path, metavar="FILE.jsonl")
        _add_tokenizer(sub)


def run(args: argparse.Namespace) -> int:
    """Run one action and return the exit status.

    Raises:
        ConfigError: The input is missing or broken, nothing in it is usable, or the output is
            there already.
    """
    actions = {"import": _import, "card": _card, "show": _show}
    for line in actions[args.action](args):
        sys.stdout.write(f"{_readable(line)}\n")
    return 0


def _add_import(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "make a workload of request logs, ShareGPT conversations or text files"
    sub = actions.add_parser(
        "import",
        help=text,
        description=text + ". Sampling settings of logged requests are reported and dropped.",
        epilog="formats: " + "; ".join(f"{name}: {what}" for name, what in FORMATS.items()),
    )
    sub.add_argument("source", type=Path, help="a file, or a folder for the format text")
    sub.add_argument("--format", required=True, choices=sorted(FORMATS))
    sub.add_argument("--out", required=True, type=Path, metavar="FILE.jsonl")
    sub.add_argument("--category", default="", help="one for all prompts; else from the source")
    sub.add_argument("--limit", type=_positive, metavar="N", help="a seeded sample of N prompts")
    sub.add_argument("--seed", type=int, default=0, help="of that sample (default 0)")
    text = "shortest prompt that is taken (default 1)"
    sub.add_argument("--min-chars", type=_positive, default=1, metavar="N", help=text)
    text = f"longest prompt; text files are cut there (default {DEFAULT_TEXT_CHARS} for text)"
    sub.add_argument("--max-chars", type=_positive, metavar="N", help=text)
    sub.add_argument("--force", action="store_true", help="replace an output that exists")
    _add_tokenizer(sub)


def _add_tokenizer(parser: argparse.ArgumentParser) -> None:
    text = "model folder; count tokens with its tokenizer.json"
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help=text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _import(args: argparse.Namespace) -> Iterator[str]:
    out: Path = args.out
    _check_output(out, args.source, force=args.force)
    tokenizer = _tokenizer(args)
    limits = Limits(
        min_chars=args.min_chars,
        max_chars=args.max_chars,
        num_prompts=args.limit,
        seed=args.seed,
    )
    imported = collect(_candidates(args), limits)
    yield from report(imported)
    if not imported.prompts:
        raise ConfigError(
            "workload import", f"nothing in {args.source} is usable as {args.format}"
            + "".join(f"; {text}" for text in imported.broken),
            "check --format, --min-chars and --max-chars",
        )  # fmt: skip
    lines = (json.dumps(to_item(prompt), ensure_ascii=True) for prompt in imported.prompts)
    card = _imported_card(imported, args)
    card = dataclasses.replace(card, token_lengths=_lengths(imported.prompts, tokenizer))
    # The card comes first: where this is cut short, no workload is taken for one without a card.
    _write({card_path(out): card_text(card), out: "".join(f"{line}\n" for line in lines)})
    yield f"wrote {out} and {card_path(out)}"
    yield from _describe(load_workload(out), card.token_lengths)


def _card(args: argparse.Namespace) -> Iterator[str]:
    tokenizer = _tokenizer(args)
    path = card_path(args.file)
    with reported_at("workload card"):
        prompts = read_prompts(args.file)
        card = read_card(path)
    card = renewed(card, prompts) if card is not None else _new_card(args.file.stem, prompts)
    if tokenizer is not None:
        card = dataclasses.replace(card, token_lengths=_lengths(prompts, tokenizer))
    _write({path: card_text(card)})
    yield f"wrote {path}"
    yield from _describe(load_workload(args.file), card.token_lengths)


def _show(args: argparse.Namespace) -> Iterator[str]:
    tokenizer = _tokenizer(args)
    with reported_at("workload show"):
        workload = load_workload(args.file)
    known = workload.card.token_lengths if workload.card is not None else None
    yield from _describe(workload, _lengths(workload.prompts, tokenizer) or known)


def _describe(workload: Workload, lengths: TokenLengths | None) -> Iterator[str]:
    """Yield what a workload holds, a line each."""
    chars = sorted(len(prompt.full_text) for prompt in workload.prompts)
    yield f"{workload.name}: {len(workload.prompts)} prompts"
    yield f"  digest      {workload.digest}"
    yield f"  endpoint    {'chat only' if workload.needs_chat else 'any'}"
    mix = (f"{name or '(none)'} {count}" for name, count in workload.mix.items())
    yield f"  categories  {', '.join(mix)}"
    yield f"  characters  min {chars[0]}, median {chars[len(chars) // 2]}, max {chars[-1]}"
    if lengths is not None:
        yield (
            f"  tokens      p50 {lengths.p50}, p95 {lengths.p95}, max {lengths.max} "
            f"({lengths.tokenizer}; without the chat template)"
        )
    if workload.card is None:
        yield "  card        none"
    else:
        yield f"  source      {workload.card.source}"
        yield f"  license     {workload.card.license}"
    reason = random_reason(workload)
    if reason is not None:
        yield f"  WARNING     {reason}"


def _candidates(args: argparse.Namespace) -> Iterator[Candidate]:
    source: Path = args.source
    try:
        if args.format == "text":
            yield from _text_candidates(source, args)
        elif args.format == "sharegpt":
            text = source.read_text(encoding="utf-8-sig")
            yield from from_sharegpt(text, category=args.category)
        else:
            with source.open("rb") as lines:
                yield from from_openai_log(lines, category=args.category)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "workload import", f"{source} cannot be read ({error})", "name a readable source"
        ) from error


def _text_candidates(folder: Path, args: argparse.Namespace) -> Iterator[Candidate]:
    if not folder.is_dir():
        raise ConfigError("workload import", f"{folder} is no folder", "give a folder of files")
    max_chars = args.max_chars or DEFAULT_TEXT_CHARS
    for path in sorted(folder.rglob("*")):
        name = _readable(path.relative_to(folder).as_posix())
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        # A link may lead out of the folder that was given.
        if path.is_symlink() or not path.is_file():
            continue
        if path.stat().st_size > MAX_FILE_BYTES:
            yield Candidate(where=name, skipped="larger than 64 MiB")
            continue
        yield from_text_file(name, path.read_bytes(), max_chars=max_chars, category=args.category)


def _check_output(out: Path, source: Path, *, force: bool) -> None:
    if out.suffix != ".jsonl":
        raise ConfigError("workload import --out", f"'{out}' does not end in .jsonl", "rename it")
    if not out.parent.is_dir():
        raise ConfigError("workload import --out", f"there is no folder {out.parent}", "create it")
    for path in (out, card_path(out)):
        if _is_of(path, source):
            raise ConfigError(
                "workload import --out", f"{path} is what is imported, and would be lost",
                "choose another name",
            )  # fmt: skip
        if path.exists() and not path.is_file():
            raise ConfigError("workload import --out", f"{path} is no file", "choose another name")
        if path.exists() and not force:
            raise ConfigError(
                "workload import --out", f"{path} exists", "choose another name or give --force"
            )


def _is_of(path: Path, source: Path) -> bool:
    """Return whether a file is the source or lies in it."""
    if not path.exists() or not source.exists():
        return False
    return path.samefile(source) or source.resolve() in path.resolve().parents


def _imported_card(imported: Imported, args: argparse.Namespace) -> Card:
    card = _new_card(_readable(args.out.stem), imported.prompts)
    description = (
        f"Imported as {args.format}: {len(imported.prompts)} of {imported.num_read} "
        "lines, conversations or files."
    )
    # The name alone: a path says where somebody keeps their logs.
    return dataclasses.replace(
        card, description=description, source=_readable(args.source.resolve().name)
    )


def _new_card(name: str, prompts: tuple[Prompt, ...]) -> Card:
    card = new_card(name, prompts, kind="text")
    workload = Workload(name=name, digest=card.digest, prompts=prompts)
    if random_reason(workload) is not None:
        return dataclasses.replace(card, kind="random_tokens")
    return card


def _tokenizer(args: argparse.Namespace) -> FolderTokenizer | None:
    return None if args.tokenizer is None else FolderTokenizer(args.tokenizer, "--tokenizer")


def _lengths(prompts: tuple[Prompt, ...], tokenizer: FolderTokenizer | None) -> TokenLengths | None:
    if tokenizer is None:
        return None
    counts = tokenizer.counts([prompt.full_text for prompt in prompts])
    return token_lengths(counts, tokenizer=tokenizer.name)


def _readable(text: str) -> str:
    """Return a text, such as a file's name in no UTF-8, in a form that can be written and read."""
    return text.encode("utf-8", errors="backslashreplace").decode()


def _write(texts: Mapping[Path, str]) -> None:
    """Write files as a whole or not at all, all of them before the first takes its place.

    Raises:
        ConfigError: There is no room or no permission.
    """
    scratches: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            scratches[path] = path.with_name(f".{path.name}.{os.getpid()}")
            _write_whole(scratches[path], text)
        for path, scratch in scratches.items():
            scratch.replace(path)
    except OSError as error:
        raise ConfigError(
            "workload", f"{next(iter(texts))} cannot be written ({error.strerror or error})",
            "free the disk or choose another folder",
        ) from error  # fmt: skip
    finally:
        for scratch in scratches.values():
            with suppress(OSError):
                scratch.unlink(missing_ok=True)


def _write_whole(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
