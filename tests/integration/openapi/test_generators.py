"""Clients that two generators write from ``/openapi.json`` call the three models of a real box."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.boxes import RunningBox
from tests.support.demo_box import box, demo

__all__ = ["box", "demo"]

NODE_PACKAGES = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3")
#: The classes are named in the code, so that a schema without a class of its own fails.
PYTHON_CALLS = """
import base64, json, sys
from generated import Client
from generated.api.inference import invoke
from generated.models import (
    BertBaseAnswer, BertBasePayload, BertBaseRequest, ResnetAnswer, ResnetOptions, ResnetPayload, ResnetRequest,
    Yolov5Answer, Yolov5Options, Yolov5OptionsFormat, Yolov5Payload, Yolov5Request,
)
url, cat, chelsea = sys.argv[1:]
client = Client(base_url=url, timeout=60, raise_on_unexpected_status=True)
picture = lambda path: base64.b64encode(open(path, "rb").read()).decode()
requests = {
    BertBaseAnswer: BertBaseRequest("bert_base", BertBasePayload("Paris is the [MASK] of France.")),
    ResnetAnswer: ResnetRequest("resnet", ResnetPayload(image=picture(cat)), parameters=ResnetOptions(top=2)),
    Yolov5Answer: Yolov5Request("yolov5", [Yolov5Payload(image=picture(chelsea))],
                                parameters=Yolov5Options(format_=Yolov5OptionsFormat.DETECTIONS)),
}
for kind, body in requests.items():
    answer = invoke.sync(client=client, body=body)
    assert type(answer) is kind, answer
    print(json.dumps(answer.to_dict()))
"""
TYPESCRIPT_CALLS = """
import createClient from "openapi-fetch";
import { readFileSync } from "node:fs";
import type { components, paths } from "./api";

const [url, cat, chelsea] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url! });
const picture = (path: string) => readFileSync(path).toString("base64");
const bodies: [
  components["schemas"]["bert_base.Request"],
  components["schemas"]["resnet.Request"],
  components["schemas"]["yolov5.Request"],
] = [
  { modelname: "bert_base", payload: { text: "Paris is the [MASK] of France." } },
  { modelname: "resnet", payload: { image: picture(cat!) }, parameters: { top: 2 } },
  { modelname: "yolov5", payload: [{ image: picture(chelsea!) }],
    parameters: { format: "detections", confidence: 0.5, iou: 0.45 } },
];
for (const body of bodies) {
  const { data, error } = await client.POST("/invocations", { body });
  if (error) throw new Error(error.error);
  console.log(JSON.stringify(data));
}
"""
OPTIONS = {
    "strict": True,
    "target": "es2022",
    "module": "es2022",
    "moduleResolution": "bundler",
    "types": ["node"],
}
TSCONFIG = {"compilerOptions": OPTIONS, "files": ["calls.ts"]}


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def check_answers(box: RunningBox, printed: str) -> None:
    """The answers are those that an ordinary caller gets."""
    bert, resnet, yolov5 = map(json.loads, printed.splitlines())
    assert bert == box.invoke("bert_base", {"text": "Paris is the [MASK] of France."}).json()
    assert ["cat" in row for row in resnet["result"]] == [True, True]
    assert [each["label"] for each in yolov5["result"][0]] == ["cat"]


SAMPLES = (str(HERE / "clients/resnet/sample/cat.png"), str(HERE / "clients/yolov5/sample/chelsea.jpg"))


@pytest.mark.exhaustive
def test_openapi_python_client_generates_a_client_that_calls_every_model(
    box: RunningBox, tmp_path: Path
) -> None:
    run(tmp_path, sys.executable, "-m", "venv", "env")
    run(tmp_path, "env/bin/pip", "install", "--quiet", "openapi-python-client>=0.25,<0.30")
    python = str(tmp_path / "env" / "bin" / "python")
    generate = [python, "-m", "openapi_python_client", "generate", "--meta", "none", "--output-path"]
    said = run(tmp_path, *generate, "generated", "--url", f"{box.url}/openapi.json")
    assert not any(words in said for words in ("Unable to", "will not be generated"))
    check_answers(box, run(tmp_path, python, "-c", PYTHON_CALLS, box.url, *SAMPLES))


@pytest.mark.exhaustive
def test_openapi_typescript_generates_types_for_calls_to_every_model(box: RunningBox, tmp_path: Path) -> None:
    if not shutil.which("npm"):
        pytest.skip("there is no node here")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(json.dumps(TSCONFIG))
    (tmp_path / "calls.ts").write_text(TYPESCRIPT_CALLS)
    run(tmp_path, "npm", "install", "--silent", "--no-audit", "--no-fund", *NODE_PACKAGES, "@types/node@20")
    run(tmp_path, "node_modules/.bin/openapi-typescript", f"{box.url}/openapi.json", "--output", "api.d.ts")
    run(tmp_path, "node_modules/.bin/tsc")
    check_answers(box, run(tmp_path, "node", "calls.js", box.url, *SAMPLES))
