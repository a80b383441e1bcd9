"""What is installed is what is here: the locks, and what a wheel holds."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the working tree, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_locks_were_made_from_the_dependencies_that_are_declared() -> None:
    command = [sys.executable, "scripts/bootstrap.py", "lock-check"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_is_a_lock_for_the_service_for_development_for_benchmarks_and_for_uv() -> None:
    assert [path.name for path in LOCKS] == ["bench.txt", "dev.txt", "service.txt", "uv.txt"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_every_package_with_hashes_and_names_no_place(lock: Path) -> None:
    text = lock.read_text()
    assert re.search(r"://|--index|--find-links|--trusted|@ ", text) is None
    packages = re.findall(r"^\S+==\S+.*(?:\n {4}--hash=sha256:[0-9a-f]{64}.*)+", text, re.M)
    lines = [line for line in text.splitlines() if line and line[0] not in " #"]
    assert len(packages) == len(lines)


def test_development_runs_on_the_versions_that_the_service_is_locked_to() -> None:
    service, development = (
        set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / name).read_text(), re.M))
        for name in ("service.txt", "dev.txt")
    )
    assert service <= development


@pytest.mark.parametrize("folder", ["models", "rules"])
def test_a_wheel_holds_the_shipped_content_unchanged(wheel: Path, folder: str) -> None:
    here, there = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.toml")}
        for root in (ROOT / folder, wheel / "detector/_content" / folder)
    )
    assert here
    assert here == there


def test_a_wheel_holds_all_that_the_package_reads_at_run_time(wheel: Path) -> None:
    wanted = {
        path.relative_to(ROOT)
        for path in (ROOT / "detector").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in wanted if not (wheel / path).is_file()} == set()
    assert (wheel / "detector/_content/config.toml").is_file()
    assert (wheel / "detector/py.typed").is_file()


def test_a_wheel_installs_nothing_outside_its_package_and_carries_the_licences(
    wheel: Path,
) -> None:
    (metadata,) = wheel.glob("ofuwatch-*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"detector", metadata.name}
    assert {p.name for p in (metadata / "licenses").iterdir()} == {"LICENSE", "NOTICE"}


def test_content_is_found_inside_an_installed_package(wheel: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(wheel)!r})\n"
        "from detector.content import load, shipped\n"
        "root = shipped()\n"
        "content = load(root / 'models', root / 'rules')\n"
        "print(root, len(content.rules))\n"
    )
    done = subprocess.run(
        # -I: neither the working folder nor PYTHONPATH may help.
        [sys.executable, "-I", "-c", script],
        check=True,
        capture_output=True,
        text=True,
    )
    root, rules = done.stdout.split()
    assert Path(root) == wheel / "detector" / "_content"
    assert int(rules) > 0
