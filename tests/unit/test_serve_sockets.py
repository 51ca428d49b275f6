from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_apps.engine import sockets
from serve_apps.engine.sockets import FOLDER_VARIABLE, free_port, socket_folder


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder whose path is short enough; those of pytest are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_socket_folder_is_new_private_and_where_the_environment_says(place: Path) -> None:
    env = {FOLDER_VARIABLE: str(place)}

    first, second = (Path(socket_folder("abc123", env)) for _ in range(2))

    assert first != second
    assert {first.parent, second.parent} == {place}
    assert first.name.startswith("specpilot-abc123-")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert list(first.iterdir()) == []


def test_socket_folder_without_a_place_is_in_the_systems_temp_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place))

    assert Path(socket_folder("b", {})).parent == place


@pytest.mark.parametrize(
    "name", ["x" * 60, "\N{GREEK SMALL LETTER ALPHA}" * 30], ids=["long", "wide"]
)
def test_socket_in_it_never_has_a_path_that_the_kernel_refuses(tmp_path: Path, name: str) -> None:
    """A unix socket's path has at most 107 bytes, whatever the temp folder's."""
    place = tmp_path / name
    place.mkdir()

    folder = Path(socket_folder("0123456789ab", {FOLDER_VARIABLE: str(place)}))

    try:
        assert len(os.fsencode(folder / ("u" * 36))) <= 107
        assert list(place.iterdir()) == []
    finally:
        folder.rmdir()


def kernel_gives_from(first: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "ip_local_port_range"
    path.write_text(f"{first}\t60999\n")
    monkeypatch.setattr(sockets, "_EPHEMERAL", path)


def test_free_port_is_none_that_the_kernel_gives_to_others(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = sockets._FIRST_PORT + 1
    kernel_gives_from(sockets._FIRST_PORT + 4, place, monkeypatch)
    monkeypatch.setattr(sockets, "is_port_free", lambda port, _host: port == free)

    assert {free_port() for _ in range(20)} == {free}


@pytest.mark.parametrize("first", [1024, sockets._FIRST_PORT])
def test_free_port_without_room_below_the_kernels_is_one_of_those(
    first: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_gives_from(first, place, monkeypatch)

    port = free_port()

    with socket.create_server(("127.0.0.1", port)):
        assert port >= 1024
