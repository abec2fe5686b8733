"""Fine-tuning of the policy on one model and one machine, with measured placements.

A measurement takes seconds, so much is made of each one: a placement is measured once; the measurements correct the
simulator's costs, and refinement and REINFORCE work on the corrected costs; the policy imitates the best measured
placements. The corrections (`ov_hsdag.calibration.correction`) are drawn from their posterior
(Thompson sampling: Thompson 1933, Biometrika 25; Russo et al. 2018, "A Tutorial on Thompson Sampling",
arXiv:1707.02038), so that uncertain regions are explored.

In the order of a run:

    settings    what decides a run, and when it stops
    state       what a run carries from measurement to measurement, and its checkpoint
    task        the problem as a run sees it: features, corrections, distances between placements
    proposals   the next placement to measure
    closing     what is measured again, the placement that is chosen, and record.json
    loop        `run`: the loop over all of these, with the updates of the policy
    model       `finetune`: from a model to its placed IR; `Simulated`, the stand-in for measuring

A run is a function of its settings and its measurements: everything random follows from the seed and the number of
measurements. So a simulated run that was killed and resumed ends as one that was not. A checkpoint follows each
measurement.

The output folder holds checkpoint.safetensors, TensorBoard files and, in the end, record.json, the policy
folder policy/, the placed model model.xml and model.bin, and its placement placement.json.
"""

from ov_hsdag.calibration.correction import Corrector, Fit, Terms
from ov_hsdag.training.finetune.loop import Outcome, Report, imitation_target, learn, run
from ov_hsdag.training.finetune.model import Simulated, finetune
from ov_hsdag.training.finetune.settings import SCRATCH, Budget, Settings
from ov_hsdag.training.finetune.state import Entry, check_outputs, new_state
from ov_hsdag.training.finetune.task import Task

__all__ = [
    "SCRATCH", "Budget", "Corrector", "Entry", "Fit", "Outcome", "Report", "Settings", "Simulated", "Task",
    "Terms", "check_outputs", "finetune", "imitation_target", "learn", "new_state", "run",
]  # fmt: skip
