"""What no user of `place` runs: published rivals (baselines), and models (zoo) that tests and benchmarks share.

It is not in the wheel, and is imported from the root of the source tree. Nothing in `ov_hsdag` imports it.
"""
