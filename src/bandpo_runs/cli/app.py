"""`bandpo`: its groups of commands, and what is told of errors."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import signal
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context, Exit, Option, Typer, TyperException
from typer.core import TyperGroup
from typer.main import get_command as _get_command

from bandpo import __file__ as library
from bandpo import __version__
from bandpo.errors import UserError, without_password
from bandpo.files import check_text

from . import calibration, data, demo, evals, reports, training, watching
from .arguments import Command
from .ending import ended_by_signals, lenient_output

# Typer makes all commands anew each time, in a tenth of a second; `main` may be called often in one process.
get_command = functools.cache(_get_command)

# What a newcomer looks for, in the order in which it is needed; every command stands under one of them.
HEADINGS = {
    "See what a rule does": ("demo", "lab", "explain", "methods"),
    "Train": ("train", "verl", "data"),
    "Look at a run": ("watch", "report", "calibrate"),
    "Evaluate": ("eval", "score", "compare", "table"),
    "Set up": ("doctor", "completion"),
}


class Grouped(TyperGroup):
    """Group whose help shows the commands first, under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in names])
        with formatter.section("Options"):
            formatter.write_dl([record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))])
        formatter.write_paragraph()
        formatter.write_text("Begin with: bandpo demo. Each command says more: bandpo demo --help")


app = Typer(
    cls=Grouped,
    add_completion=False,  # the options that Typer would add make every call load pydantic; see `completion`
    rich_markup_mode=None,
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
)
GROUPS = (demo, training, evals, reports, watching, calibration, data)
for group in GROUPS:
    app.add_typer(group.app)


@app.callback(invoke_without_command=True, add_help_option=False)  # Typer's own would load pydantic each time
def bandpo(
    ctx: Context,
    version: Annotated[bool, Option("--version", help="Show the version and exit.")] = False,
    about: Annotated[bool, Option("-h", "--help", help="Show this message and exit.")] = False,
) -> None:
    """Trust regions for LLM reinforcement learning."""
    if version or about or ctx.invoked_subcommand is None:
        print(f"bandpo {__version__}" if version else ctx.get_help())
        raise Exit(0 if version or about else 2)


@app.command(cls=Command)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Argument(metavar="SHELL", help="bash, zsh or fish")],
) -> None:
    """Print what makes a shell complete commands and options.

    In bash: bandpo completion bash >> ~/.bashrc. In zsh: bandpo completion zsh > ~/.zfunc/_bandpo, with
    fpath+=~/.zfunc before compinit in ~/.zshrc. In fish: bandpo completion fish > a file in
    ~/.config/fish/completions. It works in the next shell that you open.
    """
    _answer_the_shell(f"source_{shell}")


def main(argv: Sequence[str] | None = None, commands: Typer = app, name: str = "bandpo") -> int:
    """Run a command; 0: it went well, 1: the doctor found a problem, 2 and a line on stderr: something that was given,
    the machine or a library does not work, 128 + n: ended by signal n, 130 if by Ctrl-C."""
    argv = sys.argv[1:] if argv is None else list(argv)
    # The command as it is shown, and kept in the folder.
    command = shlex.join([*name.split(), *(without_password(text) for text in argv if text != "--resume")])
    with lenient_output():
        try:
            for text in argv:
                check_text(text, "the argument")
            with ended_by_signals():
                code = _run(argv, command, commands, name)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk can still be told
            return code
        except KeyboardInterrupt as error:
            number = error.args[0] if error.args else signal.SIGINT
            what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
            how = " with --resume" if argv[:1] in (["lab"], ["train"]) else ""
            with contextlib.suppress(OSError):  # the terminal may be gone
                again = "begins anew" if argv[:1] == ["demo"] else "goes on"
                print(f"{what}; the same command{how} {again}", file=sys.stderr)
                if argv[:1] == ["eval"]:
                    print(command, file=sys.stderr)
            return 128 + number
        except Exception as error:
            line = told(error)
            if line is None:
                error.add_note(
                    "error: this is a fault of bandpo itself, not of what you gave it. Please report it, with these "
                    f"lines and: {without_password(shlex.join([*name.split(), *argv]))}"
                )
                raise
            if len(line) > 1000:  # what it quotes may be of any length
                line = f"{line[:700]} ... {line[-200:]}"
            print(f"error: {line}", file=sys.stderr)
            return 2


def _answer_the_shell(question: str) -> None:
    """Answer Typer's `complete_SHELL` or `source_SHELL`, and end the process."""
    os.environ["_BANDPO_COMPLETE"] = question
    completing = Typer()
    completing.callback()(bandpo)
    completing.command()(completion)
    for group in GROUPS:
        completing.add_typer(group.app)
    root = get_command(completing)
    root.params = [param for param in root.params if param.name in ("version", "about")]  # and not Typer's own two
    root(prog_name="bandpo")


def _run(argv: list[str], command: str, commands: Typer, name: str) -> int:
    """Return the exit code of a command.

    Typer's own `main` would take the signals, and show errors in its own way.
    """
    try:
        if "_BANDPO_COMPLETE" in os.environ:  # the shell asks what may follow
            _answer_the_shell(os.environ["_BANDPO_COMPLETE"])
        root = get_command(commands)
        with root.make_context(name, list(argv), obj=command) as ctx:
            return root.invoke(ctx) or 0
    except Exit as end:
        return end.exit_code
    except TyperException as error:
        ctx = getattr(error, "ctx", None)
        message = error.format_message().replace(": Value error, ", ": ").rstrip(".")
        message = message[:1].lower() + message[1:]
        raise UserError(f"{message} (see {ctx.command_path if ctx else name} --help)") from error


# What the machine has run out of, or does not allow: no fault of ours, wherever it is met.
_OF_THE_MACHINE = {
    number
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EMFILE", "ENFILE", "ENOMEM", "EACCES", "EPERM")
    if (number := getattr(errno, name, None)) is not None
}


def told(error: BaseException) -> str | None:
    """Say in one line what a user is told of an error; None for a fault of ours, whose traceback is wanted.

    It is ours where our own code raised it. Else the line names the library that did.
    """
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("bandpo"):
        return f"{error.name} is not installed; pip install 'bandpo[lab]'"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # Path.resolve, until Python 3.13
        return str(error)
    # Libraries that write with code of their own (weights, checkpoints) have words of their own for a full disk.
    said = " ".join(without_password(str(error)).split())[:500]
    full = ("No space left on device", "PytorchStreamWriter failed", "inline_container", "Disk quota exceeded")
    if any(words in said for words in (*full, "iostream error")):
        return f"a file could not be written; is the disk full? ({said[:200]})"
    if any(words in said for words in ("Input/output error", "File too large")):
        return f"a file could not be read or written; is the disk faulty, or a limit of size set? ({said[:200]})"
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        return str(error.strerror)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"out of memory; smaller batches or shorter completions take less ({said[:200]})"
    # What is called <template>, <string> or <frozen ...> is no file; its caller's is.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    if not frames or _is_ours(frames[-1].filename):
        return None
    if any(frame.name == "apply_chat_template" for frame in frames):
        return f"the model's chat template refuses these messages: {said}"
    library, place = _library(frames[-1].filename)
    ours = next((frame for frame in reversed(frames) if _is_ours(frame.filename)), frames[0])
    called = f"{_library(ours.filename)[1]}:{ours.lineno}"
    return (
        f"{library} raised {type(error).__name__}: {said} (at {place}:{frames[-1].lineno}, called at {called})."
        f"{_kept(error)} If nothing that you gave explains it, please report it"
    )


_OURS = Path(__file__).parents[1], Path(library).parent


def _is_ours(file: str) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in _OURS)


def _library(file: str) -> tuple[str, str]:
    """Return the library of a file and the file's place in it; a user's file as it is."""
    roots = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
    roots += [folder.parent for folder in _OURS]
    inside = (Path(file).relative_to(root) for root in roots if Path(file).is_relative_to(root))
    place = next(inside, None)
    return (file, file) if place is None else (place.parts[0].removesuffix(".py"), place.as_posix())


def _kept(error: BaseException) -> str:
    """Write the traceback to a file, and return a sentence with its path."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="bandpo-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(without_password("".join(traceback.format_exception(error))))
    except OSError:
        return ""
    return f" Its traceback is in {file.name}."
