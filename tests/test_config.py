"""The shipped file is the default, every error is told at once, and no secret gets out."""

import os
from pathlib import Path

import msgspec
import pytest

from detector.config import Config, ContentErrors, effective, load, secret
from detector.notify.slack_settings import SlackSettings
from detector.notify.webhook import WebhookSettings
from detector.tables import shipped

SLACK = '[[receiver]]\ntype = "slack"\nname = "oncall"\nchannel = "C0123456789"\n'


def problems(folder: Path, text: str) -> list[str]:
    file = folder / "config.toml"
    file.write_text(text)
    with pytest.raises(ContentErrors) as caught:
        load(file)
    return [str(problem).replace(f"{file}:", "") for problem in caught.value.problems]


def loaded(folder: Path, text: str) -> Config:
    file = folder / "config.toml"
    file.write_text(text)
    return load(file)


def test_the_shipped_file_says_what_the_code_does_without_it(tmp_path: Path) -> None:
    given = msgspec.to_builtins(load(), enc_hook=str)
    default = msgspec.to_builtins(loaded(tmp_path, ""), enc_hook=str)
    for config in (given, default):
        config.pop("content")
    assert given == default


def test_the_shipped_file_explains_every_key() -> None:
    text = (shipped() / "config.toml").read_text()
    words = set(text.replace("=", " ").replace("[", " ").replace("]", " ").split())
    tables = [getattr(Config(), f.name) for f in msgspec.structs.fields(Config)]
    known: list[type[msgspec.Struct]] = [Config, SlackSettings, WebhookSettings]
    known += [type(table) for table in tables if isinstance(table, msgspec.Struct)]
    for table in known:
        for field in msgspec.structs.fields(table):
            assert field.encode_name in words, f"{table.__name__}.{field.encode_name}"


def test_the_receivers_shown_in_the_shipped_file_load_when_they_are_uncommented(
    tmp_path: Path,
) -> None:
    text = (shipped() / "config.toml").read_text()
    lines = text[text.index("# [[receiver]]") :].splitlines()
    keys = ("[[", *(f"{f.encode_name} =" for kind in (SlackSettings, WebhookSettings)
                    for f in msgspec.structs.fields(kind)), "type =")  # fmt: skip
    active = [line[2:] for line in lines if line[2:].startswith(keys)]
    config = loaded(tmp_path, "\n".join(active))
    assert [receiver.name for receiver in config.receivers] == [
        "oncall",
        "team-pretrain",
        "resiliency",
    ]


def test_paths_are_relative_to_the_file_that_holds_them(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        '[content]\nmodels = "m"\n[redis]\npassword_file = "pw"\nstate = "st"\n'
        + SLACK
        + 'token_file = "tok"\n',
    )
    assert config.content.models == tmp_path / "m"
    assert config.content.rules == tmp_path / "rules"
    assert config.redis.password_file == str(tmp_path / "pw")
    assert config.redis.state == str(tmp_path / "st")
    assert isinstance(config.receivers[0], SlackSettings)
    assert config.receivers[0].token_file == str(tmp_path / "tok")


def test_every_error_is_told_at_once(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        'clustre = "a"\n[tick]\nintervall = "10s"\n[history]\nkeep = 7\n'
        '[log]\nlevel = "loud"\n[[receiver]]\ntype = "slak"\n[[receiver]]\nname = "x"\n'
        + SLACK,
    )
    assert set(told) == {
        '1: clustre: unknown key; did you mean "cluster"?',
        '3: tick.intervall: unknown key; did you mean "interval"?',
        "5: history.keep: must be a duration such as 10s, 5m or 1h30m, not 7",
        '7: log.level: unknown value "loud"; known are debug, error, info, warning',
        '9: receiver[0].type: unknown type "slak"; did you mean "slack"?',
        "10: receiver[1].type: missing; write one of slack, webhook",
        "12: receiver[2]: give exactly one of token_file, token_env, webhook_file, webhook_env",
    }


def test_each_key_and_each_item_of_a_list_is_judged_whatever_is_wrong_with_others(
    tmp_path: Path,
) -> None:
    told = problems(
        tmp_path,
        """[[source]]
type = "exporter"
targets = ["http://", "a:9400", "", "ftp://x", "a b:1", "a:99999"]
timeout = "x"
foo = 1
port = 0
[[source]]
type = "prometheus"
url = "http://p:9090/thanos/api/v1"
select = "up"
window = "1s"
username = "ofu"
past = 7
[[source]]
type = "prometheus"
name = "nowhere"
timeout = "1ms"
[[receiver]]
type = "webhook"
name = "w"
timeout = "1ms"
[slurm]
interval = "1ms"
keep = "1ms"
""",
    )
    places = [problem.partition(": ")[2].partition(":")[0] for problem in told]
    assert places == [
        *(f"source[0].targets[{k}]" for k in (0, 2, 3, 4, 5)),
        "source[0].timeout", "source[0].foo", "source[0].port",
        "source[1].url", "source[1].select", "source[1].window", "source[1].username",
        "source[1].past",
        "source[2].url", "source[2].timeout",
        "receiver[0].url", "receiver[0].timeout",
        "slurm.interval", "slurm.keep",
    ]  # fmt: skip
    assert 'leave that out, url = "http://p:9090/thanos"' in told[8]


def test_what_others_depend_on_is_not_told_twice(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        '[[source]]\ntype = "exporter"\ntargets = 1\n'
        '[[source]]\ntype = "exporter"\nname = "b"\ntargets = ["b"]\n'
        'username = "u"\npasword_file = "p"\n',
    )
    assert told == [
        "3: source[0].targets: must be a list, not a number (1)",
        '9: source[1].pasword_file: unknown key; did you mean "password_file"?',
    ]


def test_parts_without_a_name_are_asked_for_one_and_those_with_one_for_another(
    tmp_path: Path,
) -> None:
    source = '[[source]]\ntype = "exporter"\ntargets = ["a"]\n'
    nameless = 'there are 2 "exporter": give each a name of its own'
    assert problems(tmp_path, source * 2) == [
        f"1: source[0].name: {nameless}",
        f"4: source[1].name: {nameless}",
    ]
    named = f'{source}name = "a"\n'
    assert problems(tmp_path, named * 2)[0] == '4: source[0].name: "a" is there twice'


@pytest.mark.parametrize(
    ("text", "place", "advice"),
    [
        (SLACK + 'token = "xoxb-HUSH"\ntoken_file = "t"\n', "receiver[0].token", "token_file"),
        (SLACK + 'webhook_url = "https://HUSH"\n', "receiver[0].webhook_url", "webhook_file"),
        ('[redis]\npassword = "HUSH"\n', "redis.password", "password_file"),
        ('[redis]\nurl = "redis://u:HUSH@h:1/0"\n', "redis.url", "password_file"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(
    tmp_path: Path, text: str, place: str, advice: str
) -> None:
    told = problems(tmp_path, text)
    assert f"{place}: no " in told[0]
    assert advice in told[0]
    assert "HUSH" not in "".join(told)


@pytest.mark.parametrize("names", [("a", "a"), ("a b", "c"), ("a|b", "c"), ("", "c")])
def test_receivers_have_plain_names_of_their_own(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    text = "".join(
        SLACK.replace('"oncall"', f'"{name}"') + 'token_env = "T"\n' for name in names
    )
    assert "receiver[0].name" in problems(tmp_path, text)[0]


@pytest.mark.parametrize(
    "kind", ['"exporter"\ntargets = ["a"]', '"prometheus"\nurl = "http://a"']
)
@pytest.mark.parametrize(
    ("login", "told"),
    [
        ('username = "u"', "go together"),
        ('password_env = "P"', "go together"),
        ('username = "u"\npassword_env = "P"\nbearer_env = "B"', "not both"),
    ],
)
def test_half_a_login_of_a_source_or_two_are_refused(
    tmp_path: Path, kind: str, login: str, told: str
) -> None:
    (problem,) = problems(tmp_path, f"[[source]]\ntype = {kind}\n{login}\n")
    assert told in problem


@pytest.mark.parametrize("text", ['cluster = " "', '[tick]\ninterval = "10ms"'])
def test_values_that_cannot_work_are_refused(tmp_path: Path, text: str) -> None:
    assert len(problems(tmp_path, text)) == 1


def test_what_is_in_effect_reads_back_as_itself(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        'cluster = "a\\"b"\n[redis]\nurl = "redis://u@h:6379/0"\n[tick]\ninterval = "30s"\n'
        + SLACK
        + 'token_env = "T"\nmention = "<!here>"\n[[receiver]]\ntype = "webhook"\nname = "w"\n'
        'url = "https://h/p"\nsecret_file = "s"\n',
    )
    (tmp_path / "again").mkdir()
    assert loaded(tmp_path / "again", effective(config)) == config


def test_what_is_in_effect_shows_no_secret(tmp_path: Path) -> None:
    text = effective(
        loaded(
            tmp_path,
            '[[receiver]]\ntype = "webhook"\nname = "w"\nurl = "https://h/p?key=HUSH"\n'
            'secret_env = "S"\nheaders = { Authorization = "Bearer HUSH" }\n',
        )
    )
    assert "HUSH" not in text
    assert 'url = "https://h/p?***"' in text
    config = msgspec.structs.replace(Config(), permalink_base="https://u:HUSH@h/")
    assert 'permalink_base = "https://u:***@h/"' in effective(config)


def test_secrets_come_from_a_file_or_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("xoxb-1\n")
    config = loaded(tmp_path, SLACK + 'token_file = "tok"\n')
    assert secret(config.receivers[0], environ={}) == "xoxb-1"
    config = loaded(tmp_path, SLACK + 'token_env = "T"\n')
    assert secret(config.receivers[0], environ={"T": "xoxb-2"}) == "xoxb-2"


def test_a_secret_that_is_not_there_is_told_with_its_place(tmp_path: Path) -> None:
    config = loaded(tmp_path, SLACK + 'token_file = "tok"\n')
    with pytest.raises(
        ContentErrors, match=r"receiver 'oncall': token_file: .*/tok cannot be read"
    ):
        secret(config.receivers[0])
    (tmp_path / "tok").write_text(" \n")
    with pytest.raises(ContentErrors, match="is empty"):
        secret(config.receivers[0])
    config = loaded(tmp_path, SLACK + 'token_env = "NOWHERE"\n')
    with pytest.raises(ContentErrors, match=r"\$NOWHERE is not set or empty"):
        secret(config.receivers[0], environ={})


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    assert problems(tmp_path, "[redis\n")[0].startswith("1: not TOML: ")
    with pytest.raises(ContentErrors, match="cannot be read: No such file or directory"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(ContentErrors, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_the_environment_is_left_alone(tmp_path: Path) -> None:
    before = dict(os.environ)
    loaded(tmp_path, SLACK + 'token_env = "T"\n')
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[[receiver]]\ntype = "webhook"\nname = "w"\nurl = "https://h/"\n'
            'secret_env = "S"\nheaders = { a = [1] }\n',
            "6: receiver[0].headers.a: must be text, not a list",
        ),
        ("[[receiver]]\ntype = {}\n", "2: receiver[0].type: must be text, not a table"),
        ("receiver = 3\n", "1: receiver: must be a list, not a number (3)"),
        (
            '[receiver]\ntype = "webhook"\nname = "w"\nsecret_env = "S"\nurl = "https://h"\n',
            "1: receiver: write [[receiver]], in two brackets: there may be several",
        ),
        (
            '[slurm]\nvia = "?"\n',
            '2: slurm.via: unknown value "?"; known are slurmrestd, squeue',
        ),
        ("[[redis]]\n", "1: redis: must be a table, not a list"),
    ],
)
def test_values_of_another_shape_are_told_with_their_place(
    tmp_path: Path, text: str, told: str
) -> None:
    assert problems(tmp_path, text) == [told]
