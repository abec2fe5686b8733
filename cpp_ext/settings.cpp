// The presets of the search's settings, and the check of their ranges.
#include "settings.hpp"

#include <cmath>
#include <stdexcept>

namespace ov_hsdag {

SearchSettings SearchSettings::preset(const std::string& name) {
    if (name != "fast" && name != "default" && name != "thorough") {
        throw std::invalid_argument("expected the preset fast, default or thorough, got '" + name + "'");
    }
    SearchSettings settings;
    SearchSettings::Effort& effort = settings.effort;
    for (auto* moves : {&effort.moves, &effort.moves_per_group, &effort.more_per_group, &effort.most_more,
                        &effort.moves_in_little_memory, &effort.most_moves}) {
        *moves = name == "fast" ? *moves / 5 : name == "thorough" ? *moves * 8 : *moves;
    }
    return settings;
}

void SearchSettings::check() const {
    for_each(*this, [](const std::string& group, const std::string& name, const auto& number) {
        const double value = static_cast<double>(number);
        const bool counts = !std::is_same_v<std::decay_t<decltype(number)>, double>;
        const double least = name == "target" || name == "cuts" || name.ends_with("_cuts") ? 2.0 : counts ? 1.0 : 0.0;
        if (std::isfinite(value) && value >= least) return;
        throw std::invalid_argument("expected at least " + std::to_string(static_cast<int>(least)) + " for '" + group +
                                    "." + name + "'");
    });
}

}  // namespace ov_hsdag
