"""Operation types that kinds of devices run, for devices that cannot be asked because they are not on this machine.

The lists are closed. Operations that are on no list (of an application, an extension library or a frontend) run on a
CPU, for which such operations bring an implementation.
"""

GPU = frozenset({
    "Abs", "Acos", "Acosh", "AdaptiveAvgPool", "AdaptiveMaxPool", "Add", "Asin", "Asinh", "Assign", "Atan", "Atan2",
    "Atanh", "AvgPool", "BatchNormInference", "BatchToSpace", "BinaryConvolution", "BitwiseAnd", "BitwiseLeftShift",
    "BitwiseOr", "BitwiseRightShift", "BitwiseXor", "Broadcast", "Bucketize", "CTCGreedyDecoder",
    "CTCGreedyDecoderSeqLen", "CTCLoss", "Ceiling", "Clamp", "Col2Im", "Concat", "Constant", "Convert", "ConvertLike",
    "ConvertPromoteTypes", "Convolution", "ConvolutionBackpropData", "Cos", "Cosh", "CumSum", "DFT",
    "DeformableConvolution", "DeformablePSROIPooling", "DepthToSpace", "DetectionOutput", "Divide", "Einsum", "Elu",
    "EmbeddingBagOffsets", "EmbeddingBagOffsetsSum", "EmbeddingBagPacked", "EmbeddingBagPackedSum",
    "EmbeddingSegmentsSum", "Equal", "Erf", "ErfInv", "Exp", "ExperimentalDetectronDetectionOutput",
    "ExperimentalDetectronGenerateProposalsSingleImage", "ExperimentalDetectronPriorGridGenerator",
    "ExperimentalDetectronROIFeatureExtractor", "ExperimentalDetectronTopKROIs", "ExtractImagePatches", "Eye",
    "FakeConvert", "FakeQuantize", "Floor", "FloorMod", "GRN", "GRUCell", "GRUSequence", "GatedDeltaNet", "Gather",
    "GatherElements", "GatherMatmul", "GatherND", "GatherTree", "Gelu", "GenerateProposals", "Greater",
    "GreaterEqual", "GridSample", "GroupConvolution", "GroupConvolutionBackpropData", "GroupNormalization",
    "GroupedMatMul", "HSigmoid", "HSwish", "HardSigmoid", "I420toBGR", "I420toRGB", "IDFT", "IRDFT", "ISTFT",
    "Identity", "If", "Interpolate", "IsFinite", "IsInf", "IsNaN", "LRN", "LSTMCell", "LSTMSequence", "Less",
    "LessEqual", "Log", "LogSoftmax", "LogicalAnd", "LogicalNot", "LogicalOr", "LogicalXor", "Loop", "MVN", "MatMul",
    "MatrixNms", "MaxPool", "Maximum", "Minimum", "Mish", "Mod", "MulticlassNms", "Multinomial", "Multiply",
    "NMSRotated", "NV12toBGR", "NV12toRGB", "Negative", "NonMaxSuppression", "NonZero", "NormalizeL2", "NotEqual",
    "OneHot", "PRelu", "PSROIPooling", "Pad", "PagedAttentionExtension", "PagedCausalConv1D", "PagedGatedDeltaNet",
    "PagedSelectiveSSM", "Parameter", "Power", "PriorBox", "PriorBoxClustered", "Proposal", "RDFT", "RMS", "RNNCell",
    "RNNSequence", "ROIAlign", "ROIAlignRotated", "ROIPooling", "RandomUniform", "Range", "ReadValue", "ReduceL1",
    "ReduceL2", "ReduceLogicalAnd", "ReduceLogicalOr", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "RegionYolo", "Relu", "ReorgYolo", "Reshape", "Result", "Reverse", "ReverseSequence", "RoPE", "Roll",
    "Round", "STFT", "ScaledDotProductAttention", "ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate",
    "SearchSorted", "SegmentMax", "Select", "SelectiveSSM", "Selu", "ShapeOf", "ShuffleChannels", "Sigmoid", "Sign",
    "Sin", "Sinh", "Slice", "SliceScatter", "SoftPlus", "SoftSign", "Softmax", "SpaceToBatch", "SpaceToDepth",
    "SparseFillEmptyRows", "Split", "Sqrt", "SquaredDifference", "Squeeze", "StridedSlice", "Subtract", "Swish",
    "Tan", "Tanh", "TensorIterator", "Tile", "TopK", "Transpose", "Unique", "Unsqueeze", "VariadicSplit",
})  # fmt: skip
"""Types of the GPU plugin of OpenVINO 2026.4.1.

It registers most of them (REGISTER_FACTORY in src/plugins/intel_gpu), and replaces others by those: Einsum, GRUCell,
GroupConvolution and the like, as queries in tests/rig showed.
"""

NPU = frozenset({
    "Abs", "Acos", "Acosh", "Add", "Asin", "Asinh", "Atan", "Atanh", "AvgPool", "BatchNormInference", "BitwiseAnd",
    "BitwiseLeftShift", "BitwiseNot", "BitwiseOr", "BitwiseRightShift", "BitwiseXor", "Broadcast", "Bucketize",
    "Ceiling", "Clamp", "Col2Im", "Concat", "Constant", "Convert", "ConvertLike", "ConvertPromoteTypes",
    "Convolution", "ConvolutionBackpropData", "Cos", "Cosh", "CumSum", "DepthToSpace", "Divide", "Einsum", "Elu",
    "Equal", "Erf", "Exp", "ExtractImagePatches", "FakeConvert", "FakeQuantize", "Floor", "FloorMod", "GRN",
    "GRUCell", "GRUSequence", "Gather", "GatherElements", "GatherND", "Gelu", "Greater", "GreaterEqual", "GridSample",
    "GroupConvolution", "GroupConvolutionBackpropData", "GroupNormalization", "HSigmoid", "HSwish", "HardSigmoid",
    "I420toBGR", "I420toRGB", "Identity", "Interpolate", "LRN", "LSTMCell", "LSTMSequence", "Less", "LessEqual",
    "Log", "LogSoftmax", "LogicalAnd", "LogicalNot", "LogicalOr", "LogicalXor", "MVN", "MatMul", "MaxPool", "Maximum",
    "Minimum", "Mish", "Mod", "Multiply", "NV12toBGR", "NV12toRGB", "Negative", "NormalizeL2", "NotEqual", "OneHot",
    "PRelu", "PSROIPooling", "Pad", "Parameter", "Power", "PriorBox", "PriorBoxClustered", "RNNCell", "RNNSequence",
    "ROIAlign", "ROIPooling", "Range", "ReduceL1", "ReduceL2", "ReduceLogicalAnd", "ReduceLogicalOr", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "RegionYolo", "Relu", "ReorgYolo", "Reshape", "Result",
    "Reverse", "Roll", "Round", "ScaledDotProductAttention", "ScatterElementsUpdate", "ScatterNDUpdate",
    "ScatterUpdate", "Select", "Selu", "ShapeOf", "ShuffleChannels", "Sigmoid", "Sign", "Sin", "Sinh", "Slice",
    "SliceScatter", "SoftPlus", "SoftSign", "Softmax", "SpaceToDepth", "Split", "Sqrt", "SquaredDifference",
    "Squeeze", "StridedSlice", "Subtract", "Swish", "Tan", "Tanh", "Tile", "TopK", "Transpose", "Unsqueeze",
    "VariadicSplit",
})  # fmt: skip
"""A careful assumption: OpenVINO's operation sets, without control flow, states, dynamic results and rare types."""

OF_KIND = {"GPU": GPU, "NPU": NPU}
"""Types by kind of device; a CPU runs every type."""
