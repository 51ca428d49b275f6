"""The words that the stand-in's tokens are: one a token. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from serve_apps.engine.fake.chain import VOCABULARY

_ENGLISH = (
    "the of engine a step draft token to and in is node time year way day thing man world life"
    " hand part child eye place work week case point company number group problem fact house"
    " water room area money story month lot right study book word side kind head service friend"
    " power hour game line end member law car city name team minute idea body back parent face"
    " other level office door health person art war history party result change morning reason"
    " research girl guy moment air force foot boy age policy music market sense paper tree field"
    " river light stone wind glass road ship bridge garden letter corner winter summer table"
    " window voice page sound fire star map wheel cloud coast metal train plant colour song dream"
)

WORDS = tuple(_ENGLISH.split())
"""By token id."""

_IDS = {word: token for token, word in enumerate(WORDS)}


def encode(text: str) -> tuple[int, ...]:
    """Return the token of each word, at least one; words that are none of ours share tokens."""
    return tuple(
        _IDS[word] if word in _IDS else zlib.crc32(word.encode()) % VOCABULARY
        for word in text.split() or [""]
    )


def word_of(token: int) -> str:
    """Return what a token adds to a text."""
    return f" {WORDS[token]}"


def decode(tokens: Iterable[int]) -> str:
    """Return the text of tokens."""
    return "".join(map(word_of, tokens))
