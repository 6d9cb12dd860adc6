"""The examples bert_encode, efficientnet_lite and t5_translate in one real box."""

from __future__ import annotations

import importlib
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from tokenizers import Tokenizer

from sm.client.images import decode
from sm.client.preprocessing import Preprocessing
from sm.commands.golden import differences
from sm.settings import HERE, Settings
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.other_triton import needs
from trireme_tools.prepare import example_repositories
from trireme_tools.prepare.recipes import PACKAGE, Recipe

NAMES = ("bert_encode", "efficientnet_lite", "t5_translate")
SAMPLES = {name: HERE / "examples" / name / "repository" / "code" / name / "sample" for name in NAMES}
LITE = "efficientnet_lite"
SENTENCES = (
    "A kitten sleeps on a sunny wall.",
    "Cats like to lie where it is warm.",
    "The central bank raised its interest rate again.",
    "Borrowing money has become more expensive.",
)
PROMPT, TRANSLATION = "translate English to German: The house is wonderful.", "Das Haus ist wunderbar."
#: A text whose translation takes many tokens.
LONG_PROMPT = "translate English to German: " + "The house is wonderful and the garden is large. " * 12
NEEDS_STRINGS = needs("strings")


def sample(name: str, file: str) -> Any:
    return json.loads((SAMPLES[name] / file).read_bytes())


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples' models and clients in one repository."""
    folder = tmp_path_factory.mktemp("examples") / "model"
    (folder / "code").mkdir(parents=True)
    for name in NAMES:
        for path in example_repositories.prepare(Settings.read({}), name).glob("[!.]*"):
            for source in path.iterdir() if path.name == "code" else (path,):
                (folder / source.relative_to(path.parent)).symlink_to(source)
    return folder


@pytest.fixture
def box(boxes: Boxes, repository: Path) -> RunningBox:
    """A box whose models have a small pool of shared memory."""
    return boxes(repository, SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE=str(2**20))


def tensors(**arrays: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The v2 request of a caller that makes its own tensors, of 32-bit integers or floats."""

    def tensor(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
        datatype = "FP32" if array.dtype == np.float32 else "INT32"
        return {"name": name, "shape": array.shape, "datatype": datatype, "data": array.ravel().tolist()}

    return {"inputs": [tensor(*each) for each in arrays.items()]}


def word_pieces(rows: int = 1, length: int = 128) -> dict[str, Any]:
    """The request of the reference system's caller: each row has other word pieces, padded to the length."""
    ids = np.zeros((rows, length), np.int32)
    ids[:, :8] = 2000 + np.arange(rows * 8).reshape(rows, 8)
    return tensors(token_ids=ids, attn_mask=(ids > 0).astype(np.int32))


def token_request(rows: list[list[int]], mask: list[list[int]] | None = None) -> dict[str, Any]:
    """The v2 request of a caller that has a tokenizer."""
    ids = np.array(rows, np.int32)
    return tensors(input_ids=ids, attention_mask=np.array(mask, np.int32) if mask else np.ones_like(ids))


def infer(box: RunningBox, model: str, body: dict[str, Any], route: str = "infer") -> requests.Response:
    return requests.post(f"{box.url}/v2/models/{model}/{route}", json=body, timeout=60)


@pytest.mark.parametrize("name", ["bert_encode", pytest.param("t5_translate", marks=NEEDS_STRINGS)])
def test_the_sample_gives_the_golden_answer(box: RunningBox, name: str) -> None:
    result = box.invoke(name, sample(name, "payload.json")).json()["result"]
    assert list(differences(result, sample(name, "golden.json"))) == []


def test_sentences_of_similar_meaning_have_similar_vectors(box: RunningBox) -> None:
    answer = box.invoke("bert_encode", [{"text": text} for text in SENTENCES]).json()
    vectors = np.array([result["embedding"] for result in answer["result"]])
    similarities = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(similarities), 1, atol=1e-5)
    assert min(similarities[0, 1], similarities[2, 3]) > 0.3
    assert similarities[:2, 2:].max() < 0.1


def test_the_reference_systems_tensors_are_accepted_and_returned(box: RunningBox) -> None:
    through_dispatch = requests.post(
        f"{box.url}/invocations?modelname=bert_encode", json=word_pieces(2), timeout=60
    )
    pooled = []
    for response in (infer(box, "bert_encode", word_pieces(2)), through_dispatch):
        outputs = {output["name"]: output for output in response.json()["outputs"]}
        shapes = {name: output["shape"] for name, output in outputs.items()}
        assert shapes == {"output": [2, 128, 384], "pooled_output": [2, 384]}
        pooled.append(outputs["pooled_output"]["data"])
    np.testing.assert_allclose(pooled[0], pooled[1], atol=1e-5)


@pytest.mark.parametrize("name", sample(LITE, "golden-pictures.json"))
def test_a_picture_gets_the_five_labels_of_pytorch(box: RunningBox, name: str) -> None:
    assert list(differences(classify(box, name), sample(LITE, "golden-pictures.json")[name])) == []


def classify(box: RunningBox, name: str, **parameters: str) -> Any:
    """Send a sample picture as the raw body, with the parameters in the query."""
    kind = "image/png" if name.endswith("png") else "image/jpeg"
    query = {"modelname": LITE, **parameters}
    response = box.send((SAMPLES[LITE] / name).read_bytes(), kind, params=query)
    assert response.status_code == 200, response.text
    return response.json()["result"]


def test_a_caller_can_get_more_labels_probabilities_or_logits(box: RunningBox, repository: Path) -> None:
    assert [row["label"] for row in classify(box, "coffee.jpg", k="1")] == ["espresso"]
    assert len(classify(box, "coffee.jpg", k="1000")) == 1000
    probabilities = np.array(classify(box, "cat.png", output="probabilities"))
    logits = np.array(classify(box, "cat.png", output="logits"))
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    labels = (repository / LITE / "labels.txt").read_text().splitlines()
    assert labels[probabilities.argmax()] == sample(LITE, "golden-pictures.json")["cat.png"][0]["label"]
    assert np.exp(logits) / np.exp(logits).sum() == pytest.approx(probabilities, abs=1e-5)


@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_tritons_classification_extension_gives_class_names(
    box: RunningBox, repository: Path, output: str
) -> None:
    pixels = decode((SAMPLES[LITE] / "coffee.jpg").read_bytes())
    tensor = Preprocessing.read(repository / LITE / "preprocess.json")(pixels)[None]
    body = tensors(input=tensor) | {"outputs": [{"name": output, "parameters": {"classification": 3}}]}
    rows = [row.split(":", 2) for row in infer(box, LITE, body).json()["outputs"][0]["data"]]
    golden = sample(LITE, "golden-pictures.json")["coffee.jpg"][:3]
    assert [label for _, _, label in rows] == [row["label"] for row in golden]


@pytest.mark.parametrize("content", [b"", b"PK\3\4", pickle.dumps(1), None])
def test_a_file_that_is_no_weights_file_or_unpickles_anything_but_tensors_is_refused(
    content: bytes | None,
) -> None:
    Recipe.load(HERE / "examples" / LITE)  # makes its package importable
    reader: Any = importlib.import_module(f"{PACKAGE}.{LITE}.state_dict")
    file = io.BytesIO(pickle.dumps(reader.MAGIC) + pickle.dumps(print) if content is None else content)
    with pytest.raises(reader.RefusedFile):
        reader.read(file)


def request_stream(box: RunningBox, text: str, **parameters: object) -> requests.Response:
    """Request a stream of events; the body of the response is not read yet."""
    body = {"modelname": "t5_translate", "payload": {"text": text}, "parameters": parameters}
    headers = {"Accept": "text/event-stream"}
    return requests.post(f"{box.url}/invocations", json=body, headers=headers, stream=True, timeout=60)


def read_parts(response: requests.Response, key: str = "result") -> list[str]:
    return [json.loads(line[6:])[key] for line in response.text.splitlines() if line.startswith("data: ")]


@NEEDS_STRINGS
def test_tokens_are_streamed_and_join_to_the_translation(box: RunningBox) -> None:
    parts = read_parts(request_stream(box, PROMPT))
    assert (len(parts) > 4, "".join(parts)) == (True, TRANSLATION)
    assert "".join(read_parts(request_stream(box, PROMPT, max_tokens=2))) == "Das Haus"
    own = infer(box, "t5_translate", {"text": PROMPT}, "generate_stream")  # Triton's own needs only the text
    assert "".join(read_parts(own, "token")) == TRANSLATION


@NEEDS_STRINGS
@pytest.mark.parametrize(
    ("name", "text", "parameters", "field"),
    [
        *(("bert_encode", text, {}, "payload.text") for text in ("", "word " * 200)),
        *(("t5_translate", text, {}, "payload.text") for text in ("", "  ", "word " * 600, "word " * 6000)),
        *(("t5_translate", PROMPT, {"max_tokens": most}, "parameters.max_tokens") for most in (0, 257)),
    ],
)
def test_an_unsupported_text_or_parameter_is_a_422_with_its_field(
    box: RunningBox, name: str, text: str, parameters: dict[str, Any], field: str
) -> None:
    responses = [box.invoke(name, {"text": text}, parameters=parameters)]
    responses += [request_stream(box, text, **parameters)] if name == "t5_translate" else []
    for response in responses:
        assert (response.status_code, response.json()["field"]) == (422, field), response.text


@NEEDS_STRINGS
def test_hanging_up_stops_the_model_between_tokens(box: RunningBox) -> None:
    response = request_stream(box, LONG_PROMPT, max_tokens=256)
    assert next(response.iter_lines(chunk_size=1)).startswith(b"data: ")
    response.close()
    wait_until(lambda: "caller went away after " in box.log.read_text(), 20, "the model's line")


@NEEDS_STRINGS
def test_token_ids_are_translated_to_token_ids(box: RunningBox, repository: Path) -> None:
    tokenizer = Tokenizer.from_file(str(repository / "t5_translate" / "tokenizer.json"))
    body = token_request([tokenizer.encode(PROMPT).ids])
    (output,) = infer(box, "t5_tokens", body).json()["outputs"]
    assert (output["name"], output["datatype"]) == ("output", "INT32")
    assert output["data"] == [0, *tokenizer.encode(TRANSLATION).ids]


FLOATS = np.zeros((1, 128), np.float32)
UNKNOWN_WORD = word_pieces()
UNKNOWN_WORD["inputs"][0]["data"][3] = 99_999
STREAM = "generate_stream"  # which bypasses the client


@pytest.mark.parametrize(
    ("model", "route", "body"),
    [
        ("bert_encode", "infer", tensors(token_ids=FLOATS, attn_mask=FLOATS)),
        ("bert_encode", "infer", word_pieces(length=64)),
        ("bert_encode", "infer", word_pieces(rows=17)),
        ("bert_encode", "infer", UNKNOWN_WORD),
        ("t5_tokens", "infer", token_request([[5, 40_000, 1]])),
        ("t5_tokens", "infer", token_request([[5, -1, 1]])),
        ("t5_tokens", "infer", token_request([[5, 6, 1]], [[0, 0, 0]])),
        ("t5_tokens", "infer", token_request([[5, 6, 1]], [[1, 1]])),
        ("t5_tokens", "infer", token_request([[5] * 513])),
    ],
)
def test_the_model_itself_refuses_invalid_tensors_with_a_400(
    box: RunningBox, model: str, route: str, body: dict[str, Any]
) -> None:
    response = infer(box, model, body, route)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


@NEEDS_STRINGS
@pytest.mark.parametrize("body", [{"text": PROMPT, "max_tokens": 0}, {"text": " "}])
def test_what_a_model_refuses_in_a_stream_is_its_failure_as_triton_loses_the_code(
    box: RunningBox, body: dict[str, Any]
) -> None:
    response = infer(box, "t5_translate", body, STREAM)
    assert (response.status_code, response.json()["code"]) == (500, "model_failed")
