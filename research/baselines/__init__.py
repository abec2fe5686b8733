"""Published rivals of HSDAG, each in a file in which a reader of its paper finds its sections again.

They are here to be compared with, not to place users' models: all see the same `PlacementProblem`, pay for what they
ask from one `research.baselines.budget.Environment`, and leave their result in its `best`. The finest thing that any of
them places is a colocation group of the problem.

A baseline is an object with `place(environment, seed) -> None`. torch may be imported here.
"""
