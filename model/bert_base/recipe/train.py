"""Teach gte-small to fill masks again: low-rank adapters on every matrix, and a head.

    python model/bert_base/recipe/train.py --encoder FOLDER --out adapters.npz [--steps N]

FOLDER holds gte-small's ``model.onnx`` and ``tokenizer.json``. The learning rate warms up, stays, and
falls to nothing over the last quarter of ``--steps``. A run that is stopped resumes from its checkpoint
at the start of a new pass, also with another ``--steps``.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from corpus import glosses, is_held_out
from encoder import MaskedLanguageModel, onnx_weights
from heldout import SEED, Question, encoded, questions
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

RANK, EMBEDDING_RANK = 20, 16
TOKENS_PER_BATCH = 1280
MASK_SHARE = 0.2
PEAK, WARM_UP, FALL = 1.5e-3, 100, 0.25
PAD, UNKNOWN, CLS, SEP, MASK = 0, 100, 101, 102, 103
SPECIAL = torch.tensor([PAD, UNKNOWN, CLS, SEP, MASK])
WORDS = 30522

#: The first pass ends here; until then every gloss is seen, afterwards only this share of them in each
#: pass, so that examples and fortunes, which resemble what people write, are the greater part.
FIRST_PASS, GLOSS_SHARE = 1500, 1 / 3


class Text:
    """The encoded sentences, batched by length and masked anew on each pass."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        pairs, definitions = encoded(tokenizer), glosses()
        self.train = [(ids, text in definitions) for text, ids in pairs if not is_held_out(text)]
        self.questions = questions(tokenizer, pairs, 500)

    def batches(self, epoch: int) -> Iterator[list[list[int]]]:
        """One pass: batches of like lengths, in a random order that the epoch fixes."""
        rng = random.Random(SEED + epoch)
        kept = [ids for ids, gloss in self.train if epoch == 0 or not gloss or rng.random() < GLOSS_SHARE]
        batches: list[list[list[int]]] = [[]]
        for ids in sorted(kept, key=lambda ids: (len(ids), rng.random())):
            if len(batches[-1]) * len(ids) >= TOKENS_PER_BATCH:
                batches.append([])
            batches[-1].append(ids)
        rng.shuffle(batches)
        yield from batches[: FIRST_PASS if epoch == 0 else None]


def padded(batch: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Ids and attention mask, int64 [b, s]."""
    width = max(map(len, batch))
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in batch])
    return ids, (ids != PAD).long()


def mask(ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """BERT's masking: of the chosen places 80 % masked, 10 % another word, 10 % left."""
    wanted = (torch.rand(ids.shape, generator=generator) < MASK_SHARE) & ~torch.isin(ids, SPECIAL)
    dice = torch.rand(ids.shape, generator=generator)
    masked = torch.where(wanted & (dice < 0.8), MASK, ids)
    other = torch.randint(1000, WORDS, ids.shape, generator=generator)
    return torch.where(wanted & (dice > 0.9), other, masked), wanted


@torch.no_grad()
def accuracy(model: MaskedLanguageModel, asked: list[Question]) -> dict[str, float]:
    """Top-1 and top-5 on held-out words."""
    hits = np.zeros(5)
    for start in range(0, len(asked), 50):
        part = asked[start : start + 50]
        ids, attention = padded([list(question.ids) for question in part])
        wanted = torch.zeros(ids.shape, dtype=torch.bool)
        wanted[torch.arange(len(part)), torch.tensor([question.place for question in part])] = True
        best = model(ids.masked_fill(wanted, MASK), attention, wanted).topk(5).indices
        hits += (best == ids[wanted][:, None]).sum(0).numpy()
    return {"words": len(asked), "top_1": hits[0] / len(asked), "top_5": hits.sum() / len(asked)}


def learning_rate(step: int, steps: int) -> float:
    """Warm up, stay, fall."""
    return PEAK * min(step / WARM_UP, 1.0, max(steps - step, 0) / (FALL * steps))


class Training:
    """A model, its optimizer and how far it is."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(SEED)
        self.text = Text(Tokenizer.from_file(str(options.encoder / "tokenizer.json")))
        weights = onnx_weights(options.encoder / "model.onnx")
        self.model = MaskedLanguageModel(weights, RANK, EMBEDDING_RANK)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.0, betas=(0.9, 0.98))
        self.step = self.epoch = 0
        self.losses: list[float] = []
        self.started = time.monotonic()
        if options.checkpoint.exists():
            self.resume()

    def resume(self) -> None:
        state = torch.load(self.options.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.epoch = state["step"], state["epoch"] + 1

    def run(self) -> None:
        while self.step < self.options.steps:
            generator = torch.Generator().manual_seed(SEED + self.epoch)
            for batch in self.text.batches(self.epoch):
                self.learn(batch, generator)
                self.report()
                if self.step == self.options.steps:
                    break
            self.epoch += 1

    def learn(self, batch: list[list[int]], generator: torch.Generator) -> None:
        """One step. A batch in which the dice mask nothing adds nothing."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.options.steps)
        ids, attention = padded(batch)
        masked, wanted = mask(ids, generator)
        loss = functional.cross_entropy(self.model(masked, attention, wanted), ids[wanted], reduction="sum")
        loss = loss / max(int(wanted.sum()), 1)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.step += 1

    def report(self) -> None:
        """A line now and then; more rarely the accuracy, a checkpoint and the adapters so far."""
        if self.step % 50 == 0:
            seconds, loss = time.monotonic() - self.started, np.mean(self.losses[-50:])
            print(f"step {self.step} epoch {self.epoch} loss {loss:.3f} {seconds:.0f} s", flush=True)
        if self.step % 250 == 0 or self.step == self.options.steps:
            print("held out:", json.dumps(accuracy(self.model, self.text.questions)), flush=True)
            self.save()

    def save(self) -> None:
        """The checkpoint, and the trained parameters alone in half precision."""
        trained = dict(self.model.named_parameters())
        state = {"model": trained, "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "step": self.step, "epoch": self.epoch}, self.options.checkpoint)
        half = {name: value.detach().numpy().astype(np.float16) for name, value in trained.items()}
        np.savez(self.options.out, **half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    Training(parser.parse_args()).run()


if __name__ == "__main__":
    main()
