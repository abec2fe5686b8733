"""Real architectures to test, benchmark and train on. Needs the extra `bench` (onnx, torch, transformers)."""
