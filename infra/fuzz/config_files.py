"""Study files with anything in them: a configuration, or one line that says what is wrong."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from infra.fuzz.target import Target
from orchestrator.config import CONF_DIR, StudyConfig, config_to_dict, load_config
from orchestrator.core.identity import digest
from orchestrator.errors import ConfigError

BASE = CONF_DIR / "study" / "demo.yaml"
_MAX_ERROR_CHARS = 2_000

_VALUES = (
    "", "~", "true", "no", "0", "1", "-1", "3", "2.5", "-0.0", "1e3", "1e999", ".nan", ".inf",
    "-.inf", "0x1F", "1_000", "0o17", "1:30", "9" * 30, "9" * 400, "9" * 5_000, "1e308", "5e-324",
    "2024-01-01", "=", "<<", "'3'", '"a b"', "''", "\u00e9\u2603", '"\\ud800"', '"\\u0000"',
    "'a\u2028b'", "|\n  two\n  lines", "x" * 3_000, "[]", "{}", "[1, 2]", "[1, a]", "[[1]]", "[~]",
    "{a: 1}", "{1: 2}", "{~: 1}", "{? [a] : 1}", "{true: 1}", "[.nan]", "[9e99]", "[1e-320]",
    "{streams: 1}", "!!binary aGk=", "!!python/object/apply:os.system [id]",
    "!!python/name:os.system", "!!set {a}", "!!int x", "!x y", "!!omap [a: 1]", "&a [*a]", "*gone",
    "${name}", "${seed}", "${load.streams}", "${oc.env:NO_SUCH}", "${oc.env:HOME}", "${gone}",
    "${", "${}", "${.}", "${..}", "${x:}", "${load}", "${oc.decode:'['}", "${oc.create:{a: 1}}",
    "a${name}b", "$", "???", "'???'", "a: b: c", "- a", "[", "{", '"', "@", "`", "%", "[1,", "\t1",
    "!!float inf", "!!str 1", "? a", "[{streams: 1, temperature: 0.7, weight: 1}]",
)  # fmt: skip
_INCLUDES = (
    "[engine/cpu]", "[policy/auto, node/gb10_model]", "[study/demo]", "[]", "~", "engine/cpu",
    "{a: b}", "[1]", "[~]", "[[engine/cpu]]", "[{a: b}]", "['']", "['.']", "['..']",
    "['/etc/hostname']", "['../conf/engine/cpu']", "['engine/../engine/cpu']",
    "['../../../../../../tmp/x']", '["a\\0b"]', "['${name}']", "['${oc.env:HOME}']",
    "[engine/cpu\u00e9]", "['engine/cpu.yaml']", "['*']", "[true]", "['~/x']", f"[{'a' * 300}]",
    f"[{'a/' * 3_000}b]", "[engine]", "['engine/']", "['engine\\cpu']",
)  # fmt: skip
_DOCUMENTS = (
    "", "a", "[a]", "3", "~", "---\na: 1\n---\nb: 2", "a: 1\na: 2", "name: x\nname: y",
    "a: &a [*a]", "a: &a {b: *a}", "<<: {name: x}", "<<: [a]", "x: &x {name: z}\n<<: *x", "\t",
    "%YAML 9.9\n---\na: 1", "? a", "? [a]\n: 1", "1: 2", "~: 3", "{", "\x00", "\ufeffname: x",
    "name: \x07", "a: *b", "'", "!!map", "name: x\r\nseed: 2\r\n", "a.b: 1", "load.streams: [1]",
    "'': 1", "include: [study/demo]\nname: x",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Given:
    text: str
    overrides: tuple[str, ...]
    changed: frozenset[str] | None
    """Dotted keys that may differ from the base; None where anything may."""


def config_target() -> Target:
    """Return study files and overrides."""
    return Target(name="config files", make=_make, check=_check, cost=100)


@cache
def _base() -> Mapping[str, object]:
    return dict(_leaves(config_to_dict(load_config(BASE))))


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _make(source: random.Random) -> _Given:
    kind = source.random()
    base = BASE.read_text(encoding="utf-8")
    if kind < 0.05:
        return _Given(source.choice(_DOCUMENTS), (), None)
    if kind < 0.1:
        return _Given(_heavy(source), (), None)
    if kind < 0.2:
        text = base.replace(
            "include: [engine/cpu, ", f"include: {source.choice(_INCLUDES)}\nx: [", 1
        )
        text = text.replace("\nx: [search/rules_by_depth, policy/auto, node/gb10_model]", "")
        return _Given(text, (), None)
    if kind < 0.3:
        return _Given(_damaged(source, base), (), None)
    keys = [_key(source) for _ in range(source.randint(1, 3))]
    values = [source.choice(_VALUES) for _ in keys]
    if kind < 0.6:
        overrides = tuple(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        return _Given(base, overrides, frozenset(keys))
    # A second mapping of the same name is YAML's business: the last one wins, or it is refused.
    lines = [_nested(key, value) for key, value in zip(keys, values, strict=True)]
    return _Given(base + "\n".join(lines) + "\n", (), None)


def _key(source: random.Random) -> str:
    known = source.choice(sorted(_base()))
    kind = source.random()
    if kind < 0.75:
        return known
    if kind < 0.85:
        return known.rpartition(".")[0] or known
    return known + source.choice(("x", ".x", ".", "..a", "[0]", ".0", " ", "\u00e9", ".a.b.c.d"))


def _nested(key: str, value: str) -> str:
    names = key.split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(names)]
    return "\n".join(lines) + f" {value}"


def _heavy(source: random.Random) -> str:
    kind = source.randrange(5)
    size = source.choice((10, 100, 1_000, 20_000))
    if kind == 0:
        letters = "abcdefghi"
        lines = [f"{letters[0]}: &{letters[0]} [x, x, x, x, x, x, x, x, x]"]
        for below, here in itertools.pairwise(letters):
            lines.append(f"{here}: &{here} [{', '.join([f'*{below}'] * 9)}]")
        return "\n".join(lines)
    if kind == 1:
        lines = ["m0: &m0 {k0: 0}"]
        for number in range(1, 40):
            lines.append(f"m{number}: &m{number} {{<<: [*m{number - 1}, *m{number - 1}], k: 1}}")
        return "\n".join(lines)
    if kind == 2:
        opening, closing = source.choice((("[", "]"), ("{a: ", "}")))
        return f"name: {opening * size}{closing * source.choice((size, 0))}"
    if kind == 3:
        return "name: " + "${a:" * size + "}" * size
    return "\n".join(f"k{number}: {number}" for number in range(min(size, 2_000)))


def _damaged(source: random.Random, text: str) -> str:
    characters = list(text)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(characters))
        width = source.randint(0, 3)
        characters[at : at + width] = source.choice(" :[]{},\n\t#&*!|>'\"%@`-?=~${}\u00e9\x00 09.e")
    return "".join(characters)


_HEARD = ("open", "os.system", "subprocess.Popen", "socket.connect")
_opened: list[str] | None = None
"""What is opened meanwhile; None while nobody asks."""


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event in _HEARD:
        _opened.append(str(arguments[0]) if event == "open" else event)


@cache
def _listen() -> Path:
    """Listen to what the interpreter does, from now on, and return a folder for study files."""
    load_config(BASE)  # what is imported late is opened here
    sys.addaudithook(_hear)
    folder = Path(tempfile.mkdtemp(prefix="specpilot-fuzz-"))
    (folder / "outside.yaml").write_text("seed: 7\n", encoding="utf-8")
    return folder


@contextmanager
def _heard(allowed: Path) -> Iterator[list[str]]:
    global _opened  # an audit hook is the interpreter's, and cannot be taken away
    strange: list[str] = []
    _opened = []
    try:
        yield strange
    finally:
        heard, _opened = _opened, None
        strange += [each for each in heard if not each.startswith((str(CONF_DIR), str(allowed)))]


def _check(given: _Given) -> str | None:
    path, outside = _listen() / "own.yaml", _listen() / "outside"
    text = given.text.replace("OUTSIDE", str(outside))
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with _heard(path) as strange:
        try:
            config = load_config(path, given.overrides)
        except ConfigError as error:
            return _unclear(error) or _touched(strange)
    return _touched(strange) or _unsound(config, given)


def _touched(strange: list[str]) -> str | None:
    return f"touched {strange[:3]!r}" if strange else None


def _unclear(error: ConfigError) -> str | None:
    text = str(error)
    if len(text.splitlines()) != 1 or not text.isprintable():
        return f"not one line: {text!r:.300}"
    if len(text) > _MAX_ERROR_CHARS:
        return f"an error of {len(text)} characters: {text:.200}"
    if not (error.where and error.problem and error.remedy):
        return f"says too little: {error.args!r:.300}"
    return None


def _unsound(config: StudyConfig, given: _Given) -> str | None:
    plain = config_to_dict(config)
    json.dumps(plain, allow_nan=False)
    digest(plain)
    if given.changed is None:
        return None
    found = dict(_leaves(plain))
    for key in {*found, *_base()}:
        if found.get(key) == _base().get(key):
            continue
        if not any(key == each or key.startswith(f"{each}.") for each in given.changed):
            return f"{key} is {found.get(key)!r:.100} and was {_base().get(key)!r:.100}"
        value = found.get(key)
        if isinstance(value, float) and not math.isfinite(value):
            return f"{key} is {value}"
    return None
