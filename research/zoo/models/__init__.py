"""How the zoo's models are made: inputs, recipes, cache, and one list of models per domain."""
