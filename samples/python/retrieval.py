"""Answers questions from passages: embedder, reranker and language model, by optimum-intel in one asyncio program:

    python retrieval.py FOLDER DEVICE PASSAGES.txt QUESTION… [--tokens 64]

FOLDER has the folders embedder, reranker and decoder, as `optimum-cli export openvino` wrote each (tasks
feature-extraction, text-classification and text-generation-with-past), or all of them as `ov-hsdag plan` did: the
program is the same. PASSAGES.txt has a passage in each line. A question is embedded, the closest passages are reranked,
and the language model answers from the best, while the next questions are embedded and reranked. A line for each.
"""

import argparse
import asyncio
import time
from pathlib import Path

import torch
from optimum.intel import OVModelForCausalLM, OVModelForFeatureExtraction, OVModelForSequenceClassification
from transformers import AutoTokenizer


class Stage:
    """A model with its tokenizer; it runs one call at a time, in a thread."""

    def __init__(self, kind: type, folder: Path, device: str) -> None:
        """Loads model and tokenizer.

        Args:
            kind: class of optimum-intel for the model.
            folder: the exported model.
            device: device string of compile_model.
        """
        self.model, self.tokenizer = kind.from_pretrained(folder, device=device), AutoTokenizer.from_pretrained(folder)
        self.free = asyncio.Lock()

    async def run(self, tokens: dict, method: str = "forward", **more: object) -> object:
        """Calls a method of the model when no other call runs.

        Args:
            tokens: inputs by name, from `tokens`.
            method: name of the method.
            more: further arguments of the method.

        Returns:
            The result of the method.
        """
        async with self.free:
            return await asyncio.to_thread(getattr(self.model, method), **tokens, **more)

    def tokens(self, *texts: list[str]) -> dict:
        """Tokenizes texts, or pairs of texts from two lists."""
        return self.tokenizer(*texts, return_tensors="pt", padding=True, truncation=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("device")
    parser.add_argument("passages", type=Path)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    embedder = Stage(OVModelForFeatureExtraction, args.folder / "embedder", args.device)
    reranker = Stage(OVModelForSequenceClassification, args.folder / "reranker", args.device)
    decoder = Stage(OVModelForCausalLM, args.folder / "decoder", args.device)

    async def embedded(texts: list[str]) -> torch.Tensor:
        """A row of length 1 for each text: the mean over its tokens."""
        tokens = embedder.tokens(texts)
        rows = (await embedder.run(tokens)).last_hidden_state * tokens["attention_mask"][..., None]
        return torch.nn.functional.normalize(rows.sum(1))

    async def answered(question: str) -> str:
        close = (embeddings @ (await embedded([question]))[0]).topk(min(4, len(passages))).indices.tolist()
        pairs = reranker.tokens([question] * len(close), [passages[number] for number in close])
        best = passages[close[int((await reranker.run(pairs)).logits[:, -1].argmax())]]
        prompt = decoder.tokens([f"{best}\n\n{question}\n"])
        prompt.pop("token_type_ids", None)
        found = await decoder.run(prompt, "generate", max_new_tokens=args.tokens, do_sample=False)
        return f"{question!r}: {decoder.tokenizer.decode(found[0, prompt['input_ids'].shape[1] :])!r}, from {best!r}"

    passages = args.passages.read_text(encoding="utf-8").splitlines()
    embeddings, begin = await embedded(passages), time.perf_counter()
    print(*await asyncio.gather(*map(answered, args.questions)), sep="\n")
    print(f"{len(args.questions) / (time.perf_counter() - begin):.2f} answers per second on {args.device}")


if __name__ == "__main__":
    asyncio.run(main())
