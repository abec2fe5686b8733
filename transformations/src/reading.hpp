// Sets affinities while OpenVINO reads a model, and when it copies one.
//
// The reader creates one layer after the other and does not signal the end. Therefore the outputs of a placed model
// (Results, Assigns, and Parameters without consumers) carry tags: the number of the output, the number of all outputs,
// and, in one of them, the placement. When an output is read, the nodes above it get affinities; with the last output
// the affinities of the whole model are made legal.
//
// Nodes that are added later (preprocessing) get affinities when the model is copied, which HETERO does before it reads
// affinities. A PlacedResult is notified of its copy and completes the copied nodes above it; all others are completed
// when HETERO has its copy (hetero_copy.hpp). When the model that was read gets other shapes (Model::reshape), its
// affinities are made legal for these at once, as a PlacedResult infers its shape again. If a transformation adds nodes
// and changes shapes (openvino.genai's paged attention), only the copy is made legal.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "openvino/core/node.hpp"
#include "placed_result.hpp"
#include "stored_placement.hpp"

namespace ov_hsdag {

// One model that is being read, or was read. Its PlacedResults share it.
struct Reading {
    std::string id;                                          // id of the placed model, from its tags
    std::size_t count = 0;                                   // number of outputs of the placed model
    std::map<std::size_t, std::weak_ptr<ov::Node>> outputs;  // its outputs by number
    std::vector<std::weak_ptr<ov::Node>> others;             // outputs that the placed model did not have
    bool came = false;                                       // the tag with the placement has been read
    StoredPlacement placement;                               // for available devices; without devices until it is read
    bool settled = false;                                    // all outputs were read, and affinities are legal
    std::size_t shapes = 0;                                  // hash of the shapes for which they are legal
};

// The placement mapped to the available devices (StoredPlacement::map_to): those of OV_HSDAG_DEVICE, or of the
// placement's list if the variable names none. Throws std::invalid_argument if none of them is available.
StoredPlacement on_devices_here(const StoredPlacement& placement);

// Processes an output that was read. Call it for each Result, Assign and Parameter, with its tag, "" for none.
//
// HETERO's list of devices is known only when the model is compiled, and HETERO does not check affinities against it.
// So the devices are those of OV_HSDAG_DEVICE, or else of the placement, as far as they are available. With
// OV_HSDAG_DISABLE nothing is done. Errors are printed in one line, and the model is left as it is.
void note_output(const std::shared_ptr<ov::Node>& node, const std::string& tag) noexcept;

// Gives devices to the nodes above a copied Result that have none. The originals are only read, so that other threads
// may do the same.
void complete_copies(const PlacedResult& original, const ov::Node& copy) noexcept;

// Makes affinities legal again if shapes above the outputs of the model that was read have changed. Nodes without an
// affinity do not get one.
void note_shapes(const PlacedResult& result) noexcept;

}  // namespace ov_hsdag
