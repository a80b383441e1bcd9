"""What the import graph and the cost of an import must be, whatever else changes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Hundreds of milliseconds and tens of megabytes each; only what needs one may load it.
HEAVY = {"matplotlib", "pandas", "pyarrow", "scipy", "sklearn", "statsmodels"}
# Cheap beside those, and still more than a question for help may cost.
SERVING = {"apscheduler", "hiredis", "numpy", "redis", "rich", "structlog", "urllib3"}


def loaded_by(code: str) -> set[str]:
    """Top-level names of all modules that ``code`` leaves loaded in a fresh interpreter."""
    script = (
        f"{code}\nimport sys\nprint('\\n'.join({{m.partition('.')[0] for m in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


def test_every_import_follows_the_arrows() -> None:
    command = "from importlinter.cli import lint_imports_command as run; run()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-logo"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_asking_for_help_loads_no_library_that_only_work_needs() -> None:
    asked = loaded_by("from detector.cli import main\nmain(['--help'], standalone_mode=False)")
    assert "click" in asked
    assert asked & (HEAVY | SERVING) == set()


@pytest.mark.parametrize("module", ["tick", "service", "replay", "content", "config"])
def test_what_runs_all_day_loads_nothing_heavy_before_a_candidate_needs_it(module: str) -> None:
    assert loaded_by(f"import detector.{module}") & HEAVY == set()


def test_the_help_names_no_verb_that_is_not_there() -> None:
    script = (
        "import click\n"
        "from detector.cli import main\n"
        "context = click.Context(main)\n"
        "for name in main.list_commands(context):\n"
        "    assert main.get_command(context, name) is not None, name\n"
    )
    loaded_by(script)
