"""Where ov-hsdag meets OpenVINO: Core.compile_model, the ovc command and openvino.passes."""
