"""What the states of a language model tell about its inputs.

Attention's states grow with each token, those of a state-space model do not; optimum-intel exports both kinds with the
same input names and gives them different things.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino as ov

_CONVOLUTION = ".conv."


def context_grows(model: ov.Model) -> bool:
    """Whether a mask is as long as all tokens so far.

    It is where a state grows with the tokens (keys and values), or none is known. Models whose states all keep their
    size (Mamba) have a mask of the new tokens.
    """
    shapes = [variable.info.data_shape for variable in model.get_variables()]
    ranked = [list(shape)[1:] for shape in shapes if shape.rank.is_static]
    return len(ranked) < len(shapes) or not ranked or any(size.is_dynamic for sizes in ranked for size in sizes)


def convolution_window(model: ov.Model) -> int | None:
    """Inputs that the states of short convolutions hold; None where the model has no such states.

    A Mamba takes that many positions in its cache with a prompt of any length, and one with each further token. With
    another number it writes beside its state, which the CPU plugin does not check (docs/facts.md).
    """
    for variable in model.get_variables():
        shape = variable.info.data_shape
        if _CONVOLUTION in variable.info.variable_id and shape.rank == 3 and shape[2].is_static:
            return int(shape[2].get_length())
    return None
