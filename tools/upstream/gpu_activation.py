"""The GPU plugin's kernel for a dense layer on one row computes something else than the GELU that it takes in."""

from math import erf

from tools.upstream.common import np, on_gpu, ops, ov, tell

random = np.random.default_rng(0)
weights, bias, data = (random.standard_normal(shape, np.float32) for shape in ((32, 32), (1, 32), (1, 32)))
parameter = ops.parameter([1, 32], np.float32)
dense = ops.add(ops.matmul(parameter, weights, False, True), bias)
model = ov.Model([ops.gelu(dense, "ERF")], [parameter], "dense")
output = on_gpu(model, data)
total = data @ weights.T + bias
error = abs(output - total * (1 + np.vectorize(erf)(total / 2**0.5)) / 2).max()
tell(error > 1e-3, "NumPy's output within 1e-3", f"{error:.3g} off")
