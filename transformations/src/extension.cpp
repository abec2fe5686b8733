// The part of the extension library that belongs to one release of OpenVINO: extension_loader.cpp loads it. It makes
// OpenVINO's readers call this library for each Result, Parameter and Assign (reading.hpp).
#include <memory>
#include <string>
#include <vector>

#include "openvino/core/op_extension.hpp"
#include "openvino/op/assign.hpp"
#include "openvino/op/parameter.hpp"
#include "placed_result.hpp"
#include "platform.hpp"
#include "reading.hpp"

namespace ov_hsdag {
namespace {

// The attribute of a layer that has the tag. Whatever program saves a model, OpenVINO writes only this attribute and
// "PrimitivesPriority" of a node's runtime information into the file as text.
constexpr const char* kTagAttribute = "alt_width";

// Makes a Result, which has no attributes to read.
std::shared_ptr<ov::Node> make_result(const ov::OutputVector& inputs, ov::AttributeVisitor&) {
    return PlacedResult::make(inputs.at(0));
}

// Makes an operation in the same way as the reader makes those of its own opsets.
template <typename T>
std::shared_ptr<ov::Node> make(const ov::OutputVector& inputs, ov::AttributeVisitor& visitor) {
    const auto node = std::make_shared<T>();
    node->set_arguments(inputs);
    if (node->visit_attributes(visitor)) node->constructor_validate_and_infer_types();
    return node;
}

// Reads an operation of OpenVINO's own opsets, with its tag; the reader asks extensions first.
class OutputExtension : public ov::BaseOpExtension {
public:
    using Make = std::shared_ptr<ov::Node> (*)(const ov::OutputVector&, ov::AttributeVisitor&);

    OutputExtension(const char* type, int opset, Make make)
        : opset_("opset" + std::to_string(opset)), type_(type, opset_.c_str()), make_(make) {}

    const ov::DiscreteTypeInfo& get_type_info() const override { return type_; }

    ov::OutputVector create(const ov::OutputVector& inputs, ov::AttributeVisitor& visitor) const override {
        const auto node = make_(inputs, visitor);
        std::string tag;
        visitor.on_attribute(kTagAttribute, tag);
        note_output(node, tag);
        return node->outputs();
    }

    std::vector<ov::Extension::Ptr> get_attached_extensions() const override { return {}; }

private:
    std::string opset_;
    ov::DiscreteTypeInfo type_;
    Make make_;
};

}  // namespace
}  // namespace ov_hsdag

// Adds the extensions for all opsets to the list.
OV_HSDAG_EXPORT void ov_hsdag_create_extensions(std::vector<ov::Extension::Ptr>& extensions) {
    using namespace ov_hsdag;
    constexpr int kOpsets = 20;  // some tools write the newest opset for all operations
    for (int opset = 1; opset <= kOpsets; ++opset) {
        extensions.push_back(std::make_shared<OutputExtension>("Result", opset, &make_result));
        extensions.push_back(std::make_shared<OutputExtension>("Parameter", opset, &make<ov::op::v0::Parameter>));
        if (opset < 3) continue;
        const auto make_assign = opset < 6 ? &make<ov::op::v3::Assign> : &make<ov::op::v6::Assign>;
        extensions.push_back(std::make_shared<OutputExtension>("Assign", opset, make_assign));
    }
}
