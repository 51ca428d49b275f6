"""Two engines that the files share: a boot costs half a minute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cpu_engine import Engine, booted

TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
"""The tiny target is a plain language model and has no template of its own."""


@pytest.fixture(scope="session")
def control_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Return an engine that does not speculate."""
    folder = tmp_path_factory.mktemp("control")
    with booted(folder, "--max-num-seqs", "16", speculates=False) as started:
        yield started


@pytest.fixture(scope="session")
def speculating_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Return an engine of V2, DFlash2, probabilistic drafts and block verification."""
    folder = tmp_path_factory.mktemp("speculating")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    with booted(folder, "--chat-template", str(template)) as started:
        yield started
