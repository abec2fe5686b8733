"""The model as a graph: what must share a device, placements in and out."""
