"""Models of real architectures for tests and training. Needs the extra `bench` (onnx, torch, transformers)."""
