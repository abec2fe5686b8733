"""Transcribes recordings with Whisper, several at once, with optimum-intel alone in one asyncio program:

    python transcription.py FOLDER DEVICE RECORDING.wav… [--at-once 2] [--tokens 200]

FOLDER is what `optimum-cli export openvino` wrote, or `ov-hsdag place FOLDER --together`: the program is the same.
Recordings have 16 kHz, one channel and 16 bits; what is beyond 30 s is left out. Each of those at once has a model of
its own, so that the encoder of one runs beside the decoder of another. Prints a line for each recording, in order.
"""

import argparse
import asyncio
import time
import wave

import numpy as np
from optimum.intel import OVModelForSpeechSeq2Seq
from transformers import AutoTokenizer, WhisperFeatureExtractor


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("device")
    parser.add_argument("recordings", nargs="+")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    extractor = WhisperFeatureExtractor.from_pretrained(args.folder)
    idle: asyncio.Queue = asyncio.Queue()
    for _ in range(args.at_once):
        idle.put_nowait(OVModelForSpeechSeq2Seq.from_pretrained(args.folder, device=args.device))

    async def transcribed(path: str) -> str:
        with wave.open(path) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / np.float32(1 << 15)
            features = extractor(samples, sampling_rate=file.getframerate(), return_tensors="pt").input_features
        model = await idle.get()
        tokens = await asyncio.to_thread(model.generate, features, max_new_tokens=args.tokens, do_sample=False)
        idle.put_nowait(model)
        return f"{path}: {tokenizer.decode(tokens[0], skip_special_tokens=True).strip()!r}"

    begin = time.perf_counter()
    print(*await asyncio.gather(*map(transcribed, args.recordings)), sep="\n")
    print(f"{len(args.recordings) / (time.perf_counter() - begin):.2f} recordings per second on {args.device}")


if __name__ == "__main__":
    asyncio.run(main())
