"""HETERO cannot tell its runtime model where two submodels read what a third one computes."""

from tools.upstream.common import PAIR, np, ops, ov, place, tell, two_devices

parameter = ops.parameter([4], np.float32)
first = ops.relu(parameter)
second, third = ops.sigmoid(first), ops.tanh(first)
second.set_friendly_name("second")
third.set_friendly_name("third")
model = place(ov.Model([second, third], [parameter], "fork"), "CPU_A", {"second": "CPU_B", "third": "CPU_B"})
compiled = two_devices().compile_model(model, PAIR)
expected = "get_runtime_model() returns the executed operations of all three submodels"
try:
    operations = compiled.get_runtime_model().get_ops()
except RuntimeError as error:
    tell(True, expected, str(error)[-200:])
tell(False, expected, f"{len(operations)} operations")
