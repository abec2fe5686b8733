// Completes affinities at the last moment before HETERO reads them: it copies the model that it compiles, and reads the
// affinities of the copy.
//
// Only then the whole model is known, with all changes that programs made since it was read: outputs, states and inputs
// that were added or replaced, parts that are not connected with the nodes of the file, and new models made of its
// nodes.
#pragma once

namespace ov_hsdag {

// Makes HETERO of this OpenVINO complete every copy of a model that has affinities on some of its nodes, and loads the
// plugin if necessary. A second call does nothing. On systems on which a library's imported functions cannot be
// replaced, it does nothing either; copies are then completed only above their Results (placed_result.hpp).
void complete_copies_of_hetero() noexcept;

}  // namespace ov_hsdag
