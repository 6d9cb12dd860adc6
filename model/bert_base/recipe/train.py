"""Teach gte-small to fill masks again: low-rank adapters on every matrix, and a head.

    python model/bert_base/recipe/train.py --encoder FOLDER --out adapters.npz [--steps N]

FOLDER holds ``model.onnx`` and ``tokenizer.json``. The learning rate warms up, stays, and falls to
nothing over the last fifth of ``--steps``; a run that is stopped resumes from its checkpoint, also
with another ``--steps`` (fewer steps: it starts to fall at once).
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from corpus import is_held_out, sentences
from encoder import MaskedLanguageModel, onnx_weights
from tokenizers import Tokenizer
from torch import Tensor

SEED = 20
RANK, EMBEDDING_RANK = 20, 16
TOKENS_PER_BATCH = 1280
MASK_SHARE = 0.2
PEAK, WARM_UP, FALL = 1.5e-3, 100, 0.2
SPECIAL = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}


class Text:
    """The encoded sentences, batched by length and masked anew on each pass."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        texts = sentences()
        encoded = tokenizer.encode_batch(texts)
        pairs = list(zip(texts, (e.ids for e in encoded), strict=True))
        self.train = [ids for text, ids in pairs if len(ids) <= 64 and not is_held_out(text)]
        self.held_out = [ids for text, ids in pairs if len(ids) <= 64 and is_held_out(text)]
        vocabulary = tokenizer.get_vocab()
        self.is_word = np.zeros(len(vocabulary), bool)
        for word, index in vocabulary.items():
            self.is_word[index] = word.isalpha() and word.isascii()

    def batches(self, seed: int) -> Iterator[list[list[int]]]:
        """One pass: batches of like lengths, in a random order that the seed fixes."""
        rng = random.Random(seed)
        order = sorted(self.train, key=lambda ids: (len(ids), rng.random()))
        batches: list[list[list[int]]] = [[]]
        for ids in order:
            if len(batches[-1]) * len(ids) >= TOKENS_PER_BATCH:
                batches.append([])
            batches[-1].append(ids)
        rng.shuffle(batches)
        yield from batches


def padded(batch: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, batch))
    ids = torch.tensor([row + [SPECIAL["pad"]] * (width - len(row)) for row in batch])
    return ids, (ids != SPECIAL["pad"]).long()


def mask(ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """BERT's masking: of the chosen places 80 % masked, 10 % another word, 10 % left."""
    special = torch.isin(ids, torch.tensor(list(SPECIAL.values())))
    wanted = (torch.rand(ids.shape, generator=generator) < MASK_SHARE) & ~special
    dice = torch.rand(ids.shape, generator=generator)
    masked = torch.where(wanted & (dice < 0.8), SPECIAL["mask"], ids)
    other = torch.randint(1000, 30522, ids.shape, generator=generator)
    return torch.where(wanted & (dice > 0.9), other, masked), wanted


def accuracy(model: MaskedLanguageModel, text: Text, words: int = 500) -> dict[str, float]:
    """Top-1 and top-5 on held-out words: one whole word masked in each of ``words`` sentences."""
    rng = random.Random(SEED)
    rows, places = [], []
    for ids in rng.sample(text.held_out, len(text.held_out)):
        # A whole word: itself a word piece, and not followed by a continuation of it.
        choices = [
            i
            for i in range(1, len(ids) - 1)
            if text.is_word[ids[i]] and (text.is_word[ids[i + 1]] or ids[i + 1] < 1997)
        ]
        if choices:
            rows.append(ids)
            places.append(rng.choice(choices))
        if len(rows) == words:
            break
    first = fifth = 0
    model.eval()
    with torch.no_grad():
        for start in range(0, words, 50):
            ids, attention = padded(rows[start : start + 50])
            at = torch.tensor(places[start : start + 50])
            line = torch.arange(len(at))
            answer = ids[line, at]
            masked = ids.clone()
            masked[line, at] = SPECIAL["mask"]
            wanted = torch.zeros(ids.shape, dtype=torch.bool)
            wanted[line, at] = True
            best = model(masked, attention, wanted).topk(5).indices == answer[:, None]
            first += int(best[:, 0].sum())
            fifth += int(best.sum())
    model.train()
    return {"words": words, "top_1": first / words, "top_5": fifth / words}


def learning_rate(step: int, steps: int) -> float:
    fall = FALL * steps
    return PEAK * min(step / WARM_UP, 1.0, max(steps - step, 0) / fall)


def save(model: MaskedLanguageModel, path: Path) -> None:
    """The trained parameters alone, in half precision."""
    parameters = dict(model.named_parameters())
    np.savez(path, **{name: p.detach().numpy().astype(np.float16) for name, p in parameters.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    options = parser.parse_args()
    torch.manual_seed(SEED)
    text = Text(Tokenizer.from_file(str(options.encoder / "tokenizer.json")))
    model = MaskedLanguageModel(onnx_weights(options.encoder / "model.onnx"), RANK, EMBEDDING_RANK)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, betas=(0.9, 0.98))
    size = sum(p.numel() for p in model.parameters())
    print(f"{len(text.train)} sentences, {len(text.held_out)} held out, {size:,} parameters", flush=True)
    step = epoch = 0
    if options.checkpoint.exists():
        state = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(state["model"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        step, epoch = state["step"], state["epoch"] + 1
    generator = torch.Generator().manual_seed(SEED + epoch)
    started, losses = time.monotonic(), []
    while step < options.steps:
        for batch in text.batches(SEED + epoch):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, options.steps)
            ids, attention = padded(batch)
            masked, wanted = mask(ids, generator)
            if not wanted.any():
                continue
            loss = torch.nn.functional.cross_entropy(model(masked, attention, wanted), ids[wanted])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            step += 1
            if step % 50 == 0:
                seconds = time.monotonic() - started
                print(
                    f"step {step}/{options.steps} epoch {epoch} loss {np.mean(losses[-50:]):.3f} {seconds:.0f} s",
                    flush=True,
                )
            if step % 250 == 0 or step == options.steps:
                print("held out:", json.dumps(accuracy(model, text)), flush=True)
                trained = {name: p for name, p in model.named_parameters()}
                torch.save(
                    {"model": trained, "optimizer": optimizer.state_dict(), "step": step, "epoch": epoch},
                    options.checkpoint,
                )
                save(model, options.out)
            if step >= options.steps:
                break
        epoch += 1


if __name__ == "__main__":
    main()
