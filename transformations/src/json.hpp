// Parses the subset of JSON in stored placements: lists of strings, and one object of such lists. Strings are UTF-8,
// escapes as in JSON.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ov_hsdag {

using StringList = std::vector<std::string>;
// Names and lists in the order of the text.
using StringLists = std::vector<std::pair<std::string, StringList>>;

// Parses ["a", "b"]. Throws std::invalid_argument for anything else.
StringList parse_list(std::string_view text);
// Parses {"a": ["b", "c"]}. Throws std::invalid_argument for anything else.
StringLists parse_lists(std::string_view text);

}  // namespace ov_hsdag
