"""HETERO:GPU,CPU with OpenVINO's own GPU plugin, in the rig of tests/rig."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ov_hsdag
from tests.processes import ended

ROOT = Path(__file__).resolve().parent.parent
RIG = ROOT / "tests" / "rig"
BIN = Path(sys.executable).parent  # where ovc and benchmark_app are

Run = Callable[..., str]


def two_cores() -> set[int]:
    """Numbers of two CPUs, not two hyper-threads of one core: what a CPU is expected to take is a matter of cores."""
    first: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        first.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    return set(list(first.values())[:2])


pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="the GPU rig needs Intel's OpenCL runtime for CPUs, which PyPI has for Linux on x86-64 alone",
)


def environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OV_HSDAG") or key.endswith("CACHE")}
    return {**clean, "PYTHONPATH": str(ROOT), **more}


@pytest.fixture(scope="module", autouse=True)
def rig() -> None:
    """Made by the first test that comes, unless it is there. Where it cannot be made, tests fail."""
    ended(sys.executable, RIG / "setup")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Standard output of a command in the rig, in an empty directory.

    Its Pythons have the hook as they have where the wheel is installed, by the .pth line.
    """
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "ov_hsdag.pth").symlink_to(ROOT / "startup" / "ov_hsdag.pth")
    (hook / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(hook)!r})\n")

    def in_rig(*command: str | Path, **variables: str) -> str:
        done = subprocess.run(
            [RIG / "run", *command],
            env=environment(
                PYTHONPATH=f"{hook}{os.pathsep}{ROOT}", PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables
            ),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            preexec_fn=lambda: os.sched_setaffinity(0, two_cores()),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return in_rig


@pytest.mark.slow
def test_there_is_a_gpu_in_the_rig_alone(run: Run) -> None:
    code = """
        import os
        import openvino as ov
        core = ov.Core()
        print(core.available_devices, *sorted(key for key in os.environ if key.startswith(("OCL", "OPENCL"))))
        """
    code = textwrap.dedent(code)
    assert run(sys.executable, "-c", code) == "['CPU', 'GPU'] OCL_ICD_VENDORS OPENCL_LAYERS\n"
    assert ended(sys.executable, "-c", code, env=environment()).stdout.endswith("]\n")


@pytest.mark.slow
def test_the_gpu_computes_what_the_cpu_does(run: Run) -> None:
    code = """
        import openvino as ov
        from research.zoo.compare import infer, largest_difference
        from research.zoo.catalog import select
        core = ov.Core()
        for one in select(["squeezenet", "squeezebert-small", "lstm", "unet-small", "looped-cell"]):
            model, inputs = one.build(), one.inputs(0)
            compiled = [core.compile_model(model, d, {"INFERENCE_PRECISION_HINT": "f32"}) for d in ("CPU", "GPU")]
            print(one.name, largest_difference(*(infer(each, inputs) for each in compiled)))
        """
    differences = dict(line.split() for line in run(sys.executable, "-c", textwrap.dedent(code)).splitlines())
    assert len(differences) == 5
    assert all(float(difference) < 1e-3 for difference in differences.values()), differences


@pytest.mark.slow
def test_where_tells_heteros_own_split_and_says_what_it_needs(run: Run) -> None:
    """The GPU lacks operations on strings, and profiles nothing without PERF_COUNT."""
    code = """
        import openvino as ov
        import ov_hsdag
        from research.zoo.catalog import ZOO
        core, model = ov.Core(), ZOO["string-classifier"].build()
        truth = core.query_model(model, "HETERO:GPU,CPU")
        for counters in (True, False):
            found = ov_hsdag.where(core.compile_model(model, "HETERO:GPU,CPU", {"PERF_COUNT": counters}), model)
            homes = {one.name: one.device for one in found.counted}
            print({one: home == truth[one] for one, home in homes.items() if home is not None}.values())
            print(len(set(homes.values())), found.on("GPU") > 0, "not known" in str(found), *found.notes)
        """
    told = run(sys.executable, "-c", textwrap.dedent(code)).splitlines()
    assert set(re.findall(r"True|False", told[0])) == {"True"} and told[1] == "2 True False"
    assert told[2] == "dict_values([])" and told[3].startswith("1 False True a device does not tell")


DECODER = """
import sys
import numpy as np
import openvino as ov
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.problem.pricing import build_problem
from tests.decoders import generate, layered, stateful_decoder

core, devices, layers = ov.Core(), DeviceSet.parse(sys.argv[1]), 3
exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
alone = [core.compile_model(stateful_decoder(layers), device, exact) for device in ("CPU", devices.names[0])]
expected = [generate(compiled) for compiled in alone]
for boundary in range(1, layers):
    model = stateful_decoder(layers)
    problem = build_problem(model, devices, core=core)
    set_affinities(model, problem.affinity(layered(problem, boundary) ^ (boundary % 2)))
    compiled = core.compile_model(model, devices.hetero, exact)
    found = generate(compiled)
    apart = max(np.abs(a - b).max() for one in expected for a, b in zip(found, one, strict=True))
    submodels, used = map(compiled.get_property, ("HETERO_NUMBER_OF_SUBMODELS", "EXECUTION_DEVICES"))
    print(submodels, sorted(used), apart)
"""


@pytest.mark.parametrize(("device", "gpus"), [("HETERO:GPU,CPU", "1"), ("HETERO:GPU.0,GPU.1", "2")])
@pytest.mark.slow
def test_decoders_are_cut_between_layers(run: Run, device: str, gpus: str) -> None:
    names = sorted(device.removeprefix("HETERO:").split(","))
    told = run(sys.executable, "-c", DECODER, device, OV_HSDAG_RIG_GPUS=gpus).splitlines()
    assert len(told) == 2
    for line in told:
        split, apart = line.rsplit(maxsplit=1)
        assert split == f"2 {names}"
        assert float(apart) < 1e-3


@pytest.mark.slow
def test_random_legal_placements_run_on_gpu_and_cpu(tmp_path: Path) -> None:
    table = (sys.executable, "-m", "benchmarks.truth.legality_table", "--pairs", "gpu", "--placements", 2, "--jobs", 2)
    models = ("bert-dynamic", "ghostnet-small", "lstm-stateful", "branching", "gru", "bit-small")
    output = tmp_path / "table.json"
    ended(*table, "--output", output, *models, env=environment())
    rows = json.loads(output.read_text())
    assert {row["model"] for row in rows} == set(models)
    for row in rows:
        assert row["placements"] == row["compiled"] == row["equal"] == row["exact"] == 2, row


EXPORT = """
import sys
import torch
import transformers

class Bert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
        config = transformers.BertConfig(**sizes, vocab_size=2000, attn_implementation="eager")
        self.model = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

torch.manual_seed(0)
ids = torch.randint(2000, (1, 64))
names = ["input_ids", "attention_mask"]
torch.onnx.export(Bert().eval(), (ids, torch.ones_like(ids)), sys.argv[1], input_names=names, dynamo=False)
"""


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of four layers as torch exports it, [1, 64] tokens of a vocabulary of 2,000."""
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    script = path.with_name("export.py")
    script.write_text(EXPORT)
    ended(sys.executable, script, path, env=environment())
    return path


SCRIPT = """
import sys
import numpy as np
import openvino as ov

compiled = ov.Core().compile_model("bert.xml", sys.argv[1], {"INFERENCE_PRECISION_HINT": "f32"})
tokens = np.random.default_rng(0).integers(0, 2000, (1, 64))
np.save(sys.argv[2], compiled([tokens, np.ones_like(tokens)])[0])
print(compiled.get_property("EXECUTION_DEVICES"), *map(compiled.get_property, sys.argv[3:]))
"""


# The model takes 56 MB in f32, and 28 in f16, in which the GPU infers.
SMALL_CARD = {"OV_HSDAG_RIG_GPU": "Intel(R) Data Center GPU Flex 170", "CL_CONFIG_CPU_FORCE_GLOBAL_MEM_SIZE": "16MB"}


# benchmark_app without what the .pth line puts in, and with what OV_HSDAG_DISABLE would turn off in the library.
UNHOOKED = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "OvHsdagWaits"]
from openvino.tools.benchmark.main import main
sys.exit(main())
"""


@pytest.mark.slow
def test_an_unchanged_script_and_benchmark_app_follow_ovcs_placement(run: Run, bert: Path, tmp_path: Path) -> None:
    """A fast card that the model does not fit on: the fastest request has most of it there and the rest on the CPU."""
    told = run("ovc", bert, "--placement", "HETERO:GPU,CPU", **SMALL_CARD)
    submodels = re.search(r"placement HETERO:GPU,CPU \(latency\): \w+, (\d+) submodels", told)
    assert submodels

    (tmp_path / "script.py").write_text(SCRIPT)
    command = (sys.executable, "script.py", "HETERO:GPU,CPU", "both.npy", "HETERO_NUMBER_OF_SUBMODELS")
    assert run(*command, **SMALL_CARD) == f"['CPU', 'GPU'] {submodels[1]}\n"
    assert run(sys.executable, "script.py", "CPU", "cpu.npy") == "['CPU']\n"
    both, cpu = np.load(tmp_path / "both.npy"), np.load(tmp_path / "cpu.npy")
    assert np.abs(both - cpu).max() < 1e-3 * np.abs(cpu).max()

    f32 = ("-infer_precision", "GPU:f32,CPU:f32")
    application = ("benchmark_app", "-m", "bert.xml", "-d", "HETERO:GPU,CPU", "-niter", "3", "-hint", "none", *f32)
    assert "Execution Devices:['CPU', 'GPU']" in run(*application, **SMALL_CARD)
    # The library alone, as in an application without Python.
    (tmp_path / "unhooked.py").write_text(UNHOOKED)
    unhooked = (sys.executable, "unhooked.py", *application[1:], "-extensions", ov_hsdag.extension_path())
    told = run(*unhooked, **SMALL_CARD)
    assert "Execution Devices:['CPU', 'GPU']" in told
    assert "Execution Devices:['GPU.0']" in run(*application, OV_HSDAG_DISABLE="1")


@pytest.mark.slow
def test_many_requests_use_both_devices(run: Run, bert: Path, tmp_path: Path) -> None:
    told = run("ovc", bert, "--placement", "HETERO:GPU,CPU", "--placement_objective", "throughput")
    submodels = re.search(r"placement HETERO:GPU,CPU \(throughput\): \w+, (\d+) submodels", told)
    assert submodels
    (tmp_path / "script.py").write_text(SCRIPT)
    command = (sys.executable, "script.py", "HETERO:GPU,CPU", "both.npy", "HETERO_NUMBER_OF_SUBMODELS")
    assert run(*command) == f"['CPU', 'GPU'] {submodels[1]}\n"
    asked = re.search(r"requests: keep (\d+) in flight", told)
    assert asked is not None
    assert int(asked[1]) >= max(4, int(submodels[1]))
    options = ("-hint", "throughput", "-niter", asked[1], "-infer_precision", "GPU:f32,CPU:f32")
    app = run("benchmark_app", "-m", "bert.xml", "-d", "HETERO:GPU,CPU", *options)
    assert f"Start inference asynchronously, {asked[1]} inference requests" in app


def test_support_that_is_claimed_and_not_there_is_taken_back(run: Run) -> None:
    code = """
        import warnings
        import openvino as ov
        from research.zoo.catalog import ZOO
        from ov_hsdag.model.graph import ComputationGraph
        from ov_hsdag.model.normalize import normalize
        from ov_hsdag.model.support import support
        core = ov.Core()
        for name in ("gru", "lstm"):
            model = ZOO[name].build()
            normalize(model)
            graph = ComputationGraph.from_model(model)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                runs = support(model, graph, ["GPU", "CPU"], core)
            claimed = core.query_model(model, "GPU")
            cells = [node for node, kind in enumerate(graph.types) if kind.endswith("Sequence")]
            assert cells and all(graph.names[node] in claimed for node in cells)
            print({graph.types[node] for node in cells}, *runs[cells].any(axis=0), runs.any(axis=1).all())
            print(*(str(one.message).partition(":")[0] for one in told), sep="; ")
        """
    printed = run(sys.executable, "-c", textwrap.dedent(code)).splitlines()
    assert printed[0] == "{'GRUSequence'} False True True"
    assert printed[1] == "GPU says that it runs GRUSequence and does not compile it"
    assert printed[2:] == ["{'LSTMSequence'} True True True", ""]


@pytest.mark.slow
def test_operations_of_open_rank_are_not_left_to_the_gpu(run: Run) -> None:
    """Its plugin claims an If whose branches differ in rank, and does not compile it; the CPU's does neither."""
    code = """
        import ov_hsdag
        from tests.test_place import branches_of_two_ranks
        try:
            ov_hsdag.place(branches_of_two_ranks(), "HETERO:GPU,CPU", shapes={"x": [4, 2]})
        except ov_hsdag.UserError as error:
            print(error)
        """
    assert "is open: fix the sizes of the model's inputs with --static" in run(
        sys.executable, "-c", textwrap.dedent(code)
    )


@pytest.mark.slow
def test_claims_are_tried_with_the_inputs_that_are_constant(run: Run) -> None:
    """A GRUSequence of given lengths is one that the GPU does compile."""
    code = """
        import numpy as np
        import openvino as ov
        import openvino.opset13 as op
        from ov_hsdag.model.graph import ComputationGraph
        from ov_hsdag.model.support import support
        core = ov.Core()
        lengths = op.parameter([1], np.int32, name="lengths")
        weights = [op.constant(np.ones(shape, np.float32)) for shape in ((1, 12, 8), (1, 12, 4), (1, 16))]
        for order in ("fixed given", "given fixed"):
            x = op.parameter([1, 6, 8], np.float32, name="x")
            results = []
            for name in order.split():
                length = lengths if name == "given" else op.constant(np.array([6], np.int32))
                state = op.constant(np.zeros((1, 1, 4), np.float32))
                cell = op.gru_sequence(x, state, length, *weights, 4, "forward", linear_before_reset=True)
                cell.set_friendly_name(name)
                results.append(cell.output(0))
            model = ov.Model(results, [x, lengths])
            graph = ComputationGraph.from_model(model)
            runs = support(model, graph, ["GPU"], core)[:, 0]
            print(*(f"{name} {runs[graph.index(name)]}" for name in ("fixed", "given")))
        """
    assert run(sys.executable, "-c", textwrap.dedent(code)) == "fixed False given True\n" * 2


@pytest.mark.slow
def test_a_device_that_does_not_run_the_whole_model_is_measured_with_the_other(run: Run) -> None:
    code = """
        import warnings
        import openvino as ov
        import ov_hsdag
        from research.zoo.catalog import ZOO
        model = ZOO["gru"].build()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            placement = ov_hsdag.place(model, device="HETERO:GPU,CPU", measure=True, measure_seconds=150)
        print(*(str(one.message).partition(":")[0] for one in told), sep="; ")
        print(*placement.predicted["measured_costs"], *sorted(placement.measured))
        """
    told, measured = run(sys.executable, "-c", textwrap.dedent(code)).splitlines()
    assert told == "GPU says that it runs GRUSequence and does not compile it"
    assert measured == "GPU CPU CPU hetero"


def test_what_the_gpu_does_not_compile_runs_on_the_cpu(run: Run) -> None:
    """The plugin says that it runs a GRUSequence, and without oneDNN's kernels has none."""
    code = """
        import warnings
        import openvino as ov
        import ov_hsdag
        from research.zoo.compare import infer, largest_difference
        from research.zoo.catalog import ZOO
        core = ov.Core()
        for name in ("CPU", "GPU"):
            core.set_property(name, {"INFERENCE_PRECISION_HINT": "f32"})
        model, inputs = ZOO["gru"].build(), ZOO["gru"].inputs(0)
        expected = infer(core.compile_model(model.clone(), "CPU"), inputs)
        cells = [node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == "GRUSequence"]
        ov_hsdag.place(model, device="HETERO:GPU,CPU", affinity=dict.fromkeys(cells, "GPU"))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            compiled = core.compile_model(model, "HETERO:GPU,CPU")
        print(*(str(one.message).split(":")[1] for one in told))
        print(compiled.get_property("EXECUTION_DEVICES"), largest_difference(expected, infer(compiled, inputs)) < 1e-3)
        """
    told = run(sys.executable, "-c", textwrap.dedent(code))
    assert told == " the placement does not compile with GPU; the model runs on CPU\n['CPU'] True\n"


@pytest.mark.slow
def test_what_one_operation_costs_a_device_is_told_with_the_command_that_gives_it_back(
    run: Run, tmp_path: Path
) -> None:
    """The warning's own command, run on the machine whose GPU refuses the cell, uses the GPU for all the rest."""
    code = """
        import sys, warnings
        import numpy as np
        import openvino as ov
        import openvino.opset13 as op
        import ov_hsdag
        core = ov.Core()
        if sys.argv[1] == "elsewhere":
            x, size = op.parameter([1, 512, 512], np.float32, name="x"), 512
            weights = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32) / size
            last = x
            for number in range(4):
                last = op.matmul(last, op.constant(weights), False, False, name=f"layer{number}")
            shapes = ((1, 3 * size, size), (1, 3 * size, size), (1, 4 * size))
            cell = op.gru_sequence(
                last, op.constant(np.zeros((1, 1, size), np.float32)), op.constant(np.array([512], np.int32)),
                *(op.constant(np.full(shape, 1e-3, np.float32)) for shape in shapes), size, "forward",
                linear_before_reset=True,
            )
            model = ov.Model([cell.output(0)], [x], "gru")
            names = [node.get_friendly_name() for node in model.get_ops()]
            ov_hsdag.place(model, "HETERO:GPU,CPU", affinity=dict.fromkeys(names, "GPU"))
            ov.save_model(model, "it's placed.xml", compress_to_fp16=False)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            compiled = core.compile_model(sys.argv[2], "HETERO:GPU,CPU")
        print(compiled.get_property("EXECUTION_DEVICES"), *(one.message for one in told))
        """
    done = run(sys.executable, "-c", textwrap.dedent(code), "elsewhere", "it's placed.xml")
    assert done.startswith("['CPU'] ov_hsdag: the placement does not compile with GPU; the model runs on CPU: ")
    command = shlex.split(done.partition("can use GPU: ")[2])
    assert command == ["ov-hsdag", "place", "it's placed.xml", "--device", "HETERO:GPU,CPU"]
    run(*command, "--no-measure", "--output", "again.xml", "--profile", gpu_like_a_card(tmp_path))
    assert run(sys.executable, "-c", textwrap.dedent(code), "here", "again.xml").startswith("['GPU', 'CPU']\n")


def gpu_like_a_card(folder: Path) -> Path:
    """A profile in which the rig's GPU counts as a discrete card, however slow it is."""
    path = folder / "card.json"
    devices = {"GPU": {"builtin": "arc_a770"}, "CPU": {"builtin": "cpu_core"}}
    path.write_text(json.dumps({"version": 1, "devices": devices}))
    return path


@pytest.mark.parametrize(
    ("command", "variables", "error"),
    [
        ("setup", {"CC": "no-such-compiler"}, "it needs a C compiler; install gcc, or name one in CC\n"),
        ("setup", {"PIP_NO_INDEX": "1"}, "pip cannot download its packages: ERROR: .*intel-opencl-rt.*\n"),
        ("run", {}, "in .*/new; make one with .*/setup\n"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(command: str, variables: dict[str, str], error: str, tmp_path: Path) -> None:
    variables = {**variables, "OV_HSDAG_RIG": str(tmp_path / "new")}
    start = [sys.executable, RIG / "setup"] if command == "setup" else [RIG / "run", "true"]
    done = ended(*start, status=1 if command == "setup" else 2, env=environment(**variables))
    assert re.fullmatch(f"error: no GPU rig:? {error}", done.stderr)
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]
