// Applies the stored placement of a model as affinities, which OpenVINO's HETERO plugin reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "openvino/pass/pass.hpp"

namespace ov_hsdag {

// Sets rt_info["affinity"] of every node by the placement that `ov-hsdag place`, `ovc --placement` or
// ov_hsdag.place() stored in the model. Nodes that were added since (preprocessing, reshape, compressed weights) get a
// device by the rules of ov_hsdag.Placement.apply in Python. Constants and shape arithmetic with consumers on several
// devices are copied.
//
//     ov::pass::Manager manager;
//     manager.register_pass<ov_hsdag::ApplyPlacement>("HETERO:GPU,CPU");
//     manager.run_passes(model);
//     core.compile_model(model, "HETERO:GPU,CPU");
//
// The pass needs no devices and no Core. With a Core, ov_hsdag::compile_model (compile_model.hpp) does all of this.
//
// run_on_model returns false, and changes nothing, for a model without a placement, and for every model with
// OV_HSDAG_DISABLE=1. It throws ov::Exception if the stored placement cannot be read, or no device is left for it.
class ApplyPlacement : public ov::pass::ModelPass {
public:
    OPENVINO_RTTI("ov_hsdag::ApplyPlacement", "0", ov::pass::ModelPass);

    // device: the devices to use, "HETERO:GPU,CPU"; empty for those of the placement. Nodes of other devices go to the
    // next device in the placement's list that may be used, with a line on standard error.
    explicit ApplyPlacement(const std::string& device = {});

    // Sets the affinities. Returns whether the model was changed; see above.
    bool run_on_model(const std::shared_ptr<ov::Model>& model) override;

    // The devices for which a model was placed, in HETERO's order; empty if it carries no placement. Throws
    // ov::Exception if the placement cannot be read.
    static std::vector<std::string> devices_of(const std::shared_ptr<const ov::Model>& model);

private:
    std::vector<std::string> devices_;  // the devices to use; empty: those of the placement
};

}  // namespace ov_hsdag
