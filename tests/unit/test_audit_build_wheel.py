"""Unpacking of a wheel: sources only, and nowhere but below the folder."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import audit_build_wheel
from orchestrator.audit_build_wheel import unpack
from orchestrator.errors import ConfigError

GOOD = {"vllm/__init__.py": b"x = 1\n", "vllm/v1/a.py": b"y = 2\n"}


def wheel(folder: Path, members: Mapping[str, bytes]) -> Path:
    path = folder / "vllm-1.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_unpack_sources_are_written_and_nothing_else(tmp_path: Path) -> None:
    others = {"vllm/_C.so": b"\x7fELF", "vllm-1.dist-info/METADATA": b"", "other/__init__.py": b""}
    out = tmp_path / "out"
    out.mkdir()
    unpack(wheel(tmp_path, {**GOOD, **others, "vllm/c.json": b"{}"}), out)
    assert files(out) == {*GOOD, "vllm/c.json"}
    assert (out / "vllm/v1/a.py").read_bytes() == GOOD["vllm/v1/a.py"]


@pytest.mark.parametrize(
    "name", ["vllm/../../out.py", "../vllm/a.py", "/vllm/a.py", "vllm\\..\\..\\a.py"]
)
def test_unpack_member_that_leads_out_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    with pytest.raises(ConfigError, match="leads out"):
        unpack(wheel(tmp_path, {**GOOD, name: b""}), out)
    assert files(out) == set()


@settings(max_examples=60)
@given(parts=st.lists(st.sampled_from(["..", ".", "vllm", "a", ""]), min_size=1, max_size=6))
def test_unpack_whatever_the_names_nothing_is_written_outside(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    root = tmp_path_factory.mktemp("wheel")
    out = root / "one" / "two" / "three" / "four" / "five" / "six" / "out"
    out.mkdir(parents=True)
    path = wheel(root, {**GOOD, "/".join([*parts, "b.py"]): b""})
    try:
        unpack(path, out)
    except ConfigError:
        assert files(out) == set()
    assert files(root) - {path.name} == {str((out / f).relative_to(root)) for f in files(out)}


def test_unpack_link_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, GOOD)
    link = zipfile.ZipInfo("vllm/link.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ConfigError, match="is a link"):
        unpack(path, tmp_path)


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_FILES"])
def test_unpack_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(audit_build_wheel, limit, 1)
    with pytest.raises(ConfigError, match="2 files"):
        unpack(wheel(tmp_path, GOOD), tmp_path)


def test_unpack_other_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no package vllm"):
        unpack(wheel(tmp_path, {"torch/__init__.py": b""}), tmp_path)


def test_unpack_damaged_wheel_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, GOOD)
    content = path.read_bytes()
    for damaged in (content[:40], b"", content.replace(b"y = 2", b"y = 3", 1)):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="cannot be unpacked"):
            unpack(path, tmp_path)
