"""Published placement methods to compare HSDAG with, one file each, whose structure follows the sections of the paper.

They serve comparisons and do not place users' models. A baseline is an object with `place(environment, seed) -> None`.
All get the same `PlacementProblem`, evaluate placements in a `research.baselines.budget.Environment`, which counts
them, and leave their result in its `best`. Colocation groups are the smallest units that they place. torch may be
imported here.
"""
