"""Training text: the normalised source of the Python standard library.

Every file is parsed, stripped of docstrings and written back with `ast.unparse`, so comments and
layout disappear and the text becomes regular enough for a model of a few million parameters.
"""

import ast
import dataclasses
import hashlib
import logging
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

# Directories that are not library code (tests) or mostly tables and data (encodings, topics).
SKIPPED_DIRS = frozenset(
    {"site-packages", "__pycache__", "encodings", "pydoc_data", "idlelib", "turtledemo", "lib2to3"}
)
TEST_DIRS = frozenset({"test", "tests"})
MAX_LINE_CHARS = 400  # longer lines are embedded data, not code
HELD_OUT_MODULUS = 20  # one file of twenty is never trained on


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One normalised source file.

    Attributes:
        name: Path below the standard library, with forward slashes.
        text: Normalised source, no trailing newline.
    """

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Return whether the file is kept out of training (a function of its name only)."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:4], "big") % HELD_OUT_MODULUS == 0


class _StripDocstrings(ast.NodeTransformer):
    """Remove bare string statements, docstrings included."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop an expression statement that is only a string."""
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return node


def _fill_empty_bodies(tree: ast.AST) -> None:
    """Put `pass` where removing a docstring left a body empty."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.body
        ):
            node.body = [ast.Pass()]


def normalise(source: str) -> str:
    """Return source without comments and docstrings, in the layout of `ast.unparse`.

    Args:
        source: Python source text.

    Returns:
        Equivalent source, or an empty string where it does not parse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    stripped = _StripDocstrings().visit(tree)
    _fill_empty_bodies(stripped)
    return ast.unparse(ast.fix_missing_locations(stripped)).strip()


def _source_files(root: Path, *, tests: bool) -> Iterator[Path]:
    """Yield source files below root in a stable order, tests or everything else."""
    for path in sorted(root.rglob("*.py")):
        parents = set(path.relative_to(root).parts[:-1])
        if parents & SKIPPED_DIRS:
            continue
        if bool(parents & TEST_DIRS) == tests:
            yield path


def _usable(text: str) -> bool:
    """Return whether a normalised file is code rather than embedded data."""
    return bool(text) and max(len(line) for line in text.splitlines()) <= MAX_LINE_CHARS


def standard_library(*, tests: bool = False) -> list[Document]:
    """Return the normalised standard library of the running interpreter.

    Args:
        tests: Return the library's own tests instead of the library.

    Returns:
        One document per usable file, ordered by name.
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents = []
    for path in _source_files(root, tests=tests):
        text = normalise(path.read_text(encoding="utf-8", errors="ignore"))
        if _usable(text):
            documents.append(Document(name=path.relative_to(root).as_posix(), text=text))
    logger.info("%d documents, %d characters", len(documents), sum(len(d.text) for d in documents))
    return documents
