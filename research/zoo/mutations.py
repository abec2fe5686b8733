"""Changes models at random, as tools and users do, and checks that the changed models can be placed.

A mutation is a change of a `Case`, which is a model with inputs. Random numbers come from its generator, so that a seed
repeats it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.preprocess import PrePostProcessor

from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.affinities import remove_affinities
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing.place import place
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.errors import one_line
from ov_hsdag.utils.lazy import op
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.compare import TOLERANCE, infer, largest_difference
from research.zoo.generated import Case

Mutation = Callable[[Case, np.random.Generator], "Case | None"]
"""Changes the model of a case in place, or returns another case; None where the model has nothing to change."""

Outputs = list[list[NDArray[Any]]]
"""Outputs of a model for each input set."""

_STATES = ("ReadValue", "Assign")


def _some(random: np.random.Generator, choices: list[Any]) -> Any:
    """A random element of a list; None if the list is empty."""
    return choices[int(random.integers(0, len(choices)))] if choices else None


def _nodes(model: ov.Model, *, but: tuple[str, ...] = ()) -> list[Any]:
    """The nodes in topological order, without the types in `but`."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() not in but]


def _float_edges(model: ov.Model) -> list[Any]:
    """The input ports that read f32, except those of states."""
    return [port for node in _nodes(model, but=_STATES) for port in node.inputs() if _is_f32(port.get_source_output())]


def _weights(model: ov.Model) -> set[int]:
    """Ids of nodes that depend on constants only, which mutations leave constant.

    The CPU plugin of OpenVINO 2026.4 computes nonsense, on a single device too, if decompressed weights are not
    constant.
    """
    constant_ids: set[int] = set()
    for node in model.get_ordered_ops():
        sources = [value.get_node().get_instance_id() for value in node.input_values()]
        constant = node.get_type_name() == "Constant" or (bool(sources) and constant_ids.issuperset(sources))
        if constant and node.get_type_name() != "ReadValue":
            constant_ids.add(node.get_instance_id())
    return constant_ids


def _is_f32(output: Any) -> bool:
    return bool(output.get_element_type() == ov.Type.f32)


def insert_activation(case: Case, random: np.random.Generator) -> Case | None:
    """Inserts a Tanh on an edge."""
    edge = _some(random, _float_edges(case.model))
    if edge is None:
        return None
    edge.replace_source_output(ops.tanh(edge.get_source_output()).output(0))
    return case


def insert_conversions(case: Case, random: np.random.Generator) -> Case | None:
    """Inserts conversions f32 → f16 → f32 on an edge."""
    edge = _some(random, _float_edges(case.model))
    if edge is None:
        return None
    halved = ops.convert(edge.get_source_output(), ov.Type.f16)
    edge.replace_source_output(ops.convert(halved, ov.Type.f32).output(0))
    return case


def insert_reshapes(case: Case, random: np.random.Generator) -> Case | None:
    """Flattens a tensor and restores its shape by a computed pattern."""
    edges = [e for e in _float_edges(case.model) if e.get_source_output().get_partial_shape().rank.is_static]
    edge = _some(random, [e for e in edges if e.get_source_output().get_partial_shape().rank.get_length() > 0])
    if edge is None:
        return None
    tensor = edge.get_source_output()
    flat = ops.reshape(tensor, ops.constant(np.array([-1])), False)
    edge.replace_source_output(ops.reshape(flat, ops.shape_of(tensor), False).output(0))
    return case


def add_branch(case: Case, random: np.random.Generator) -> Case | None:
    """Adds a side branch to an edge: x → x + relu(x) · tanh(x)."""
    edge = _some(random, _float_edges(case.model))
    if edge is None:
        return None
    tensor = edge.get_source_output()
    edge.replace_source_output(ops.add(tensor, ops.multiply(ops.relu(tensor), ops.tanh(tensor))).output(0))
    return case


def remove_node(case: Case, random: np.random.Generator) -> Case | None:
    """Removes a node whose output has the shape and type of one of its inputs."""
    removable = []
    for node in _nodes(case.model, but=(*_STATES, "Result", "Parameter", "Constant")):
        if node.get_output_size() != 1:
            continue
        output = node.output(0)
        for value in node.input_values():
            alike = value.get_partial_shape() == output.get_partial_shape()
            if alike and value.get_element_type() == output.get_element_type():
                removable.append((output, value))
    if not removable:
        return None
    output, value = _some(random, removable)
    for target in output.get_target_inputs():
        target.replace_source_output(value)
    return case


def rename(case: Case, random: np.random.Generator) -> Case | None:
    """Renames a third of the nodes, some of them to odd names."""
    odd = ('a "quoted", name', "été/層", "<x>&y;", "a\nb", "back\\slash", "affinity", " ")
    for number, node in enumerate(_nodes(case.model)):
        if random.random() < 1 / 3:
            node.set_friendly_name(_some(random, [*odd, "renamed"]) + f"_{number}")
    return case


def repeat_names(case: Case, random: np.random.Generator) -> Case | None:
    """Gives several nodes of any types the same name."""
    nodes = _nodes(case.model)
    for index in random.integers(0, len(nodes), 6):
        nodes[index].set_friendly_name(nodes[0].get_friendly_name() if random.random() < 0.3 else "same")
    return case


def free_shapes(case: Case, random: np.random.Generator) -> Case | None:
    """Makes static dimensions of an input dynamic, some with bounds."""
    port = _some(random, case.model.inputs)
    if port is None or port.get_partial_shape().rank.is_dynamic:
        return None
    dimensions = []
    for dimension in port.get_partial_shape():
        if dimension.is_dynamic or random.random() < 0.5:
            dimensions.append(dimension)
        else:
            size = dimension.get_length()
            bounds = ((0, -1), (1, size + 2), (0, size))[random.integers(0, 3)]
            dimensions.append(ov.Dimension(*bounds))
    case.model.reshape({port: ov.PartialShape(dimensions)})
    return case


def fix_shapes(case: Case, random: np.random.Generator) -> Case | None:
    """Fixes dynamic inputs to the shapes of one input set."""
    if not case.model.is_dynamic() or any(n.get_type_name() == "ReadValue" for n in case.model.get_ops()):
        return None
    arrays = _some(random, case.inputs)
    ports = case.model.inputs
    case.model.reshape({port: ov.PartialShape(list(array.shape)) for port, array in zip(ports, arrays, strict=True)})
    return Case(case.model, [arrays])


def _first_dimension(port: Any) -> int | None:
    """The first dimension of a float tensor; None for other tensors, and where it is dynamic."""
    shape = port.get_partial_shape()
    known = _is_f32(port) and shape.rank.is_static and shape.rank.get_length() > 0 and shape[0].is_static
    return int(shape[0].get_length()) if known else None


def change_batch(case: Case, random: np.random.Generator) -> Case | None:
    """Multiplies the first dimension of every input by two or three."""
    if not case.inputs[0] or any(array.ndim == 0 for array in case.inputs[0]):
        return None
    times = int(random.integers(2, 4))
    before = [_first_dimension(port) for port in case.model.outputs]
    shapes = {}
    for port in case.model.inputs:
        shape = port.get_partial_shape()
        if shape.rank.is_static:
            # Without upper bounds: larger inputs would be errors, and one such model crashed on a single device.
            shape[0] = ov.Dimension(shape[0].get_length() * times if shape[0].is_static else -1)
        shapes[port] = shape
    case.model.reshape(shapes)
    after = [_first_dimension(port) for port in case.model.outputs]
    if any(size == case.inputs[0][0].shape[0] and new == size for size, new in zip(before, after, strict=True)):
        return None  # a folded pattern has the old batch: the CPU plugin may crash, on a single device too
    return Case(case.model, [[np.concatenate([array] * times) for array in arrays] for arrays in case.inputs])


def compress_weights(case: Case, random: np.random.Generator) -> Case | None:
    """Compresses weights to f16, as saving does by default."""
    from openvino._offline_transformations import compress_model_transformation

    compress_model_transformation(case.model)
    return case


def through_a_file(case: Case, random: np.random.Generator) -> Case | None:
    """Saves the model and reads it again, half of the time with f16 weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        ov.save_model(case.model, path, compress_to_fp16=bool(random.random() < 0.5))
        return Case(ov.Core().read_model(path), case.inputs)


def share_constants(case: Case, random: np.random.Generator) -> Case | None:
    """Merges equal constants."""
    first: dict[Any, Any] = {}
    merged = False
    for node in _nodes(case.model):
        if node.get_type_name() != "Constant" or node.get_element_type() == ov.Type.string:
            continue
        key = (str(node.get_element_type()), tuple(node.output(0).get_shape()), node.get_data().tobytes())
        other = first.setdefault(key, node)
        if other is not node:
            merged = True
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(other.output(0))
    return case if merged else None


def unshare_constants(case: Case, random: np.random.Generator) -> Case | None:
    """Gives each consumer of a shared constant its own copy, with the same name."""
    changed = False
    for node in _nodes(case.model):
        if node.get_type_name() != "Constant" or node.get_element_type() == ov.Type.string:
            continue
        for target in list(node.output(0).get_target_inputs())[1:]:
            copy = ops.constant(node.get_data().copy(), node.get_element_type())
            copy.set_friendly_name(node.get_friendly_name())
            target.replace_source_output(copy.output(0))
            changed = True
    return case if changed else None


def feed_constant(case: Case, random: np.random.Generator) -> Case | None:
    """Replaces a constant by an input."""
    weights = _weights(case.model)
    constants = []
    for node in _nodes(case.model):
        if node.get_type_name() == "Constant" and _is_f32(node.output(0)):
            users = {target.get_node().get_instance_id() for target in node.output(0).get_target_inputs()}
            if users and not users & weights:
                constants.append(node)
    node = _some(random, constants)
    # The CPU plugin loses states whose initial value is not constant, on a single device too.
    if node is None or any(t.get_node().get_type_name() in _STATES for t in node.output(0).get_target_inputs()):
        return None
    value = node.get_data().copy()
    parameter = ops.parameter(list(value.shape), ov.Type.f32, name=f"fed_{len(case.model.inputs)}")
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(parameter.output(0))
    case.model.add_parameters([parameter])
    return Case(case.model, [[*arrays, value] for arrays in case.inputs])


def freeze_input(case: Case, random: np.random.Generator) -> Case | None:
    """Replaces an input by a constant."""
    index = int(random.integers(0, len(case.model.inputs))) if len(case.model.inputs) > 1 else None
    if index is None or len({arrays[index].shape for arrays in case.inputs}) > 1:
        return None
    parameter = case.model.get_parameters()[index]
    constant = ops.constant(case.inputs[0][index], parameter.get_element_type())
    for target in parameter.output(0).get_target_inputs():
        target.replace_source_output(constant.output(0))
    case.model.remove_parameter(parameter)
    return Case(case.model, [[*arrays[:index], *arrays[index + 1 :]] for arrays in case.inputs])


def repeat_result(case: Case, random: np.random.Generator) -> Case | None:
    """Makes an output tensor an output once or twice more."""
    port = _some(random, [result.input_value(0) for result in case.model.get_results()])
    case.model.add_results([ops.result(port) for _ in range(random.integers(1, 3))])
    return case


def expose_tensor(case: Case, random: np.random.Generator) -> Case | None:
    """Makes an inner tensor an output; its producer may be replicable or a constant."""
    nodes = _nodes(case.model, but=("Result", "Assign"))
    ports = [port for node in nodes for port in node.outputs() if port.get_element_type() != ov.Type.string]
    port = _some(random, [port for port in ports if port.get_target_inputs()])
    if port is None:
        return None
    case.model.add_results([ops.result(port)])
    return case


def remove_result(case: Case, random: np.random.Generator) -> Case | None:
    """Removes an output, and the nodes that only it needs."""
    results = case.model.get_results()
    if len(results) < 2:
        return None
    case.model.remove_result(_some(random, results))
    return case


def pass_input_through(case: Case, random: np.random.Generator) -> Case | None:
    """Makes an existing input, or a new one, an output as well."""
    if random.random() < 0.5 and case.model.get_parameters():
        case.model.add_results([ops.result(_some(random, case.model.get_parameters()))])
        return case
    parameter = ops.parameter([2, 3], ov.Type.f32, name=f"passed_{len(case.model.inputs)}")
    case.model.add_parameters([parameter])
    case.model.add_results([ops.result(parameter)])
    value = random.standard_normal((2, 3)).astype(np.float32)
    return Case(case.model, [[*arrays, value] for arrays in case.inputs])


def add_unused_input(case: Case, random: np.random.Generator) -> Case | None:
    """Adds an input that no node reads."""
    parameter = ops.parameter([2, 3], ov.Type.f32, name=f"unused_{len(case.model.inputs)}")
    case.model.add_parameters([parameter])
    return Case(case.model, [[*arrays, np.zeros((2, 3), np.float32)] for arrays in case.inputs])


def preprocess(case: Case, random: np.random.Generator) -> Case | None:
    """Applies PrePostProcessor: an f32 input becomes u8 or f16 with mean and scale, and maybe an output becomes f16."""
    ports = [index for index, port in enumerate(case.model.inputs) if _is_f32(port)]
    index = _some(random, ports)
    if index is None:
        return None
    steps = PrePostProcessor(case.model)
    kind = (ov.Type.u8, ov.Type.f16)[random.integers(0, 2)]
    steps.input(index).tensor().set_element_type(kind)
    steps.input(index).preprocess().convert_element_type(ov.Type.f32).mean(2.0).scale(3.0)
    outputs = [index for index, port in enumerate(case.model.outputs) if _is_f32(port)]
    if outputs and random.random() < 0.5:
        steps.output(_some(random, outputs)).tensor().set_element_type(ov.Type.f16)
    model = steps.build()
    inputs = [list(arrays) for arrays in case.inputs]
    for arrays in inputs:
        arrays[index] = np.clip(arrays[index] * 3 + 2, 0, 9).astype(kind.to_dtype())
    return Case(model, inputs)


def add_state(case: Case, random: np.random.Generator) -> Case | None:
    """Adds a state: a static tensor is averaged with the state, which then takes the result."""
    if len({tuple(array.shape for array in arrays) for arrays in case.inputs}) > 1:
        return None
    edges = [edge for edge in _float_edges(case.model) if edge.get_source_output().get_partial_shape().is_static]
    weights = _weights(case.model)
    edge = _some(random, [e for e in edges if e.get_source_output().get_node().get_instance_id() not in weights])
    if edge is None:
        return None
    tensor = edge.get_source_output()
    info = op.util.VariableInfo()
    info.data_shape, info.data_type = tensor.get_partial_shape(), ov.Type.f32
    info.variable_id = f"added_{len(case.model.get_sinks())}"
    variable = op.util.Variable(info)
    old = ops.read_value(ops.constant(np.zeros(tuple(tensor.get_shape()), np.float32)), variable)
    new = ops.multiply(ops.add(old, tensor), ops.constant(np.float32(0.5)))
    edge.replace_source_output(new.output(0))
    case.model.add_sinks([ops.assign(new, variable)])
    return Case(case.model, case.inputs if len(case.inputs) > 1 else case.inputs * 2)


def leave_affinities(case: Case, random: np.random.Generator) -> Case | None:
    """Sets affinities on some nodes, as an earlier program may have left them."""
    for node in _nodes(case.model):
        if random.random() < 0.3:
            node.get_rt_info()["affinity"] = ("CPU_A", "CPU_B")[random.integers(0, 2)]
    return case


def common_transformations(case: Case, random: np.random.Generator) -> Case | None:
    """Runs the transformations with which converters end."""
    from openvino._offline_transformations import apply_moc_transformations

    apply_moc_transformations(case.model, cf=bool(random.random() < 0.5), smart_reshape=bool(random.random() < 0.5))
    return case


MUTATIONS: dict[str, Mutation] = {
    function.__name__: function
    for function in (
        insert_activation, insert_conversions, insert_reshapes, add_branch, remove_node, rename, repeat_names,
        free_shapes, fix_shapes, change_batch, compress_weights, through_a_file, share_constants, unshare_constants,
        feed_constant, freeze_input, repeat_result, expose_tensor, remove_result, pass_input_through, add_unused_input,
        preprocess, add_state, leave_affinities, common_transformations,
    )
}  # fmt: skip


def mutated(case: Case, names: list[str], seed: int) -> tuple[Case, list[str]]:
    """Applies mutations to a copy of a case, one after the other.

    A mutation that makes the model invalid, such as a reshape that it does not allow, is skipped.

    Args:
        case: the case, which is not changed.
        names: mutations, by their keys in `MUTATIONS`.
        seed: seed of the mutations.

    Returns:
        The changed case, and the names of the mutations that changed something.
    """
    random = np.random.default_rng(seed)
    done = []
    for name in names:
        copy = Case(_wrapped(case.model.clone()), case.inputs)
        try:
            changed = MUTATIONS[name](copy, random)
            if changed is not None:
                changed.model.validate_nodes_and_infer_types()
        except RuntimeError:
            continue
        if changed is not None:
            case = changed
            done.append(name)
    return case, done


def _wrapped(model: Any) -> ov.Model:
    """The model as an `ov.Model`, as some functions return a model of OpenVINO's C++ binding."""
    return model if isinstance(model, ov.Model) else ov.Model(model)


class Wrong(Exception):
    """A placement does not compile, or its outputs differ from those of a single device."""


@dataclass
class Checked:
    """The result of a check."""

    nodes: int = 0  # number of nodes of the model
    groups: int = 0  # number of colocation groups of the model
    submodels: list[int] = field(default_factory=list)  # number of submodels of each placement that compiled


def runs(case: Case, core: ov.Core, device: str) -> Outputs | None:
    """Infers a copy of a case on one device, twice.

    Args:
        case: the case, which is not changed.
        core: runs it.
        device: the device.

    Returns:
        The outputs; None where OpenVINO cannot run the model, outputs are not finite, or the second run differs.
    """
    try:
        compiled = core.compile_model(case.model.clone(), device)
        outputs, again = infer(compiled, _by_index(case)), infer(compiled, _by_index(case))
    except RuntimeError:
        return None
    if largest_difference(outputs, again) > TOLERANCE:
        return None
    numbers = [array for one in outputs for array in one if array.dtype.kind == "f"]
    return outputs if all(np.isfinite(array).all() for array in numbers) else None


def check(case: Case, expected: Outputs, core: ov.Core, devices: DeviceSet, seed: int, after: list[str]) -> Checked:
    """Places a case in several ways and compares each with a single device.

    Args:
        case: a model that runs on the first device; it is not changed.
        expected: its outputs there, see `runs`.
        core: runs the placements.
        devices: two or more devices that infer in f32.
        seed: seed of two random legal placements and of the mutations.
        after: names of mutations of the placed model, as users change models that they have read.

    Returns:
        The numbers of nodes, groups and submodels.

    Raises:
        Wrong: a placement does not compile, has another number of submodels than predicted, or differs in its outputs.
    """
    checked = Checked()
    for way, placed, correct, predicted in _placed(case, expected, core, devices, seed, after, checked):
        try:
            compiled = core.compile_model(placed.model, devices.hetero, virtual.compile_properties(devices.hetero))
            outputs = infer(compiled, _by_index(placed))
        except RuntimeError as error:
            raise Wrong(f"{way}: {one_line(error)}") from error
        checked.submodels.append(int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")))
        if predicted is not None and checked.submodels[-1] != predicted:
            raise Wrong(f"{way}: {checked.submodels[-1]} submodels, predicted {predicted}")
        difference = largest_difference(correct, outputs)
        if difference > TOLERANCE:
            raise Wrong(f"{way}: outputs differ by {difference:.2g}")
    return checked


def _placed(
    case: Case, expected: Outputs, core: ov.Core, devices: DeviceSet, seed: int, after: list[str], checked: Checked
) -> Iterator[tuple[str, Case, Outputs, int | None]]:
    """Places a case in several ways; the arguments are those of `check`.

    Args:
        case: a model that runs on the first device.
        expected: its outputs there.
        core: runs models.
        devices: the devices.
        seed: seed of the random placements and the mutations.
        after: names of mutations of the placed model.
        checked: gets the numbers of nodes and groups.

    Yields:
        Description of the way, the placed case, its correct outputs, and the predicted number of submodels (None if the
        model was changed after placing).
    """
    model = _wrapped(case.model.clone())
    problem = build_problem(model, devices, core=core)
    checked.nodes, checked.groups = problem.graph.nodes, problem.group_count
    drawn = problem.random(np.random.default_rng(seed), 2)
    for number, placement in enumerate(drawn):
        copy = _wrapped(model.clone())
        Placement(devices=devices.names, affinity=problem.affinity(placement)).apply(copy)
        predicted = int(problem.evaluate(placement).submodels[0])
        yield f"random placement {number}", Case(copy, case.inputs), expected, predicted

    model = _wrapped(case.model.clone())
    objective = ("latency", "throughput")[seed % 2]
    found = place(model, devices.hetero, objective=objective, core=core, measure=False)
    assert found.predicted is not None
    yield f"place for {objective}", Case(model, case.inputs), expected, int(found.predicted["submodels"])

    # A random placement, so that several devices are used whatever is best, and mutations have something to disturb.
    Placement(devices=devices.names, affinity=problem.affinity(drawn[0])).embed(model)
    remove_affinities(model)
    changed, done = mutated(Case(model, case.inputs), after, seed)
    wanted = runs(changed, core, devices.names[0])
    if wanted is None:
        return
    embedded = Placement.of(changed.model)
    if embedded is None:
        raise Wrong(f"placed, then {', '.join(done)}: the placement is lost")
    embedded.apply(changed.model)
    yield f"placed, then {', '.join(done) or 'nothing'}", changed, wanted, None


def _by_index(case: Case) -> list[dict[Any, NDArray[Any]]]:
    """The input sets as dictionaries by number of the input."""
    return [dict(enumerate(arrays)) for arrays in case.inputs]
