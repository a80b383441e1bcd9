"""The command line. Parsing and printing only; each verb's module is imported when it runs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple, NoReturn

import click

# Exit codes, documented in docs/cli.md and in `ofuwatch --help`.
EXIT_PROBLEM = 1  # the command ran, and what it checked is not in order
EXIT_BAD_INPUT = 2  # a file, key, option or configuration is wrong
EXIT_UNAVAILABLE = 3  # Redis or another service could not be reached or refused
EXIT_INTERRUPTED = 130


class _Verb(NamedTuple):
    module: str
    help: str


_VERBS = {
    "serve": _Verb(
        "serve", "Watch the fleet: read histories, judge, alert. Runs until stopped."
    ),
    "collect": _Verb("collect", "Collect counters from exporters, Prometheus, DCGM or NVML."),
    "doctor": _Verb(
        "doctor", "Say of a node or target what of collection works and what mends the rest."
    ),
    "demo": _Verb("demo", "See it find real regressions, end to end, on this machine."),
    "replay": _Verb("replay", "Run the detector over recordings (CSV, Parquet)."),
    "calibrate": _Verb(
        "calibrate", "Set a bound by the false alarms it gives on jobs that were well."
    ),
    "check": _Verb("check", "Check config, models and rules; print every error of every file."),
    "init": _Verb("init", "Write a folder with the shipped config, models and rules to edit."),
    "rules": _Verb("rules", "Test rules against TOML cases."),
    "jobs": _Verb("jobs", "List the jobs that have histories."),
    "show": _Verb("show", "Show one job: its history, its set-aside entries, its incidents."),
    "incidents": _Verb("incidents", "List incidents."),
    "ack": _Verb("ack", "Acknowledge an incident."),
    "dlq": _Verb("dlq", "List or replay notices that no receiver accepted."),
    "ofu": _Verb("ofu", "Compute OFU and data-sheet MFU from given counters."),
    "mfu": _Verb("mfu", "Compute MFU from a model's FLOPs; explain one that OFU contradicts."),
}


def counted(number: int, name: str) -> str:
    """Return a number of things in words: ``1 job``, ``2,000 jobs``."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


@contextmanager
def _one_line() -> Iterator[None]:
    """Leave in one clear line on what the command line holds, and on Ctrl-C."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        verb = error.ctx.command_path if error.ctx else "ofuwatch"
        fail(f"{error.format_message().rstrip('.')}; `{verb} --help` tells more")
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


class _LazyGroup(click.Group):
    """A group whose commands cost nothing until one of them is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _VERBS:
            return None
        module = import_module(f"detector.cli.{_VERBS[cmd_name].module}")
        command: click.Command = module.command
        return command

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _one_line():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> object:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # names may hold what a terminal has not
                stream.reconfigure(errors="backslashreplace")
        with _one_line():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in _VERBS.items()])


EPILOG = (
    "Exit codes: 0 done; 1 what was checked is not in order; 2 bad input; "
    "3 Redis or another service cannot be reached; 130 interrupted."
)


@click.group(
    cls=_LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(package_name="ofuwatch", prog_name="ofuwatch")
def main() -> None:
    """Watch the efficiency (OFU) of training jobs and alert once, with evidence."""


def fail(message: str, *, code: int = EXIT_BAD_INPUT) -> NoReturn:
    """Print one clear line to stderr and leave with ``code``."""
    click.echo(f"ofuwatch: {message}", err=True)
    raise SystemExit(code)
