"""The GPU plugin's kernel for a Transpose exchanges values between work-items without a barrier."""

from tools.upstream.common import np, on_gpu, ops, ov, tell

parameter = ops.parameter([1, 4, 64], np.float32)
model = ov.Model([ops.transpose(parameter, np.array([0, 2, 1]))], [parameter], "transpose")
data = np.random.default_rng(0).standard_normal((1, 4, 64), np.float32)
output = on_gpu(model, data)
wrong = int((output != data.transpose(0, 2, 1)).sum())
tell(wrong > 0, "the input, transposed", f"{wrong} of {data.size} values wrong")
