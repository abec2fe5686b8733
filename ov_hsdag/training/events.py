"""What TensorBoard shows of a run is written without TensorFlow, which is large, slow to import and talks a lot."""

from __future__ import annotations

import sys
from types import ModuleType

# TensorBoard looks for this module, and takes its own substitute for TensorFlow where it is there.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))

from torch.utils.tensorboard import SummaryWriter  # noqa: E402

__all__ = ["SummaryWriter"]
