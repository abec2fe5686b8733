"""Placing: candidates of all placers, the choice among them, and the whole way from a model to a placement."""
