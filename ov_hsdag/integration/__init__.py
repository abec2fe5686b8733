"""The hooks into OpenVINO: Core.compile_model and its neighbours, the ovc command and openvino.passes."""
