"""Fine-tuning of the policy on one model and one machine, with measured placements.

A measurement takes seconds, so each one is used in several ways. A placement is measured once. The measurements correct
the simulator's costs, and refinement and REINFORCE work on the corrected costs. The policy imitates the best measured
placements. The corrections (`ov_hsdag.calibration.correction`) are drawn from their posterior (Thompson sampling:
Thompson 1933, Biometrika 25; Russo et al. 2018, "A Tutorial on Thompson Sampling", arXiv:1707.02038), so that uncertain
regions are explored.

The modules, in the order of a run:

    settings    the settings of a run, and the budget that ends it
    state       the data that a run carries from measurement to measurement, its checkpoint, and its constant data
    proposals   the choice of the next placement to measure
    loop        `run`: fits, learns, proposes, measures; in the end measures the best again, chooses, writes the record
    model       `finetune`: from a model to its placed IR; `Simulated`, which simulates instead of measuring

A run is a function of its settings and its measurements: all random numbers follow from the seed and the number of
measurements. A checkpoint is written after each measurement. So a simulated run that was killed and resumed ends like
one that was not.

The output folder has checkpoint.safetensors, TensorBoard files and, in the end, record.json, the policy folder policy/,
the placed model model.xml and model.bin, and its placement placement.json.
"""

from ov_hsdag.training.finetune.loop import Report as Report
from ov_hsdag.training.finetune.model import finetune as finetune
from ov_hsdag.training.finetune.settings import SCRATCH as SCRATCH
from ov_hsdag.training.finetune.settings import Budget as Budget
from ov_hsdag.training.finetune.settings import Settings as Settings
from ov_hsdag.training.finetune.state import Entry as Entry
