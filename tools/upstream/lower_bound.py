"""A tensor with a dynamic dimension that is at least 1 cannot be handed from submodel to submodel."""

from tools.upstream.common import PAIR, np, ops, ov, place, tell, two_devices

parameter = ops.parameter(ov.PartialShape([ov.Dimension(1, 8), 4]), np.float32, name="x")
first = ops.relu(parameter)
first.set_friendly_name("first")
model = place(ov.Model([ops.sigmoid(first)], [parameter], "bound"), "CPU_B", {"x": "CPU_A", "first": "CPU_A"})
compiled = two_devices().compile_model(model, PAIR)
expected = "a request for a model with a batch of 1..8 in two parts"
try:
    compiled(np.ones((2, 4), np.float32))
except RuntimeError as error:
    tell(True, expected, str(error)[-200:])
tell(False, expected, "the output")
