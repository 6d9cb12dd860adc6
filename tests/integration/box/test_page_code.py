"""The code that the playground shows for a request runs as shown in each language, with the same result."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm.settings import HERE
from tests.support.boxes import RunningBox

PAGE = HERE / "sm" / "control" / "page"
LANGUAGES = ("curl", "Python requests", "Python boto3", "JavaScript", "AWS CLI")
#: Calls the page's own module as the page does, and prints the code by language.
SCRIPT = """
import { readFileSync } from "node:fs";
import { buildRequest, languages, needsFile, requestCode } from "./request.js";
const { client, record, picture, parameters, origin } = JSON.parse(process.argv[2]);
if (picture) record.image = new File([readFileSync(picture)], picture, { type: "image/png" });
const records = client.count > 1 ? Array(client.count).fill(record) : [record];
const request = await buildRequest(client, records, parameters, false);
const shown = Object.fromEntries(languages.map(language => [language, requestCode(language, request, origin, false)]));
console.log(JSON.stringify({ shown, file: needsFile(request) ? request.body : null }));
"""


ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}
#: On a page, "file" comes from a form field.
FILE = 'import { readFileSync } from "node:fs";\nconst file = new Blob([readFileSync("%s")]);\n'


class PageCode:
    """The code that the page shows for a record, by language, in a folder with the file that it reads."""

    def __init__(self, folder: Path, box: RunningBox, client: Any, record: Any, **overrides: Any) -> None:
        if shutil.which("node") is None:
            pytest.skip("there is no node here")
        self.folder = folder
        for file in (PAGE / "request.js", PAGE / "dom.js", HERE / "clients/resnet/sample/cat.png"):
            shutil.copy(file, folder)
        (folder / "package.json").write_text('{"type": "module"}')
        (folder / "build.js").write_text(SCRIPT)
        wanted = {"client": client, "record": record, "parameters": {}, "origin": f"{box.url}/", **overrides}
        built = json.loads(self._run("node", "build.js", json.dumps(wanted)))
        if built["file"]:
            (folder / "request.json").write_text(built["file"])
        self.code: dict[str, str] = built["shown"]
        assert tuple(self.code) == LANGUAGES

    def run(self, language: str) -> Any:
        """Run the code of a language as a user would; return the answer."""
        text = self.code[language]
        if language == "Python requests":  # print(response.json()) prints a Python literal, not JSON
            return ast.literal_eval(self._run(sys.executable, "-c", text))
        if language == "Python boto3":
            return json.loads(self._run(sys.executable, "-c", text))
        if language == "JavaScript":  # console.log does not print JSON
            name = "cat.png" if "cat.png" in text else "request.json"
            (self.folder / "shown.mjs").write_text(
                (FILE % name if "body: file" in text else "")
                + text.replace("console.log(", "(value => console.log(JSON.stringify(value)))(")
            )
            return json.loads(self._run("node", "shown.mjs"))
        printed = self._run("bash", "-c", text)
        return json.loads((self.folder / "answer.json").read_text() if language == "AWS CLI" else printed)

    def _run(self, *command: str) -> str:
        completed = subprocess.run(
            command,
            cwd=self.folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert completed.returncode == 0, f"{command}: {completed.stderr}"
        return completed.stdout.strip()


def test_the_code_for_a_text_gives_the_same_result_in_every_language(box: RunningBox, tmp_path: Path) -> None:
    client = {"name": "bert_base", "mainField": "text", "contentTypes": ["text/plain"]}
    sentence = 'It\'s a [MASK] "day" in Zürich.'
    code = PageCode(tmp_path, box, client, {"text": sentence})
    expected = box.invoke("bert_base", {"text": sentence}).json()
    assert {language: code.run(language) for language in LANGUAGES} == dict.fromkeys(LANGUAGES, expected)


def test_the_code_for_a_picture_with_parameters_works_in_every_language(
    box: RunningBox, tmp_path: Path
) -> None:
    client = {"name": "resnet", "mainField": "image", "contentTypes": ["image/png"]}
    code = PageCode(tmp_path, box, client, {}, picture="cat.png", parameters={"top": 2})
    answers = {language: code.run(language)["result"] for language in LANGUAGES}
    assert {language: len(rows) for language, rows in answers.items()} == dict.fromkeys(LANGUAGES, 2)
    assert all("Egyptian cat" in rows[0] for rows in answers.values())


@pytest.mark.parametrize("language", ["Python boto3", "JavaScript"])
def test_the_code_for_long_json_reads_it_from_a_file(box: RunningBox, tmp_path: Path, language: str) -> None:
    client = {"name": "resnet", "mainField": "image", "contentTypes": ["image/png"], "count": 2}
    answer = PageCode(tmp_path, box, client, {}, picture="cat.png").run(language)
    assert len(answer["result"]) == 2
