"""The layers of torch-geometric that the baselines use. Files that it generates for them are removed at exit."""

from __future__ import annotations

import atexit
import sys
import tempfile
from pathlib import Path

from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import scatter

__all__ = ["GCNConv", "SAGEConv", "gcn_norm", "scatter"]


def _remove_generated_files() -> None:
    """Removes the sources of generated modules, which torch_geometric/template.py leaves in the temporary folder.

    They are kept until the end of the process, as torch.jit and tracebacks read them.
    """
    folder = Path(tempfile.gettempdir()).resolve()
    for name, module in list(sys.modules.items()):
        source = getattr(module, "__file__", None)
        if name.startswith("torch_geometric.") and source and Path(source).resolve().parent == folder:
            Path(source).unlink(missing_ok=True)


atexit.register(_remove_generated_files)
