"""What a study file says reaches the engine's process byte for byte, by no shell."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from core_samples import BASELINE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import compose
from orchestrator.config import CONF_DIR, load_config
from orchestrator.errors import ConfigError
from serve_apps.engine.errors import EngineBootError
from serve_apps.engine.spec import EngineSpec
from serve_apps.engine.supervisor import EngineProcess

RECORDER = """#!{python}
import json, os, sys
if sys.argv[1] == "-m":
    argv = [os.fsencode(text).hex() for text in sys.argv[1:]]
    env = {{k.hex(): v.hex() for k, v in os.environb.items()}}
    with open({record!r}, "w") as file:
        json.dump([argv, env], file)
"""
"""An interpreter of an engine build that only notes what it was given."""

HOSTILE = [
    "plain",
    "two words",
    "  spaces around  ",
    "it's \"quoted\" and 'quoted'",
    'back\\slash \\\\ \\n \\"',
    "new\nline\r\n\ttab",
    "$HOME `id` $(id) %PATH% !x",
    "a; rm -rf / & b | c > d < e",
    "* ? [a] {b,c} ~ #x",
    "--option=value",
    "-x",
    "straße 日本語 \U0001f680 é e\u0301",
    '{"json": ["a b", "\\u00e9"]}',
    "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    "",
]


class Place:
    """Where studies of one test are written and their engines note what they get."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "record.json"
        self.engine = folder / "engine build" / "python"
        self.engine.parent.mkdir()
        self.engine.write_text(RECORDER.format(python=sys.executable, record=str(self.record)))
        self.engine.chmod(0o755)

    def spec(self, text: str) -> EngineSpec:
        """Return what a study boots that gives this text in every place."""
        stated = {
            "include": ["study/demo"],
            "engine": {
                "python": str(self.engine),
                "args": {"chat_template": text, "stop": [text.lstrip("-"), "x"], "o": {"k": text}},
                "env": {"GIVEN": text},
                "served_model_name": f"m{text}",
            },
        }
        study = self.folder / "own.yaml"
        # Quoted: what stands bare and looks like a number to somebody, as 0E0, is one in YAML.
        study.write_text(yaml.safe_dump(stated, default_style='"'), encoding="utf-8")
        return compose.engine_spec(load_config(study), BASELINE, "trial")

    def boot(self, spec: EngineSpec) -> tuple[list[bytes], dict[bytes, bytes]]:
        """Return what the engine's process was given."""
        engine = EngineProcess(spec)

        async def run() -> None:
            engine.start()
            with pytest.raises(EngineBootError):
                await engine.wait_ready()

        asyncio.run(run())
        argv, env = json.loads(self.record.read_text())
        told = {bytes.fromhex(name): bytes.fromhex(value) for name, value in env.items()}
        return [bytes.fromhex(item) for item in argv], told


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "a state"))
    return Place(tmp_path)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_study_file_arrives_byte_for_byte(text: str, place: Place) -> None:
    argv, env = place.boot(place.spec(text))

    given = text.encode()
    if text.startswith("-"):
        assert b"--chat-template=" + given in argv
    else:
        assert argv[argv.index(b"--chat-template") + 1] == given
    at = argv.index(b"--stop")
    assert argv[at + 1 : at + 3] == [text.lstrip("-").encode(), b"x"]
    assert json.loads(argv[argv.index(b"--o") + 1]) == {"k": text}
    assert argv[argv.index(b"--served-model-name") + 1] == b"m" + given
    assert env[b"GIVEN"] == given


@given(text=st.text(max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_carried_as_it_is_or_refused_by_its_key(text: str, place: Place) -> None:
    """As far as the command line, which the guard gives to ``execve`` as it is."""
    try:
        spec = place.spec(text)
    except ConfigError as error:
        told = error.where
        assert told.startswith("engine.")
        return
    assert spec.args["chat_template"] == text
    assert spec.env["GIVEN"] == text


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
@pytest.mark.parametrize("key", ["engine.args.chat_template", "engine.env.GIVEN"])
def test_text_that_cannot_travel_is_refused_before_anything_is_started(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config(CONF_DIR / "study" / "demo.yaml", [f"{key}={json.dumps(text)}"])


def test_guard_hands_on_bytes_that_are_no_text(place: Place) -> None:
    """A path of the file system may be no UTF-8."""
    name = os.fsdecode(b"/models/\xff\xfe")
    spec = EngineSpec(
        model=name,
        served_model_name="m",
        log_path=str(place.folder / "{boot_id}.log"),
        python=str(place.engine),
    )
    argv, _ = place.boot(spec)
    assert b"/models/\xff\xfe" in argv
