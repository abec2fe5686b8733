// What the extension library does while OpenVINO reads a model, and when it copies one.
//
// The reader hands over one layer after the other and does not say when it is done. The outputs of a placed model
// (Results, Assigns, and Parameters without consumers) therefore carry tags: which of how many outputs they are, and
// one of them has the placement. Every output that comes gives its inputs their affinities; the last one settles all.
//
// Nodes that are added later (preprocessing) get theirs when the model is copied, which HETERO does before it looks at
// affinities: a Result of ours sees its copy, with all of the copied nodes above it, and what else there may be is
// settled when HETERO has its copy (hetero_copy.hpp). And where the model that was read
// gets other shapes (Model::reshape), it becomes legal for these at once: a Result of ours infers its shape anew then.
// Where a transformation adds nodes and changes shapes (openvino.genai's paged attention), the copy alone is settled.
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

// One model that is read, or was.
struct Reading {
    std::string id;
    std::size_t count = 0;                                   // outputs that the placed model has
    std::map<std::size_t, std::weak_ptr<ov::Node>> outputs;  // by number
    std::vector<std::weak_ptr<ov::Node>> others;             // outputs that the placed model did not have
    bool came = false;                                       // the tag with the placement
    StoredPlacement placement;                               // for the devices that are here; none known: no devices
    bool settled = false;                                    // all outputs came, affinities are legal
    std::size_t shapes = 0;                                  // what they are legal for
};

// The placement for the devices of OV_HSDAG_DEVICE, or its own, as far as they are here. Throws std::invalid_argument
// where none is.
StoredPlacement on_devices_here(const StoredPlacement& placement);

// HETERO's list of devices comes only when the model is compiled, and HETERO does not hold affinities against it: while
// reading, the placement's own devices count, as far as they are here, or those of OV_HSDAG_DEVICE. With
// OV_HSDAG_DISABLE nothing is done.
//
// To be called for each Result, Assign and Parameter that is read, with its tag (empty: none). Throws nothing: what
// cannot be done is said in one line, and the model stays as it is.
void note_output(const std::shared_ptr<ov::Node>& node, const std::string& tag) noexcept;

// Gives devices to the nodes above a copied Result that have none. The originals are only looked at: other threads may
// do so, too.
void complete_copies(const PlacedResult& original, const ov::Node& copy) noexcept;

// Makes affinities legal once more where shapes above the outputs of the model that was read have changed. Nodes
// without an affinity get none.
void note_shapes(const PlacedResult& result) noexcept;

}  // namespace ov_hsdag
