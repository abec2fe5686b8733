// An operation that OpenVINO does not have, as the library of an application brings it: y = 2x + 1.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

class TwiceAndOne : public ov::op::Op {
public:
    OPENVINO_OP("TwiceAndOne", "tests");
    TwiceAndOne() = default;
    explicit TwiceAndOne(const ov::Output<ov::Node>& x) : Op({x}) { constructor_validate_and_infer_types(); }
    void validate_and_infer_types() override {
        set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
    }
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<TwiceAndOne>(inputs.at(0));
    }
    bool has_evaluate() const override { return get_input_element_type(0) == ov::element::f32; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        outputs[0].set_shape(inputs[0].get_shape());
        const auto* from = inputs[0].data<float>();
        auto* to = outputs[0].data<float>();
        for (size_t i = 0; i < inputs[0].get_size(); ++i) to[i] = 2 * from[i] + 1;
        return true;
    }
};

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<TwiceAndOne>>()}));
