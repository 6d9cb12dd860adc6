"""Compare the built graph, on ONNX Runtime, with the model that was trained, in torch.

    python model/bert_base/recipe/check.py --encoder FOLDER --model model.onnx

FOLDER holds gte-small's ``model.onnx`` and ``tokenizer.json``. Random ids, several batch sizes and
lengths, rows padded to different degrees; ends with status 1 if any logit differs by over 0.001.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from encoder import MaskedLanguageModel, onnx_weights
from train import EMBEDDING_RANK, RANK, SEED

ADAPTERS = Path(__file__).with_name("adapters.npz")
SHAPES = ((1, 3), (1, 17), (4, 9), (8, 64), (3, 200), (1, 512))
TOLERANCE = 1e-3


def trained(encoder: Path) -> MaskedLanguageModel:
    """The torch model with the committed adapters."""
    model = MaskedLanguageModel(onnx_weights(encoder / "model.onnx"), RANK, EMBEDDING_RANK)
    with np.load(ADAPTERS) as adapters:
        state = {name: torch.tensor(adapters[name].astype(np.float32)) for name in adapters.files}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) & set(dict(model.named_parameters())):
        raise ValueError(f"{ADAPTERS} does not fit: {unexpected} {missing}")
    return model.eval()


def difference(
    model: MaskedLanguageModel, session: onnxruntime.InferenceSession, rows: int, length: int
) -> float:
    """The largest difference of any logit that is not of padding."""
    rng = np.random.default_rng([SEED, rows, length])
    ids = rng.integers(0, 30522, (rows, length))
    lengths = rng.integers(1, length + 1, rows)
    lengths[0] = length
    attention = (np.arange(length) < lengths[:, None]).astype(np.int64)
    inputs = {"input_ids": ids, "attention_mask": attention, "token_type_ids": np.zeros_like(ids)}
    (served,) = session.run(["logits"], inputs)
    wanted = torch.tensor(attention).bool()
    with torch.no_grad():
        expected = model(torch.tensor(ids), torch.tensor(attention), wanted).numpy()
    return float(np.abs(served[wanted.numpy()] - expected).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    model = trained(options.encoder)
    session = onnxruntime.InferenceSession(options.model, providers=["CPUExecutionProvider"])
    found = [difference(model, session, *shape) for shape in SHAPES]
    for shape, value in zip(SHAPES, found, strict=True):
        print(f"{shape[0]} sentences of {shape[1]} word pieces: largest difference {value:.1e}")
    sys.exit(0 if max(found) < TOLERANCE else f"over {TOLERANCE}: the graph is not the model")


if __name__ == "__main__":
    main()
