"""Names of OpenVINO's Python API that 2024 has in openvino.runtime, which is gone in 2026."""

try:
    from openvino import op, opset1, opset13, opset15
    from openvino.passes import ModelPass
    from openvino.utils.node_factory import NodeFactory
except ImportError:
    from openvino.runtime import op, opset1, opset13, opset15
    from openvino.runtime.passes import ModelPass
    from openvino.runtime.utils.node_factory import NodeFactory

__all__ = ["ModelPass", "NodeFactory", "op", "opset1", "opset13", "opset15"]
