"""OpenVINO's benchmark_app as it is, on a machine with two CPUs.

It runs without Python's hook, so that an extension library alone follows placements. The library's tests use it, too.
"""

import sys

import openvino as ov
from openvino.tools.benchmark.main import main

original = ov.Core.__init__


def with_two_cpus(self: ov.Core, *arguments: object) -> None:
    original(self, *arguments)
    for name in ("CPU_A", "CPU_B"):
        self.register_plugin("openvino_intel_cpu_plugin", name)


ov.Core.__init__ = with_two_cpus
ov.Core.compile_model = getattr(ov.Core.compile_model, "__wrapped__", ov.Core.compile_model)
sys.exit(main())
