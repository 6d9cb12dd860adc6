"""Write the sample's golden answer: the trained model in torch, as the client would answer.

    python model/bert_base/recipe/golden.py --encoder FOLDER

FOLDER holds gte-small's ``model.onnx`` and ``tokenizer.json``. Nothing of the client, of the built
graph or of ONNX Runtime is used: torch's softmax over the whole vocabulary, and its five best.
"""

import argparse
import json
from pathlib import Path

import torch
from check import trained
from encoder import MaskedLanguageModel
from tokenizers import Tokenizer

SAMPLE = Path(__file__).parents[3] / "clients" / "bert_base" / "sample"


@torch.no_grad()
def answer(model: MaskedLanguageModel, tokenizer: Tokenizer, text: str) -> list[dict[str, object]]:
    """The five best sentences for a text with one mask."""
    ids = torch.tensor([tokenizer.encode(text).ids])
    wanted = ids == tokenizer.token_to_id("[MASK]")
    best = model(ids, torch.ones_like(ids), wanted)[0].softmax(-1).topk(5)
    words = [tokenizer.id_to_token(index) for index in best.indices.tolist()]
    return [
        {"token": text.replace("[MASK]", word), "score": round(score, 6)}
        for word, score in zip(words, best.values.tolist(), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True)
    encoder = parser.parse_args().encoder
    tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    tokenizer.no_padding()
    text = json.loads((SAMPLE / "payload.json").read_text(encoding="utf-8"))["text"]
    found = answer(trained(encoder), tokenizer, text)
    golden = json.dumps(found, indent=2, ensure_ascii=False)
    (SAMPLE / "golden.json").write_text(f"{golden}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
