// A Result that sees when the model that it is in is copied.
#pragma once

#include <memory>

#include "openvino/core/node.hpp"
#include "openvino/op/result.hpp"

namespace ov_hsdag {

struct Reading;

// To OpenVINO it is a Result like any other, and C++'s type information says so, too: OpenVINO's Python module shows
// nodes by that, and has no class for one that it does not know (benchmark_app asks each output for its layout).
class PlacedResult : public ov::op::v0::Result {
public:
    PlacedResult() = default;
    explicit PlacedResult(const ov::Output<ov::Node>& value) : Result(value) {}

    static std::shared_ptr<PlacedResult> make(const ov::Output<ov::Node>& value);
    // The node as a PlacedResult; none where it is none.
    static PlacedResult* of(ov::Node& node);

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    void validate_and_infer_types() override;

    std::shared_ptr<Reading> reading;  // none: no placement is known to be for this model
};

}  // namespace ov_hsdag
