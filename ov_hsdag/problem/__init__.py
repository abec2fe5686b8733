"""The placement problem: graph, costs, constraints and objective."""
