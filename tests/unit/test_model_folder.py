from __future__ import annotations

import json
import os
import shutil
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


def test_digest_sees_every_byte_and_the_size(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    size = 3 << 20
    seen = set()
    for text in (
        b"a" * size,
        b"b" + b"a" * (size - 1),
        b"a" * (size // 2) + b"b" + b"a" * (size // 2 - 1),
        b"a" * (size - 1) + b"b",
        b"a" * (size + 1),
    ):
        weights.write_bytes(text)
        seen.add(model_folder.folder_digest(tmp_path))

    assert len(seen) == 5


def test_digest_of_a_linked_snapshot_is_that_of_a_copy(target_folder: Path, tmp_path: Path) -> None:
    """The model hub's cache: a folder of links to files that are named by their content."""
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(target_folder.iterdir())):
        shutil.copy(file, blobs / f"{number:064}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:064}")
    link = tmp_path / "link"
    link.symlink_to(snapshot)

    expected = model_folder.folder_digest(target_folder)
    assert model_folder.folder_digest(snapshot) == expected
    assert model_folder.folder_digest(link) == expected
    assert model_folder.model_digests(snapshot, None, {}) == model_folder.model_digests(
        target_folder, None, {}
    )


def test_digest_knows_no_time(target_folder: Path) -> None:
    before = model_folder.folder_digest(target_folder)
    os.utime(target_folder / "model.safetensors", (1, 1))

    assert model_folder.folder_digest(target_folder) == before


@pytest.mark.parametrize(
    "name", ["README.md", "LICENSE", "LICENSE.txt", ".gitattributes", "picture.png", "NOTICE"]
)
def test_digest_leaves_out_what_no_engine_reads(target_folder: Path, name: str) -> None:
    before = model_folder.folder_digest(target_folder)
    (target_folder / name).write_text("x")

    assert model_folder.folder_digest(target_folder) == before


@pytest.mark.parametrize(
    "name", ["merges.txt", "vocab.txt", "modeling_x.py", "hf_quant_config.json"]
)
def test_digest_sees_what_an_engine_may_read(target_folder: Path, name: str) -> None:
    before = model_folder.folder_digest(target_folder)
    (target_folder / name).write_text("x")

    assert model_folder.folder_digest(target_folder) != before


def test_digest_sees_a_renamed_file(target_folder: Path) -> None:
    before = model_folder.folder_digest(target_folder)
    (target_folder / "tokenizer.json").rename(target_folder / "tokenizer.model")

    assert model_folder.folder_digest(target_folder) != before


def write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data))


def test_models_digests_are_apart(target_folder: Path, draft_folder: Path) -> None:
    write_json(target_folder / "generation_config.json", {"temperature": 0.6})
    (target_folder / "chat_template.jinja").write_text("{{ messages }}")
    found = model_folder.model_digests(target_folder, draft_folder, {})

    assert len({found.target, found.draft, found.tokenizer}) == 3
    assert found.chat_template is not None
    assert found.generation_config is not None
    bare = model_folder.model_digests(target_folder, None, {"generation-config": "vllm"})
    assert (bare.draft, bare.generation_config) == (None, None)


def test_digests_follow_the_arguments_that_name_other_files(
    target_folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text('{"other": 1}')
    write_json(other / "generation_config.json", {"temperature": 0.1})
    (other / "t.jinja").write_text("other")
    plain = model_folder.model_digests(target_folder, None, {})
    args = {
        "tokenizer": str(other),
        "generation_config": str(other),
        "chat-template": str(other / "t.jinja"),
    }
    found = model_folder.model_digests(target_folder, None, args)

    assert found.target == plain.target
    assert found.tokenizer != plain.tokenizer
    assert plain.generation_config is None
    assert found.generation_config is not None
    assert found.chat_template == model_folder.chat_template_digest(other, "other")


def test_tokenizer_digest_sees_the_tokenizer_and_not_the_template(target_folder: Path) -> None:
    config = target_folder / "tokenizer_config.json"
    write_json(config, {"bos_token": "<s>"})
    before = model_folder.tokenizer_digest(target_folder)
    write_json(config, {"chat_template": "x", "bos_token": "<s>"})
    assert model_folder.tokenizer_digest(target_folder) == before

    write_json(config, {"bos_token": "<b>"})
    assert model_folder.tokenizer_digest(target_folder) != before
    write_json(config, {"bos_token": "<s>"})
    (target_folder / "merges.txt").write_text("a b")
    assert model_folder.tokenizer_digest(target_folder) != before
    assert model_folder.tokenizer_digest(target_folder.parent) is None


def test_chat_template_digest_does_not_depend_on_where_it_stands(target_folder: Path) -> None:
    digest = model_folder.chat_template_digest
    assert digest(target_folder) is None
    seen = set()
    for name, data in (
        ("chat_template.json", {"chat_template": "x"}),
        ("tokenizer_config.json", {"chat_template": "x"}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": "x"}]}),
        ("tokenizer_config.json", {"chat_template": {"default": "x"}}),
    ):
        write_json(target_folder / name, data)
        seen.add(digest(target_folder))
        (target_folder / name).unlink()
    (target_folder / "chat_template.jinja").write_text("x")
    seen.add(digest(target_folder))
    assert len(seen) == 1

    # The file wins over the configuration.
    write_json(target_folder / "tokenizer_config.json", {"chat_template": "y"})
    assert digest(target_folder) in seen
    (target_folder / "additional_chat_templates").mkdir()
    (target_folder / "additional_chat_templates" / "tools.jinja").write_text("z")
    assert digest(target_folder) not in seen


def test_chat_template_given_as_text_may_be_long(target_folder: Path) -> None:
    assert model_folder.chat_template_digest(target_folder, "{{ x }}" * 5000) is not None


def test_broken_tokenizer_configuration_is_still_part_of_the_model(target_folder: Path) -> None:
    before = model_folder.folder_digest(target_folder)
    (target_folder / "tokenizer_config.json").write_text("{")

    assert model_folder.folder_digest(target_folder) != before
    assert model_folder.chat_template_digest(target_folder) is None
