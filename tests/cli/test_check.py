"""``check`` tells all that is wrong and shows no secret."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from detector.cli import main
from detector.tables import shipped


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what is shipped, to break."""
    shutil.copy(shipped() / "config.toml", tmp_path)
    for name in ("models", "rules"):
        shutil.copytree(shipped() / name, tmp_path / name)
    return tmp_path


def check(folder: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(
        main, ["check", "--config", str(folder / "config.toml"), *options]
    )
    return result.exit_code, result.stdout, result.stderr


def secret_file(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def test_what_is_shipped_is_ok_in_one_line_that_says_what_was_read() -> None:
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 0
    assert result.stdout.startswith("ok: ")
    assert result.stdout.count("\n") == 1
    assert "rules" in result.stdout
    assert result.stderr == ""


def test_every_error_of_every_file_is_printed_and_the_exit_code_is_1(folder: Path) -> None:
    (folder / "config.toml").write_text('clustr = "a"\n[[receiver]]\ntype = "slack"\n')
    (folder / "models" / "ofu.toml").write_text("name = 1\n")
    (folder / "rules" / "hang.toml").write_text("[rule]\n")
    (folder / "rules" / "tests" / "hang.toml").write_text("[[case]]\n")
    code, stdout, stderr = check(folder)
    assert code == 1
    assert stdout == ""
    for name in ("config.toml:1:", "ofu.toml:1:", "rules/hang.toml:1:", "tests/hang.toml:1:"):
        assert name in stderr
    assert 'did you mean "cluster"?' in stderr
    assert stderr.splitlines()[-1].endswith("mend them and check again")


def test_print_shows_the_whole_configuration_and_can_be_redirected(folder: Path) -> None:
    code, stdout, stderr = check(folder, "--print")
    assert code == 0
    assert stderr.startswith("ok: ")
    (folder / "config.toml").write_text(stdout)
    assert check(folder, "--print")[1] == stdout


def test_a_receivers_secret_must_be_there_and_is_not_shown(folder: Path) -> None:
    with (folder / "config.toml").open("a") as file:
        file.write(
            '[[receiver]]\ntype = "slack"\nname = "oncall"\nchannel = "C1"\n'
            'token_file = "token"\n'
        )
    code, _, stderr = check(folder)
    assert code == 1
    assert f"receiver[0].token_file: {folder}/token cannot be read: No such file" in stderr
    secret_file(folder / "token", "xoxb-HUSH")
    code, stdout, stderr = check(folder, "--print")
    assert code == 0
    assert "HUSH" not in stdout + stderr


def test_plain_http_is_warned_of(folder: Path) -> None:
    secret_file(folder / "secret", "whsec_" + "A" * 32)
    with (folder / "config.toml").open("a") as file:
        file.write(
            '[[receiver]]\ntype = "webhook"\nname = "w"\nurl = "http://example.com/"\n'
            'secret_file = "secret"\n'
        )
    code, _, stderr = check(folder)
    assert code == 0
    assert "warning: " in stderr


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    code, _, stderr = check(tmp_path / "nowhere")
    assert code == 1
    assert stderr.splitlines()[0].endswith("cannot be read: No such file or directory")
    assert "Traceback" not in stderr


SLACK = '[[receiver]]\ntype = "slack"\nname = "a"\nchannel = "C0123456789"\n'
WEBHOOK = '[[receiver]]\ntype = "webhook"\nname = "a"\nurl = "https://h/"\n'


def test_every_verb_reads_the_same_configuration_and_says_which(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFUWATCH_CONFIG", raising=False)
    monkeypatch.chdir(folder)
    with (folder / "config.toml").open("a") as file:
        file.write("[surprise]\n")
    stderr = CliRunner().invoke(main, ["check"]).stderr
    assert "1 problem with config.toml" in stderr
    assert "surprise" in CliRunner().invoke(main, ["rules", "test"]).stderr
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert CliRunner().invoke(main, ["check"]).stdout.startswith(f"ok: {shipped()}")
    monkeypatch.setenv("OFUWATCH_CONFIG", str(folder / "config.toml"))
    for verb in (
        ["check"],
        ["check", "--print"],
        ["rules", "test"],
        ["jobs"],
        ["serve"],
        ["replay", str(folder)],
    ):
        assert "surprise" in CliRunner().invoke(main, verb).stderr


def test_what_is_wrong_in_one_place_hides_nothing_in_another(folder: Path) -> None:
    (folder / "config.toml").write_text(
        '[redis]\nprefix = "{}"\n[tick]\ncheckpoint = "5m"\ninterval = "0s"\n'
        + SLACK
        + 'token_env = "OFU_NOT_SET"\n'
        + SLACK
        + 'token_file = "nowhere"\n'
        + WEBHOOK.replace("https", "http")
        + 'secret_file = "bad"\n'
        + "[surprise]\n"
    )
    secret_file(folder / "bad", "whsec_HUSH")
    code, _, stderr = check(folder)
    assert code == 1
    lines = stderr.splitlines()
    for told in (
        "config.toml:2: redis.prefix: ",
        "config.toml:5: tick.interval: ",
        'config.toml:8: receiver[0].name: "a" is there twice',
        'config.toml:13: receiver[1].name: "a" is there twice',
        "config.toml:10: receiver[0].token_env: $OFU_NOT_SET is not set or empty",
        "config.toml:15: receiver[1].token_file: ",
        "config.toml: receiver 'a': line 1 of the webhook's secret",
        "surprise: unknown key",
        "warning: a: http:// lets anyone",
        "mend them and check again",
    ):
        assert any(told in line for line in lines), told
    assert "HUSH" not in stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[redis]\nprefix = ""\n', "redis.prefix"),
        ('[redis]\nurl = "http://h"\n', "no address of a store"),
        ('[redis]\nurl = "redis://h"\npassword_file = "no"\n', "cannot read the store's"),
        ('[redis]\ntls_ca_file = "no"\n', "redis.tls_ca_file"),
        ('[history]\nkeep = "30m"\n', "2: history.keep: keep must be at least stream (1h)"),
        ('[history]\nkeep = "2h"\n', "2: history.keep: keep must be at least first_look"),
        ('[inbox]\nscrape = "0s"\n', "2: inbox.scrape: "),
        ("[delivery]\nburst = 0\n", "2: delivery.burst: "),
        ('permalink_base = "ofu.example.com"\n', "1: permalink_base: "),
        (SLACK + 'token_env = "OFU_SHORT"\n', "the Slack token must begin with xoxb-"),
        ('[[receiver]]\ntype = "slack"\nname = "a"\nwebhook_env = "OFU_SHORT"\n', "https://"),
        (WEBHOOK + 'secret_env = "OFU_SHORT"\n', "is not whsec_ and base64"),
    ],
)
def test_what_serve_would_refuse_is_an_error_already_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.setenv("OFU_SHORT", "HUSH")
    (folder / "config.toml").write_text(text)
    code, _, stderr = check(folder)
    assert code == 1
    assert told in stderr
    assert "HUSH" not in stderr


def test_what_works_and_should_not_stay_so_is_warned_of(folder: Path) -> None:
    (folder / "token").write_text("xoxb-1")
    (folder / "token").chmod(0o644)
    with (folder / "config.toml").open("a") as file:
        file.write(SLACK.replace("C0123456789", "#oncall") + 'token_file = "token"\n')
    code, stdout, stderr = check(folder)
    assert code == 0
    assert stdout.startswith("ok: ")
    assert "warning: a: channel '#oncall' is no channel's ID" in stderr
    assert "token: every user of this machine can read it; chmod 600" in stderr


@pytest.mark.parametrize(
    "table",
    [
        '[web]\nlisten = "127.0.0.1:0"\n',
        '[slurm]\nvia = "slurmrestd"\nurl = "http://localhost:6820"\n',
        '[kubernetes]\nurl = "https://localhost:6443"\n',
    ],
)
def test_a_token_that_everybody_can_read_is_warned_of_whatever_it_opens(
    folder: Path, table: str
) -> None:
    (folder / "token").write_text("hush")
    (folder / "token").chmod(0o644)
    (folder / "config.toml").write_text(table + 'token_file = "token"\n')
    code, _, stderr = check(folder)
    assert code == 0
    assert "token: every user of this machine can read it; chmod 600" in stderr


def test_what_collection_will_not_find_or_do_in_time_is_warned_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    (folder / "squeue").touch(mode=0o755)
    (folder / "config.toml").write_text(
        """
[collect]
interval = "1d"
hpc_directory = "mapping"
[slurm]
via = "squeue"
[[source]]
type = "exporter"
files = ["targets/*.yml", "config.toml"]
targets = ["a:9400", "b:9400", "http://a:9400/metrics"]
[[source]]
type = "exporter"
name = "again"
targets = ["b"]
[[source]]
type = "dcgm"
bindings = "lib"
"""
    )
    code, _, stderr = check(folder)
    assert code == 0
    warnings = [line for line in stderr.splitlines() if line.startswith("warning: ")]
    for told in (
        "[collect] interval 1d is above 1m",
        f"[collect] hpc_directory: {folder}/mapping is no directory",
        "[slurm] sacct: there is no command 'sacct'",
        f"source 'exporter': no file here matches {folder}/targets/*.yml",
        "source 'exporter': http://a:9400/metrics is a target 2 times",
        "source 'exporter' and 'again': http://b:9400/metrics is a target 2 times",
        f"source 'dcgm': there is no pydcgm.py in bindings {folder}/lib",
    ):
        assert sum(told in line for line in warnings) == 1, told
    assert len(warnings) == 7, warnings


@pytest.mark.parametrize(
    "address", ["a:99999", "a b", "http://a:5555", "a:", "unix://x", "a:b"]
)
def test_an_address_that_is_none_of_a_host_engine_is_refused(
    folder: Path, address: str
) -> None:
    (folder / "config.toml").write_text(f'[[source]]\ntype = "dcgm"\naddress = "{address}"\n')
    assert "config.toml:3: source[0].address: address must" in check(folder)[2]


def test_every_mistake_of_every_source_is_told_and_no_secret(folder: Path) -> None:
    (folder / "config.toml").write_text(
        """
[[source]]
type = "exporter"
targets = ["a:9400", "http://[x"]
password = "hush-1"
[[source]]
type = "exporter"
timeout = "20s"
bearer_file = "nowhere"
targets = ["user:hush-2@h:9400"]
[[source]]
type = "exportr"
[[source]]
type = "exporter"
name = "nobody"
[[source]]
type = "exporter"
name = "half"
targets = ["a"]
username = "ofu"
[[source]]
type = "nvml"
deadline = "10s"
"""
    )
    code, _, stderr = check(folder)
    assert code == 1
    for told in (
        "source[0].password: no secrets in this file",
        "source[0].targets[1]: target 'http://[x' is neither",
        'source[0].name: there are 2 "exporter": give each a name',
        "source[1].targets: no passwords in this file",
        f"config.toml:9: source[1].bearer_file: {folder}/nowhere cannot be read",
        'did you mean "exporter"?',
        "source[3].targets: none; name some",
        "source[4].username: username and password_file",
        "timeout 20s is not below [collect] interval 10s",
        "source 'nvml': deadline 10s is above nine tenths of [collect] interval 10s",
    ):
        assert told in stderr, told
    assert "hush" not in stderr


def test_the_password_of_a_source_may_stand_in_a_file_or_a_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_file(folder / "scrape-password", "hush")
    source = '[[source]]\ntype = "exporter"\ntargets = ["a"]\nusername = "ofu"\n'
    for key in ('password_file = "scrape-password"', 'password_env = "SCRAPE_PASSWORD"'):
        monkeypatch.setenv("SCRAPE_PASSWORD", "hush")
        (folder / "config.toml").write_text(f"{source}{key}\n")
        code, stdout, stderr = check(folder, "--print")
        assert (code, "hush" in stdout + stderr) == (0, False), stderr
        assert "1 source, 0 receivers" in stderr
