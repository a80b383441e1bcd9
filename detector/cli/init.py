"""``ofuwatch init DIR``: the shipped config, models and rules, to edit."""

from pathlib import Path

import click

from detector.cli import fail

_CONTENT = ("config.toml", "models", "rules")


@click.command(short_help="Write a folder with the shipped config, models and rules to edit.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
def command(folder: Path) -> None:
    """Write config.toml, models/ and rules/ into DIR; nothing that is there is overwritten."""
    import shutil

    from detector.tables import shipped

    taken = [str(folder / name) for name in _CONTENT if (folder / name).exists()]
    if taken:
        fail(f"{', '.join(taken)} is there already; name another folder, or move it away")
    source = shipped()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / "config.toml", folder / "config.toml")
        for name in _CONTENT[1:]:
            shutil.copytree(source / name, folder / name, ignore=_all_but_toml)
    except OSError as error:
        fail(f"cannot write to {folder}: {error.strerror or error}")
    for name in _CONTENT:
        path = folder / name
        files = len(list(path.rglob("*.toml"))) if path.is_dir() else 0
        click.echo(f"wrote {path}" + (f" ({files} files)" if files else ""))
    click.echo(f"edit them, then: ofuwatch check --config {folder / 'config.toml'}")


def _all_but_toml(folder: str, names: list[str]) -> list[str]:
    """What is not copied: whatever else lies about in a checkout's folders."""
    return [
        name
        for name in names
        if not name.endswith(".toml") and not (Path(folder) / name).is_dir()
    ]
