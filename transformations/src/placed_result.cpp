#include "placed_result.hpp"

#include <cstddef>
#include <cstring>
#include <vector>

#include "platform.hpp"
#include "reading.hpp"

namespace ov_hsdag {
namespace {

// An object begins with the address of its class's first virtual function. Before that stand, by the C++ ABI of Linux
// (Itanium), the type information and the object's offset.
using Table = const void* const*;
constexpr std::size_t kBefore = 2;

Table table_of(const ov::Node& node) {
    Table table = nullptr;
    std::memcpy(&table, static_cast<const void*>(&node), sizeof(table));
    return table;
}

// The table of PlacedResult with the type information of Result. Null where the system cannot tell how long it is, and
// always on Windows, whose tables look otherwise.
Table disguised(const PlacedResult& example) {
    // Never freed: nodes may be destroyed after everything static.
    static const std::vector<const void*>& entries = *[&] {
        auto* copy = new std::vector<const void*>();
        const ov::op::v0::Result plain;
        const Table result = table_of(plain);
        // PlacedResult adds no virtual function: both tables have the same length.
        const std::size_t length = entries_of_table(result, "_ZTVN2ov2op2v06ResultE");
        if (length == 0) return copy;
        const Table first = table_of(example) - kBefore;
        copy->assign(first, first + length);
        (*copy)[kBefore - 1] = result[-1];
        return copy;
    }();
    return entries.empty() ? nullptr : entries.data() + kBefore;
}

}  // namespace

std::shared_ptr<PlacedResult> PlacedResult::make(const ov::Output<ov::Node>& value) {
    auto node = std::make_shared<PlacedResult>(value);
    if (const Table table = disguised(*node)) std::memcpy(static_cast<void*>(node.get()), &table, sizeof(table));
    return node;
}

PlacedResult* PlacedResult::of(ov::Node& node) {
    if (node.get_type_info() != ov::op::v0::Result::get_type_info_static()) return nullptr;
    if (auto* placed = dynamic_cast<PlacedResult*>(&node)) return placed;
    static const Table table = disguised(PlacedResult());
    return table != nullptr && table_of(node) == table ? static_cast<PlacedResult*>(&node) : nullptr;
}

std::shared_ptr<ov::Node> PlacedResult::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    check_new_args_count(this, inputs);
    const auto copy = make(inputs.at(0));
    copy->reading = reading;
    complete_copies(*this, *copy);
    return copy;
}

void PlacedResult::validate_and_infer_types() {
    Result::validate_and_infer_types();
    if (reading) note_shapes(*this);
}

}  // namespace ov_hsdag
