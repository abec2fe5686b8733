"""Two MatMuls read one square constant, one of them transposed: the CPU plugin computes both alike."""

from tools.upstream.common import np, ops, ov, tell

random = np.random.default_rng(0)
weights, data = (random.standard_normal(shape, np.float32) for shape in ((64, 64), (4, 64)))
parameter, constant = ops.parameter([4, 64], np.float32), ops.constant(weights)
products = [ops.matmul(parameter, constant, False, transposed) for transposed in (False, True)]
model = ov.Model(products, [parameter], "shared")
compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
plain, transposed = compiled(data).values()
error = max(abs(plain - data @ weights).max(), abs(transposed - data @ weights.T).max())
alike = np.array_equal(plain, transposed)
tell(error > 1e-3, "x @ w and x @ w.T within 1e-3", f"{error:.3g} off{', both outputs equal' if alike else ''}")
