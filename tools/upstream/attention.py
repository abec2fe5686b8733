"""Attention with as many tokens as heads whose output no Transpose follows is wrong on the CPU plugin."""

from tools.upstream.common import np, ops, ov, tell

parameter = ops.parameter([1, 4, 64], np.float32)
query, key, value = (
    ops.transpose(ops.reshape(ops.multiply(parameter, np.float32(factor)), [1, 4, 4, 16], False), [0, 2, 1, 3])
    for factor in (1, 2, 3)
)
model = ov.Model([ops.scaled_dot_product_attention(query, key, value, causal=False)], [parameter], "attention")
data = np.random.default_rng(0).standard_normal((1, 4, 64), np.float32)
output = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(data)[0]
heads = data.reshape(1, 4, 4, 16).transpose(0, 2, 1, 3)
scores = np.exp(2 * heads @ heads.transpose(0, 1, 3, 2) / 4)
error = abs(output - scores / scores.sum(-1, keepdims=True) @ (3 * heads)).max()
tell(error > 1e-3, "NumPy's output within 1e-3", f"{error:.3g} off")
