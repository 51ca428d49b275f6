"""What must not be written down: keys, tokens, passwords, wherever they hide in plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from orchestrator.errors import ConfigError

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
# A number under such a name says which token or how many, and opens nothing.
_COUNTS = re.compile(r"(?i)tokens|token_(?:ids?|index|threshold)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_OWN = frozenset({"cell_key", "engine_token", "slot_token", "RAY_AUTH_MODE"})
"""Names of this package's own settings and records, and of Ray's, that hold no secret."""
_OWN_FIELDS = _OWN | {"key", "keys"}
_ASSIGNED = re.compile(
    r"(?i)(?<![\w.-])(?P<name>(?P<dash>-)?[\w.-]*(?:key|token|secret|passw(?:or)?d|passphrase|pwd|credential|auth)[\w.-]*)"
    # Without a sign only an option of a command line assigns: "--api-key abc".
    r"(?P<sign>\\?[\"']?\s*[=:]\s*|(?(dash)(?:[\"']\s*,\s*|\s+)|(?!)))"
    r"(?P<value>(?:bearer|basic)\s+\S+|\\[\"'].*?\\[\"']|\"[^\"\n]*\"|'[^'\n]*'|\[[^\]\n]*\]"
    r"|[\w.]*\([^()\n]*\)|[\[(\"']*[^\s,;&\"'{}\[\]]+)"
)
_USERINFO = re.compile(r"(?P<scheme>(?<![\w+.-])[A-Za-z][\w+.-]*://)[^\s/?#@]*(?:@[^\s/?#@]*)*@")
# A fragment that is a page of a web application or MLflow's id of a run is a part of the address.
_QUERY = re.compile(
    r"(?P<address>(?<![\w+.-])[A-Za-z][\w+.-]*://(?:[^\s?#\"']|#(?:/|[0-9a-f]{32}\b))*+)[?#][^\s\"']*"
)
_KNOWN_FORMS = re.compile(
    # A name such as hf_overrides is no token of Hugging Face.
    r"\b(?:hf_(?![a-z]{1,19}(?:_[a-z]{1,19})*\b)|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|nvapi-|pypi-)[\w-]{8,}"
    r"|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\bya29\.[\w-]{8,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?i:\bbearer)\s+\S{8,}"
    r"|(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z))"
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
    """Return plain data without secrets, for records that are compared.

    What stands under a secret's name is dropped with its name, unless it is a number or a boolean
    (``mask_token_id``), a list of them, or the text of a number under a name that counts
    (``max_num_batched_tokens``). Null goes too, but under a name that counts: whether there is a
    secret is nobody's business. Of texts the user of an address, its query, and what looks like a
    key are taken out; a text that is a JSON object or list is read as one. In a list, what follows
    an option of a secret's name (``--api-key``) is taken out. Whatever is left is unchanged.
    """
    if isinstance(value, Mapping):
        kept = {str(k): v for k, v in value.items() if not _is_secret(str(k), v)}
        return {_scrubbed_name(k): scrub(v) for k, v in _without_named_value(kept).items()}
    if isinstance(value, list | tuple):
        return [scrub(item) for item in _without_option_values(value)]
    if isinstance(value, str):
        found = _json(value)
        return _plain_text(value) if found is None else scrub(found)
    return value


def redact(value: object) -> object:
    """Return plain data to be shown or stored: the same, with ``(secret)`` for every secret.

    Names, nulls and forms stay, so that a text is a text; secrets are those of ``scrub``.
    """
    if isinstance(value, Mapping):
        named = _without_named_value({str(k): v for k, v in value.items()})
        return {
            redact_text(k): SECRET if v is not None and _is_shown_secret(k, v) else redact(v)
            for k, v in named.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item) for item in _without_option_values(value)]
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Return a text to be shown or stored, with ``(secret)`` for every secret in it.

    A JSON text without secrets is not touched.
    """
    found = _json(text)
    if found is None:
        return _plain_text(text)
    shown = redact(found)
    return text if shown == found else json.dumps(shown, indent=1 if "\n" in text else None)


def redact_forms(text: str) -> str:
    """Return a text of our own with ``(secret)`` for what is a secret by its form.

    Its own words are not judged: "ms/token: measured here" assigns nothing. What others say in it
    was looked through when it came in.
    """
    return _KNOWN_FORMS.sub(SECRET, _USERINFO.sub(r"\g<scheme>", text))


def redact_texts(value: object, redacted: Callable[[str], str] = redact_text) -> object:
    """Return plain data of our own making with ``(secret)`` for every secret in its texts.

    Names are not judged: they are ours, and a record that is read again needs its values.

    Args:
        value: Plain data.
        redacted: Returns what ``redact_text`` does, for one who knows most texts already.
    """
    if isinstance(value, Mapping):
        return {redacted(str(key)): redact_texts(item, redacted) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_texts(item, redacted) for item in value]
    return redacted(value) if isinstance(value, str) else value


def require_no_secret(where: str, settings: Mapping[str, object]) -> None:
    """Check that settings may be stored as they are, for what is booted from them later.

    Args:
        where: Dotted key of the settings.
        settings: Plain data.

    Raises:
        ConfigError: There is a secret in them.
    """
    for name, value in settings.items():
        if redact({name: value}) != {name: value}:
            if isinstance(value, Mapping):
                require_no_secret(f"{where}.{name}", value)
            raise ConfigError(
                f"{where}.{name}", "is a secret or holds one, and these settings are stored",
                "set it in the environment of the nodes, which engines inherit",
            )  # fmt: skip


def _scrubbed_name(name: str) -> str:
    told = scrub(name)
    return told if isinstance(told, str) else json.dumps(told, sort_keys=True)


def _is_secret(name: str, value: object) -> bool:
    if not is_secret_name(name) or isinstance(value, bool | int | float):
        return False
    counts = _COUNTS.search(name) is not None
    if isinstance(value, list | tuple):
        return any(not isinstance(item, bool | int | float) for item in value)
    if value is None or isinstance(value, str):
        return not (counts and (value is None or _NUMBER.fullmatch(value)))
    return True


def _is_shown_secret(name: str, value: object) -> bool:
    if name in _OWN_FIELDS:
        return False
    if isinstance(value, Mapping):
        # A histogram by number of tokens is none.
        return any(_is_secret(name, item) for item in value.values())
    return _is_secret(name, value)


def _without_named_value(data: Mapping[str, object]) -> Mapping[str, object]:
    """Return ``{"name": "HF_TOKEN", "value": ...}`` without its value, all else as it is."""
    name = data.get("name", data.get("key"))
    if isinstance(name, str) and "value" in data and _is_secret(name, data["value"]):
        return {**data, "value": SECRET}
    return data


def _without_option_values(items: Sequence[object]) -> list[object]:
    """Return a command line without what follows an option of a secret's name."""
    told: list[object] = []
    hides = False
    for item in items:
        is_option = isinstance(item, str) and item.startswith("-")
        if is_option:
            hides = "=" not in str(item) and is_secret_name(str(item))
            option = str(item)
        hidden = hides and not is_option and isinstance(item, str) and _is_secret(option, item)
        told.append(SECRET if hidden else item)
    return told


def _json(text: str) -> object | None:
    """Return what a JSON object or list holds; None for any other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        found: object = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name stands twice, and the first value would be hidden from the look")
    return dict(pairs)


def _plain_text(text: str) -> str:
    text = _USERINFO.sub(r"\g<scheme>", text)
    text = _QUERY.sub(r"\g<address>", text)
    text = _KNOWN_FORMS.sub(SECRET, text)
    return _ASSIGNED.sub(_assigned, text)


def _assigned(match: re.Match[str]) -> str:
    name, sign, value = match["name"], match["sign"], match["value"]
    if name.rpartition(".")[2] in _OWN or not _is_secret(name, _read(value)):
        return match[0]
    if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1:
        return f"{name}{sign}{value[0]}{SECRET}{value[0]}"
    return f"{name}{sign}[{SECRET}]" if value.endswith("]") else f"{name}{sign}{SECRET}"


def _read(value: str) -> object:
    """Return what a value of a log's line says, as far as it matters here."""
    if value in ("None", "null", "True", "False", "true", "false"):
        return True  # not a secret, whatever its name
    bare = value.strip("\\[(\"')]")
    parts = [part.strip() for part in bare.split(",")]
    if value.startswith(("[", "(")) and all(map(_NUMBER.fullmatch, filter(None, parts))):
        return []
    return bare
