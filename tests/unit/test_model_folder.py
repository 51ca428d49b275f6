from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.adapters import model_folder
from orchestrator.errors import ConfigError


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        model_folder.require_target(path, "target.path")
    assert caught.value.where == "target.path"
    return str(caught.value)


def test_whole_target_passes(target_folder: Path) -> None:
    model_folder.require_target(target_folder, "target.path")


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("config.json", "no readable config.json"),
        ("tokenizer.json", "no tokenizer"),
        ("model.safetensors", "no weights"),
    ],
)
def test_target_without_a_part_is_refused(target_folder: Path, lost: str, says: str) -> None:
    (target_folder / lost).unlink()

    assert says in refusal(target_folder)


def test_missing_target_is_refused(tmp_path: Path) -> None:
    assert "no folder here" in refusal(tmp_path / "none")


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_broken_configuration_is_refused(target_folder: Path, text: str) -> None:
    (target_folder / "config.json").write_text(text)

    assert "config.json" in refusal(target_folder)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "tekken.json"])
def test_other_kinds_of_tokenizer_pass(target_folder: Path, name: str) -> None:
    (target_folder / "tokenizer.json").rename(target_folder / name)

    model_folder.require_target(target_folder, "target.path")


def test_draft_facts_are_what_its_configuration_says(draft_folder: Path) -> None:
    facts = model_folder.draft_facts(draft_folder, "draft.path")

    assert (facts.architecture, facts.block_size) == ("DFlash2DraftModel", 8)
    assert facts.trained_depth == 7


def test_draft_block_size_may_stand_in_its_dflash_config(draft_folder: Path) -> None:
    config = {"architectures": ["DFlash2DraftModel"], "dflash_config": {"block_size": 6}}
    (draft_folder / "config.json").write_text(json.dumps(config))

    assert model_folder.draft_facts(draft_folder, "draft.path").block_size == 6


def test_draft_that_says_nothing_has_unknown_facts(draft_folder: Path) -> None:
    (draft_folder / "config.json").write_text("{}")

    facts = model_folder.draft_facts(draft_folder, "draft.path")

    assert (facts.architecture, facts.block_size, facts.trained_depth) == (None, None, None)


@pytest.mark.parametrize("block_size", ['"eight"', "[8]", "{}"])
def test_draft_block_size_that_is_no_number_is_refused(draft_folder: Path, block_size: str) -> None:
    (draft_folder / "config.json").write_text(f'{{"block_size": {block_size}}}')

    with pytest.raises(ConfigError, match="block_size"):
        model_folder.draft_facts(draft_folder, "draft.path")


def test_draft_without_weights_is_refused(draft_folder: Path) -> None:
    (draft_folder / "model.safetensors").unlink()

    with pytest.raises(ConfigError, match=r"^draft\.path: .*no weights"):
        model_folder.draft_facts(draft_folder, "draft.path")


def test_digest_is_the_same_for_a_copy_and_ignores_notes(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "README.md").write_text(name)
        digests.append(model_folder.folder_digest(folder))

    assert digests[0] == digests[1]
    assert len(digests[0]) == 16


def test_digest_of_large_weights_sees_both_ends_and_the_size(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    size = 3 << 20
    seen = set()
    for text in (
        b"a" * size,
        b"b" + b"a" * (size - 1),
        b"a" * (size - 1) + b"b",
        b"a" * (size + 1),
    ):
        weights.write_bytes(text)
        seen.add(model_folder.folder_digest(tmp_path))

    assert len(seen) == 4


def test_digest_sees_a_renamed_file(target_folder: Path) -> None:
    before = model_folder.folder_digest(target_folder)
    (target_folder / "tokenizer.json").rename(target_folder / "tokenizer.model")

    assert model_folder.folder_digest(target_folder) != before
