// A PlacedResult with the type information of Result. Its objects point to a copy of its table of virtual functions
// in which only the type information is replaced.
#include "placed_result.hpp"

#include <cstddef>
#include <cstring>
#include <vector>

#include "platform.hpp"
#include "reading.hpp"

namespace ov_hsdag {
namespace {

// An object begins with the address of the first entry in its class's table of virtual functions. In the C++ ABI of
// Linux (Itanium), two entries precede that one: the object's offset and the type information.
using Table = const void* const*;
constexpr std::size_t kBefore = 2;

// The table of virtual functions of a node.
Table table_of(const ov::Node& node) {
    Table table = nullptr;
    std::memcpy(&table, static_cast<const void*>(&node), sizeof(table));
    return table;
}

// A copy of PlacedResult's table of virtual functions with the type information of Result. Null if the length of the
// table is unknown, and always on Windows, where tables have another layout.
Table disguised(const PlacedResult& example) {
    // It is never freed, as nodes may be destroyed after all static objects.
    static const std::vector<const void*>& entries = *[&] {
        auto* copy = new std::vector<const void*>();
        const ov::op::v0::Result plain;
        const Table result = table_of(plain);
        // PlacedResult adds no virtual function, so that both tables have the same length.
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
