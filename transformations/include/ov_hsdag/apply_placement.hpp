// A model's stored placement as the affinities that OpenVINO's HETERO plugin reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "openvino/pass/pass.hpp"

namespace ov_hsdag {

// Sets rt_info["affinity"] of every node by the placement that `ov-hsdag place`, `ovc --placement` or
// ov_hsdag.place() stored in the model. Nodes that appeared since (preprocessing, reshape, compressed weights) are
// completed, by the rules of ov_hsdag.Placement.apply in Python; constants and shape arithmetic with consumers on
// several devices are copied.
//
//     ov::pass::Manager manager;
//     manager.register_pass<ov_hsdag::ApplyPlacement>("HETERO:GPU,CPU");
//     manager.run_passes(model);
//     core.compile_model(model, "HETERO:GPU,CPU");
//
// Needs no devices and no Core; where there is a Core, ov_hsdag::compile_model (compile_model.hpp) does all of it.
//
// A model without a placement is left as it is, and with OV_HSDAG_DISABLE=1 every model (run_on_model returns false).
// Throws ov::Exception where the stored placement cannot be read, or where no device is left for it.
class ApplyPlacement : public ov::pass::ModelPass {
public:
    OPENVINO_RTTI("ov_hsdag::ApplyPlacement", "0", ov::pass::ModelPass);

    // device: the devices to use, "HETERO:GPU,CPU". Those of the placement that it lacks hand their nodes to the next
    // device of the placement's list that it has, with a line on standard error. Empty: the placement's own devices.
    explicit ApplyPlacement(const std::string& device = {});

    bool run_on_model(const std::shared_ptr<ov::Model>& model) override;

    // The devices that a model was placed for, in HETERO's order; none where it carries no placement.
    static std::vector<std::string> devices_of(const std::shared_ptr<const ov::Model>& model);

private:
    std::vector<std::string> devices_;
};

}  // namespace ov_hsdag
