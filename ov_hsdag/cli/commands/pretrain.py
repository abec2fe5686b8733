"""`ov-hsdag pretrain`: train a policy on the simulator."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console, remote
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import model_here
from ov_hsdag.storage.files import check_writable
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.progress import Tell, duration

if TYPE_CHECKING:
    from ov_hsdag.training.pretrain import Report

Folder = Annotated[Path, common.output_option("DIR", "Folder of the run, and of its policy.")]
CorpusFolder = Annotated[
    Path | None,
    typer.Option("--corpus", metavar="DIR", help="Graphs to train on, FAMILY/MODEL.npz (default: generated graphs)."),
]
End = Annotated[bool, typer.Option("--end", help="With --resume: no more steps, write the policy of what was learned.")]
_MOST = 10**6  # upper limit of counts on the command line: far above any useful one
Problems = Annotated[int | None, typer.Option("--problems", min=1, max=_MOST, help="Training problems that are drawn.")]
FirstProblems = Annotated[
    int | None,
    typer.Option(
        "--first-problems", min=1, max=_MOST, help="Problems of the first step; all are in play after imitation."
    ),
]
ValidateEvery = Annotated[
    int | None, typer.Option("--validate-every", min=1, max=_MOST, help="Steps between two measurements.")
]
Validation = Annotated[int | None, typer.Option("--validation", min=1, max=_MOST, help="Problems that only measure.")]
Imitation = Annotated[
    int | None, typer.Option("--imitation-steps", min=0, help="Steps that imitate searched placements.")
]
Reinforce = Annotated[int | None, typer.Option("--reinforce-steps", min=0, help="Steps of REINFORCE after those.")]
Clip = Annotated[float | None, typer.Option("--ppo-clip", min=0.0, help="PPO with this ε and 3 epochs for REINFORCE.")]
Ray = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Search placements on the cores of this Ray cluster.")
]
Checkpoint = Annotated[float, typer.Option("--checkpoint-minutes", min=0.0, help="Time between checkpoints.")]


def pretrain(
    output: Folder,
    corpus: CorpusFolder = None,
    resume: common.Resume = False,
    end: End = False,
    seed: common.Seed = None,
    problems: Problems = None,
    first_problems: FirstProblems = None,
    validation: Validation = None,
    validate_every: ValidateEvery = None,
    imitation_steps: Imitation = None,
    reinforce_steps: Reinforce = None,
    ppo_clip: Clip = None,
    threads: common.Threads = 1,
    checkpoint_minutes: Checkpoint = 2.0,
    ray: Ray = None,
    as_json: common.Json = False,
) -> None:
    """Train a policy on simulated placements; DIR/policy is what --policy takes. Needs the extra `train`.

    Args:
        output: folder of the run.
        corpus: folder of problems to learn from; None for generated graphs.
        resume: continue the run in `output`.
        end: with `resume`, write the policy of the steps so far and stop.
        seed: seed of the run; None for 0, or that of a resumed run.
        problems: number of training problems; here and below None is for the default of `Settings`.
        first_problems: training problems of the first step.
        validation: number of problems for validation.
        validate_every: steps between two validations.
        imitation_steps: steps that imitate searched placements.
        reinforce_steps: steps of reinforcement learning after these.
        ppo_clip: ε of PPO with 3 epochs; None for REINFORCE.
        threads: threads of torch.
        checkpoint_minutes: minutes between checkpoints.
        ray: address of the Ray cluster that searches placements; None for this machine.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, or a file or package is missing.
    """
    chosen_settings: dict[str, Any] = {
        "seed": seed,
        "problems": problems,
        "first_problems": first_problems,
        "validation": validation,
        "validate_every": validate_every,
        "imitation_steps": imitation_steps,
        "reinforce_steps": reinforce_steps,
        "clip_coef": ppo_clip,
    }
    chosen_settings = {name: value for name, value in chosen_settings.items() if value is not None}
    if resume and chosen_settings:
        named = ", ".join(
            "--ppo-clip" if name == "clip_coef" else f"--{name.replace('_', '-')}" for name in chosen_settings
        )
        raise UserError(f"--resume continues a run with its own settings: leave out {named}")
    if end and not resume:
        raise UserError("--end is for a run that was begun: it needs --resume")
    if ppo_clip is not None:
        chosen_settings["update_epochs"] = 3
    check_writable(output / "events")
    common.require_training("pretraining")
    with console.progress("starting torch"):
        import torch

    from ov_hsdag.training.corpus import GENERATED, write_generated
    from ov_hsdag.training.pretrain import CORPUS
    from ov_hsdag.training.pretrain import pretrain as run
    from ov_hsdag.training.run import CHECKPOINT
    from ov_hsdag.training.settings import Settings

    torch.set_num_threads(threads)
    settings = None if resume else Settings(**chosen_settings)
    with console.result(as_json) as show, contextlib.ExitStack() as stack:
        task_map = None if ray is None else stack.enter_context(remote.task_map(ray))
        try:
            if not resume and corpus is None and {path.name for path in (output / CORPUS).glob("*")} <= {GENERATED}:
                console.message("no --corpus: the policy learns from generated graphs, and from no real model")
                write_generated(output / CORPUS)
            with console.progress(f"pretraining in {output}") as tell:
                tell("searching placements of validation problems")
                seconds = 60 * checkpoint_minutes
                each = functools.partial(_map_with_progress, task_map, tell) if task_map else None
                record = run(
                    output, corpus, settings, checkpoint_seconds=seconds, end=end, report=_reporter(tell), each=each
                )
        except KeyboardInterrupt:
            there = (output / CHECKPOINT).exists()
            again = f"ov-hsdag pretrain --output {output} --resume" if there else "the same command"
            console.message(f"stopped; all steps are saved: continue with {again}")
            raise
        final = record["history"][-1] if record["history"] else {}
        text = f"{record['step']} steps in {duration(record['seconds'])}, {_figures(final)}"
        show(record, f"{text}\npolicy: {output / 'policy'}")
        show.hint("see", shlex.join(["tensorboard", "--logdir", str(output)]))
        show.next("place", model_here(), "--device", "HETERO:GPU,CPU", "--policy", output / "policy")


def _map_with_progress(
    task_map: remote.TaskMap, tell: Tell, function: Callable[[int], Any], numbers: Sequence[int]
) -> Iterator[Any]:
    """Yields the results of a function on the cluster, and shows the share of calls that are done."""
    for done, found in enumerate(task_map(function, numbers), start=1):
        tell("searching placements", done / len(numbers))
        yield found


def _reporter(tell: Tell) -> Report:
    """Makes the callback that shows the share of steps that are done, and the figures of the latest validation."""
    validated = "not validated yet"

    def report(step: int, steps: int, scalars: dict[str, float]) -> None:
        nonlocal validated
        if "validation/gap" in scalars:
            found = _figures({name.removeprefix("validation/"): value for name, value in scalars.items()})
            validated = f"after step {step} of {steps}: {found}"
        tell(validated, step / steps)

    return report


def _figures(values: Mapping[str, float]) -> str:
    if "gap" not in values:
        return "not validated"
    return (
        f"gap to searched placements {100 * values['gap']:.1f}%,"
        f" within 3% in {100 * values['within_3']:.0f}% of problems, {100 * values['infeasible']:.0f}% infeasible"
    )


COMMAND = Command(pretrain, position=160, example="ov-hsdag pretrain --output trained --reinforce-steps 5000")
