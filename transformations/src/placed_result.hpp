// A Result that is notified when its model is copied, or gets other shapes. The extension library makes one for each
// Result that OpenVINO reads.
#pragma once

#include <memory>

#include "openvino/core/node.hpp"
#include "openvino/op/result.hpp"

namespace ov_hsdag {

struct Reading;

// OpenVINO treats it as an ordinary Result. C++'s type information also says that it is one: OpenVINO's Python module
// chooses the class of a node by it, and has none for unknown types (benchmark_app asks each output for its layout).
class PlacedResult : public ov::op::v0::Result {
public:
    PlacedResult() = default;
    explicit PlacedResult(const ov::Output<ov::Node>& value) : Result(value) {}

    // Makes a PlacedResult with the type information of Result.
    static std::shared_ptr<PlacedResult> make(const ov::Output<ov::Node>& value);
    // The node as a PlacedResult; null for any other node.
    static PlacedResult* of(ov::Node& node);

    // Copies the node, which belongs to the same reading, and gives devices to copied nodes above it.
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    // Infers the shape, and makes affinities legal again if shapes have changed.
    void validate_and_infer_types() override;

    std::shared_ptr<Reading> reading;  // null: no placement is known for this model
};

}  // namespace ov_hsdag
