"""The zoo's inputs, recipes and cache, and one list of models per domain."""
