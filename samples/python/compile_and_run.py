"""The smallest script: python compile_and_run.py MODEL.xml HETERO:GPU,CPU (inputs of a fixed shape are assumed)."""

import sys

import numpy as np
import openvino as ov

compiled = ov.Core().compile_model(sys.argv[1], sys.argv[2])
results = compiled([np.ones(port.shape, port.element_type.to_dtype()) for port in compiled.inputs])
print(compiled.get_property("EXECUTION_DEVICES"), [value.shape for value in results.values()])
