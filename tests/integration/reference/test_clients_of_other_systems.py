"""The clients of other systems, as they come from their registries, are served by a box.

Each runs in an environment of its own, with pinned versions (November 2026).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.client_environments import node_folder_with, python_with, run
from tests.support.onnx_graphs import write_graph
from tests.support.rerankers import DOCUMENTS, QUERY, write_reranker
from tests.support.task_models import new_model, write_text_model

PEOPLE = """(int64[b,1] age, float[b,1] income) => (float[b,1] sum, int64[b,1] same) {
    years = Cast<to = 1>(age)
    sum = Add(years, income)
    same = Identity(age)
}"""
#: Two columns, the second of which counts ten times.
MATRIX = "(float[b,2] X) => (float[b,1] y) <float[2,1] w = {1, 10}> { y = MatMul(X, w) }"
#: 1 for Rome, else 0, and the word itself.
CITIES = """(string[b,1] city, float[b,1] size) => (float[b,1] rome, string[b,1] word, float[b,1] big)
    <string[1] known = {"Rome"}> {
    same = Equal(city, known)
    rome = Cast<to = 1>(same)
    word = Identity(city)
    big = Identity(size)
}"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that ``sm new-model`` wrote: a reranker, embeddings, labels, spans, answers and tables."""
    folder = tmp_path_factory.mktemp("clients")
    source = folder / "source"
    new_model("ranker", folder, write_reranker(source / "ranker"), "--task", "text-classification")
    for name, task, labels in (
        ("sentences", "sentence-embeddings", ()),
        ("mood", "text-classification", ("sad", "glad", "mad")),
    ):
        write_text_model(source / name, task, labels)
        new_model(name, folder, source / name, "--task", task)
    for name, text in (("people", PEOPLE), ("matrix", MATRIX), ("cities", CITIES)):
        write_graph(source / name / "model.onnx", text, opset=19)
        new_model(name, folder, source / name / "model.onnx", "--task", "tabular")
    return folder / "model"


@pytest.fixture
def box(boxes: Boxes, models: Path) -> RunningBox:
    return boxes(models, SAGEMAKER_MODEL_SERVER_WORKERS="1")


SEARCH = (
    "cohere==7.3.1",
    "litellm==1.110.2",
    "llama-index-embeddings-text-embeddings-inference==0.6.0",
    "llama-index-postprocessor-tei-rerank==0.6.0",
    "huggingface_hub==2.4.0",
)
#: The ranking of each client: places, scores, and the documents where it gives them.
RANK = """
import json, os, sys
url, query, documents = sys.argv[1], os.environ["QUERY"], json.loads(os.environ["DOCUMENTS"])
found = {}

import cohere
for kind in (cohere.ClientV2, cohere.Client):
    client = kind(api_key="none", base_url=url)
    answer = client.rerank(model="ranker", query=query, documents=documents, top_n=3)
    found[kind.__name__] = [[row.index, row.relevance_score] for row in answer.results]
try:
    cohere.ClientV2(api_key="none", base_url=url).rerank(model="mood", query=query, documents=documents)
except cohere.NotFoundError as error:
    found["unknown"] = error.body["code"]

import litellm
def litellm_ranks(provider, base, **options):
    answer = litellm.rerank(
        model=f"{provider}/ranker", query=query, documents=documents, top_n=3, api_base=base, api_key="none",
        return_documents=True, **options,
    )
    return [[row["index"], row["relevance_score"], row["document"]["text"]] for row in answer.results]
for provider, base in (
    ("cohere", url), ("hosted_vllm", url), ("hosted_vllm", f"{url}/v1"), ("infinity", f"{url}/infinity"),
    ("jina_ai", url), ("voyage", url), ("huggingface", url),
):
    found[f"litellm {provider} {base.removeprefix(url)}"] = litellm_ranks(provider, base)

from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
nodes = [NodeWithScore(node=TextNode(text=text), score=0) for text in documents]
ranked = TextEmbeddingInference(base_url=url, top_n=3).postprocess_nodes(nodes, QueryBundle(query))
found["llama_index"] = [[documents.index(node.text), node.score] for node in ranked]
print(json.dumps(found))
"""
INFINITY = """
import json, os, sys
from infinity_client import Client
from infinity_client.api.default import rerank
from infinity_client.models import RerankInput
documents = json.loads(os.environ["DOCUMENTS"])
body = RerankInput(query=os.environ["QUERY"], documents=documents, model="ranker", return_documents=True, top_n=3)
answer = rerank.sync(client=Client(base_url=f"{sys.argv[1]}/infinity"), body=body)
rows = [[row.index, row.relevance_score, row.document] for row in answer.results]
print(json.dumps({"infinity_client": rows}))
"""
VOYAGE = """
import json, os, sys
import voyageai
client = voyageai.Client(api_key="none", base_url=f"{sys.argv[1]}/v1")
answer = client.rerank(os.environ["QUERY"], json.loads(os.environ["DOCUMENTS"]), model="ranker", top_k=3)
rows = [[row.index, row.relevance_score, row.document] for row in answer.results]
print(json.dumps({"voyageai": rows}))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("requirements", "script", "clients"),
    [(SEARCH, RANK, 10), (("infinity_client==0.0.78",), INFINITY, 1), (("voyageai==0.5.0",), VOYAGE, 1)],
    ids=["search", "infinity_client", "voyageai"],
)
def test_every_client_that_ranks_gets_the_same_ranking(
    box: RunningBox, requirements: tuple[str, ...], script: str, clients: int
) -> None:
    python = python_with(*requirements)
    expected = requests.post(
        f"{box.url}/v1/rerank",
        json={"model": "ranker", "query": QUERY, "documents": DOCUMENTS, "top_n": 3},
        timeout=60,
    ).json()["results"]
    found = run(
        [python, "-c"],
        script,
        box.url,
        QUERY=QUERY,
        DOCUMENTS=json.dumps(DOCUMENTS),
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    assert found.pop("unknown", "model_not_found") == "model_not_found"
    assert len(found) == clients
    for name, rows in found.items():
        places = [row[0] for row in rows]
        assert places == [row["index"] for row in expected], name
        scores = [row["relevance_score"] for row in expected]
        assert [row[1] for row in rows] == pytest.approx(scores, abs=1e-6), name
        assert all(row[2:] in ([], [DOCUMENTS[row[0]]]) for row in rows), name


EMBED = """
import json, os, sys
url, texts, found = sys.argv[1], json.loads(os.environ["TEXTS"]), {}

from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
for endpoint in ("/embed", "/embed?modelname=sentences", "/invocations?modelname=sentences"):
    client = TextEmbeddingsInference(model_name="any", base_url=url, endpoint=endpoint)
    found[endpoint] = client.get_text_embedding_batch(texts)

from huggingface_hub import InferenceClient
for path in ("/embed", "/invocations?modelname=sentences"):
    client = InferenceClient(url + path)
    for options in (
        {}, {"normalize": True, "truncate": True}, {"truncate": True, "truncation_direction": "right"}
    ):
        found[f"hub {path} {options}"] = client.feature_extraction(texts, **options).tolist()
    found[f"longer {path}"] = client.feature_extraction(texts, normalize=False).tolist()
    found[f"left {path}"] = client.feature_extraction(texts, truncate=True, truncation_direction="left").tolist()
    found[f"short {path}"] = client.feature_extraction(texts[:1], dimensions=2).tolist()
print(json.dumps(found))
"""
TEXTS = ["ada lives in paris", "ada " * 200 + "where does she live ? " * 300]


@pytest.mark.exhaustive
def test_clients_of_text_embeddings_inference_get_vectors(box: RunningBox) -> None:
    python = python_with(*SEARCH)
    body = {"model": "sentences", "input": TEXTS}
    answer = requests.post(f"{box.url}/v1/embeddings", json=body, timeout=60).json()
    expected = [row["embedding"] for row in answer["data"]]
    found = run([python, "-c"], EMBED, box.url, TEXTS=json.dumps(TEXTS))
    for path in ("/embed", "/invocations?modelname=sentences"):
        longer, left = found.pop(f"longer {path}"), found.pop(f"left {path}")
        np.testing.assert_allclose(
            np.array(longer) / np.linalg.norm(longer, axis=1, keepdims=True), expected, atol=1e-5
        )
        assert not np.allclose(np.linalg.norm(longer, axis=1), 1)
        np.testing.assert_allclose(left[0], expected[0], atol=1e-5)
        assert not np.allclose(left[1], expected[1], atol=1e-5)
        head = np.array(expected[0][:2])
        np.testing.assert_allclose(found.pop(f"short {path}"), [head / np.linalg.norm(head)], atol=1e-5)
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, expected, atol=1e-5, err_msg=name)


KSERVE = """
import asyncio, json, sys
from kserve import InferenceRESTClient, RESTConfig, InferRequest, InferInput
url, client = sys.argv[1], InferenceRESTClient(RESTConfig(protocol="v2"))

async def ask():
    tensor = InferInput("X", [2, 2], "FP32", [1.0, 2.0, 3.0, 4.0])
    answer = await client.infer(url, InferRequest(model_name="matrix", infer_inputs=[tensor]), model_name="matrix")
    return {
        "ready": await client.is_server_ready(url),
        "live": await client.is_server_live(url),
        "model": await client.is_model_ready(url, "matrix"),
        "unknown": await client.is_model_ready(url, "nothing"),
        "answer": answer.outputs[0].data,
    }
print(json.dumps(asyncio.run(ask())))
"""


@pytest.mark.exhaustive
def test_kserves_client_asks_whether_the_box_is_ready_and_infers(box: RunningBox) -> None:
    found = run([python_with("kserve==0.21.0"), "-c"], KSERVE, box.url)
    assert found == {"ready": True, "live": True, "model": True, "unknown": False, "answer": [21.0, 43.0]}


SDK = """
import io, json, sys
import numpy as np, requests
from sagemaker.core import deserializers as d, serializers as s
url, rows, found = sys.argv[1], [[1.0, 2.0], [3.0, 4.0]], {}

def ask(model, serializer, deserializer, data):
    accept = ", ".join(deserializer.ACCEPT)
    headers = {"Content-Type": serializer.CONTENT_TYPE, "Accept": accept}
    answer = requests.post(
        f"{url}/invocations?modelname={model}", data=serializer.serialize(data), headers=headers
    )
    assert answer.status_code == 200, (answer.status_code, answer.text)
    return deserializer.deserialize(io.BytesIO(answer.content), answer.headers["Content-Type"])

array = np.array(rows, np.float32)
found["json"] = ask("matrix", s.JSONSerializer(), d.JSONDeserializer(), array)
found["instances"] = ask("matrix", s.JSONSerializer(), d.JSONDeserializer(), {"instances": rows})
found["numpy"] = ask("matrix", s.NumpySerializer(), d.NumpyDeserializer(), array).tolist()
found["csv"] = ask("matrix", s.CSVSerializer(), d.CSVDeserializer(), rows)
found["csv to numpy"] = ask("matrix", s.CSVSerializer(), d.NumpyDeserializer(accept="text/csv"), rows).tolist()
found["json to numpy"] = ask(
    "matrix", s.JSONSerializer(), d.NumpyDeserializer(accept="application/json"), array
).tolist()
found["json to pandas"] = ask("people", s.JSONSerializer(), d.PandasDeserializer(accept="application/json"), [[1, 2]]
    ).to_dict(orient="records")
found["csv to pandas"] = list(ask("matrix", s.CSVSerializer(), d.PandasDeserializer(accept="text/csv"), rows))
found["lines"] = ask("people", s.CSVSerializer(), d.JSONLinesDeserializer(), [[31, 5], [64, 7]])
found["json to lines"] = ask("matrix", s.JSONSerializer(), d.JSONLinesDeserializer(), rows)
found["missing"] = [
    ask("matrix", s.JSONSerializer(), d.JSONDeserializer(), [[1.0, float("nan")], [None, 2.0], [1.0, 2.0]]),
    ask("matrix", s.CSVSerializer(), d.CSVDeserializer(), "1,\\n3,4"),
]
print(json.dumps(found))
"""


@pytest.mark.exhaustive
def test_what_the_sagemaker_sdk_serializes_is_read_and_it_reads_the_answers(box: RunningBox) -> None:
    found = run([python_with("sagemaker-core==2.27.0", "pandas==2.3.3"), "-c"], SDK, box.url)
    assert found == {
        "json": [21, 43],
        "instances": {"predictions": [21, 43]},
        "numpy": [21, 43],
        "csv": [["21.0"], ["43.0"]],
        "csv to numpy": [21, 43],
        "json to numpy": [21, 43],
        "json to pandas": [{"sum": 3, "same": 1}],
        "csv to pandas": ["21.0"],  # pandas takes the first line for a header
        "lines": [{"sum": 36, "same": 31}, {"sum": 71, "same": 64}],
        "json to lines": [{"y": 21}, {"y": 43}],
        "missing": [[None, None, 21], [["nan"], ["43.0"]]],
    }


#: Answers of MLflow's own server to each body, from a model that counts as the box's does.
MLFLOW = """
import json, os, sys, tempfile
import mlflow, numpy as np
from mlflow.pyfunc import scoring_server

class Matrix(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        if isinstance(model_input, dict):
            model_input = np.stack([np.asarray(column) for column in model_input.values()], axis=1)
        return np.asarray(model_input, float) @ np.array([1.0, 10.0])

folder = tempfile.mkdtemp() + "/model"
mlflow.pyfunc.save_model(folder, python_model=Matrix(), pip_requirements=["mlflow"])
model = mlflow.pyfunc.load_model(folder)
answers = [
    scoring_server.invocations(json.dumps(body), "application/json", model, None)
    for body in json.loads(os.environ["BODIES"])
]
print(json.dumps([json.loads(answer.response) for answer in answers]))
"""
FRAME = {"columns": ["0", "1"], "index": [0, 1], "data": [[1.0, 2.0], [3.0, 4.0]]}
MLFLOW_BODIES: list[dict[str, Any]] = [
    {"dataframe_split": FRAME},
    {"dataframe_split": {name: FRAME[name] for name in ("columns", "data")}, "params": {}},
    {"dataframe_records": [{"0": 1.0, "1": 2.0}, {"0": 3.0, "1": 4.0}]},
    {"inputs": [[1.0, 2.0], [3.0, 4.0]]},
    {"inputs": {"0": [1.0, 3.0], "1": [2.0, 4.0]}},
    {"instances": [[1.0, 2.0], [3.0, 4.0]]},
    {"instances": [{"0": 1.0, "1": 2.0}, {"0": 3.0, "1": 4.0}]},
]


@pytest.mark.exhaustive
def test_a_table_gets_the_answers_of_mlflows_own_server(box: RunningBox) -> None:
    python = python_with("mlflow==3.17.2")
    expected = run([python, "-c"], MLFLOW, box.url, BODIES=json.dumps(MLFLOW_BODIES))
    found = [
        requests.post(f"{box.url}/invocations?modelname=matrix", json=body, timeout=60).json()
        for body in MLFLOW_BODIES
    ]
    assert found == expected == [{"predictions": [21, 43]}] * len(MLFLOW_BODIES)


JAVASCRIPT = """
const { SageMakerRuntimeClient, InvokeEndpointCommand } = require("@aws-sdk/client-sagemaker-runtime");
const client = new SageMakerRuntimeClient({
  endpoint: process.argv[1], region: "eu-west-1", credentials: { accessKeyId: "a", secretAccessKey: "b" },
});
async function ask(model, body, ContentType) {
  const command = new InvokeEndpointCommand({
    EndpointName: "any", Body: JSON.stringify(body), ContentType, CustomAttributes: `modelname=${model}`,
  });
  try {
    return JSON.parse(Buffer.from((await client.send(command)).Body).toString());
  } catch (error) {
    return [error.OriginalStatusCode, JSON.parse(error.OriginalMessage).code];
  }
}
(async () => console.log(JSON.stringify({
  read: await ask("mood", { inputs: "ada lives" }),
  typed: await ask("mood", { inputs: "ada lives" }, "application/json"),
  named: await ask("mood", { payload: "ada lives", modelname: "mood" }),
})))();
"""


@pytest.mark.exhaustive
def test_the_sdk_for_javascript_need_not_name_a_content_type(box: RunningBox) -> None:
    folder = node_folder_with("@aws-sdk/client-sagemaker-runtime@3.1161.0")
    found = run(["node", "-e"], JAVASCRIPT, box.url, NODE_PATH=str(folder / "node_modules"))
    assert found["read"] == found["typed"]
    assert found["read"][0].keys() == {"label", "score"}
    assert found["named"] == [415, "unsupported_content_type"]


def test_a_tabular_model_takes_words(box: RunningBox, models: Path) -> None:
    golden = json.loads((models / "cities" / "sample" / "golden.json").read_text())
    assert golden == [{"rome": 0, "word": "a", "big": 0}]
    rows = [{"city": "Rome", "size": 2.5}, {"city": "Ürümqi", "size": None}, {"city": "", "size": 1}]
    answer = box.invoke("cities", {"rows": rows}).json()["result"]
    assert answer == [
        {"rome": 1, "word": "Rome", "big": 2.5},
        {"rome": 0, "word": "Ürümqi", "big": None},
        {"rome": 0, "word": "", "big": 1},
    ]
    csv = box.send(b"city,size\nRome,\n", "text/csv", params={"modelname": "cities"}).json()
    assert csv["result"] == [{"rome": 1, "word": "Rome", "big": None}]


@pytest.mark.parametrize(
    "accept", ["text/csv", "application/json", "application/x-npy", "application/jsonlines"]
)
def test_no_answer_has_a_charset_that_its_type_does_not_need(box: RunningBox, accept: str) -> None:
    answer = box.send(b"1,2\n", "text/csv", headers={"Accept": accept}, params={"modelname": "matrix"})
    assert answer.headers["Content-Type"] == accept
    assert "charset" not in requests.get(f"{box.url}/v2/health/live", timeout=30).headers["Content-Type"]


def test_the_paths_of_health_have_the_protocols_bodies(box: RunningBox) -> None:
    for path, body in (
        ("health/live", {"live": True}),
        ("health/ready", {"ready": True}),
        ("models/matrix/ready", {"name": "matrix", "ready": True}),
    ):
        answer = requests.get(f"{box.url}/v2/{path}", timeout=30)
        assert (answer.status_code, answer.json()) == (200, body)
        assert requests.head(f"{box.url}/v2/{path}", timeout=30).status_code == 200


def test_only_a_post_to_v2_rerank_is_cohere_and_all_else_is_triton(box: RunningBox) -> None:
    assert requests.get(f"{box.url}/v2/rerank", timeout=30).status_code == 404
    body = {"model": "ranker", "query": QUERY, "documents": ["ada"], "rank_fields": ["a"]}
    answer = requests.post(f"{box.url}/v2/rerank", json=body, timeout=30)
    assert (answer.status_code, answer.json()["param"]) == (400, "rank_fields")
    assert requests.get(f"{box.url}/v2/models/matrix", timeout=30).json()["name"] == "matrix"
