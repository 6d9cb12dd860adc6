"""docs/run/troubleshooting.md explains each error ``code`` and each sentence with which a start fails, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from chalicelib import failures as gateway_failures

from sm import errors
from sm.errors import TriremeError
from sm.settings import HERE

PAGE = (HERE / "docs" / "run" / "troubleshooting.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
#: Errors that end a start, and problems that the inspection before it finds.
START_ERRORS = ("StartError", "UnsuitableModel", "NameTaken", "Problem")
#: Characters. Shorter parts of a sentence are not searched for; they come from elsewhere.
MIN_PART_CHARACTERS = 8


def start_sentences() -> Iterator[tuple[str, list[str]]]:
    """Yield the file and the fixed parts of the sentence of each error that can end a start."""
    for file in (*(HERE / "sm").rglob("*.py"), *(HERE / "extensions").rglob("*.py")):
        text = file.read_text()
        if "commands" in file.relative_to(HERE).parts or not any(f"{name}(" in text for name in START_ERRORS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                parts = getattr(node.args[0], "values", node.args[:1])
                words = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
                if node.func.id in START_ERRORS and any(len(word) >= MIN_PART_CHARACTERS for word in words):
                    yield str(file), words


def without_markup(text: str) -> str:
    """Remove the marks of code, so that a sentence that quotes a command is found."""
    return re.sub(r"\s+", " ", text.replace("`", ""))


def test_every_start_error_is_explained() -> None:
    page = without_markup("\n".join(ROWS))
    sentences = list(start_sentences())
    assert len(sentences) > 50
    for file, parts in sentences:
        clauses = [
            clause.strip(" :;,.") for part in parts for clause in re.split(r"[:;.,] ", without_markup(part))
        ]
        assert any(len(clause) >= MIN_PART_CHARACTERS and clause in page for clause in clauses), (file, parts)


#: Rows of the start whose sentences another program writes, or the code puts together from shorter parts.
PUT_TOGETHER = (
    *("NAME='value' …", "make: command not found", "there is no Python 3 here"),
    *("TRIREME_MODEL_POLL needs …", "TRIREME_MODEL_POLL does not go with --reload"),
    *("it names the input …, but … has …", "layers.npz has no weights of the layer …"),
    "….json has inputs of … by …, but … takes … by …",
    "….json makes inputs whose size depends on the picture, but … takes … by …",
    "Triton's wheel runs python models on Python …, not on …",
)


def test_every_sentence_of_the_page_is_in_the_code() -> None:
    files = [
        path for folder in ("sm", "extensions", "tools", "gateway") for path in (HERE / folder).rglob("*.py")
    ]
    # A sentence may go on in the string of the next line.
    joined = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text() for path in files))
    code = without_markup(joined.replace("\\", ""))
    quoted = [
        sentence
        for row in ROWS
        if row.startswith("| `")
        for sentence in re.findall(r"`([^`]+)`", row.split(" | ")[0])
    ]
    assert len(quoted) > 150
    assert set(PUT_TOGETHER) <= set(quoted)
    stale = []
    for sentence in set(quoted) - set(PUT_TOGETHER):
        clauses = [clause.strip(" :;,.'") for clause in re.split(r"…|[:;.,(] ", sentence)]
        long = [clause for clause in clauses if len(clause) >= MIN_PART_CHARACTERS]
        if long and not any(clause in code for clause in long):
            stale.append(sentence)
    assert stale == []


def error_codes() -> set[tuple[int, str]]:
    """Return the status and code of every error class of the box and the gateway."""
    values = [*vars(errors).values(), *vars(gateway_failures).values()]
    classes = {value for value in values if isinstance(value, type) and issubclass(value, TriremeError)}
    return {(error.status, error.code) for error in classes if error is not errors.ChosenStatus}


@pytest.mark.parametrize(("status", "code"), sorted(error_codes()))
def test_every_error_code_is_explained_with_its_status(status: int, code: str) -> None:
    assert any(row.startswith(f"| {status} | `{code}` |") for row in ROWS)
