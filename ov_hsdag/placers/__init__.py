"""Placers: each turns a PlacementProblem into a placement of its groups."""
