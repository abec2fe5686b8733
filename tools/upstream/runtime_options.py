"""HETERO drops the runtime_options of a model, which each device reads on its own."""

from tools.upstream.common import PAIR, np, ops, ov, tell, two_devices, untried

KEY = "KV_CACHE_PRECISION"

parameter = ops.parameter([4], np.float32)
model = ov.Model([ops.relu(parameter)], [parameter], "options")
core = two_devices()
usual = core.compile_model(model, "CPU_A").get_property(KEY)
wanted = next(precision for precision in ("f16", "f32", "u8") if precision != usual.get_type_name())
model.set_rt_info(wanted, ["runtime_options", KEY])
alone = core.compile_model(model, "CPU_A").get_property(KEY).get_type_name()
if alone != wanted:
    untried(f"the device itself has {KEY} {alone} where the model asks for {wanted}")
split = core.compile_model(model, PAIR).get_property("DEVICE_PROPERTIES")["CPU_A"][KEY].get_type_name()
tell(split != wanted, f"{KEY} {wanted} on {PAIR}, as on CPU_A", split)
