"""Commands that train: `bandpo lab`, `train`, `verl`, and the `doctor` of such runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option, Typer

from bandpo.errors import UserError

from .arguments import Command, Trust, count, seed_list, several
from .width import wrapped

app = Typer()
METHODS = (
    "grpo, clip-higher, band-kl, band-tv, band-chi2, band-relaxed, dcpo, no-clip, clip-wide, gspo and others "
    "(docs/methods.md), or rules such as clip:0.2:1 or '{type: clip, eps_high: 1.0}' "
    "[default: grpo,clip-higher,clip-wide,band-kl]"
)

MARK = {"ok": "ok  ", "note": "note", "warning": "WARN", "problem": "FAIL"}


@app.command(cls=Command)
def lab(
    ctx: Context,
    scene: Annotated[
        Literal["tail", "storm", "both"], Option(help="what a clip costs, what it protects, or both at once")
    ] = "tail",
    methods: Annotated[list[str] | None, several("RULE", METHODS)] = None,
    seeds: Annotated[Any, Option(parser=seed_list, metavar="N|A,B,...", help="how many, or which [default: 2]")] = None,
    rounds: Annotated[
        int | None, Option(help="of samples and steps [default: 30 in tail, 64 in storm, 64 in both]")
    ] = None,
    lr: Annotated[
        float | None, Option(help="learning rate [default: 5e-6 in tail, 4e-4 in storm, 1e-4 in both]")
    ] = None,
    jobs: Annotated[int | None, Option(parser=count, help="runs at once [default: the cores of this machine]")] = None,
    output: Annotated[Path, Option("-o", "--output", help="folder")] = Path("runs/lab"),
    tokens: Annotated[bool, Option("--tokens", help="write all tokens too, for bandpo calibrate")] = False,
    go_on: Annotated[
        bool, Option("--no-stop-if-not-finite", help="go on with weights or rewards that are not finite")
    ] = False,
    resume: Annotated[bool, Option("--resume", help="go on with an interrupted comparison")] = False,
) -> None:
    """Train a tiny model under several rules; see why they differ.

    The same model on the same task under each clipping rule, and a report; no GPU, no download. Scene tail shows what
    a clip costs a rare good strategy, storm what it protects; in both a rare strategy can be lost.
    """
    from .show_training import compare_and_show

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    trainer: dict[str, Any] = {} if lr is None else {"learning_rate": lr}
    overrides: dict[str, Any] = {"trainer": trainer} | ({} if rounds is None else {"rounds": rounds})
    overrides |= {"tokens_share": 1.0} if tokens else {}
    overrides |= {"stop_if_not_finite": False} if go_on else {}
    compare_and_show(scene, methods, seeds or [0, 1], output, overrides, jobs or cores, resume, ctx.obj)


@app.command(cls=Command)
def train(
    ctx: Context,
    recipe: Annotated[str | None, Argument(metavar="RECIPE", help="a YAML file")] = None,
    settings: Annotated[list[str] | None, Argument(metavar="key=value", help="instead of the recipe's")] = None,
    resume: Annotated[bool, Option("--resume", help="go on after the last checkpoint of the run in `output`")] = False,
) -> None:
    """Train one model under one rule, from a recipe.

    A recipe is a YAML file such as recipes/trl/band-kl.yaml; any setting can be given as key=value,
    e.g. trust_region.delta=0.1 trainer.learning_rate=1e-6.

    Several processes: torchrun --nproc-per-node N -m bandpo train ..., or accelerate launch --multi_gpu
    --num_processes N -m bandpo train ... (on CPUs too, with trainer.use_cpu); they share the recipe's batch, so that
    per_device_train_batch_size stays that of all together.
    """
    from ..training import processes

    processes.end_with_launcher()  # before the slow imports
    from .show_training import train_and_show

    settings = settings or []
    if recipe is not None and "=" in recipe and not Path(recipe).exists():
        recipe, settings = None, [recipe, *settings]
    if recipe is None and not settings:
        raise UserError("no recipe is given; try bandpo train recipes/lab/band-kl.yaml, or bandpo lab to compare rules")
    return train_and_show(recipe, settings, resume, ctx.obj)


@app.command(cls=Command)
def verl(
    recipe: Annotated[str, Argument(metavar="RECIPE", help="a YAML file")],
    settings: Annotated[list[str] | None, Argument(metavar="RECIPE|key=value", help="what is laid on it")] = None,
    command: Annotated[bool, Option("--print", help="print the command instead of starting it")] = False,
    plan: Annotated[bool, Option("--plan", help="print an estimate of memory and time instead of starting")] = False,
) -> None:
    """Start a run on verl from a recipe, or show its command.

    The recipe is one such as recipes/paper/qwen2.5-3b/band-kl.yaml. Further recipes are laid on the first; any setting
    can be given as key=value, e.g. variant=public trust_region.delta=0.1 data.train_files=[data/a.parquet], and what
    verl's own YAML does not have as +key=value.
    """
    from bandpo.trust_regions.nodes import own_type

    from ..training.on_verl import load, plan_text

    overlays = [text for text in settings or [] if "=" not in text and text.endswith((".yaml", ".yml"))]
    overrides = [text for text in settings or [] if text not in overlays]
    run = load([recipe, *overlays], overrides, trust=not (plan or command))
    if (plan or command) and (own := own_type(run.loss.get("trust_region"))) is not None:
        print(f"trust_region: {own} is not loaded, and so not checked before the run starts", file=sys.stderr)
    if plan:
        print(plan_text(run))
    if command:
        print(run.command())
    if not plan and not command:
        run.start()


@app.command(cls=Command)
def doctor(
    arguments: Annotated[list[str] | None, Argument(metavar="FILE|key=value", help="what is to be checked")] = None,
    no_ray: Annotated[bool, Option("--no-ray", help="do not look into a Ray worker")] = False,
    as_json: Annotated[bool, Option("--json", help="the findings, for scripts")] = False,
    trust: Trust = False,
) -> int:
    """Check the installation, the settings of a run, or its log.

    Without arguments: what is installed, and whether verl knows the loss, here and in a Ray worker. With settings of
    verl (overrides, or outputs/.../.hydra/config.yaml) or of TRL's GRPOConfig (YAML, JSON, key=value, or a .py script,
    which is read and not run): what does nothing, or something else than it says. With a log (metrics.jsonl, TRL's
    trainer_state.json, a .jsonl of verl's file logger): whether the clip acts. Exit code 1: a problem.
    """
    from ..training.doctor import examine

    rows: list[dict[str, Any]] = []
    for finding in examine(arguments or [], ray=not no_ray, trust=trust):
        rows.append(vars(finding))
        if not as_json:  # as they come: some take seconds
            print(wrapped(f"{MARK[finding.level]}  {finding.what}", 6), flush=True)
            if finding.cure:
                print(wrapped(f"      -> {finding.cure}", 9), flush=True)
    if as_json:
        print(json.dumps(rows, indent=2))
    return int(any(row["level"] == "problem" for row in rows))
