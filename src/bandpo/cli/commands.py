"""The command line: one function for each `bandpo COMMAND`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import math
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from .. import __version__
from ..errors import UserError, without_password
from ..files.checks import check_text
from ..files.writing import write_atomically
from ..files.yaml import parse_yaml

if TYPE_CHECKING:
    from ..losses import Method, Objective
    from ..trust_regions.base import Region


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0: it went well, 1: the doctor found a problem, 2 and a line on stderr: the user can change
    something, 128 + n: ended by signal n, 130 if by Ctrl-C."""
    argv = sys.argv[1:] if argv is None else list(argv)
    with _lenient_output():
        args: argparse.Namespace | None = None
        try:
            for text in argv:
                check_text(text, "the argument")
            args = _arguments(argv)
            with _ended_by_signals():
                code = 2 if args is None else args.run(args) or 0
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk can still be told
            return code
        except KeyboardInterrupt as error:
            number = error.args[0] if error.args else signal.SIGINT
            what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
            how = " with --resume" if hasattr(args, "resume") else ""
            with contextlib.suppress(OSError):  # the terminal may be gone
                print(f"{what}; the same command{how} goes on", file=sys.stderr)
                if args is not None and args.run is _eval:
                    print(args.command_line, file=sys.stderr)
            return 128 + number
        except Exception as error:
            line = told(error)
            if line is None:
                error.add_note(
                    "error: this is a fault of bandpo itself, not of what you gave it. Please report it, with these "
                    f"lines and: {without_password(shlex.join(['bandpo', *argv]))}"
                )
                raise
            if len(line) > 1000:  # what it quotes may be of any length
                line = f"{line[:700]} ... {line[-200:]}"
            print(f"error: {line}", file=sys.stderr)
            return 2


def _arguments(argv: list[str]) -> argparse.Namespace | None:
    """The arguments, None where there is no command; exits for wrong ones, as argparse does."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if getattr(args, "run", None) in (_train, _verl) and not any(text.startswith("-") for text in rest):
        args.settings += rest  # after an option argparse takes no more of them
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if not hasattr(args, "run"):
        parser.print_help()
        return None
    # It is shown, and kept in the folder.
    args.command_line = shlex.join(["bandpo", *(without_password(a) for a in argv if a != "--resume")])
    return args


# What the machine has run out of, or does not allow: no fault of ours, wherever it is met.
_OF_THE_MACHINE = {
    number
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EMFILE", "ENFILE", "ENOMEM", "EACCES", "EPERM")
    if (number := getattr(errno, name, None)) is not None
}


def told(error: BaseException) -> str | None:
    """What a user is told of an error, in one line; None for a fault of ours, whose traceback is wanted."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("bandpo"):
        return f"{error.name} is not installed; pip install 'bandpo[lab]'"
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_THE_MACHINE):
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror}"
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # Path.resolve, until Python 3.13
        return str(error)
    # Libraries that write with code of their own (weights, checkpoints) have words of their own for a full disk.
    full = ("No space left on device", "PytorchStreamWriter failed", "inline_container", "Disk quota exceeded")
    if any(words in str(error) for words in full):
        return f"a file could not be written; is the disk full? ({' '.join(str(error).split())[:200]})"
    return None


@contextlib.contextmanager
def _lenient_output() -> Iterator[None]:
    """Whoever reads our output may go (`| head -1`): the work goes on, for what counts is in files. And a character
    that the terminal does not have is written by its number."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and cast("TextIO", _Lenient(stream)) for stream in before)
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError):
                stream.flush()
        sys.stdout, sys.stderr = before


class _Lenient:
    """A stream that swallows what nobody reads any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        with self._going_on():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._going_on():
            self._stream.flush()

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The stream tries again what it still holds, at the latest when Python ends: into nothing.
            with contextlib.suppress(OSError, ValueError):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, self._stream.fileno())
                os.close(nothing)
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, "the output") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does, so that it leaves no process and no half file behind.

    Whatever else is raised on the way out (a terminal that is gone, a worker that is) is of no interest.
    Left alone: signals that somebody else handles or ignores (nohup), and one process among several, which may be
    waiting for another where no Python runs; their launcher ends them.
    """
    received: list[int] = []

    def end(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        numbers = []
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    except BaseException as error:
        if received and not (isinstance(error, KeyboardInterrupt) and error.args):
            raise KeyboardInterrupt(received[0]) from error
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


_RULES = (
    "A rule is a short word, its type and its fields (clip:0.2:0.28, dcpo:0.16:0.2:10, band:kl:0.05, "
    "capped:band:kl:0.05:10, relaxed:band:kl:0.05:clip:0.2:0.28), or a YAML node such as '{type: band, delta: 0.05}'."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, like every other mistake."""
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="bandpo", description="Trust regions for LLM reinforcement learning.")
    parser.add_argument("--version", action="version", version=f"bandpo {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    lab = commands.add_parser(
        "lab",
        help="train a tiny model under several rules and see why they differ (no GPU, no download)",
        description="Train the same tiny model on the same task under several clipping rules, and write a report. "
        "Scene `tail` shows what a clip costs a rare good strategy, `storm` what it protects.",
    )
    lab.add_argument("--scene", default="tail", choices=["tail", "storm"])
    lab.add_argument(
        "--methods",
        nargs="+",
        metavar="RULE",
        help="grpo clip-higher band-kl band-tv band-chi2 band-relaxed dcpo no-clip clip-wide, methods of papers "
        "such as gspo, or rules such as clip:0.2:1 or '{type: clip, eps_high: 1.0}' (default: grpo clip-higher "
        "band-kl no-clip)",
    )
    lab.add_argument(
        "--seeds", type=_seeds, default=[0, 1], metavar="N or A,B,...", help="how many, or which (default: 2)"
    )
    lab.add_argument("--rounds", type=int, help="generate-and-learn rounds (default: 30 in tail, 64 in storm)")
    lab.add_argument("--lr", type=float, help="learning rate (default: 5e-6 in tail, 4e-4 in storm)")
    lab.add_argument("--jobs", type=_count, default=_cores(), help="runs at once (default: the cores of this machine)")
    lab.add_argument("-o", "--output", type=Path, default=Path("runs/lab"), help="folder (default: runs/lab)")
    lab.add_argument("--resume", action="store_true", help="go on with an interrupted comparison")
    lab.set_defaults(run=_lab)

    train = commands.add_parser(
        "train",
        help="train one model from a recipe (without a recipe: the lab)",
        description="Train one model under one rule, from a recipe such as recipes/trl/band-kl.yaml; any setting can "
        "be given as key=value, e.g. trust_region.delta=0.1 trainer.learning_rate=1e-6. Without a recipe: the lab. "
        "Several processes: torchrun --nproc-per-node N -m bandpo train ..., or accelerate launch --multi_gpu "
        "--num_processes N -m bandpo train ... (on CPUs too, with trainer.use_cpu); they share the "
        "recipe's batch, so that per_device_train_batch_size stays that of all together.",
    )
    train.add_argument("recipe", nargs="?", help="a YAML file")
    train.add_argument("settings", nargs="*", metavar="key=value")
    train.add_argument("--resume", action="store_true", help="go on after the last checkpoint of the run in `output`")
    train.set_defaults(run=_train)

    report = commands.add_parser(
        "report", help="draw a page from runs", description="One self-contained HTML page from run folders."
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that hold some")
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    report.add_argument("--png", type=Path, help="also as a picture")
    report.add_argument("--baseline", help="label to compare with (default: the one that begins with GRPO)")
    report.set_defaults(run=_report)

    explain = commands.add_parser(
        "explain",
        help="what a method or a rule allows a token, in numbers and words",
        description="What a method or a rule allows tokens of old probability P, and what stops them. Methods are "
        f"gspo, cispo, clip-higher and others: docs/rules.md. {_RULES}",
    )
    explain.add_argument("rule", type=_objective, metavar="RULE")
    explain.add_argument(
        "--p", type=_probability, nargs="+", default=[], metavar="P", help="default: from 0.001 to 0.99"
    )
    explain.add_argument("--vs", type=_objective, metavar="RULE", help="another one, and what differs")
    explain.set_defaults(run=_explain)

    doctor = commands.add_parser(
        "doctor",
        help="check the installation, the settings of a verl run, or its log",
        description="Without arguments: what is installed, and whether verl knows the loss, here and in a Ray worker. "
        "With verl's overrides or YAML files (outputs/.../.hydra/config.yaml): settings that do nothing, or something "
        "else than they say. With a .jsonl of verl's file logger: what its numbers are. Exit code 1: a problem.",
    )
    doctor.add_argument("arguments", nargs="*", metavar="FILE or key=value")
    doctor.add_argument("--no-ray", action="store_true", help="do not look into a Ray worker")
    doctor.set_defaults(run=_doctor)

    figures = commands.add_parser(
        "figures",
        help="draw the paper's figures of trust regions, and three of our own",
        description="Draw figures as PDF, SVG and PNG, and print their captions: regions-3d, variation and ratio are "
        "Fig. 1a, 1b and 2 of the paper; equal-half-width, cap and half-width are ours. The defaults are the paper's. "
        + _RULES,
        argument_default=argparse.SUPPRESS,  # the defaults of the parameters are where the figures are
    )
    figures.add_argument(
        "-o", "--output", type=Path, default=Path("runs/figures"), help="folder (default: runs/figures)"
    )
    figures.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some figures (default: all six)")
    figures.add_argument(
        "--regions", nargs="+", type=_region, metavar="REGION", help="the rules in variation, ratio and half-width"
    )
    figures.add_argument("--top", type=float, help="highest ratio in ratio (default: 4)")
    figures.add_argument("--pair", nargs=2, type=_region, metavar="REGION", help="the two rules in regions-3d")
    figures.add_argument("--top-3d", type=float, help="highest ratio in regions-3d (default: 10)")
    figures.add_argument("--capped", type=_region, metavar="REGION", help="the rule in cap, of type capped")
    figures.add_argument(
        "--equal", nargs="+", metavar="DIVERGENCE", help="those in equal-half-width (default: kl tv chi2)"
    )
    figures.add_argument("--half-width", type=float, help="which of a token is made equal (default: 0.1)")
    figures.add_argument("--at", type=float, metavar="P", help="the token's old probability (default: 0.5)")
    figures.set_defaults(run=_figures)

    verl = commands.add_parser(
        "verl",
        help="start a run on verl from a recipe, or show its command or what it takes",
        description="Start verl's trainer from a recipe such as recipes/paper/qwen2.5-3b/band-kl.yaml. Further recipes "
        "are laid on the first; any setting can be given as key=value, e.g. variant=public trust_region.delta=0.1 "
        "data.train_files=[data/a.parquet], and what verl's own YAML does not have as +key=value.",
    )
    verl.add_argument("recipe", help="a YAML file")
    verl.add_argument("settings", nargs="*", metavar="RECIPE | key=value")
    verl.add_argument("--print", action="store_true", help="print the command instead of starting it")
    verl.add_argument("--plan", action="store_true", help="print an estimate of memory and time instead of starting")
    verl.add_argument(
        "--nodes", type=_count, metavar="N", help="nodes of a running Ray cluster (default: the recipe's)"
    )
    verl.add_argument("--address", help="of that cluster: auto, HOST:PORT or ray://HOST:PORT")
    verl.set_defaults(run=_verl)

    data = commands.add_parser(
        "data", help="prepare data sets for training and evaluation, or list the known ones"
    ).add_subparsers(title="commands", metavar="COMMAND", required=True)
    prepare = data.add_parser(
        "prepare",
        help="make Parquet files that verl and TRL read, with a report of what was dropped and changed",
        description="Make Parquet files that verl and TRL read from data sets of the Hugging Face hub, copies of them "
        "on disk, files of your own or reasoning_gym tasks; with report.md and report.json. Finished files are not "
        "made again. docs/data.md says what is checked and why.",
    )
    prepare.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="paper (all five files of the paper), another name of `bandpo data list`, reasoning-gym:TASK, a .jsonl, "
        ".json, .csv or .parquet file, or ORG/NAME of the hub",
    )
    prepare.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the files")
    prepare.add_argument(
        "--from", type=Path, dest="copies", metavar="PATH", help="a copy of the hub's data sets on disk: file or folder"
    )
    prepare.add_argument(
        "--template",
        help="text around each problem: paper, plain, boxed, or a text with {prompt} in it (default: paper for known "
        "data sets, plain for others)",
    )
    prepare.add_argument("--tokenizer", metavar="MODEL", help="whose chat template counts the tokens of a prompt")
    prepare.add_argument(
        "--max-prompt-tokens", type=_count, default=1024, metavar="N", help="drop longer ones (default: 1024)"
    )
    prepare.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="NAME",
        help="drop training rows that hold problems of these evaluation sets or files (paper, gsm8k: their own)",
    )
    prepare.add_argument(
        "--as-published", action="store_true", help="keep answers like 033, duplicates and leaks; only count them"
    )
    prepare.add_argument("--size", type=_count, metavar="N", help="take the first N rows; make N items (default: 1000)")
    prepare.add_argument("--strict", action="store_true", help="counts that are not the recorded ones are an error")
    prepare.add_argument("--force", action="store_true", help="make finished files again")
    own = prepare.add_argument_group("for data that bandpo does not know")
    own.add_argument("--prompt", metavar="COLUMN", help="with the problem: text or messages (default: prompt)")
    own.add_argument("--answer", metavar="COLUMN", help="with the answer (default: answer); a.b is field b of column a")
    own.add_argument("--config", help="of the hub's data set")
    own.add_argument("--split", help="of it (default: train)")
    own.add_argument("--data-source", metavar="KEY", help="verl's key for scorer and metrics (default: math_dapo)")
    own.add_argument("--integers", action="store_true", help="answers are integers: write them as usual, report others")
    own.add_argument("--evaluation", action="store_true", help="an evaluation set, of which nothing is dropped")
    own.add_argument(
        "--option", type=_option, action="append", default=[], metavar="KEY=VALUE", help="of a reasoning_gym task"
    )
    prepare.set_defaults(run=_prepare)
    known = data.add_parser("list", help="the known data sets: what they are, how many rows they must have, licences")
    known.set_defaults(run=_list_data)

    evaluate = commands.add_parser(
        "eval",
        help="draw answers from a model, and score them",
        description="Draw answers to every question, append them to a folder as they come, and score them. The same "
        "command goes on where it was stopped or killed; with a larger -n it draws the samples that are missing.",
    )
    evaluate.add_argument(
        "model",
        help="a model's folder or hub id; the folder of a run of bandpo train or lab; its name on a server; lab: the "
        "start of the lab's tail scene",
    )
    evaluate.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="NAME",
        help="aime24,aime25,amc23,gsm8k-test; a .parquet, .jsonl or .csv file of {prompt, answer}; "
        "reasoning-gym:TASK:option=value:size=128; a recipe or a run (its held-out rows); lab (default: those of "
        "the run, or of the lab)",
    )
    evaluate.add_argument("-n", type=_count, default=32, metavar="N", help="samples for each question (default: 32)")
    evaluate.add_argument("--temperature", type=float, default=1.0, help="default: 1; 0 is greedy, with -n 1")
    evaluate.add_argument("--top-p", type=float, default=1.0, help="default: 1")
    evaluate.add_argument("--top-k", type=int, default=-1, help="default: -1, all")
    evaluate.add_argument("--max-tokens", type=_count, default=4096, help="where an answer is cut (default: 4096)")
    evaluate.add_argument("--seed", type=int, default=0, help="of the samples (default: 0)")
    evaluate.add_argument(
        "--backend",
        choices=["auto", "vllm", "transformers", "openai"],
        default="auto",
        help="auto: a server if --base-url is given, else vLLM if it is installed, else transformers",
    )
    evaluate.add_argument(
        "--base-url",
        metavar="URL",
        help="of a server that speaks OpenAI's protocol, e.g. http://localhost:8000/v1; its key is $OPENAI_API_KEY",
    )
    evaluate.add_argument("--concurrency", type=_count, default=32, help="requests to it at once (default: 32)")
    evaluate.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="what one of its answers may take (default: 3600)"
    )
    evaluate.add_argument("--batch-size", type=_count, help="samples at once with transformers (default: 64, CPU 32)")
    evaluate.add_argument("--limit", type=_count, metavar="N", help="the first N questions of each data set")
    evaluate.add_argument(
        "--no-chat", action="store_true", help="send the text of a question as it is, not through the chat template"
    )
    evaluate.add_argument(
        "--template", help="around a problem: paper, plain, boxed, or text with {prompt} (default: paper for AIME, AMC)"
    )
    evaluate.add_argument(
        "--from", type=Path, metavar="DIR", dest="copies", help="a copy of the hub's data set on disk"
    )
    evaluate.add_argument("--scorer", help="default: the one that fits the data; see bandpo score")
    evaluate.add_argument("--label", help="the model's name in tables (default: its path, or the rule of a run)")
    evaluate.add_argument("-o", "--output", type=Path, help="folder (default: runs/eval/NAME)")
    evaluate.set_defaults(run=_eval)

    score = commands.add_parser(
        "score",
        help="grade the samples of an evaluation, and print what they say",
        description="Grade the samples that have no grade yet, and print mean@n, pass@k, maj@k and best@k with their "
        "intervals, lengths, and the shares of answers that were cut or could not be read.",
    )
    score.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of bandpo eval")
    score.add_argument(
        "--scorer",
        help="math, dapo-strict, exact, last-number, reasoning-gym or lab (default: what the evaluation was made with)",
    )
    score.add_argument("-k", nargs="+", type=_count, default=[], metavar="K", help="default: the number of samples")
    score.add_argument("--json", action="store_true", help="all numbers, for scripts")
    score.set_defaults(run=_score)

    compare = commands.add_parser(
        "compare",
        help="is one checkpoint better than another, by how much, how sure, and what would settle it",
        description="Compare two evaluations on the problems that both answered, data set by data set and on average. "
        "A and B are folders of bandpo eval, or files of verl's trainer.validation_data_dir; LABEL=PATH names them.",
    )
    compare.add_argument("a", metavar="A")
    compare.add_argument("b", metavar="B")
    compare.add_argument("-k", type=_count, help="compare pass@K (default: mean@n, of all samples)")
    compare.add_argument("--scorer", help="whose grades (default: those of the evaluation)")
    compare.add_argument("--log", action="append", default=[], metavar="LABEL=PATH", help=_LOG)
    compare.add_argument("--json", action="store_true", help="print plain data, as shares instead of points")
    compare.set_defaults(run=_compare)

    table = commands.add_parser(
        "table",
        help="a table of results in the layout of the paper's Table 1",
        description="A table of evaluations: methods by data sets, mean@n with its interval and pass@k, the best in "
        "bold. Label MODEL / METHOD puts METHOD under the heading MODEL; evaluations with one label are training runs "
        "of one method.",
    )
    table.add_argument("results", nargs="+", metavar="PATH | LABEL=PATH")
    table.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to a file instead")
    table.add_argument(
        "--format", choices=["markdown", "latex", "html"], help="default: by the name of FILE, else markdown"
    )
    table.add_argument("-k", type=_count, help="of pass@K (default: the number of samples)")
    table.add_argument("--scorer", help="whose grades (default: those of the evaluation)")
    table.add_argument("--log", action="append", default=[], metavar="LABEL=PATH", help=_LOG)
    table.set_defaults(run=_table)
    return parser


_LOG = "the log of the run that made LABEL (metrics.jsonl, or verl's file logger), to look for a collapse in"


def _region(text: str) -> Region:
    import torch

    from ..trust_regions.notation import parse_region

    try:
        region = parse_region(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    try:
        region.bounds(torch.zeros(1))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} needs more than p to have bounds; give the rules that it is made of ({error})"
        ) from None
    return region


def _objective(text: str) -> Method | Objective:
    from ..losses.notation import parse_objective

    try:
        return parse_objective(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _probability(text: str) -> float:
    try:
        p = float(text)
    except ValueError:
        p = math.nan
    if not 0 < p <= 1:
        raise argparse.ArgumentTypeError(f"must be a probability in (0, 1], got {text!r}")
    return p


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return seconds


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")] if "," in text else list(range(int(text)))
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise argparse.ArgumentTypeError(f"must be a positive count or different seeds like 0,3,4; got {text!r}")
    return seeds


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lab(args: argparse.Namespace) -> None:
    from .training import compare_and_show

    trainer: dict[str, Any] = {} if args.lr is None else {"learning_rate": args.lr}
    overrides: dict[str, Any] = {"trainer": trainer} | ({} if args.rounds is None else {"rounds": args.rounds})
    compare_and_show(
        args.scene, args.methods, args.seeds, args.output, overrides, args.jobs, args.resume, args.command_line
    )


def _train(args: argparse.Namespace) -> None:
    from ..training import processes

    processes.end_with_launcher()  # before the slow imports
    from .training import train_and_show

    settings = list(args.settings)
    recipe = args.recipe
    if recipe is not None and "=" in recipe and not Path(recipe).exists():
        settings.insert(0, recipe)
        recipe = None
    if recipe is None and not settings:
        args.__dict__.update(_parser().parse_args(["lab", *(["--resume"] if args.resume else [])]).__dict__)
        return _lab(args)
    return train_and_show(recipe, settings, args.resume, args.command_line)


def _report(args: argparse.Namespace) -> None:
    from ..reports.page import write_report

    print(write_report(args.runs, args.output, png=args.png, baseline=args.baseline))


def _doctor(args: argparse.Namespace) -> int:
    from ..training.doctor import examine, report

    return 0 if report(examine(args.arguments, ray=not args.no_ray)) else 1


def _explain(args: argparse.Namespace) -> None:
    from ..reports.explanation import explain

    try:
        print(explain(args.rule, args.p, args.vs))
    except ValueError as error:  # a rule that has no bounds by p alone
        raise UserError(str(error)) from error


def _figures(args: argparse.Namespace) -> None:
    from ..reports.figures import Parameters, write_figures

    fields = Parameters.__dataclass_fields__.keys() & vars(args).keys()
    try:
        parameters = Parameters(**{name: getattr(args, name) for name in fields})
        drawn = write_figures(args.output, parameters, args.only)
    except ValueError as error:  # of the core, about a rule or a divergence that was named
        raise UserError(str(error)) from error
    for path, caption in drawn:
        print(f"{path}.pdf .svg .png\n  {caption}")
    print(args.output)


def _verl(args: argparse.Namespace) -> None:
    from ..training.on_verl import load, plan_text

    overlays = [text for text in args.settings if "=" not in text and text.endswith((".yaml", ".yml"))]
    settings = [text for text in args.settings if text not in overlays]
    run = load([args.recipe, *overlays], settings, nodes=args.nodes, address=args.address)
    if args.plan:
        print(plan_text(run))
    if args.print:
        print(run.command())
    if not args.plan and not args.print:
        run.start()


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text!r}")
    try:
        return key, parse_yaml(value, f"the value of {key}")
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _prepare(args: argparse.Namespace) -> None:
    from ..data.preparation import Settings, prepare
    from ..data.sources import GROUPS, find

    columns = {key: getattr(args, key) for key in ("prompt", "answer", "config", "split", "integers", "evaluation")}
    sources = [
        source
        for name in args.names
        for source in find(name, data_source=args.data_source, options=dict(args.option), size=args.size, **columns)
    ]
    settings = Settings(
        template=args.template,
        tokenizer=args.tokenizer,
        max_prompt_tokens=args.max_prompt_tokens,
        against=tuple(args.against),
        as_published=args.as_published,
        copies=args.copies,
        strict=args.strict,
        force=args.force,
    )
    group = args.names[0] if len(args.names) == 1 and args.names[0] in GROUPS else None
    outcome = prepare(sources, args.output, settings, group=group, say=lambda line: print(line, flush=True))
    print(outcome.report)


def _list_data(args: argparse.Namespace) -> None:
    from ..data.sources import listing

    print(listing())


def _eval(args: argparse.Namespace) -> None:
    from ..evals.samples import Sampling
    from .evals import evaluate_and_show

    sampling = Sampling(args.n, args.temperature, args.top_p, args.top_k, args.max_tokens, args.seed)
    data = [name for text in args.data for name in text.split(",") if name]
    evaluate_and_show(
        args.model,
        data=data,
        sampling=sampling,
        backend=args.backend,
        base_url=args.base_url,
        output=args.output,
        scorer=args.scorer,
        label=args.label,
        limit=args.limit,
        chat=not args.no_chat,
        template=args.template,
        copies=args.copies,
        batch=args.batch_size,
        concurrency=args.concurrency,
        timeout=args.timeout,
        command=args.command_line,
    )


def _score(args: argparse.Namespace) -> None:
    from .evals import score_and_show

    score_and_show(args.folders, args.scorer, args.k, args.json)


def _compare(args: argparse.Namespace) -> None:
    import json

    from ..evals.results import read_results
    from ..reports.comparison import compare_results, comparison_data, comparison_text

    a, b = read_results([args.a, args.b], args.scorer, args.log)
    comparisons = compare_results(a, b, args.k)
    if args.json:
        print(json.dumps(comparison_data(a, b, comparisons, args.k), indent=1))
    else:
        print(comparison_text(a, b, comparisons, args.k))


def _table(args: argparse.Namespace) -> None:
    from ..evals.results import read_results
    from ..reports.table import FORMATS, make_table

    by_name = {".html": "html", ".tex": "latex"}
    form = args.format or by_name.get(args.output.suffix if args.output else "", "markdown")
    text = FORMATS[form](make_table(read_results(args.results, args.scorer, args.log), args.k))
    if args.output is None:
        print(text, end="")
    else:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.output, text.encode())
        print(args.output)
