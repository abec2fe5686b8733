"""Write ResNet-50 as an ONNX file, without any download: python export_resnet50.py OUTPUT.onnx

The onnx wheel contains the real architecture, but each weight is filled with a single value, so that the network gives
the same answer to every input. Here the weights are drawn from a seed, at scales that keep activations near 1, so that
outputs can be compared.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ARCHITECTURE = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"

# The role of each input of an operation by its port; inputs that are not listed are biases.
ROLES = {"Conv": {1: "weight"}, "Gemm": {1: "weight"}, "BatchNormalization": {1: "scale", 4: "scale"}}


def randomise(model: onnx.ModelProto, seed: int) -> None:
    """Replaces all weights, constants as well as outputs of ConstantOfShape nodes, by constants of random values."""
    random, graph = np.random.default_rng(seed), model.graph
    shapes = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    roles = {
        name: ROLES.get(node.op_type, {}).get(port, "bias")
        for node in graph.node
        for port, name in enumerate(node.input)
    }
    summed = {name for node in graph.node if node.op_type == "Sum" for name in node.input}
    # Scales of the last normalization of each residual branch: smaller, so that sums do not grow from block to block.
    last = {node.input[1] for node in graph.node if node.op_type == "BatchNormalization" and node.output[0] in summed}

    def drawn(name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
        if roles.get(name) == "weight":
            values = random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        elif roles.get(name) == "scale":
            values = random.uniform(0.8, 1.2, shape) * (0.5 if name in last else 1)
        else:
            values = 0.1 * random.standard_normal(shape)
        return numpy_helper.from_array(values.astype(np.float32), name)

    for one in graph.initializer:
        if one.data_type == onnx.TensorProto.FLOAT:
            one.CopyFrom(drawn(one.name, tuple(one.dims)))
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        graph.initializer.append(drawn(node.output[0], tuple(shapes[node.input[0]])))
        graph.node.remove(node)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write ResNet-50 with seeded random weights as an ONNX file.")
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output

    model = onnx.load(ARCHITECTURE)
    randomise(model, seed=0)
    onnx.save(model, output)
    print(f"{output}: ResNet-50, {len(model.graph.node)} nodes, {output.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
