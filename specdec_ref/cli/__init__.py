"""The command line: `specdec`. Heavy imports happen inside the commands, so that help comes at once."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points

import click

from specdec_ref import __version__
from specdec_ref.cli.arithmetic import kv, roofline
from specdec_ref.cli.bench import bench
from specdec_ref.cli.demo import demo
from specdec_ref.cli.doctor import doctor
from specdec_ref.cli.fetch import fetch
from specdec_ref.cli.generate import generate
from specdec_ref.cli.train_draft import train_draft
from specdec_ref.cli.try_pair import try_pair


class Commands(click.Group):
    """The commands of this package, and those that other packages add by the entry points `specdec.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*super().list_commands(ctx), *entry_points(group="specdec.commands").names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, None where it is not installed: the learners' archive leaves grading out."""
        if own := super().get_command(ctx, cmd_name):
            return own
        for entry in entry_points(group="specdec.commands", name=cmd_name):
            try:
                command: click.Command = entry.load()
            except ModuleNotFoundError:
                return None
            return command
        return None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="specdec")
def cli() -> None:
    """Speculative decoding, exact and readable.

    Start with `specdec demo`. Exit codes: 0 done, 1 it could not be done, 2 the command makes no sense.
    """


for command in (demo, generate, try_pair, bench, roofline, kv, fetch, train_draft, doctor):
    cli.add_command(command)


def main(args: list[str] | None = None) -> int:
    """Run the command line; an error the user can do something about is one line, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what the terminal's encoding lacks is a "?", not the end of the text
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=args, prog_name="specdec", standalone_mode=False)
        _flush()  # here, where a full disk can still be reported
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("stopped", 130)
    except BrokenPipeError:  # the reader has seen enough, as `head` has
        _drop_what_cannot_be_written()
        return 1
    except Exception as error:
        line = _one_line(error)
        if line is None:
            raise
        _drop_what_cannot_be_written()
        return _fail(line, 1)


def _one_line(error: Exception) -> str | None:
    """`error` in one line for the user, who can do something about it; None where the fault is ours."""
    from specdec_ref.models.store.catalog import ModelNotAvailable

    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory: close other programs, or take a smaller model"
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return "you have no home directory here: set HOME, or SPECDEC_HOME to a folder that may be written"
    return str(error) if isinstance(error, (ModelNotAvailable, ValueError, OSError)) else None


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _drop_what_cannot_be_written() -> None:
    """Send output that cannot be written nowhere, or Python would try again at its end and complain."""
    try:
        _flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    print(f"specdec: {' '.join(message.split())}", file=sys.stderr)
    return code
