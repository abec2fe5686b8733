"""Fine-tuning of the policy on one model and one machine, with measured placements.

A measurement takes seconds, so much is made of each one: a placement is measured once; the measurements correct the
simulator's costs, and refinement and REINFORCE work on the corrected costs; the policy imitates the best measured
placements. The corrections (`ov_hsdag.calibration.correction`) are drawn from their posterior
(Thompson sampling: Thompson 1933, Biometrika 25; Russo et al. 2018, "A Tutorial on Thompson Sampling",
arXiv:1707.02038), so that uncertain regions are explored.

In the order of a run:

    settings    what decides a run, and when it stops
    state       what a run carries from measurement to measurement, its checkpoint, and what stays the same
    proposals   the next placement to measure
    loop        `run`: fit, learn, propose and measure; then the best again, the choice, and record.json
    model       `finetune`: from a model to its placed IR; `Simulated`, the stand-in for measuring

A run is a function of its settings and its measurements: everything random follows from the seed and the number of
measurements. So a simulated run that was killed and resumed, from the checkpoint after each, ends as one that was not.

The output folder holds checkpoint.safetensors, TensorBoard files and, in the end, record.json, the policy
folder policy/, the placed model model.xml and model.bin, and its placement placement.json.
"""

from ov_hsdag.training.finetune.loop import Report as Report
from ov_hsdag.training.finetune.model import finetune as finetune
from ov_hsdag.training.finetune.settings import SCRATCH as SCRATCH
from ov_hsdag.training.finetune.settings import Budget as Budget
from ov_hsdag.training.finetune.settings import Settings as Settings
from ov_hsdag.training.finetune.state import Entry as Entry
