"""Compile once, run elsewhere: python export_import.py MODEL HETERO:GPU,CPU BLOB.

The blob holds the submodels as the devices compiled them. The importing program needs neither the model nor ov_hsdag,
only the same devices and the same release of OpenVINO. If it has ov_hsdag, the imported model asks for as many requests
as the compiled one.
"""

import io
import sys
from pathlib import Path

import numpy as np
import openvino as ov


def example(port: ov.ConstOutput) -> np.ndarray:
    """An array of ones for an input; dynamic dimensions get their smallest size."""
    sizes = [max(size.get_min_length(), 1) for size in port.partial_shape]
    return np.ones(sizes, port.element_type.to_dtype())


def run(compiled: ov.CompiledModel) -> list[np.ndarray]:
    """The outputs of the model for inputs of ones."""
    results = compiled([example(port) for port in compiled.inputs])
    return [results[port] for port in compiled.outputs]


def requests(compiled: ov.CompiledModel) -> int:
    """The number of requests that AsyncInferQueue runs by default."""
    return len(ov.AsyncInferQueue(compiled))


model, device, blob = sys.argv[1:]
core = ov.Core()
compiled = core.compile_model(model, device)
exported = compiled.export_model()
Path(blob).write_bytes(exported.getvalue() if isinstance(exported, io.BytesIO) else exported)

imported = core.import_model(Path(blob).read_bytes(), device)
same = all(np.array_equal(a, b) for a, b in zip(run(compiled), run(imported), strict=True))
devices = imported.get_property("EXECUTION_DEVICES")
print(f"{blob}: {Path(blob).stat().st_size / 1e6:.1f} MB, {devices}, same outputs: {same}")
print(f"requests: {requests(compiled)} compiled, {requests(imported)} imported")
sys.exit(0 if same else 1)
