"""What must not be written down: keys, tokens, passwords, wherever they hide in plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

SECRET = "(secret)"
_SHORTEST_KEY = 8
"""A shorter text may stand within any word."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Parts of a word, so that APIKEY and authtoken are found; a monkey is lost with them.
_PARTS = ("secret", "password", "passwd", "passphrase", "credential", "apikey", "bearer")
_ENDS = ("key", "keys", "token", "pwd")
_STARTS = ("auth",)
# `max_num_batched_tokens` is a number of tokens, "a,b" under `api_tokens` is not.
_PLURAL = "tokens"
_ASSIGNED = re.compile(
    r"(?i)(?P<name>[\w.-]*(?:key|token|secret|passw(?:or)?d|pwd|credential|auth)[\w.-]*)"
    r"(?P<sign>[\"']?\s*[=:]\s*[\"']?|\s+)(?P<value>(?:bearer|basic)\s+\S+|[^\s,;&\"'{}\[\]]+)"
)
_USERINFO = re.compile(r"(?P<scheme>\b[A-Za-z][\w+.-]*://)[^\s/?#@]*(?:@[^\s/?#@]*)*@")
_QUERY = re.compile(r"(?P<address>\b[A-Za-z][\w+.-]*://[^\s?#\"']*)[?#][^\s\"']*")
_KNOWN_FORMS = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|nvapi-|pypi-)[\w-]{8,}"
    r"|\bAKIA[0-9A-Z]{12,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?i:\bbearer)\s+\S{8,}"
)


def is_secret_name(name: str) -> bool:
    """Return whether what stands under this name is likely a secret, unless it is a number."""
    if any(part in name.lower() for part in _PARTS):
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    return any(word.endswith((*_ENDS, _PLURAL)) or word.startswith(_STARTS) for word in words)


def hide_key(text: str, key: str | None) -> str:
    """Return a text of somebody else without the key that was sent to him.

    Servers repeat a key that they refuse. A short one, such as ``x`` of a server that asks for
    none, is hidden where it stands by itself only.
    """
    if not key or key not in text:
        return text
    if len(key) >= _SHORTEST_KEY:
        return text.replace(key, SECRET)
    return re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", lambda _: SECRET, text)


def scrub(value: object) -> object:
    """Return plain data without secrets.

    What stands under a secret's name is dropped with its name, unless it is a number or a boolean
    (``mask_token_id``), a list of them, or the text of a number under a plural
    (``max_num_batched_tokens``). Null goes too: whether there is a secret is nobody's business.
    Of texts the user of an address, its query, and what looks like a key are taken out; a text
    that is a JSON object or list is read as one. Whatever is left is unchanged.
    """
    if isinstance(value, Mapping):
        kept = {str(k): v for k, v in value.items() if not _is_secret(str(k), v)}
        return {_scrubbed_name(name): scrub(item) for name, item in kept.items()}
    if isinstance(value, list | tuple):
        return [scrub(item) for item in value]
    return _scrub_text(value) if isinstance(value, str) else value


def _scrubbed_name(name: str) -> str:
    told = _scrub_text(name)
    return told if isinstance(told, str) else json.dumps(told, sort_keys=True)


def _is_secret(name: str, value: object) -> bool:
    if not is_secret_name(name) or isinstance(value, bool | int | float):
        return False
    if isinstance(value, list | tuple):
        return any(not isinstance(item, bool | int | float) for item in value)
    counts = _PLURAL in name.lower() and isinstance(value, str)
    return not (counts and re.fullmatch(r"\d+(\.\d+)?", str(value)))


def _scrub_text(text: str) -> object:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return scrub(json.loads(text))
        except (ValueError, RecursionError):
            pass  # no JSON after all: read on as text
    text = _USERINFO.sub(r"\g<scheme>", text)
    text = _QUERY.sub(r"\g<address>", text)
    text = _KNOWN_FORMS.sub(SECRET, text)
    return _ASSIGNED.sub(_assigned, text)


def _assigned(match: re.Match[str]) -> str:
    sign, value = match["sign"], match["value"]
    # Without a sign only an option of a command line assigns: "--api-key abc".
    assigns = bool(sign.strip()) or match["name"].startswith("-")
    if not assigns or not _is_secret(match["name"], value):
        return match[0]
    return f"{match['name']}{sign}{SECRET}"
