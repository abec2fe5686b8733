"""Compare devices on one model: python throughput.py MODEL DEVICE [DEVICE …]

Plain OpenVINO: compiles the model for each device, compares its outputs with those of the last device, and measures
inferences per second with several requests in flight. The devices take turns, so that whatever else the machine does
falls on all of them alike; medians over the rounds are reported. Exit status 1 when outputs differ.
"""

import argparse
import statistics
import sys
import time

import numpy as np
import openvino as ov

TOLERANCE = 1e-3  # accepted difference of outputs, as a share of the largest value: far above rounding errors in f32

UNEVEN = 1.3  # ratio of the fastest to the slowest round above which a warning is printed


def random_inputs(compiled: ov.CompiledModel) -> list[np.ndarray]:
    """One random array per input; dynamic dimensions are 1, integers are 0 or 1 (valid as ids and as masks)."""
    random = np.random.default_rng(0)
    arrays = []
    for port in compiled.inputs:
        shape = [1 if dimension.is_dynamic else dimension.get_length() for dimension in port.partial_shape]
        dtype = port.element_type.to_dtype()
        if np.issubdtype(dtype, np.floating):
            arrays.append(random.standard_normal(shape).astype(dtype))
        else:
            arrays.append(random.integers(0, 2, shape).astype(dtype))
    return arrays


def difference(outputs: list[np.ndarray], reference: list[np.ndarray]) -> float:
    """The largest difference of any output, relative to the largest value of that output."""
    return max(
        float(np.max(np.abs(ours - theirs)) / max(np.max(np.abs(theirs)), 1e-30))
        for ours, theirs in zip(outputs, reference, strict=True)
    )


def inferences_per_second(queue: ov.AsyncInferQueue, inputs: list[np.ndarray], seconds: float) -> float:
    """Measures a rate with all requests of a queue in flight.

    Args:
        queue: the requests.
        inputs: an array for each input of the model.
        seconds: time during which inferences are started.

    Returns:
        Inferences per second, including the time until the last one has ended.
    """
    start = time.perf_counter()
    count = 0
    while time.perf_counter() - start < seconds:
        queue.start_async(inputs)
        count += 1
    queue.wait_all()
    return count / (time.perf_counter() - start)


def submodels(compiled: ov.CompiledModel) -> int:
    """The number of submodels that HETERO made; 1 for other devices."""
    try:
        return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    except RuntimeError:  # not a HETERO device
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare outputs and throughput of a model on several devices.")
    parser.add_argument("model")
    parser.add_argument("devices", nargs="+", metavar="DEVICE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each device in each round")
    parser.add_argument(
        "--requests", type=int, help="in flight at a time; by default as many as a device asks for, or 4"
    )
    options = parser.parse_args()

    core = ov.Core()
    compiled = {device: core.compile_model(options.model, device) for device in options.devices}
    inputs = random_inputs(compiled[options.devices[-1]])
    outputs = {device: list(model(inputs).values()) for device, model in compiled.items()}
    differences = {device: difference(outputs[device], outputs[options.devices[-1]]) for device in options.devices}

    asked = [model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") for model in compiled.values()]
    requests = options.requests or max(*asked, 4)  # the same for all, so that only the device differs
    queues = {device: ov.AsyncInferQueue(model, requests) for device, model in compiled.items()}
    rates: dict[str, list[float]] = {device: [] for device in options.devices}
    turns = [(device, queue) for _ in range(options.rounds) for device, queue in queues.items()]
    for number, (device, queue) in enumerate(turns):
        if sys.stderr.isatty():
            left = (len(turns) - number) * options.seconds
            print(f"\r\033[Kmeasuring {device} ({left:.0f} s left)", end="", file=sys.stderr, flush=True)
        rates[device].append(inferences_per_second(queue, inputs, options.seconds))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    medians = {device: statistics.median(values) for device, values in rates.items()}
    best_single = max((device for device in medians if ":" not in device), key=medians.__getitem__, default=None)

    width = max(map(len, options.devices))
    for device, model in compiled.items():
        line = f"{device:{width}}  runs on {', '.join(model.get_property('EXECUTION_DEVICES'))}"
        line += f"; {submodels(model)} submodel(s); {medians[device]:.1f} inferences/s"
        if best_single is not None and device != best_single:
            line += f" = {medians[device] / medians[best_single]:.2f}x the best single device"
        if device != options.devices[-1]:
            line += f"; outputs differ from {options.devices[-1]}'s by {differences[device]:.1e}"
        print(line)
    uneven = max(max(values) / min(values) for values in rates.values())
    if uneven > UNEVEN:
        print(
            f"rounds of one device differ by up to {uneven:.1f}x: other programs use the machine, and gains are unsure"
        )
    return int(max(differences.values()) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
