"""Code for tests, benchmarks and training only: published methods to compare with (baselines), and a zoo of models.

It is not in the wheel, and is imported from the root of the source tree. Nothing in `ov_hsdag` imports it.
"""
