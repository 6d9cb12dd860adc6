"""The code that the playground shows for a request runs as it is shown, in each language, and is answered alike."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sm.settings import HERE
from tests.support.boxes import RunningBox

PAGE = HERE / "sm" / "router" / "page"
LANGUAGES = ("curl", "Python requests", "Python boto3", "JavaScript", "AWS CLI")
#: Calls the page's own module as the page does, and prints the code by language.
SCRIPT = """
import { readFileSync } from "node:fs";
import { buildRequest, code, languages, needsFile } from "./request.js";
const { client, record, picture, parameters, origin } = JSON.parse(process.argv[2]);
if (picture) record.image = new File([readFileSync(picture)], picture, { type: "image/png" });
const records = client.count > 1 ? Array(client.count).fill(record) : [record];
const request = await buildRequest(client, records, parameters, false);
const shown = Object.fromEntries(languages.map(language => [language, code(language, request, origin, false)]));
console.log(JSON.stringify({ shown, file: needsFile(request) ? request.body : null }));
"""


@dataclass(frozen=True)
class Shown:
    """The code of one request, in a folder with the file that it reads."""

    folder: Path
    code: dict[str, str]

    def run(self, language: str) -> Any:
        """Run it as a person would; return the answer."""
        text = self.code[language]
        if language.startswith("Python"):
            return self._printed([sys.executable, "-c", f"{text}\n"], language)
        if language == "JavaScript":
            # "file" is what a form field of a page gives; console.log prints no JSON.
            name = "cat.png" if "cat.png" in text else "request.json"
            before = (
                'import { readFileSync } from "node:fs";\n'
                f'const file = new Blob([readFileSync("{name}")]);\n'
            )
            place = self.folder / "shown.mjs"
            place.write_text(
                (before if "body: file" in text else "") + text.replace("console.log(", "print(")
            )
            place.write_text("const print = each => console.log(JSON.stringify(each));\n" + place.read_text())
            return self._printed(["node", "shown.mjs"], language)
        printed = self._output(["bash", "-c", text], language)
        return json.loads((self.folder / "answer.json").read_text() if language == "AWS CLI" else printed)

    def _printed(self, command: list[str], language: str) -> Any:
        printed = self._output(command, language).strip()
        # requests' answer.json() is printed as Python prints it.
        return json.loads(printed if language != "Python requests" else json.dumps(literal(printed)))

    def _output(self, command: list[str], language: str) -> str:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        completed = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert completed.returncode == 0, f"{language}: {completed.stderr}\n{self.code[language]}"
        return completed.stdout


def literal(text: str) -> Any:
    import ast

    return ast.literal_eval(text)


def shown(
    folder: Path, box: RunningBox, client: dict[str, Any], record: dict[str, Any], **more: Any
) -> Shown:
    """What the page shows for a record."""
    if shutil.which("node") is None:
        pytest.skip("there is no node here")
    for name in ("request.js", "dom.js"):
        shutil.copy(PAGE / name, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "build.js").write_text(SCRIPT)
    shutil.copy(HERE / "clients" / "resnet" / "sample" / "cat.png", folder)
    said = {"client": client, "record": record, "parameters": {}, "origin": f"{box.url}/", **more}
    completed = subprocess.run(
        ["node", "build.js", json.dumps(said)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    made = json.loads(completed.stdout)
    if made["file"]:
        (folder / "request.json").write_text(made["file"])
    assert tuple(made["shown"]) == LANGUAGES
    return Shown(folder, made["shown"])


def test_a_text_is_answered_in_every_language(box: RunningBox, tmp_path: Path) -> None:
    client = {"name": "bert_base", "mainField": "text", "contentTypes": ["text/plain"]}
    sentence = 'It\'s a [MASK] "day" in Zürich.'
    page = shown(tmp_path, box, client, {"text": sentence})
    expected = box.invoke("bert_base", {"text": sentence}).json()
    assert {language: page.run(language) for language in LANGUAGES} == dict.fromkeys(LANGUAGES, expected)


def test_a_picture_with_parameters_is_answered_in_every_language(box: RunningBox, tmp_path: Path) -> None:
    client = {"name": "resnet", "mainField": "image", "contentTypes": ["image/png"]}
    page = shown(tmp_path, box, client, {}, picture="cat.png", parameters={"top": 2})
    answers = {language: page.run(language)["result"] for language in LANGUAGES}
    assert {language: len(rows) for language, rows in answers.items()} == dict.fromkeys(LANGUAGES, 2)
    assert all("Egyptian cat" in rows[0] for rows in answers.values())


@pytest.mark.parametrize("language", ["Python boto3", "JavaScript"])
def test_long_json_is_read_from_a_file(box: RunningBox, tmp_path: Path, language: str) -> None:
    client = {"name": "resnet", "mainField": "image", "contentTypes": ["image/png"], "count": 2}
    answer = shown(tmp_path, box, client, {}, picture="cat.png").run(language)
    assert len(answer["result"]) == 2
