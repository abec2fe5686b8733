"""Write ResNet-50 as an ONNX file, without any download: python export_resnet50.py OUTPUT.onnx

The onnx wheel carries the real architecture, but fills each weight with a single value; such a network answers the same
to every input. Here the weights are drawn from a seed, so that outputs can be compared.
"""

import argparse
from pathlib import Path

import onnx

from ov_hsdag.zoo.models.recipes import onnx_light_file, randomise_onnx


def main() -> None:
    parser = argparse.ArgumentParser(description="Write ResNet-50 with seeded random weights as an ONNX file.")
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output

    model = onnx.load(onnx_light_file("resnet50"))
    randomise_onnx(model, seed=0, branch=0.5)
    onnx.save(model, output)
    print(f"{output}: ResNet-50, {len(model.graph.node)} nodes, {output.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
