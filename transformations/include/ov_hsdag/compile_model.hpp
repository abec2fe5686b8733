// Core::compile_model for placed models. It knows the program's list of devices, unlike the extension library, which
// follows a placement while the model is read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "openvino/runtime/core.hpp"

namespace ov_hsdag {

// Calls core.compile_model(model, device, properties) and follows the placement in the model, as in Python.
//
//     ov::CompiledModel compiled = ov_hsdag::compile_model(core, model, "HETERO:GPU,CPU");
//
// Only devices in the list that the Core has are used; "HETERO" alone means those of the placement, unless a property
// lists others. Nodes of other devices go to the next device, with a line on standard error. The model may come from
// core.read_model with or without the extension library, and may have changed since it was placed; this function does
// not change it. For a device other than HETERO, a model without a placement, and OV_HSDAG_DISABLE=1 it is the same as
// core.compile_model. A placement that cannot be read is ignored, with a line on standard error. Throws what OpenVINO
// throws.
ov::CompiledModel compile_model(ov::Core& core, const std::shared_ptr<const ov::Model>& model,
                                const std::string& device, const ov::AnyMap& properties = {});

// The number of requests to keep in flight for throughput: three for each device that runs a part of the model, or two
// for each submodel, at most 16. HETERO's optimal_number_of_infer_requests is 1 if each device has one stream, so that
// all devices but one would wait. For a model on one device, it is OpenVINO's own number.
std::uint32_t requests_in_flight(const ov::CompiledModel& compiled);

}  // namespace ov_hsdag
