// The little JSON that a stored placement is made of: strings in lists, and lists in one object.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ov_hsdag {

using StringList = std::vector<std::string>;
// In the order of the text.
using StringLists = std::vector<std::pair<std::string, StringList>>;

// ["a", "b"]. Throws std::invalid_argument for anything else.
StringList parse_list(std::string_view text);
// {"a": ["b", "c"]}. Throws std::invalid_argument for anything else.
StringLists parse_lists(std::string_view text);

}  // namespace ov_hsdag
