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


def run(folder: Path, *command: str) -> str:
    completed = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60
    )
    assert completed.returncode == 0, f"{command}: {completed.stderr}"
    return completed.stdout.strip()


def shown_code(folder: Path, box: RunningBox, client: Any, record: Any, **overrides: Any) -> dict[str, str]:
    """Return the code that the page shows for a record, by language. The folder has the file that it reads."""
    if shutil.which("node") is None:
        pytest.skip("there is no node here")
    for file in (PAGE / "request.js", PAGE / "dom.js", HERE / "clients/resnet/sample/cat.png"):
        shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "build.js").write_text(SCRIPT)
    wanted = {"client": client, "record": record, "parameters": {}, "origin": f"{box.url}/", **overrides}
    built = json.loads(run(folder, "node", "build.js", json.dumps(wanted)))
    if built["file"]:
        (folder / "request.json").write_text(built["file"])
    code: dict[str, str] = built["shown"]
    assert tuple(code) == LANGUAGES
    return code


def answer(folder: Path, language: str, code: str) -> Any:
    """Run code as a user would; return its answer."""
    if language == "Python requests":  # print(response.json()) prints a Python literal, not JSON
        return ast.literal_eval(run(folder, sys.executable, "-c", code))
    if language == "Python boto3":
        return json.loads(run(folder, sys.executable, "-c", code))
    if language == "JavaScript":  # console.log does not print JSON
        name = "cat.png" if "cat.png" in code else "request.json"
        head = FILE % name if "body: file" in code else ""
        body = code.replace("console.log(", "(value => console.log(JSON.stringify(value)))(")
        (folder / "shown.mjs").write_text(head + body)
        return json.loads(run(folder, "node", "shown.mjs"))
    printed = run(folder, "bash", "-c", code)
    return json.loads((folder / "answer.json").read_text() if language == "AWS CLI" else printed)


def test_the_code_for_a_text_gives_the_same_result_in_every_language(box: RunningBox, tmp_path: Path) -> None:
    client = {"name": "bert_base", "mainField": "text", "contentTypes": ["text/plain"]}
    sentence = 'It\'s a [MASK] "day" in Zürich.'
    code = shown_code(tmp_path, box, client, {"text": sentence})
    expected = box.invoke("bert_base", {"text": sentence}).json()
    assert [answer(tmp_path, *each) for each in code.items()] == [expected] * len(LANGUAGES)


def test_the_code_for_a_picture_works_in_every_language(box: RunningBox, tmp_path: Path) -> None:
    client = {"name": "resnet", "mainField": "image", "contentTypes": ["image/png"]}
    code = shown_code(tmp_path, box, client, {}, picture="cat.png", parameters={"top": 2})
    results = {language: answer(tmp_path, language, text)["result"] for language, text in code.items()}
    assert {language: len(rows) for language, rows in results.items()} == dict.fromkeys(LANGUAGES, 2)
    assert all("Egyptian cat" in rows[0] for rows in results.values())


def test_the_code_for_long_json_reads_it_from_a_file(box: RunningBox, tmp_path: Path) -> None:
    client = {"name": "resnet", "mainField": "image", "contentTypes": ["image/png"], "count": 2}
    code = shown_code(tmp_path, box, client, {}, picture="cat.png")
    for language in ("Python boto3", "JavaScript"):
        assert len(answer(tmp_path, language, code[language])["result"]) == 2
