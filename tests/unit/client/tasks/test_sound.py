"""Tasks of sound hear in recordings what transformers' own preprocessing and decoding make of the same graph."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import soundfile
from numpy.typing import NDArray
from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

from sm.client.base import TensorClient
from sm.errors import BadInput, StartError
from tests.support.task_models import ask, load_task, tones, write_sound_model
from trireme_extensions.tasks.checkpoint.sounds import sounds
from trireme_extensions.tasks.sound import read_recording, resample

SPEECH, SOUNDS = "automatic-speech-recognition", "audio-classification"


def recording(samples: NDArray[Any], rate: int = 16_000, format: str = "WAV", **options: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> TensorClient:
    return load_task(write_sound_model(tmp_path_factory.mktemp("model") / "speech", SPEECH), task=SPEECH)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3", "OGG"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_a_recording_of_every_format_and_rate_says_the_same(
    speech: TensorClient, format: str, rate: int
) -> None:
    assert ask(speech, audio=recording(tones("abba cab", rate), rate, format)) == {"text": "abba cab"}


def test_speech_equals_that_of_transformers(tmp_path: Path) -> None:
    folder = write_sound_model(tmp_path / "sound", SPEECH)
    samples = tones("abc ba") + np.random.default_rng(5).normal(0, 0.2, 19_200).astype(np.float32)
    extracted = Wav2Vec2FeatureExtractor.from_pretrained(folder)(samples, sampling_rate=16_000)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (logits,) = session.run(None, {"input_values": np.stack(extracted["input_values"])})
    text = Wav2Vec2CTCTokenizer.from_pretrained(folder).decode(logits[0].argmax(axis=1))
    assert ask(load_task(folder, task=SPEECH), audio=recording(samples, subtype="FLOAT")) == {"text": text}


@pytest.mark.parametrize("cleaned", [True, False])
def test_speech_is_cleaned_up_as_transformers_does(tmp_path: Path, cleaned: bool) -> None:
    folder = write_sound_model(tmp_path / "sound", SPEECH)
    numbers = json.loads((folder / "vocab.json").read_text())
    numbers |= {"'": numbers.pop("a"), "s": numbers.pop("c")}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    described = json.loads((folder / "tokenizer_config.json").read_text())
    described["clean_up_tokenization_spaces"] = cleaned
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    client = load_task(folder, task=SPEECH, **sounds(folder, is_speech=True))
    right = Wav2Vec2CTCTokenizer.from_pretrained(folder).decode([numbers[token] for token in "b|'s|b"])
    assert ask(client, audio=recording(tones("b ac b"))) == {"text": right}
    assert right == ("b's b" if cleaned else "b 's b")


WAV = recording(np.linspace(-1, 1, 1600, dtype=np.float32))
UNKNOWN = b"\0\0\0\0"


@pytest.mark.parametrize(
    ("format", "options"),
    [("WAV", {}), ("WAV", {"endian": "BIG"}), ("RF64", {}), ("WAVEX", {}), ("WAV", {"subtype": "FLOAT"})],
)
@pytest.mark.parametrize("streamed", [b"", UNKNOWN, b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"])
def test_a_wav_that_was_written_to_a_pipe_is_read_to_its_end(
    format: str, options: dict[str, Any], streamed: bytes
) -> None:
    content = recording(np.linspace(-1, 1, 1600, dtype=np.float32), format=format, **options)
    length = content.index(b"data") + 4
    if format == "RF64":
        content = content[:28] + (b"" if streamed else content[28:36]) + streamed[:1] * 8 + content[36:]
    elif streamed:
        content = content[:4] + streamed + content[8:length] + streamed + content[length + 4 :]
    if format == "RF64" and streamed[:1] == b"\xff":
        return  # 64 bits of ones are no length that a program writes
    assert len(read_recording(content, 16_000, 1)) == 1600


def test_a_wav_whose_header_is_all_it_has_is_empty_whatever_the_header_says() -> None:
    for length in (UNKNOWN, b"\1\0\0\0"):
        with pytest.raises(BadInput):
            read_recording(WAV[:40] + length, 16_000, 1)


def test_several_channels_become_one() -> None:
    left = np.linspace(-1, 1, 50, dtype=np.float32)
    stereo = recording(np.stack([left, np.zeros_like(left)], axis=1), subtype="FLOAT")
    np.testing.assert_allclose(read_recording(stereo, 16_000, 1), left / 2, atol=1e-6)


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_a_tone_keeps_its_pitch_at_another_rate_and_a_higher_one_does_not_fold_back(rate: int) -> None:
    def tone(pitch: int, rate: int) -> Any:
        return np.sin(2 * np.pi * pitch * np.arange(rate) / rate).astype(np.float32)

    np.testing.assert_allclose(resample(tone(440, rate), rate, 16_000), tone(440, 16_000), atol=1e-5)
    if rate > 30_000:
        assert np.abs(resample(tone(15_000, rate), rate, 16_000)).max() < 1e-3


BAD = {
    "text": b"not a recording",
    "header": b"RIFF\x24\0\0\0WAVE",
    "cut": recording(tones("ab"), format="FLAC")[:60] + bytes(200),
    "empty": recording(np.zeros(0, np.float32)),
    "nan": recording(np.array([0, np.nan], np.float32), subtype="FLOAT"),
    "channels": recording(np.zeros((9, 9), np.float32)),
    "rate": recording(np.zeros(9, np.float32), 400_000),
    # Three hours, in a file of less than 1 MB.
    "hours": recording(np.zeros(3 * 3600 * 1000, np.int16), 1000, "FLAC"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_recording_is_a_400(speech: TensorClient, name: str) -> None:
    with pytest.raises(BadInput):
        ask(speech, audio=BAD[name])


def test_a_model_of_fixed_length_gets_silence_behind_a_short_recording(tmp_path: Path) -> None:
    folder = write_sound_model(tmp_path / "sound", SOUNDS)
    model = onnx.load(folder / "model.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 16_000
    onnx.save(model, folder / "model.onnx")
    client = load_task(folder, task=SOUNDS, normalise=False)
    assert ask(client, audio=recording(tones("a")), parameters={"top": 1})[0]["label"] == "1"  # no labels.txt
    with pytest.raises(BadInput):
        ask(client, audio=recording(tones("abcabc")))


@pytest.mark.parametrize("vocabulary", [["a"], {"<pad>": 0, "a": 1}, {"a": 1}])
def test_a_vocabulary_that_does_not_fit_stops_the_start(tmp_path: Path, vocabulary: Any) -> None:
    folder = write_sound_model(tmp_path / "speech", SPEECH)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(StartError, match=r"vocab\.json|<pad>"):
        load_task(folder, task=SPEECH)
