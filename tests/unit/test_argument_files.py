from __future__ import annotations

from pathlib import Path

from orchestrator.adapters.argument_files import tree_digest, with_contents
from orchestrator.adapters.content_digest import ContentDigests

KNOWN = ContentDigests(None)


def write(folder: Path, text: str, name: str = "adapter_config.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_adapter_is_told_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    a = write(tmp_path / "a", "one")
    moved = write(tmp_path / "moved" / "a", "one")
    b = write(tmp_path / "b", "two")

    told = [with_contents({"lora_modules": [f"x={place}"]}, KNOWN) for place in (a, moved, b)]

    assert told[0] == told[1] != told[2]
    assert str(tmp_path) not in repr(told)
    assert repr(told[0]).startswith("{'lora_modules': ['x=sha256 ")


def test_adapter_that_is_stated_as_json_is_told_by_its_content(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "one")
    told = with_contents({"lora-modules": [f'{{"name": "x", "path": "{folder}"}}']}, KNOWN)
    assert told == {"lora-modules": [{"name": "x", "path": f"sha256 {tree_digest(folder, KNOWN)}"}]}


def test_file_that_changed_is_another_argument(tmp_path: Path) -> None:
    file = write(tmp_path, "x = 1", "plugin.py") / "plugin.py"
    before = with_contents({"tool_parser_plugin": str(file)}, KNOWN)
    file.write_text("x = 2")
    assert with_contents({"tool_parser_plugin": str(file)}, KNOWN) != before


def test_what_is_not_here_or_names_no_content_stays(tmp_path: Path) -> None:
    args: dict[str, object] = {
        "lora_modules": ["x=org/adapter", "{broken"],
        "hf_config_path": "/none/here",
        "io_processor_plugin": "y" * 5000,
        "download_dir": str(tmp_path),
        "max_num_seqs": 4,
        "model_weights": "",
    }
    assert with_contents(args, KNOWN) == args


def test_tree_digest_sees_subfolders_and_no_hidden_files(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", "1"), write(tmp_path / "b", "1")
    write(b / ".cache", "hidden")
    write(b / "__pycache__", "compiled")
    assert tree_digest(a, KNOWN) == tree_digest(b, KNOWN)
    write(b / "sub", "2")
    assert tree_digest(a, KNOWN) != tree_digest(b, KNOWN)
