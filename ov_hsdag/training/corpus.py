"""Training problems: graphs of models and generated DAGs, with devices, costs and limits drawn from a seed.

A template is a problem of which only the graph and the co-location groups are used. A family is the models of one
architecture. On disk a corpus is a folder of graphs, with one problem .npz for each model (`PlacementProblem.save`);
`research.corpus` makes one from the model zoo. Everything else about a training problem is drawn on the fly. Problem i
of a seed is the same on every machine and in every order, so a run's position in its corpus is one number.

For evaluation, the families `HELD_OUT_FAMILIES` and the device sets `HELD_OUT_SETS` are held out. Two profiles of these
sets (`HELD_OUT_PROFILES`) are in no training problem in any form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.profile import DeviceProfile, Profile, builtin_names, load_builtin
from ov_hsdag.costs.terms import no_costs
from ov_hsdag.model import colocation
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

HELD_OUT_FAMILIES: frozenset[str] = frozenset({
    "clip", "dpt", "efficientnet", "hourglass", "inception", "segformer", "swin", "unet", "yolo",  # vision
    "bloom", "deberta", "gemma", "llama", "mistral", "moe", "phi", "t5",  # text
    "wav2vec2", "wavenet", "whisper",  # speech
    "dlrm",  # recommenders
})  # fmt: skip
"""Families of models (research.zoo) that no training problem comes from: those that benchmarks judge a policy on."""

HELD_OUT_PROFILES: frozenset[str] = frozenset({"arc_a770", "xeon_platinum_8480"})
"""Built-in profiles that no training problem uses, not even changed."""

HELD_OUT_SETS: dict[str, tuple[str, ...]] = {
    "xeon+flex": ("flex_170", "xeon_platinum_8480"),
    "client+iris": ("iris_xe", "core_ultra_7_155h"),
    "core+core": ("cpu_core", "cpu_core"),
    "amx+core": ("cpu_core_amx", "cpu_core"),
    "client+npu+arc": ("arc_meteor_lake", "npu_core_ultra", "core_ultra_7_155h"),
    "xeon+flex+flex": ("flex_170", "flex_170", "xeon_platinum_8480"),
    "a770+iris+npu+client": ("arc_a770", "iris_xe", "npu_core_ultra", "core_ultra_7_155h"),
    "npu+iris": ("npu_core_ultra", "iris_xe"),
}
"""Sets of built-in profiles, in HETERO's order, that no training problem uses in any order."""

RECIPE = 2
"""Version of the way in which problems are drawn; it is raised where the same seed gives other problems."""

MAX_COARSE = 2000
"""Largest number of coarse groups of a training graph.

Larger graphs are left out, as the network sees them coarsened anyway (`ov_hsdag.policy.features.MOST_NODES`)."""

# Numbers of devices of training problems, and the shares of problems that have them.
_DEVICES, _SHARES = (2, 3, 4, 5, 6, 8), (0.45, 0.2, 0.15, 0.05, 0.05, 0.1)

GENERATED = "generated"
"""Name of the family of generated graphs, and of their folder."""

MOST_GENERATED = 400
"""Largest number of operations of a generated graph."""


def named_devices(profiles: Sequence[DeviceProfile]) -> tuple[tuple[str, ...], Profile]:
    """Makes a device list of profiles.

    Returns:
        The device names, the kinds of the profiles, with numbers as in "GPU.0" where a kind occurs twice; and the
        profile of all devices by these names.
    """
    kinds = [profile.kind for profile in profiles]
    names = tuple(
        kind if kinds.count(kind) == 1 else f"{kind}.{kinds[:number].count(kind)}" for number, kind in enumerate(kinds)
    )
    return names, Profile({name: replace(p, name=name) for name, p in zip(names, profiles, strict=True)})


def assemble(
    template: PlacementProblem,
    names: Sequence[str],
    profile: Profile,
    objective: str,
    memory_bytes: NDArray[np.int64] | None = None,
) -> PlacementProblem:
    """Makes a problem of a template's graph and groups on other devices.

    Args:
        template: the problem, whose graph and groups are used.
        names: names of the devices.
        profile: their profile, which determines costs, support and links.
        objective: "latency" or "throughput".
        memory_bytes: memory limits, -1 without a limit, int64 [devices]; by default those of the profile.

    Returns:
        The problem on the devices.
    """
    return replace(
        template,
        devices=tuple(names),
        objective=objective,
        node_us=cost_model.node_us(profile, template.graph, names),
        supported=cost_model.assumed_support(profile, template.graph, names),
        memory_bytes=profile.memory_bytes(names) if memory_bytes is None else memory_bytes,
        **cost_model.boundary_costs(profile, names),
    )


def placeable(problem: PlacementProblem) -> bool:
    """Whether each colocation group has a device that runs it."""
    return bool(problem.group_supported.any(axis=1).all())


def unpriced(graph: ComputationGraph, devices: tuple[str, ...], rule: int) -> PlacementProblem:
    """Makes a problem of a graph on devices that run everything and cost nothing.

    Args:
        graph: the graph, whose colocation groups are used.
        devices: names of the devices.
        rule: HETERO's splitting rule, see `ov_hsdag.model.colocation.split_rule`.

    Returns:
        The problem, a template for `assemble`.
    """
    count = len(devices)
    return PlacementProblem(
        graph=graph,
        devices=devices,
        objective="latency",
        supported=np.ones((graph.nodes, count), bool),
        groups=graph.legality.groups,
        memory_bytes=np.full(count, -1, np.int64),
        rule=rule,
        **no_costs(graph.nodes, count),
    )


def write_generated(folder: Path, count: int = 256) -> None:
    """Writes generated graphs as generated/NUMBER.npz: a corpus that needs no models. Existing files are kept."""
    rule = colocation.split_rule(ov.__version__)
    for number in range(count):
        path = folder / GENERATED / f"{number:03d}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            generated_template(np.random.default_rng([0, RECIPE, number]), rule).save(path)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Templates from which training problems are drawn.

    Attributes:
        templates: problems whose graphs and groups are used; their devices and costs are not.
        names: "family/name" of each template.
        seed: seed of all draws.
        generated: share of problems on newly generated DAGs.
    """

    templates: tuple[PlacementProblem, ...]
    names: tuple[str, ...]
    seed: int = 0
    generated: float = 0.15

    @classmethod
    def load(cls, folder: Path, *, seed: int = 0, max_coarse: int = MAX_COARSE) -> Corpus:
        """Loads a corpus folder, without held-out families and graphs that are too large or too small.

        Args:
            folder: the folder, with FAMILY/MODEL.npz files.
            seed: seed of all draws.
            max_coarse: largest number of coarse groups of a graph.

        Returns:
            The corpus.

        Raises:
            UserError: the folder has no training problems, or a file of it is damaged.
        """
        templates, names = [], []
        for path in sorted(folder.glob("*/*.npz")):
            if path.parent.name in HELD_OUT_FAMILIES:
                continue
            template = PlacementProblem.load(path)
            if int(template.coarse.max()) < max_coarse and template.group_count >= 4:
                templates.append(template)
                names.append(f"{path.parent.name}/{path.stem}")
        if not templates:
            raise UserError(
                f"no training problems in '{folder}': expected FAMILY/MODEL.npz files (in the source tree,"
                " `python -m research.corpus DIR` makes them)"
            )
        return cls(tuple(templates), tuple(names), seed)

    @property
    def fingerprint(self) -> str:
        """A digest of everything that decides what `draw` returns."""
        digest = hashlib.sha256(json.dumps([RECIPE, self.seed, self.generated, self.names]).encode())
        for template in self.templates:
            digest.update(template.graph.output_bytes.tobytes() + template.groups.tobytes())
        return digest.hexdigest()[:16]

    def draw(self, index: int) -> PlacementProblem | None:
        """Draws training problem number `index`; None where a group of it has no device that runs it."""
        generator = np.random.default_rng([self.seed, RECIPE, index])
        if generator.random() < self.generated:
            template = generated_template(generator, self.templates[0].rule)
        else:
            template = self.templates[int(generator.integers(len(self.templates)))]
        problem = draw_problem(template, generator)
        return problem if placeable(problem) else None


def draw_problem(
    template: PlacementProblem, generator: np.random.Generator, devices: int | None = None, *, held_out: bool = False
) -> PlacementProblem:
    """Draws devices, costs, limits and an objective for a template's graph.

    Args:
        template: the template.
        generator: source of all random numbers.
        devices: number of devices; two to eight, at random, by default.
        held_out: whether one of the devices has a profile of `HELD_OUT_PROFILES`.

    Returns:
        The problem; it may have groups that no device runs, see `placeable`.
    """
    template = replace(template, graph=_scale_graph(template.graph, generator))
    names, profile, randomized = _draw_devices(generator, devices, held_out)
    objective = "latency" if generator.random() < 0.5 else "throughput"
    problem = _draw_costs(assemble(template, names, profile, objective), randomized, generator)
    if generator.random() < 0.35:
        problem = replace(problem, supported=_draw_support(problem, generator))
    if generator.random() < 0.3:
        problem = replace(problem, memory_bytes=_draw_limits(problem, generator))
    return problem


def _draw_costs(problem: PlacementProblem, randomized: bool, generator: np.random.Generator) -> PlacementProblem:
    """Adds noise to a problem's costs.

    Args:
        problem: the problem.
        randomized: whether the devices have random figures. Then the devices' total times may be drawn anew, and the
            costs of transfers and submodels be scaled.
        generator: source of the random numbers.

    Returns:
        The problem with the new costs.
    """
    node_us = problem.node_us
    if generator.random() < 0.5:
        # Measured costs scatter around any model of them.
        node_us = node_us * np.exp(generator.normal(0, generator.choice([0.1, 0.3, 0.6]), node_us.shape))
    if randomized and generator.random() < 0.6:
        # For devices of very different speed the answer is always the same: everything on the fastest. So speeds are
        # drawn anew, closer to each other.
        spread = np.exp(generator.normal(0, 0.6, len(problem.devices)))
        node_us = node_us * (spread * node_us.sum(axis=0).mean() / np.maximum(node_us.sum(axis=0), 1e-9))
    if randomized and generator.random() < 0.5:
        factor = float(np.exp(generator.uniform(np.log(1 / 30), np.log(3))))
        problem = problem.with_scaled_costs({"submodels": factor, "transfers": factor})
    return replace(problem, node_us=node_us)


def _scale_graph(graph: ComputationGraph, generator: np.random.Generator) -> ComputationGraph:
    """Scales a graph as if the model were wider (weights grow with the square of the width) and its inputs larger."""
    if generator.random() < 0.25:
        return graph
    width = float(np.exp(generator.uniform(np.log(0.7), np.log(8))))
    size = float(np.exp(generator.uniform(np.log(0.5), np.log(16))))
    constant = graph.kinds[graph.output_node] == NodeKind.CONSTANT
    # Small tensors are shapes, axes and scalars, whatever the model's size.
    factor = np.where(graph.output_bytes <= 256, 1.0, np.where(constant, width**2, width * size))
    scaled = np.ceil(graph.output_bytes * factor).astype(np.int64)
    weights = np.zeros_like(graph.weight_bytes)
    weights[graph.output_node[constant]] = scaled[constant]
    return replace(graph, output_bytes=scaled, weight_bytes=weights, flops=graph.flops * width**2 * size)


def _draw_devices(
    generator: np.random.Generator, devices: int | None = None, held_out: bool = False
) -> tuple[tuple[str, ...], Profile, bool]:
    """Draws devices.

    Args:
        generator: source of the random numbers.
        devices: number of devices; two to eight, at random, by default.
        held_out: whether one of the devices has a profile of `HELD_OUT_PROFILES`.

    Returns:
        Names of the devices, their profile, and whether its figures are randomized.
    """
    stems = [stem for stem in builtin_names() if stem not in HELD_OUT_PROFILES]
    forbidden = {tuple(sorted(stems)) for stems in HELD_OUT_SETS.values()}
    randomized = bool(generator.random() < 0.75)
    while True:
        count = devices or int(generator.choice(_DEVICES, p=_SHARES))
        chosen = [str(stem) for stem in generator.choice(stems, count)]
        if generator.random() < 0.25:
            chosen[-1] = chosen[0]
        if held_out:
            chosen[int(generator.integers(count))] = str(generator.choice(sorted(HELD_OUT_PROFILES)))
        if held_out or randomized or tuple(sorted(chosen)) not in forbidden:
            break
    profiles = [load_builtin(stem) for stem in chosen]
    if randomized:
        changed = [_randomize_profile(profile, generator) for profile in profiles]
        if generator.random() < 0.5:
            # Devices with the same profile are often the same product, so they get the same random figures.
            changed = [changed[chosen.index(stem)] for stem in chosen]
        profiles = changed
    return *named_devices(profiles), randomized


def _randomize_profile(profile: DeviceProfile, generator: np.random.Generator) -> DeviceProfile:
    """Makes a random device of the same kind, with other rates, overheads and efficiencies.

    In half of all cases it runs the operations that the profile lists as unsupported.
    """

    def vary(sigma: float) -> float:
        """A random factor whose logarithm has this standard deviation."""
        return float(np.exp(generator.normal(0, sigma)))

    rate = vary(0.7)
    return replace(
        profile,
        peak_gflops={name: value * rate for name, value in profile.peak_gflops.items()},
        efficiency={name: min(1.0, value * vary(0.5)) for name, value in profile.efficiency.items()},
        memory_gbps=profile.memory_gbps * vary(0.5),
        launch_us=profile.launch_us * vary(0.6),
        submodel_us=profile.submodel_us * vary(0.8),
        link_us=profile.link_us * vary(0.8),
        link_gbps=None if profile.link_gbps is None else profile.link_gbps * vary(0.6),
        unsupported=profile.unsupported if generator.random() < 0.5 else (),
    )


def _draw_support(problem: PlacementProblem, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Draws which devices run which nodes: some devices lose some operation types.

    Nodes and co-location groups that no device runs then are given to one device, the same for all.

    Returns:
        Whether a device runs a node, bool [nodes, devices].
    """
    supported = problem.supported.copy()
    operations = np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK))
    types = np.asarray(problem.graph.types)
    present = np.unique(types[operations])
    for device in range(len(problem.devices)):
        if generator.random() < 0.6:
            refused = generator.choice(present, min(len(present), int(generator.integers(1, 4))), replace=False)
            supported[:, device] &= ~(operations & np.isin(types, refused))
    home = int(generator.integers(len(problem.devices)))
    supported[~supported.any(axis=1), home] = True
    lost = np.asarray(~colocation.group_support(problem.groups, supported).any(axis=1))
    supported[lost[problem.groups], home] = True
    return np.asarray(supported)


def _draw_limits(problem: PlacementProblem, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draws memory limits.

    Their sum is at least 1.3 times what the model needs. Then one device in three loses its limit.

    Returns:
        Limits in bytes, -1 for no limit, int64 [devices].
    """
    devices = len(problem.devices)
    needs = problem.evaluate(problem.singles).memory_bytes.max(axis=1)
    shares = generator.uniform(0.25, 1.2, devices) * 2 / devices
    shares *= max(1.0, 1.3 / shares.sum())
    limits = (shares * needs).astype(np.int64)
    limits[generator.random(devices) < 0.34] = -1
    return np.asarray(limits)


# Types that the operations of generated graphs are drawn from.
_COMMON_TYPES = (
    "Convolution", "MatMul", "Add", "Multiply", "Relu", "Swish", "Concat", "MaxPool", "ReduceMean", "Softmax",
    "Transpose", "Reshape", "GroupConvolution", "Gelu", "MVN", "Interpolate", "StridedSlice",
)  # fmt: skip


def generated_template(
    generator: np.random.Generator, rule: int, most_operations: int = MOST_GENERATED
) -> PlacementProblem:
    """Generates a random DAG with chains, branches, long skips, several inputs and outputs, and various sizes.

    Args:
        generator: source of the random numbers.
        rule: HETERO's splitting rule, see `ov_hsdag.model.colocation.split_rule`.
        most_operations: largest number of operations; there are at least 12.

    Returns:
        The graph on two devices that cost nothing, a template for `draw_problem`.
    """
    operations = int(np.exp(generator.uniform(np.log(12), np.log(most_operations))))
    inputs, skip = int(generator.integers(1, 4)), float(generator.uniform(0.02, 0.4))
    reach = int(generator.integers(2, 20))
    kinds = [NodeKind.PARAMETER] * inputs + [NodeKind.OP] * operations
    types = ["Parameter"] * inputs + [str(t) for t in generator.choice(_COMMON_TYPES, operations)]
    sources: list[list[int]] = [[] for _ in range(inputs)]
    for node in range(inputs, inputs + operations):
        feeds = {node - 1 if generator.random() < 0.7 else int(generator.integers(max(0, node - reach), node))}
        while generator.random() < skip:
            feeds.add(int(generator.integers(max(0, node - 4 * reach), node)))
        sources.append(sorted(feeds))
    used = {source for feeds in sources for source in feeds}
    for end in (node for node in range(inputs, inputs + operations) if node not in used):
        kinds.append(NodeKind.RESULT)
        types.append("Result")
        sources.append([end])
    total, ports = len(kinds), inputs + operations
    sizes = np.exp(generator.normal(11, generator.uniform(0.3, 2), ports))
    flops = np.zeros(total)
    flops[inputs:ports] = np.exp(generator.normal(17, generator.uniform(0.5, 2.5), operations))
    graph = ComputationGraph(
        names=tuple(f"node_{number}" for number in range(total)),
        types=tuple(types),
        kinds=np.array(kinds, np.uint8),
        input_ptr=np.cumsum([0, *map(len, sources)]).astype(np.int32),
        input_output=np.array([source for feeds in sources for source in feeds], np.int32),
        output_ptr=np.minimum(np.arange(total + 1), ports).astype(np.int32),
        output_bytes=(4 * np.ceil(sizes / 4)).astype(np.int64),
        output_shapes=tuple((1, max(1, int(size) // 4)) for size in sizes),
        output_ranks=np.full(ports, 2, np.int16),
        output_movable=np.ones(ports, bool),
        output_types=("f32",) * ports,
        flops=flops,
        weight_bytes=np.zeros(total, np.int64),
        variables=("",) * total,
    )
    return unpriced(graph, ("A", "B"), rule)
