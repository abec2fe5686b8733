"""Pretraining: runs learn, repeat with their seed, and go on exactly where they were killed."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ov_hsdag.cli.commands.pretrain import pretrain as cli_pretrain
from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.policy.features import policy_input
from ov_hsdag.training import corpus as corpora
from ov_hsdag.training import pretrain as training
from ov_hsdag.training.loss import counterfactual_loss, imitation_loss, policy_loss, problem_loss
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.pretrain import State, explained_variance, pretrain
from ov_hsdag.training.problems import Pool, Target, Targets, batch_indices, levels_at, shards_at
from ov_hsdag.training.rollout import (
    WORST_RETURN,
    Example,
    Policy,
    counterfactual_advantages,
    expand,
    impact,
    joint_log_probability,
    returns_of,
    run_policy,
    sample,
    weighted,
)
from ov_hsdag.training.run import CHECKPOINT, read_metadata
from ov_hsdag.training.settings import Settings
from ov_hsdag.utils.errors import UserError
from research.corpus import make
from tests.conftest import fast_searches
from tests.graphs import random_problem
from tests.processes import begun, ended
from tests.training_runs import command, environment, same

TINY = Settings(
    problems=32,
    first_problems=16,
    validation=16,
    imitation_steps=6,
    reinforce_steps=6,
    batch_size=4,
    samples=4,
    warmup_steps=2,
    validate_every=6,
    config={"hidden": 16, "layers": 1, "context": 1, "min_clusters": 4},
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of small models with its searched placements."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("corpus")
    make(path, ["squeezenet", "ncf", "lstm"], report=lambda _: None)
    kept = Targets(corpora.Corpus.load(path), path)
    with fast_searches():
        for number in range(3):
            kept.shard(number)
    return path


def example(seed: int, **options: object) -> Example:
    """A small random problem with the teacher's answer."""
    problem = random_problem(seed, **{"nodes": 20, **options})  # type: ignore[arg-type]
    found, x = Target.of(problem, seed), policy_input(problem)
    return Example.of(problem, x, weighted(problem, x, found.elites), found.score, found.score * 1.2)


def network(examples: list[Example], seed: int = 0, residual: bool = False) -> HSDAGNetwork:
    torch.manual_seed(seed)
    base = HSDAGConfig.base(Widths.of(examples[0].x))
    return HSDAGNetwork(replace(base, hidden=16, layers=1, context=1, min_clusters=4, residual=residual))


# --- rollouts ---


def test_rollouts_respect_support_and_are_scored_by_the_simulator() -> None:
    best = []
    for seed, devices in ((1, 2), (2, 3), (3, 4)):
        item = example(seed, devices=devices, missing=0.3)
        policy = run_policy(network([item]), item)
        rollouts, again = (sample(policy, item, 6, torch.Generator().manual_seed(0)) for _ in range(2))
        assert rollouts.returns.shape == (6,)
        np.testing.assert_array_equal(rollouts.returns, again.returns)
        assert (policy.log_probability.exp().sum(-1) - 1).abs().max() < 1e-5
        placements = expand(item, rollouts.actions.numpy(), policy)
        supported = item.problem.group_supported
        assert not supported.all()
        assert supported[np.arange(len(supported)), placements].all()
        np.testing.assert_array_equal(rollouts.returns, returns_of(item.problem.scores(placements), item.reference))
        best.append(rollouts.returns.max())
    assert max(best) > WORST_RETURN


def test_returns_are_logarithmic_and_bounded_below() -> None:
    found = returns_of(np.array([50.0, 100.0, np.inf, 1e9]), 100.0)
    np.testing.assert_allclose(found, [np.log(2), 0, WORST_RETURN, WORST_RETURN])


def test_the_variance_that_the_baseline_explains() -> None:
    returns = np.array([1.0, 2.0, 3.0, 9.0])
    assert explained_variance(np.array([1.0, 2.0, 3.0, np.nan]), returns) == 1
    assert explained_variance(np.array([2.0, 2.0, 2.0, np.nan]), returns) == pytest.approx(0)
    assert math.isnan(explained_variance(np.full(4, np.nan), returns))


def test_impact_is_the_share_of_what_a_group_decides() -> None:
    problem = random_problem(2, nodes=30)
    weight = impact(problem)
    assert weight.shape == (problem.group_count,) and abs(weight.sum() - 1) < 1e-9 and (weight > 0).all()
    heavy = int(problem.group_us.mean(axis=1).argmax())
    more = problem.node_us.copy()
    more[problem.groups == heavy] *= 100
    assert impact(replace(problem, node_us=more))[heavy] > weight[heavy]


def learn(net: HSDAGNetwork, loss_of: Callable[[], torch.Tensor], steps: int) -> list[float]:
    """Losses of some steps of Adam."""
    optimizer, found = torch.optim.Adam(net.parameters(), 5e-3), []
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
def test_imitation_learns_searched_placements() -> None:
    examples = [example(seed) for seed in range(4)]
    net = network(examples)
    found = learn(
        net, lambda: torch.stack([imitation_loss(run_policy(net, item), item) for item in examples]).sum(), 60
    )
    assert found[-1] < 0.5 * found[0]


def test_of_several_elites_the_likeliest_is_imitated() -> None:
    item = example(1)
    placements = item.problem.random(np.random.default_rng(0), 3)
    each = [replace(item, elites=torch.from_numpy(weighted(item.problem, item.x, placements[[k]]))) for k in range(3)]
    several = replace(item, elites=torch.from_numpy(weighted(item.problem, item.x, placements)))
    policy = run_policy(network([item]), item)
    found = [float(imitation_loss(policy, one)) for one in each]
    assert float(imitation_loss(policy, several)) == pytest.approx(min(found)) and max(found) > min(found)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 0.2])
def test_policy_gradients_raise_the_return(clip: float | None) -> None:
    item = example(1)
    net, generator, means = network([item]), torch.Generator().manual_seed(0), []
    kl, clipped = [], []
    for _ in range(60):
        rollouts = sample(run_policy(net, item), item, 16, generator)
        means.append(rollouts.returns.mean())

        def loss(rollouts: Any = rollouts) -> torch.Tensor:
            value, logged = policy_loss(run_policy(net, item, rollouts.cluster), rollouts, clip)
            kl.append(logged["losses/approx_kl"])
            clipped.append(logged["losses/clipfrac"])
            return value

        learn(net, loss, 3 if clip else 1)
    assert np.mean(means[-10:]) > np.mean(means[:10]) + 0.1
    assert min(kl) > -1e-6 and kl[0] < 1e-6
    assert (max(kl) > 1e-3 and 0 < max(clipped) <= 1) if clip else max(clipped) == 0


def test_policy_gradients_reach_the_edge_scores() -> None:
    item = example(0, nodes=30)
    net = network([item])
    policy = run_policy(net, item)
    policy_loss(policy, sample(policy, item, 8, torch.Generator()))[0].backward()
    gradients = [parameter.grad for parameter in net.edge_scorer.parameters()]
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize("options", [{"missing": 0.3}, {"devices": 3, "objective": "throughput"}])
def test_counterfactual_advantages_are_those_of_switching_one_cluster(options: dict[str, Any]) -> None:
    item = example(1, **options)
    policy = run_policy(network([item]), item)
    actions = policy.log_probability.argmax(-1)
    gains = counterfactual_advantages(policy, item, actions, torch.Generator(), most=1000)
    assert gains.shape == policy.log_probability.shape
    assert (gains.gather(1, actions[:, None]) == 0).all()

    def value(chosen: np.ndarray) -> float:
        return float(returns_of(item.problem.scores(expand(item, chosen[None], policy)), item.reference)[0])

    tried = 0
    for c, device in np.ndindex(*gains.shape):
        if device == actions[c] or policy.log_probability[c, device] < -1e8:
            assert gains[c, device] == 0
            continue
        switched = actions.numpy().copy()
        switched[c] = device
        assert gains[c, device] == pytest.approx(value(switched) - value(actions.numpy()), abs=1e-5)
        tried += 1
    assert tried > 4 and gains.abs().max() > 0.01
    few = [counterfactual_advantages(policy, item, actions, torch.Generator().manual_seed(k), most=2) for k in range(9)]
    assert all(((one == 0) | (one == gains)).all() and (one != 0).any(-1).sum() <= 2 for one in few)
    assert any((one != 0).any() for one in few)


def test_what_exceeds_memory_gains_by_exceeding_it_less() -> None:
    free = example(3, nodes=40)
    need = free.problem.evaluate(free.problem.single(0)).memory_bytes.max()
    item = replace(free, problem=replace(free.problem, memory_bytes=np.array([need // 2, -1])))
    policy = run_policy(network([free]), item)
    all_on_first = torch.zeros(len(policy.log_probability), dtype=torch.int64)
    gains = counterfactual_advantages(policy, item, all_on_first, torch.Generator())
    # No single switch is enough; nevertheless some are better than none.
    assert gains[:, 1].max() > 0


def test_counterfactual_advantages_have_the_gradient_of_the_expected_return() -> None:
    item = example(4, nodes=6)
    net = network([item])
    policy = run_policy(net, item)
    clusters = len(policy.log_probability)
    contexts = torch.cartesian_prod(*[torch.arange(2)] * clusters).reshape(-1, clusters)
    joint = joint_log_probability(policy, contexts)
    found = returns_of(item.problem.scores(expand(item, contexts.numpy(), policy)), item.reference)
    expected = (joint.exp() * torch.from_numpy(found).float()).sum()
    weights = list(net.parameters())
    wanted = torch.autograd.grad(expected, weights, retain_graph=True, allow_unused=True)

    def loss(context: torch.Tensor) -> torch.Tensor:
        advantages = counterfactual_advantages(policy, item, context, torch.Generator())
        return counterfactual_loss(policy, advantages, unit=1.0, clip=math.inf)

    total = sum(p * loss(context) for p, context in zip(joint.detach().exp(), contexts, strict=True))
    gradients = torch.autograd.grad(-clusters * total, weights, allow_unused=True)  # type: ignore[arg-type]
    for a, b in zip(wanted, gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_entropy_bonus_keeps_the_policy_from_being_sure() -> None:
    item = example(2)
    settings = replace(TINY, imitation_steps=10**6)

    def entropy(coefficient: float) -> float:
        net, chosen = network([item], residual=True), replace(settings, ent_coef=coefficient)
        policy = partial(run_policy, net, item, levels=levels_at(chosen, 0))
        learn(net, lambda: problem_loss(policy(), chosen, 0, item, math.nan, torch.Generator())[0], 80)
        return float(run_policy(net, item).entropy)

    assert entropy(4.0) > 0.8 * settings.target_entropy > 1.5 * entropy(0.0)


# --- runs ---


def stopped(after: int, output: Path, corpus: Path | None = None, settings: Settings | None = None) -> None:
    """Begins or continues a run, and interrupts it after a step."""

    def interrupt(step: int, *_: object) -> None:
        if step == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(output, corpus, settings, report=interrupt)
    assert read_metadata(output / CHECKPOINT, training.FORMAT)["step"] == after


def test_steps_draw_from_ever_more_problems() -> None:
    settings = replace(TINY, problems=160, first_problems=16, imitation_steps=90, batch_size=8)
    pool: Any = SimpleNamespace(count=lambda shards: 10 * shards)
    steps = [batch_indices(settings, pool, step) for step in range(120)]
    assert all(len(set(indices.tolist())) == 8 for indices in steps)
    assert max(indices.max() for indices in steps[:9]) < 20 < max(indices.max() for indices in steps[60:])
    assert max(indices.max() for indices in steps[90:]) >= 90
    np.testing.assert_array_equal(steps[3], batch_indices(settings, pool, 3))
    assert {levels_at(settings, step) for step in range(30)} == {0, 1, 2}


def test_a_run_of_few_problems_draws_from_few() -> None:
    assert all(shards_at(replace(TINY, problems=1, first_problems=2048), step) == 1 for step in (0, 3, 90))


@pytest.mark.slow
def test_a_run_repeats_with_its_seed(corpus: Path, tmp_path: Path) -> None:
    record = pretrain(tmp_path / "a", corpus, TINY)
    pretrain(tmp_path / "b", corpus, TINY)
    pretrain(tmp_path / "c", corpus, replace(TINY, seed=1))
    assert same(tmp_path / "a", tmp_path / "b")
    assert not same(tmp_path / "a", tmp_path / "c")
    written = json.loads((tmp_path / "a" / "record.json").read_text())
    assert written == json.loads(json.dumps(record)) and written["step"] == 12
    assert [entry["step"] for entry in written["history"]] == [6, 12]
    assert "squeezenet/squeezenet" in written["corpus"]["models"]
    assert (tmp_path / "a" / "policy" / "policy.json").exists()
    assert list((tmp_path / "a").glob("events.*"))


@pytest.mark.slow
def test_a_stopped_run_goes_on_exactly(corpus: Path, tmp_path: Path) -> None:
    pretrain(tmp_path / "whole", corpus, TINY)
    stopped(4, tmp_path / "parts", corpus, TINY)
    torch.manual_seed(99)
    torch.rand(7)
    stopped(9, tmp_path / "parts", corpus)
    ended = pretrain(tmp_path / "parts", corpus, end=True)
    assert ended["step"] == 9 and [entry["step"] for entry in ended["history"]] == [6, 9]
    assert (tmp_path / "parts" / "policy" / "policy.json").exists()
    torch.rand(3)
    record = pretrain(tmp_path / "parts", corpus)
    assert same(tmp_path / "whole", tmp_path / "parts")
    assert [entry["step"] for entry in record["history"]] == [6, 12]


# --- steps ---


def pool_of(corpus: Path, settings: Settings) -> tuple[Pool, HSDAGConfig]:
    loaded = corpora.Corpus.load(corpus)
    problem = next(problem for number in range(9) if (problem := loaded.draw(number)) is not None)
    config = HSDAGConfig.base(Widths.of(policy_input(problem)))
    config = HSDAGConfig.from_dict({**config.to_dict(), **settings.config})
    return Pool(loaded, Targets(loaded, corpus), 1), config


@pytest.mark.parametrize("step", [0, 7])
def test_a_step_follows_the_mean_of_its_problems_losses(corpus: Path, step: int) -> None:
    settings = replace(TINY, batch_size=8, max_grad_norm=1e9)
    pool, config = pool_of(corpus, settings)
    state = State.new(settings, config)
    state.step = step
    indices = batch_indices(settings, pool, step)
    losses = []
    for index in indices.tolist():
        generator = torch.Generator().manual_seed(
            int(np.random.default_rng([settings.seed, 3, step, 0, index]).integers(2**62))
        )
        policy = run_policy(state.network, pool[index], levels=levels_at(settings, step))
        losses.append(problem_loss(policy, settings, step, pool[index], math.nan, generator)[0])
    wanted = torch.autograd.grad(torch.stack(losses).mean(), list(state.network.parameters()))
    scalars = training.update(state, settings, pool, indices)
    assert max(float(gradient.abs().max()) for gradient in wanted) > 1e-3
    for parameter, gradient in zip(state.network.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)
    assert {"losses/imitation", "losses/edges", "losses/entropy", "charts/clusters"} <= scalars.keys()
    assert ({"losses/approx_kl", "losses/clipfrac", "charts/regret"} <= scalars.keys()) is (step == 7)
    assert (~np.isnan(state.baselines)).sum() == (8 if step == 7 else 0)


@pytest.mark.slow
def test_ppo_goes_on_exactly_where_a_step_was_broken_off(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(
        TINY,
        imitation_steps=2,
        reinforce_steps=4,
        validate_every=3,
        clip_coef=0.2,
        update_epochs=2,
        config={**TINY.config, "dropout": 0.1},
    )
    pretrain(tmp_path / "whole", corpus, settings)

    def broken(policy: Policy, settings: Settings, step: int, *arguments: Any) -> Any:
        if step == 3 and arguments[-1] is not None:  # the second epoch, after an update
            raise KeyboardInterrupt
        return problem_loss(policy, settings, step, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "problem_loss", broken)
        pretrain(tmp_path / "parts", corpus, settings)
    assert read_metadata(tmp_path / "parts" / CHECKPOINT, training.FORMAT)["step"] == 3
    torch.rand(3)
    pretrain(tmp_path / "parts")
    assert same(tmp_path / "whole", tmp_path / "parts")


def test_settings_of_a_checkpoint_are_read_and_unknown_ones_refused() -> None:
    values = json.loads(json.dumps(asdict(TINY)))
    assert Settings.from_dict(values) == TINY
    assert Settings.from_dict({**values, "parts": 1}) == TINY  # of an earlier release
    with pytest.raises(UserError, match="computes its steps in 3 parts, as this version does not; begin a new run"):
        Settings.from_dict({**values, "parts": 3})
    with pytest.raises(UserError, match="does not know: surprise; begin a new run in another folder"):
        Settings.from_dict({**values, "surprise": 1})
    with pytest.raises(UserError, match="'batch_size' is not of the kind that this version knows; begin a new run"):
        Settings.from_dict({**values, "batch_size": "16"})


RUN = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.test_pretrain import TINY
from dataclasses import replace
from ov_hsdag.training.pretrain import pretrain
from ov_hsdag.training.run import CHECKPOINT
output, corpus = Path(sys.argv[1]), Path(sys.argv[2])
settings = replace(TINY, imitation_steps=60, reinforce_steps=60, validate_every=40)
def report(step, steps, scalars):
    print(step, flush=True)
pretrain(output, corpus, None if (output / CHECKPOINT).exists() else settings, checkpoint_seconds=0, report=report)
"""


def start(output: Path, corpus: Path) -> subprocess.Popen[str]:
    return begun(sys.executable, "-c", RUN, output, corpus, env=environment())


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_as_if_it_was_not(corpus: Path, tmp_path: Path) -> None:
    ended(sys.executable, "-c", RUN, tmp_path / "whole", corpus, env=environment())
    generator = random.Random(0)
    last, kills = 0, 0
    while kills < 4:
        process = start(tmp_path / "killed", corpus)
        assert process.stdout is not None
        first = process.stdout.readline()
        if not first:
            break
        # Nothing but the step that was under way is lost: a checkpoint follows each step here.
        assert int(first) in (last, last + 1) or last == 0
        last = int(first)
        until = time.monotonic() + generator.uniform(0, 0.6)
        while time.monotonic() < until and (line := process.stdout.readline()):
            last = int(line)
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate()
        last = max([last, *(int(line) for line in rest.split("\n")[:-1])])
        kills += 1
    ended(sys.executable, "-c", RUN, tmp_path / "killed", corpus, env=environment())
    assert kills == 4
    assert same(tmp_path / "whole", tmp_path / "killed")


def test_what_cannot_be_resumed_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to resume"):
        pretrain(tmp_path / "none", corpus)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / CHECKPOINT).write_bytes(b"\x80\x04pickle")
    with pytest.raises(UserError, match="not a checkpoint"):
        pretrain(tmp_path / "bad", corpus)
    with pytest.raises(UserError, match="already"):
        pretrain(tmp_path / "bad", corpus, TINY)
    stopped(1, tmp_path / "run", corpus, TINY)
    whole = (tmp_path / "run" / CHECKPOINT).read_bytes()
    (tmp_path / "run" / CHECKPOINT).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a checkpoint"):
        pretrain(tmp_path / "run", corpus)


def test_a_run_goes_on_with_the_corpus_that_it_began_with(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.parent)
    stopped(1, tmp_path / "run", Path(corpus.name), TINY)
    monkeypatch.chdir(tmp_path)
    stopped(2, tmp_path / "run")
    # The corpus of its own moves with the run.
    shutil.copytree(corpus, tmp_path / "own" / "corpus")
    stopped(1, tmp_path / "own", settings=TINY)
    (tmp_path / "own").rename(tmp_path / "moved")
    stopped(2, tmp_path / "moved")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as Python has it: jobs in the background and test runners' processes have another reaction."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    """Does what Python does on SIGINT, without a signal.

    Cores of other tests in this process may have left a stack for signals that is none (docs/reference/facts.md).
    """
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler)
    handler(signal.SIGINT, None)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the first step", "in a step", "between steps"])
def test_an_interrupted_run_has_saved_what_it_did(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruptible: None, moment: str
) -> None:
    pretrain(tmp_path / "whole", corpus, TINY)

    def interrupt(*_: object) -> Any:
        press_ctrl_c()

    def after_four(step: int, *_: object) -> None:
        if step == 4:
            interrupt()

    real = training.update

    def interrupted_update(state: training.State, *arguments: Any) -> dict[str, float]:
        if state.step == 3:
            interrupt()
        return real(state, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if moment == "before the first step":
            patch.setattr(Pool, "count", interrupt)
        elif moment == "in a step":
            patch.setattr(training, "update", interrupted_update)
        pretrain(tmp_path / "parts", corpus, TINY, report=after_four if moment == "between steps" else None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    steps = read_metadata(tmp_path / "parts" / CHECKPOINT, training.FORMAT)["step"]
    assert steps == (0 if moment == "before the first step" else 4)
    torch.rand(3)
    pretrain(tmp_path / "parts")
    assert same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_goes_on_with_its_own_corpus_only(corpus: Path, tmp_path: Path) -> None:
    stopped(1, tmp_path / "run", corpus, TINY)
    other = tmp_path / "corpus"
    make(other, ["ncf"], report=lambda _: None)
    with pytest.raises(UserError, match="another corpus"):
        pretrain(tmp_path / "run", other)


@pytest.mark.slow
def test_the_command_trains_and_refuses_what_it_cannot_do(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    sizes: tuple[object, ...] = ("--problems", 1, "--validation", 1, "--imitation-steps", 1, "--reinforce-steps", 1)
    sizes += ("--ppo-clip", 0.2)
    done = command("pretrain", "--output", run, "--corpus", corpus, *sizes, "--json")
    record = json.loads(done.stdout)
    assert record["step"] == 2
    assert [record["settings"][name] for name in ("clip_coef", "update_epochs")] == [0.2, 3]
    assert (run / "policy" / "policy.json").exists()

    # A resumed run knows its corpus.
    again = command("pretrain", "--output", run, "--resume")
    assert again.stdout.startswith("2 steps in ")
    assert again.stdout.splitlines()[-1].endswith(f"--policy {run / 'policy'}")
    for arguments, message in (
        (("--output", run, "--corpus", corpus), "there is a run in"),
        (
            ("--output", run, "--corpus", corpus, "--resume", "--seed", 1, "--problems", 2),
            "leave out --seed, --problems",
        ),
        (("--output", tmp_path / "none", "--corpus", corpus, "--resume"), "there is no run to resume"),
    ):
        refused = command("pretrain", *arguments, status=2)
        assert message in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr


INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit that it is ignored
from ov_hsdag.cli import main
main()
"""


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    sizes = ("--problems", 16, "--validation", 1, "--imitation-steps", 5000, "--reinforce-steps", 1)
    line = ["--output", run, "--corpus", corpus, *sizes]
    process = begun(sys.executable, "-c", INTERRUPTIBLE, "pretrain", *line, env=environment())
    limit = time.monotonic() + 120
    while not (run / CHECKPOINT).exists() and time.monotonic() < limit:
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert out == "" and "Traceback" not in errors
    assert f"continue with ov-hsdag pretrain --output {run} --resume" in errors
    command("pretrain", "--output", run, "--resume", "--end", "--json")


@pytest.mark.parametrize("resume", [False, True])
def test_missing_packages_are_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"needs tensorboard: install .*\[train\]") as refused:
        cli_pretrain(tmp_path / "run", resume=resume)
    assert str(refused.value).count("\n") == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_a_corpus_it_learns_from_generated_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    cli_pretrain(tmp_path / "run", problems=1, validation=1, imitation_steps=1, reinforce_steps=0, threads=1)
    assert (tmp_path / "run" / "policy" / "policy.json").exists()
    assert "no --corpus: the policy learns from generated graphs" in capsys.readouterr().err
    assert {path.parent.name for path in (tmp_path / "run" / "corpus").glob("*/*.npz")} == {"generated"}
