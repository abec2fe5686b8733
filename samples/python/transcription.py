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
from pathlib import Path

import numpy as np
from optimum.intel import OVModelForSpeechSeq2Seq
from transformers import AutoTokenizer, WhisperFeatureExtractor


def read(path: Path) -> np.ndarray:
    """Samples between -1 and 1."""
    with wave.open(str(path)) as recording:
        if (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) != (16000, 1, 2):
            raise SystemExit(f"{path} is not of 16 kHz, one channel and 16 bits")
        return np.frombuffer(recording.readframes(recording.getnframes()), np.int16) / np.float32(1 << 15)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("device")
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    extractor = WhisperFeatureExtractor.from_pretrained(args.folder)
    idle: asyncio.Queue = asyncio.Queue()
    for _ in range(args.at_once):
        idle.put_nowait(OVModelForSpeechSeq2Seq.from_pretrained(args.folder, device=args.device))

    def text(model: OVModelForSpeechSeq2Seq, path: Path) -> str:
        features = extractor(read(path), sampling_rate=16000, return_tensors="pt").input_features
        tokens = model.generate(input_features=features, max_new_tokens=args.tokens, do_sample=False)
        return tokenizer.decode(tokens[0], skip_special_tokens=True).strip()

    async def transcribed(path: Path) -> str:
        model = await idle.get()
        try:
            return await asyncio.to_thread(text, model, path)
        finally:
            idle.put_nowait(model)

    begin = time.perf_counter()
    for path, found in zip(args.recordings, await asyncio.gather(*map(transcribed, args.recordings)), strict=True):
        print(f"{path.name}: {found!r}")
    print(f"{len(args.recordings) / (time.perf_counter() - begin):.2f} recordings per second on {args.device}")


if __name__ == "__main__":
    asyncio.run(main())
