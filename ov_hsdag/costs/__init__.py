"""Costs of operations and transfers on devices: device profiles, the roofline model, and stored measurements."""
