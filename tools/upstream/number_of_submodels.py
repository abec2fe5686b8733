"""HETERO subtracts unused inputs of all models that a Core has compiled from the number of submodels of each."""

from tools.upstream.common import PAIR, np, ops, ov, place, tell, two_devices

NAME = "HETERO_NUMBER_OF_SUBMODELS"


def chain(unused: int) -> ov.Model:
    """Two operations after each other, and inputs that nothing reads."""
    inputs = [ops.parameter([4], np.float32, name=f"x{number}") for number in range(1 + unused)]
    first = ops.relu(inputs[0])
    first.set_friendly_name("first")
    return ov.Model([ops.sigmoid(first)], inputs, "chain")


core, counts = two_devices(), []
for unused in (0, 3, 0):
    model = chain(unused)
    if not unused:
        place(model, "CPU_B", {"x0": "CPU_A", "first": "CPU_A"})
    counts.append(core.compile_model(model, PAIR).get_property(NAME))
before, _, after = counts
tell(after != before, f"{NAME} of a model in two parts is 2, whatever was compiled before", f"{before}, then {after}")
