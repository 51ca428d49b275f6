"""The card beside a workload: where its text comes from, and what can be counted in it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from orchestrator.errors import ConfigError
from orchestrator.load.prompts import WHERE, Prompt, digest_of

Endpoint = Literal["any", "chat"]
Kind = Literal["text", "random_tokens"]

NOT_STATED = "not stated"
"""What a written field says until somebody fills it in."""

_WRITTEN = ("name", "description", "source", "license", "language", "kind")
_KINDS = ("text", "random_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLengths:
    """Tokens of the prompts, without what a chat template adds."""

    tokenizer: str
    """Name of the model folder whose tokenizer counted."""
    p50: int
    p95: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known of a workload: six fields that somebody wrote, and five computed ones."""

    name: str
    description: str
    source: str
    license: str
    language: str
    kind: Kind
    """``random_tokens``: the prompts are no text, which drafts cannot follow."""
    digest: str
    num_prompts: int
    categories: Mapping[str, int]
    """Prompts by category, by name."""
    endpoint: Endpoint
    """``chat`` when a prompt has messages."""
    token_lengths: TokenLengths | None
    """None when no tokenizer was at hand."""


def card_path(workload: Path) -> Path:
    """Return the card's path: ``code.card.json`` beside ``code.jsonl``."""
    return workload.parent / f"{workload.stem}.card.json"


def mix(prompts: Sequence[Prompt]) -> dict[str, int]:
    """Return the number of prompts by category, by name; no category is an empty text."""
    return dict(sorted(Counter(prompt.category for prompt in prompts).items()))


def endpoint_of(prompts: Sequence[Prompt]) -> Endpoint:
    """Return the endpoint that the prompts need."""
    return "chat" if any(prompt.messages for prompt in prompts) else "any"


def token_lengths(counts: Sequence[int], *, tokenizer: str) -> TokenLengths:
    """Return the quantiles of prompt lengths in tokens, of a prompt's length that occurs."""
    p50, p95 = np.quantile(counts, (0.5, 0.95), method="inverted_cdf")
    return TokenLengths(tokenizer=tokenizer, p50=int(p50), p95=int(p95), max=max(counts))


def new_card(name: str, prompts: Sequence[Prompt], *, kind: Kind) -> Card:
    """Return a card whose written fields are still to be filled in."""
    return Card(
        name=name,
        description=NOT_STATED,
        source=NOT_STATED,
        license=NOT_STATED,
        language=NOT_STATED,
        kind=kind,
        digest=digest_of(prompts),
        num_prompts=len(prompts),
        categories=mix(prompts),
        endpoint=endpoint_of(prompts),
        token_lengths=None,
    )


def renewed(card: Card, prompts: Sequence[Prompt]) -> Card:
    """Return the card with its computed fields made anew.

    Token lengths stay only if the prompts are the ones that they were counted in.
    """
    digest = digest_of(prompts)
    return dataclasses.replace(
        card,
        digest=digest,
        num_prompts=len(prompts),
        categories=mix(prompts),
        endpoint=endpoint_of(prompts),
        token_lengths=card.token_lengths if digest == card.digest else None,
    )


def read_card(path: Path) -> Card | None:
    """Return the card in a file; None where there is no file.

    Raises:
        ConfigError: The file is no card.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(WHERE, f"{path} cannot be read ({error})", "repair the card") from error
    try:
        fields = json.loads(text)
        return _card(fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            WHERE, f"{path} is no card of a workload ({error})",
            "delete it and write a new one with: python -m orchestrator workload card FILE.jsonl",
        ) from error  # fmt: skip


def card_text(card: Card) -> str:
    """Return the card as the text of its file."""
    return json.dumps(dataclasses.asdict(card), indent=2, ensure_ascii=True) + "\n"


def check_card(card: Card, prompts: Sequence[Prompt], *, path: Path) -> None:
    """Check that a card is about these prompts.

    Raises:
        ConfigError: A computed field of the card is not that of the prompts.
    """
    actual = renewed(card, prompts)
    for name in ("digest", "num_prompts", "categories", "endpoint"):
        stated, counted = getattr(card, name), getattr(actual, name)
        if stated != counted:
            raise ConfigError(
                WHERE, f"the card of {path} says {name} {stated!r}, the file has {counted!r}",
                "restore the file, or accept it with: "
                f"python -m orchestrator workload card {path}",
            )  # fmt: skip


def _card(fields: dict[str, object]) -> Card:
    known = {item.name for item in dataclasses.fields(Card)}
    if set(fields) != known:
        names = ", ".join(sorted(set(fields) ^ known))
        raise ValueError(f"these fields are missing or unknown: {names}")
    for name in (*_WRITTEN, "digest"):
        if not isinstance(fields[name], str):
            raise TypeError(f"{name} is no text")
    if fields["kind"] not in _KINDS:
        raise ValueError(f"kind is {fields['kind']!r}, not one of {', '.join(_KINDS)}")
    lengths = fields["token_lengths"]
    if lengths is not None:
        if not isinstance(lengths, dict):
            raise TypeError("token_lengths is no object")
        fields = {**fields, "token_lengths": TokenLengths(**lengths)}
    return Card(**fields)  # type: ignore[arg-type]  # checked above, or compared by check_card
