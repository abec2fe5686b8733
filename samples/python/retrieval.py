"""Answers questions from a file of passages: embedder, reranker and language model, with optimum-intel alone in one
asyncio program:

    python retrieval.py FOLDER DEVICE PASSAGES.txt QUESTION… [--best 4] [--tokens 64]

FOLDER has the folders embedder, reranker and decoder, as `optimum-cli export openvino` wrote each (tasks
feature-extraction, text-classification and text-generation-with-past), or all of them as `ov-hsdag plan` did: the
program is the same. PASSAGES.txt has a passage in each line. A question is embedded, the closest passages are reranked,
and the language model answers from the best. While one question is answered the next ones are embedded and reranked.
Prints a line for each question, in their order.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from optimum.intel import OVModelForCausalLM, OVModelForFeatureExtraction, OVModelForSequenceClassification
from transformers import AutoTokenizer


class Stage:
    """A model with its tokenizer, which does one thing at a time, in a thread."""

    def __init__(self, kind: type, folder: Path, device: str) -> None:
        self.model, self.tokenizer = kind.from_pretrained(folder, device=device), AutoTokenizer.from_pretrained(folder)
        self.free = asyncio.Lock()

    async def run(self, what: Callable, *given: object) -> object:
        async with self.free:
            return await asyncio.to_thread(what, self, *given)

    def tokens(self, *texts: Sequence[str]) -> dict:
        return self.tokenizer(*map(list, texts), return_tensors="pt", padding=True, truncation=True)


def embedded(stage: Stage, texts: Sequence[str]) -> torch.Tensor:
    """A row of length 1 for each text: the mean over its tokens."""
    tokens = stage.tokens(texts)
    mask = tokens["attention_mask"][..., None]
    rows = (stage.model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(rows)


def scores(stage: Stage, question: str, passages: Sequence[str]) -> torch.Tensor:
    return stage.model(**stage.tokens([question] * len(passages), passages)).logits[:, -1]


def answer(stage: Stage, prompt: str, most: int) -> str:
    tokens = stage.tokens([prompt])
    tokens.pop("token_type_ids", None)
    found = stage.model.generate(**tokens, max_new_tokens=most, do_sample=False)
    return stage.tokenizer.decode(found[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True).strip()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("device")
    parser.add_argument("passages", type=Path)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--best", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    embedder = Stage(OVModelForFeatureExtraction, args.folder / "embedder", args.device)
    reranker = Stage(OVModelForSequenceClassification, args.folder / "reranker", args.device)
    decoder = Stage(OVModelForCausalLM, args.folder / "decoder", args.device)
    passages = args.passages.read_text(encoding="utf-8").splitlines()
    known = await embedder.run(embedded, passages)

    async def answered(question: str) -> str:
        asked = await embedder.run(embedded, [question])
        close = [passages[n] for n in (known @ asked[0]).topk(min(args.best, len(passages))).indices.tolist()]
        best = close[int((await reranker.run(scores, question, close)).argmax())]
        found = await decoder.run(answer, f"{best}\n\n{question}\n", args.tokens)
        return f"{question!r}: {found!r}, from {best!r}"

    begin = time.perf_counter()
    print(*await asyncio.gather(*map(answered, args.questions)), sep="\n")
    print(f"{len(args.questions) / (time.perf_counter() - begin):.2f} answers per second on {args.device}")


if __name__ == "__main__":
    asyncio.run(main())
