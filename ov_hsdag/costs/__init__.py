"""Costs of operations and transfers on devices: device profiles and the roofline model on top of them."""
