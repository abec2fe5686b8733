"""What placements really take: turns on real HETERO, each placement in a process of its own."""
