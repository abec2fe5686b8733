"""Applies OpenVINO's common transformations (MOC) to a model before it is placed.

Where they fail, the model is restored from a copy.
"""

from __future__ import annotations

import numpy as np

from ov_hsdag.model.excerpt import LARGE, Excerpt, excerpt, structures
from ov_hsdag.model.names import name_generated
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.utils.lazy import op, ov

# Marks in rt_info that keep OpenVINO from folding a node (DisableConstantFolding of its transformations).
_UNFOLDED = frozenset({"can_be_folded", "DisableConstantFolding_0"})


def clean_up(model: ov.Model, placed: bool = False) -> tuple[Excerpt | None, Nodes | None]:
    """Applies OpenVINO's common transformations to `model`, in place. They fold shape arithmetic of static shapes.

    The transformations first forget all dimensions of the inputs, and some operations cannot infer their shapes then:
    Col2Im of 2026.4 ends with "to_shape was called on a dynamic shape". Placing does not depend on the transformations.

    Transforming all of a large model takes a time that grows faster than the model. So an excerpt, a small model with
    the same kinds of nodes (`ov_hsdag.model.excerpt`), is transformed first. Where the excerpt stays as it was, as with
    models that OpenVINO's converter wrote, the model stays as it is, too.

    Nodes with generated names get names that are the same in every process (`name_generated`), before and after.

    Args:
        model: any model; changed in place.
        placed: whether the model carries a placement. Then it was transformed before and is not transformed again: that
            would merge the nodes that placing has copied.

    Returns:
        (excerpt, nodes) for use by the caller. If the model was not transformed, `nodes` are its nodes, and `excerpt`
        is its excerpt, or None for a small model or one without an excerpt. If it was transformed, both are None. Both
        are also None where the transformations failed: the model then computes what it did before, with the same
        Parameters and Results.
    """
    from openvino._offline_transformations import apply_moc_transformations

    if not model.has_rt_info(["version"]):  # an IR has its nodes' names in the file
        name_generated(model)  # first of all: transformations hand names on to new nodes
    if placed:
        _widen_weights(model)
    nodes = Nodes(model)
    # Only shape arithmetic needs folding. In other models it would unpack weights that were compressed to f16.
    measured = nodes.of_type("ShapeOf")
    for node in measured:
        # A converted model has these marks in memory, though not in its file. They would keep static shapes unfolded.
        _remove_folding_marks(node)
    names = set(nodes.names)
    small_part = excerpt(model, nodes) if len(nodes) >= LARGE else None
    if placed or (small_part is not None and _changes_nothing(small_part.model, folding=bool(measured))):
        return small_part, nodes
    # A node with a Python reference still counts as a consumer after it was replaced, so `nodes` has to go. `measured`
    # stays: the names that the transformations hand on depend on it, and earlier placements know nodes by these names.
    del nodes
    backup = model.clone()  # shares the constants' memory
    try:
        apply_moc_transformations(model, cf=bool(measured), smart_reshape=True)
    except RuntimeError:
        _restore_from(model, backup)
        return None, None
    _let_u1_conversions_fold(model)
    name_generated(model, names)
    return None, None


def fold_static_shapes(model: ov.Model) -> None:
    """Replaces each ShapeOf of a tensor whose shape is static by a Constant of that shape, in place.

    A placement is made for a model whose shape arithmetic is folded. If such a model were compiled as it was read,
    shape arithmetic would be placed on one device and read on another, which makes more submodels than predicted.
    Arithmetic that reads a Constant rests on constants alone and can be on both devices. The changed model must not be
    reshaped.
    """
    for node in model.get_ops():
        if node.get_type_name() != "ShapeOf" or node.get_input_partial_shape(0).is_dynamic:
            continue
        shape = np.array(list(node.get_input_shape(0)), node.get_output_element_type(0).to_dtype())
        constant = op.Constant(shape)
        constant.set_friendly_name(node.get_friendly_name())
        node.output(0).replace(constant.output(0))


def _widen_weights(model: ov.Model) -> None:
    """Replaces weights that a file has in f16 by constants of the type that they are converted to, in place.

    The transformations do the same.
    """
    for node in model.get_ordered_ops():
        source = node.input_value(0).get_node() if node.get_type_name() == "Convert" else None
        if "decompression_0" in node.get_rt_info() and isinstance(source, op.Constant):
            wide = op.Constant(source.get_data(dtype=node.get_output_element_type(0).to_dtype()))
            wide.set_friendly_name(node.get_friendly_name())
            node.output(0).replace(wide.output(0))


def _remove_folding_marks(node: ov.Node) -> None:
    """Removes the marks that keep OpenVINO from folding a node, in place."""
    info = node.get_rt_info()
    for mark in [key for key in info if key in _UNFOLDED]:
        del info[mark]


def _let_u1_conversions_fold(model: ov.Model) -> None:
    """Removes the marks that keep plugins from folding conversions of u1 constants, in place.

    The transformations mark these conversions as weights to decompress at run time. The CPU plugin, which cannot
    compute with u1, then writes outside of its memory (2026.4).
    """
    for node in model.get_ops():
        if node.get_type_name() == "Convert" and node.get_input_element_type(0).get_type_name() == "u1":
            _remove_folding_marks(node)


def _changes_nothing(model: ov.Model, *, folding: bool) -> bool:
    """Whether the common transformations would keep the operations of `model`; they are applied to a copy.

    Args:
        model: the model, which stays as it is.
        folding: whether the transformations fold constants.

    Returns:
        True if the copy has the same structure afterwards; False if it has not, or if the transformations fail.
    """
    from openvino._offline_transformations import apply_moc_transformations

    changed = model.clone()
    try:
        apply_moc_transformations(changed, cf=folding, smart_reshape=True)
    except RuntimeError:
        return False
    before, after = structures(model, changed)
    return np.array_equal(before, after)


def _restore_from(model: ov.Model, backup: ov.Model) -> None:
    """Replaces all nodes of a model, except Parameters and Results, by those of an earlier copy of it.

    Parameters and Results remain those of `model`, because callers hold on to inputs and outputs.

    Args:
        model: the model; changed in place.
        backup: the copy, which cannot be used afterwards.
    """
    for original, copied in zip(model.get_parameters(), backup.get_parameters(), strict=True):
        original.set_partial_shape(copied.get_partial_shape())
        for reader in copied.output(0).get_target_inputs():
            reader.replace_source_output(original.output(0))
    for original, copied in zip(model.get_results(), backup.get_results(), strict=True):
        original.input(0).replace_source_output(copied.input_value(0))
    for sink in model.get_sinks():
        model.remove_sink(sink)
    for variable in model.get_variables():
        model.remove_variable(variable)
    model.add_variables(backup.get_variables())
    model.add_sinks(backup.get_sinks())
    model.validate_nodes_and_infer_types()
