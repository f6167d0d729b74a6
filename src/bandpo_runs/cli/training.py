"""Train models, and check such runs. The commands are `demo`, `lab`, `train` and `doctor`."""

import json
import os
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option

from bandpo.errors import UserError

from .app import Once, app
from .shared import RULES, Json, Page, count, seed_list, several, width, wrapped

MARK = {"ok": "ok  ", "note": "note", "warning": "WARN", "problem": "FAIL"}


@app.command(cls=Once)
def demo(
    ctx: Context,
    uses: Annotated[
        int, Option(parser=count, metavar="N", help="Epochs over each batch of answers.")
    ] = 8,
    seeds: Annotated[
        Any, Option(parser=seed_list, metavar="N|A,B,...", help="Seeds: 8 or more, or a list.")
    ] = "32",
    out: Annotated[
        Path | None,
        Page(
            "-o",
            "--out",
            help="Page to write. [default: runs/demo.html, with --uses runs/demo-uses-N.html]",
        ),
    ] = None,
) -> None:
    """Compare five rules on two tiny tasks, in 20 seconds.

    It trains 32 seeds under each rule, draws their curves, and ends with a verdict with intervals, and a page. With
    one epoch over each batch rules have little effect: try --uses 1.
    """
    import torch

    from .. import demo as experiment
    from ..files.writing import write_atomically

    torch.set_num_threads(1)  # these tensors are small: threads would wait for one another
    if len(seeds) < 8:
        raise UserError(f"--seeds must be at least 8, for an interval; got {len(seeds)}")
    rules, columns = experiment.RULES, min(width(), 80)

    def say(*paragraphs: str) -> None:
        print("\n".join(textwrap.fill(text, columns, break_on_hyphens=False) for text in paragraphs))

    results: list[experiment.Result] = []
    for task in experiment.RARE, experiment.NOISY:
        say(task.text, task.setting(len(seeds), uses))
        print(f"{'round':>5}" + "".join(f"{name:>15}" for name in rules), flush=True)
        rounds, history = task.length(uses), list[Any]()
        for done in experiment.train(rules, seeds, uses, rounds, task):
            history.append(done)
            if (len(history) - 1) % max(rounds // 10, 1) == 0 or len(history) > rounds:
                right = done[0].mean(-1).tolist()
                print(
                    f"{len(history) - 1:>5}" + "".join(f"{value:>15.1%}" for value in right),
                    flush=True,
                )
        result = experiment.Result.of(rules, uses, history)
        print(
            "",
            *("{:16}{:>14}{:>19}{:>14}{:>8}{:>9}".format(*row) for row in result.rows()),
            "",
            sep="\n",
        )
        say(result.verdict(), "")
        results.append(result)
    rare, noisy = results
    say(" ".join(experiment.headline(rare, noisy)), "", *experiment.notes(rare, noisy), "")
    out = out or Path("runs", "demo.html" if uses == 8 else f"demo-uses-{uses}.html")
    write_atomically(out, experiment.page(rare, noisy, ctx.obj).encode())
    if uses > 1:
        say("The same with each answer used once: bandpo demo --uses 1")
    say("Next: bandpo train (a small language model under Band-KL, on this computer)")
    print(f"page: {out}")


@app.command(epilog=RULES, cls=Once)
def lab(
    ctx: Context,
    scene: Annotated[
        Literal["tail", "storm", "rare-and-noisy"], Option(help="Task to train on.")
    ] = "tail",
    methods: Annotated[
        list[str] | None,
        several("RULE", "Rules to compare. [default: grpo, clip-higher, clip-wide, band-kl]"),
    ] = None,
    seeds: Annotated[
        Any, Option(parser=seed_list, metavar="N|A,B,...", help="Number of seeds, or a list.")
    ] = "2",
    rounds: Annotated[
        int | None, Option(help="Rounds of sampling and training. [default: the scene's]")
    ] = None,
    lr: Annotated[float | None, Option(help="Learning rate. [default: the scene's]")] = None,
    jobs: Annotated[
        int | None, Option(parser=count, help="Runs at the same time. [default: all cores]")
    ] = None,
    output: Annotated[Path, Option("-o", "--output", help="Folder for the runs and the report.")] = Path(
        "runs/lab"
    ),
    tokens: Annotated[
        bool, Option("--tokens", help="Write every token too, for bandpo calibrate.")
    ] = False,
    resume: Annotated[bool, Option("--resume", help="Continue an interrupted comparison.")] = False,
) -> None:
    """Train a tiny model under several rules, and compare them.

    The same model learns the same task under each rule; a report follows. It needs no GPU and no download. It takes
    about 5 minutes on two cores, or 3 with --seeds 1, which is too few for a verdict. Scene tail shows what a clip
    costs a rare good strategy. Scene storm shows what a clip protects. Scene rare-and-noisy can lose a rare strategy.
    """
    from .show_training import compare_and_show

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    compare_and_show(
        scene,
        methods,
        seeds,
        output,
        {
            "trainer": {} if lr is None else {"learning_rate": lr},
            "tokens_share": 1.0 if tokens else 0,  # by default the folders of many small runs stay small
            **({} if rounds is None else {"rounds": rounds}),
        },
        jobs or cores,
        resume,
        ctx.obj,
    )


@app.command(epilog=RULES, cls=Once)
def train(
    ctx: Context,
    recipe: Annotated[
        str | None,
        Argument(metavar="MODEL|RECIPE", help="Model to train, or a YAML file with the settings."),
    ] = None,
    settings: Annotated[
        list[str] | None, Argument(metavar="key=value", help="Settings that change the recipe.")
    ] = None,
    data: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Rows of {prompt, answer}: .jsonl, .json, .csv, .parquet, or a hub name.",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        Option(help="Scorer: exact, last-number, math, or module:function. [default: by the answers]"),
    ] = None,
    rule: Annotated[
        str | None, Option(metavar="RULE", help="Method or rule. [default: band:kl:0.05]")
    ] = None,
    lora: Annotated[bool, Option("--lora", help="Train LoRA of rank 16 instead of all weights.")] = False,
    rounds: Annotated[int | None, Option(help="Rounds of sampling and training.")] = None,
    output: Annotated[
        str | None,
        Option("-o", "--output", metavar="FOLDER", help="Folder of the run. [default: runs/MODEL/RULE]"),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Continue from the last checkpoint in the run's folder.")
    ] = False,
) -> None:
    """Train a language model under one rule.

    Without arguments, SmolLM2-135M learns on this machine to name the largest of three numbers, in ten minutes on two
    cores. With a model and a file, that model learns from your questions; what you do not set is chosen to fit the
    machine, and said. A recipe is a YAML file such as recipes/trl/band-kl.yaml. Any setting can be given as key=value,
    such as trust_region.delta=0.1 trainer.learning_rate=1e-6.

    To use several processes: torchrun --nproc-per-node N -m bandpo train ..., or accelerate launch --multi_gpu
    --num_processes N -m bandpo train .... They share the recipe's batch: per_device_train_batch_size is that of all
    processes together. On CPUs add trainer.use_cpu=true.
    """
    from ..training import processes

    settings = settings or []
    if recipe is not None and "=" in recipe and not Path(recipe).exists():
        recipe, settings = None, [recipe, *settings]
    options = {
        "reward": reward,
        "trust_region": rule,
        "rounds": rounds,
        "output": output,
        "lora": 16 if lora else None,
    }
    if data is not None:
        on_hub = data.count("/") == 1 and not Path(data).suffix and not Path(data).exists()
        options |= {"data.source": "hub" if on_hub else "file", "data.path": data}
    settings = [
        *settings,
        *(f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None),
    ]
    if recipe is not None and not recipe.endswith((".yaml", ".yml")) and not Path(recipe).is_file():
        recipe, settings = None, [f"model={json.dumps(recipe)}", *settings]
    others = "model=", "scene=", "data.source=", "data.path="
    if recipe is None and not any(text.startswith(others) for text in settings):
        from ..training.preflight import SMOLLM2_RECIPE as recipe
    processes.end_with_launcher()  # before the slow imports
    from .show_training import train_and_show

    return train_and_show(recipe, settings, resume, ctx.obj)


@app.command(cls=Once)
def doctor(
    arguments: Annotated[
        list[str] | None, Argument(metavar="FILE|key=value", help="Settings or logs to check.")
    ] = None,
    as_json: Json = False,
    trust: Annotated[
        bool,
        Option("--trust", help="Import the module of a rule that settings name; this runs its code."),
    ] = False,
) -> int:
    """Check the installation, the settings of a run, or its log.

    Without arguments, it checks what is installed. Given a configuration, it says how many epochs and optimizer steps
    each batch gets, and which settings have no effect or conflict. It knows TRL, verl and the trainers of
    docs/hosts.md. A configuration is key=value, YAML, JSON, TOML, a launch script (.sh) or a .py script. Scripts are
    read, not run. Given a log that bandpo watch reads, it says what share of the tokens the rule clips, and what that
    means. The exit code is 1 if there is a problem.
    """
    from ..doctor.examine import examine

    rows: list[dict[str, Any]] = []
    for finding in examine(arguments or [], trust=trust):
        rows.append(vars(finding))
        if not as_json:  # as they come: some take seconds
            print(wrapped(f"{MARK[finding.level]}  {finding.what}", 6), flush=True)
            if finding.cure:
                print(wrapped(f"      -> {finding.cure}", 9), flush=True)
    if as_json:
        print(json.dumps(rows, indent=2))
    return int(any(row["level"] == "problem" for row in rows))
