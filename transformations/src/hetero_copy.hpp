// The last moment before HETERO reads affinities: it copies the model that it compiles, and reads those of the copy.
//
// Only there is the whole model known, with all that programs did to it since it was read: outputs, states and inputs
// that were added or replaced, parts that nothing connects with what came from the file, models made anew of its nodes.
#pragma once

namespace ov_hsdag {

// Makes HETERO of this OpenVINO complete every copy of a model that has affinities on some of its nodes. It loads the
// plugin where it is not loaded. Does nothing the second time, and where the system does not let a library call
// another function: then copies are completed as far as their Results lead (placed_result.hpp).
void complete_copies_of_hetero() noexcept;

}  // namespace ov_hsdag
