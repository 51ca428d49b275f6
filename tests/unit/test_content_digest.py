from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from orchestrator.adapters.content_digest import ContentDigests
from orchestrator.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file that has not changed for long."""
    path = tmp_path / "weights"
    path.write_bytes(b"a" * 1000)
    return path


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file count as settled, whatever the clock says."""
    monkeypatch.setattr("orchestrator.adapters.content_digest._SETTLED_S", -1e9)


def plant(cache: Path, file: Path, digest: str) -> None:
    """Put another digest where the real one is remembered, so that its use can be seen."""
    known = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: digest for key in known if str(file.resolve()) in key}))


def test_digest_is_that_of_the_whole_content(file: Path, tmp_path: Path) -> None:
    expected = hashlib.sha256(file.read_bytes()).hexdigest()

    assert ContentDigests(None).of(file) == expected
    assert ContentDigests(tmp_path / "new" / "cache.json").of(file) == expected


def test_known_file_is_not_read_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    cache = tmp_path / "new" / "cache.json"
    digests = ContentDigests(cache)
    digests.of(file)
    plant(cache, file, "5" * 64)

    assert digests.of(file) == "5" * 64
    link = tmp_path / "link"
    link.symlink_to(file)
    assert digests.of(link) == "5" * 64
    assert ContentDigests(None).of(file) != "5" * 64


def test_change_that_keeps_size_and_time_is_seen(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    cache = tmp_path / "cache.json"
    digests = ContentDigests(cache)
    before = digests.of(file)
    told = file.stat()
    while file.stat().st_ctime_ns == told.st_ctime_ns:  # the file system's clock may be coarse
        file.write_bytes(b"b" * 1000)
        os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))

    assert file.stat().st_mtime_ns == told.st_mtime_ns
    assert digests.of(file) != before
    assert len(json.loads(cache.read_text())) == 1, "the old entry goes"


def test_file_that_may_still_change_is_not_remembered(file: Path, tmp_path: Path) -> None:
    os.utime(file, (2e9, 2e9))  # in the future: not settled
    ContentDigests(tmp_path / "cache.json").of(file)

    assert not (tmp_path / "cache.json").exists()


@pytest.mark.parametrize("text", ["{", "[1]", "", "[" * 100_000], ids=["{", "[1]", "empty", "deep"])
def test_broken_cache_is_made_anew(
    file: Path, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    cache = tmp_path / "cache.json"
    cache.write_text(text)
    found = ContentDigests(cache).of(file)

    assert list(json.loads(cache.read_text()).values()) == [found]


def test_cache_that_cannot_be_written_costs_nothing_else(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    (tmp_path / "cache.json").mkdir()
    digests = ContentDigests(tmp_path / "cache.json")

    assert digests.of(file) == ContentDigests(None).of(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache.json", "weights"]


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ContentDigests(None).of(tmp_path / "none")


@pytest.mark.parametrize("entry", [5, None, "", "../../x", "A" * 64, ["0" * 64]])
def test_entry_that_is_no_digest_is_read_anew(tmp_path: Path, entry: object) -> None:
    file, cache = tmp_path / "f", tmp_path / "cache.json"
    file.write_bytes(b"content")
    os.utime(file, (1, 1))
    right = ContentDigests(None).of(file)
    told = file.stat()
    numbers = (told.st_size, told.st_ino, told.st_mtime_ns, told.st_ctime_ns)
    key = "\0".join((str(file.resolve()), *map(str, numbers)))
    cache.write_text(json.dumps({key: entry}))

    assert ContentDigests(cache).of(file) == right
