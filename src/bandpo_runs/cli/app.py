"""Run `bandpo`: its help, its exit codes, and the line on stderr for an error."""

import contextlib
import functools
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any, TextIO, cast

from typer import Context, Exit, Option, Typer, TyperException
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as _get_command

from bandpo import __version__
from bandpo.errors import UserError, printable, without_password

from ..signals import interrupting

# Typer makes all commands anew each time, in a tenth of a second; `main` may be called often in one process.
get_command = functools.cache(_get_command)

# The commands in the order in which a newcomer needs them.
HEADINGS = {
    "See what a rule does": ("demo", "lab", "explain", "methods"),
    "Train": ("train", "data"),
    "Look at a run": ("watch", "report", "calibrate"),
    "Evaluate": ("eval", "score", "compare", "table"),
    "Set up": ("doctor",),
}


class Grouped(TyperGroup):
    """Group of commands whose help lists them under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(width)) for name in names]
                )


class Once(TyperCommand):
    """Command that refuses an option of one value where it is there twice. The last one would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        order = self.make_parser(ctx).parse_args(list(args))[-1]
        for param in order:
            # A flag may be; and a shell that completes is told nothing.
            if order.count(param) > 1 and not (
                param.multiple or getattr(param, "is_flag", True) or ctx.resilient_parsing
            ):
                ctx.fail(
                    f"{'/'.join(param.opts)} takes one value, and is there {order.count(param)} times"
                )
        return super().parse_args(ctx, args)


app = Typer(
    cls=Grouped,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
    epilog="Begin with: bandpo demo. Each command says more: bandpo demo --help",
)


@app.callback(invoke_without_command=True)
def bandpo(
    ctx: Context,
    version: Annotated[bool, Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Trust regions for LLM reinforcement learning."""
    if version or ctx.invoked_subcommand is None:
        print(f"bandpo {__version__}" if version else ctx.get_help())
        raise Exit(0 if version else 2)


def main(argv: Sequence[str] | None = None, commands: Typer = app, name: str = "bandpo") -> int:
    """Run a command and return its exit code.

    0: done; 1: the doctor found a problem; 2: bad input, or a machine or an installation that lacks something, with a
    line on stderr; 128 + n: ended by signal n; 141: nobody reads the output any more.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    # The command as it is shown, and kept in the folder of a run.
    command = shlex.join(
        [*name.split(), *(without_password(text) for text in argv if text != "--resume")]
    )
    out, err = (cast("TextIO", _Printable(stream)) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with interrupting():
                code = _run(argv, command, commands, name)
            out.flush()  # here a full disk or a closed pipe can still be told
            return code
        except BrokenPipeError:
            code = 141
        except KeyboardInterrupt as error:
            number = error.args[0] if error.args else signal.SIGINT
            print(
                "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}",
                "; ",
                *getattr(error, "__notes__", ()),  # what is kept
                "the same command with --resume"
                if argv[:1] in (["lab"], ["train"])
                else "the same command",
                " begins anew" if argv[:1] == ["demo"] else " goes on",
                sep="",
                file=err,
            )
            code = 128 + number
        except Exception as error:
            line = line_of(error)
            if line is None:
                error.add_note(
                    f"error: a fault of bandpo or of a library. If your input is right, report this: {command}"
                )
                raise
            print("error:", line if len(line) <= 1000 else f"{line[:700]} ... {line[-200:]}", file=err)
            code = 2
        try:
            out.flush()
        except OSError:  # Python would try again at its end, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return code


def _run(argv: list[str], command: str, commands: Typer, name: str) -> int:
    root = get_command(commands)
    if "_BANDPO_COMPLETE" in os.environ:
        root(prog_name=name)  # Typer answers the shell, and ends the process
    if "" in argv:
        raise UserError(
            f"what follows {[name, *argv][argv.index('')]!r} is empty; is a variable of the shell not set?"
        )
    try:
        with root.make_context(name, list(argv), obj=command) as ctx:
            return root.invoke(ctx) or 0
    except Exit as end:
        return end.exit_code
    except TyperException as error:
        ctx = getattr(error, "ctx", None)
        message = error.format_message().replace(": Value error, ", ": ").rstrip(".")
        raise UserError(
            f"{message[:1].lower()}{message[1:]} (see {ctx.command_path if ctx else name} --help)"
        ) from error


def line_of(error: Exception) -> str | None:
    """Return a line about bad input or what the machine lacks. None is for an error that needs its traceback."""
    text = " ".join(without_password(str(error)).split())
    # As which pathlib tells one until Python 3.12.
    if isinstance(error, UserError) or text.startswith("Symlink loop"):
        return text
    # Jinja's, such as Gemma's of a system message.
    if "TemplateError" in (cls.__name__ for cls in type(error).__mro__):
        return f"the model's chat template refuses these messages: {text}"
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("bandpo"):
        return f"{error.name} is not installed; pip install 'bandpo[lab]'"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        smaller = "in training smaller batches take less, everywhere shorter completions (bandpo eval: --max-tokens)"
        return f"out of memory; {smaller} ({text[:200]})"
    # Libraries that write weights and checkpoints have words of their own for a full disk.
    if re.search("No space left on device|PytorchStreamWriter|inline_container|iostream", text):
        return f"a file could not be written; is the disk full? ({text[:200]})"
    return None


class _Printable:
    """Stream that shows control characters by number. They may come from a file that a stranger sent.

    rich writes to `rich_proxied_file`, since its own control characters are meant.
    """

    def __init__(self, stream: TextIO | None) -> None:
        # >&- leaves none.
        self.rich_proxied_file = stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character that the terminal does not have

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)
