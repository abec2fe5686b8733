"""A detector with classifiers behind it on several streams, plain OpenVINO in one asyncio program:

    python detector_and_classifiers.py FOLDER DEVICE [--streams 4] [--crops 4] [--seconds 10]

FOLDER holds detector.xml and any classifiers (every other .xml), as they are or as `ov-hsdag plan` wrote them: the
program is the same. Each stream takes frame after frame; each frame goes through the detector, and then so many crops
of it through each classifier, all at once. Frames and crops are random numbers. Prints frames per second.
"""

import argparse
import asyncio
import time
from pathlib import Path

import numpy as np
import openvino as ov


class Model:
    """A compiled model with its requests; `infer` waits for an idle one."""

    def __init__(self, core: ov.Core, path: Path, device: str) -> None:
        """Compiles the model for throughput, with as many requests as it asks for.

        Args:
            core: compiles the model.
            path: file of the model.
            device: device string of compile_model.
        """
        self.compiled = core.compile_model(path, device, {"PERFORMANCE_HINT": "THROUGHPUT"})
        self.idle: asyncio.Queue = asyncio.Queue()
        for _ in range(self.compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")):
            self.idle.put_nowait(self.compiled.create_infer_request())
        shapes = [
            [1 if size.is_dynamic else size.get_length() for size in port.partial_shape]
            for port in self.compiled.inputs
        ]
        self.inputs = [np.random.default_rng(0).random(shape, np.float32) for shape in shapes]

    async def infer(self) -> np.ndarray:
        """Runs the model once; returns a copy of its first output."""
        request, loop = await self.idle.get(), asyncio.get_running_loop()
        done = loop.create_future()
        request.set_callback(lambda _: loop.call_soon_threadsafe(done.set_result, None), None)
        request.start_async(self.inputs)
        await done
        request.wait()  # raises the error of a failed inference
        output = np.array(request.get_output_tensor(0).data)
        self.idle.put_nowait(request)
        return output


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("device")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--crops", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    core = ov.Core()
    detector = Model(core, args.folder / "detector.xml", args.device)
    others = sorted(path for path in args.folder.glob("*.xml") if path.stem != "detector")
    classifiers = [Model(core, path, args.device) for path in others]
    frames, end = 0, time.perf_counter() + args.seconds

    async def stream() -> None:
        nonlocal frames
        while time.perf_counter() < end:
            await detector.infer()
            await asyncio.gather(*(model.infer() for model in classifiers for _ in range(args.crops)))
            frames += 1

    begin = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(args.streams)))
    names = ", ".join(["detector", *(path.stem for path in others)])
    print(f"{names} on {args.device}: {frames / (time.perf_counter() - begin):.2f} frames per second")


if __name__ == "__main__":
    asyncio.run(main())
