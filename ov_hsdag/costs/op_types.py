"""Operation types by their costs and their treatment by plugins, and element types of compressed weights."""

# Operations into which plugins fuse element-wise operations that read their output, if nothing else reads it.
ANCHORS = frozenset(
    {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul"}
)

# Operations that compute each element of the output by itself.
ELEMENTWISE = frozenset({
    "Abs", "Add", "Ceiling", "Clamp", "Divide", "Elu", "Exp", "FakeQuantize", "Floor", "Gelu", "HSigmoid", "HSwish",
    "HardSigmoid", "Log", "Maximum", "Minimum", "Mish", "Multiply", "Negative", "PRelu", "Power", "Relu", "Selu",
    "Sigmoid", "SoftPlus", "SoftSign", "Sqrt", "SquaredDifference", "Subtract", "Swish", "Tanh",
})  # fmt: skip

# Operations that only rename data: plugins run them as views.
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "ShapeOf"})

# Operations that read only the part of their first input that they return.
PARTIAL_READS = frozenset({
    "EmbeddingBagOffsets", "EmbeddingBagOffsetsSum", "EmbeddingBagPacked", "EmbeddingBagPackedSum",
    "EmbeddingSegmentsSum", "Gather", "GatherElements", "GatherND", "Slice", "StridedSlice",
})  # fmt: skip

# Operations that decompress weights. Plugins keep weights in their stored form and decompress inside the consumer.
DECOMPRESSION = frozenset({"Convert", "FakeQuantize", "Multiply", "Reshape", "Subtract", "Transpose"})

# Operations that run at every inference even if all their inputs are constants.
NOT_FOLDED = frozenset(
    {"Bernoulli", "Multinomial", "NonZero", "RandomUniform", "ReadValue", "If", "Loop", "TensorIterator"}
)

# Element types of weights with at most 8 bits.
LOW_BITS = frozenset({"u8", "i8", "u4", "i4", "u2", "nf4", "f4e2m1", "f8e4m3", "f8e5m2", "u6", "u3", "u1"})
