// Core::compile_model for placed models. It is here that the program's list of devices is known: the extension library
// alone follows a placement while the model is read, and cannot see that list.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "openvino/runtime/core.hpp"

namespace ov_hsdag {

// core.compile_model(model, device, properties) that follows the placement in the model, as Python's does.
//
//     ov::CompiledModel compiled = ov_hsdag::compile_model(core, model, "HETERO:GPU,CPU");
//
// Only the devices of the list are used ("HETERO" alone: those of the placement, unless a property lists others), and
// of them those that the Core has. Others hand their nodes to the next device, with a line on standard error. The model
// may come from core.read_model with or without the extension library, and may have changed since it was placed; it is
// not changed here. A device other than HETERO, a model without a placement, and OV_HSDAG_DISABLE=1 are left to
// OpenVINO. A placement that cannot be read costs a line on standard error. Throws what OpenVINO throws.
ov::CompiledModel compile_model(ov::Core& core, const std::shared_ptr<const ov::Model>& model,
                                const std::string& device, const ov::AnyMap& properties = {});

// How many requests to keep in flight for throughput. HETERO's optimal_number_of_infer_requests is 1 where each device
// has one stream, and all devices but one would wait: it takes three for each device that runs a part of the model, or
// two for each submodel (16 at most). For a model on one device, OpenVINO's own number.
std::uint32_t requests_in_flight(const ov::CompiledModel& compiled);

}  // namespace ov_hsdag
