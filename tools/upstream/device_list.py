"""Where operations carry affinities, HETERO runs them on devices that are not in its list."""

from tools.upstream.common import np, ops, ov, place, tell, two_devices

parameter = ops.parameter([4], np.float32)
model = place(ov.Model([ops.relu(parameter)], [parameter], "placed"), "CPU_B")
expected = "HETERO:CPU_A refuses operations on CPU_B"
try:
    compiled = two_devices().compile_model(model, "HETERO:CPU_A")
except RuntimeError as error:
    tell(False, expected, str(error)[-200:])
tell(True, expected, f"it runs on {compiled.get_property('EXECUTION_DEVICES')}")
