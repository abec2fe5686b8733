"""What placements really take: interleaved trials on real HETERO, each placement in a process of its own."""
