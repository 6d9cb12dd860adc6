#!/usr/bin/env bash
# litellm's clients for vLLM and for Infinity send the same request to the same path, and each fails on the answer
# that the other reads.
# Why it matters: one server cannot serve both at one address, whatever it answers; the two need paths of their own.
#
# Guess: both read Cohere's form, {"results": [{"index", "relevance_score", "document": …}]}, so that any answer of
# that form serves both.
# Seen: with litellm 1.110.2 the two requests are equal to the byte. "hosted_vllm/" needs "document": {"text": …} and
# fails on a text; "infinity/" needs "document": "…" and fails on an object.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/env/bin/python" - <<'PYTHON'
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import litellm

seen, document = [], None


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        seen.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        row = {"index": 0, "relevance_score": 0.5, "document": document}
        body = json.dumps({"id": "1", "results": [row], "usage": {"total_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
litellm.suppress_debug_info = True
found = {}
for document in ("ada", {"text": "ada"}):
    for provider in ("hosted_vllm", "infinity"):
        try:
            answer = litellm.rerank(
                model=f"{provider}/ranker",
                query="who",
                documents=["ada"],
                api_base=f"http://127.0.0.1:{server.server_port}",
                api_key="none",
            )
            outcome = answer.results[0]["document"]
        except Exception as error:
            outcome = type(error).__name__
        found[provider, json.dumps(document)] = outcome
        print(provider, "reads", document, "as", outcome)
assert len(set(seen)) == 1, seen
print("all requests:", *seen[0])
assert found["hosted_vllm", '{"text": "ada"}'] == found["infinity", '"ada"'] == {"text": "ada"}, found
assert isinstance(found["hosted_vllm", '"ada"'], str), found
assert isinstance(found["infinity", '{"text": "ada"}'], str), found
PYTHON
