"""The placement problem: graph, costs, constraints, objective."""
