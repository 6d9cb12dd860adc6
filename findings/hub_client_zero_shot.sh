#!/usr/bin/env bash
# huggingface_hub's InferenceClient cannot read what transformers' zero-shot pipeline answers.
# Why it matters: a server of one's own that answers with the pipeline's result, as SageMaker's Hugging Face container
# does, serves every other client; this one raises, though both are by the same makers, and the server said 200.
#
# Guess: InferenceClient(url).zero_shot_classification(...) reads the pipeline's {"sequence", "labels", "scores"}.
# Seen: transformers 5.23.0 returns that object. huggingface_hub 2.4.0 wants a list of {"label", "score"}, and raises
# "ValueError: Invalid input data for <class '...ZeroShotClassificationOutputElement'>. Expected a list, but got ...".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check huggingface_hub==2.4.0 transformers==5.23.0 numpy
cat >"$folder/ask.py" <<'PYTHON'
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
from huggingface_hub import InferenceClient
from transformers.pipelines.zero_shot_classification import ZeroShotClassificationPipeline


class Logits(np.ndarray):
    """An array with the two methods of a tensor that the pipeline calls."""

    def float(self):
        return self

    def numpy(self):
        return np.asarray(self)


def row(label, *scores):
    logits = np.array([scores], np.float32).view(Logits)
    return {"candidate_label": label, "sequence": "My parcel is late.", "logits": logits, "is_last": True}


pipeline = object.__new__(ZeroShotClassificationPipeline)
pipeline.framework = "pt"
pipeline.model = SimpleNamespace(config=SimpleNamespace(label2id={"contradiction": 0, "neutral": 1, "entailment": 2}))
answer = pipeline.postprocess([row("delivery", -1, 0, 2), row("payment", 2, 0, -1)])
answer = {**answer, "scores": [float(score) for score in answer["scores"]]}
print("the pipeline:", json.dumps(answer))


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = InferenceClient(f"http://127.0.0.1:{server.server_port}")
try:
    print("the client:", client.zero_shot_classification(answer["sequence"], answer["labels"]))
except ValueError as error:
    print("the client refuses:", str(error)[:160])
PYTHON
output=$("$folder/env/bin/python" "$folder/ask.py" 2>/dev/null)
echo "$output"
grep -q '^the pipeline: {"sequence".*"labels".*"scores"' <<<"$output"
grep -q '^the client refuses: .*Expected a list' <<<"$output"
