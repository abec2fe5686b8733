"""Published rivals of HSDAG, one file each, whose structure follows the sections of the paper.

They serve comparisons and do not place users' models. All get the same `PlacementProblem`, evaluate placements in a
`research.baselines.budget.Environment`, which counts them, and leave their result in its `best`. None places anything
smaller than a colocation group of the problem.

A baseline is an object with `place(environment, seed) -> None`. torch may be imported here.
"""
