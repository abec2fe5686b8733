"""Measuring of placements: interleaved trials on real HETERO, with each placement in a process of its own."""
