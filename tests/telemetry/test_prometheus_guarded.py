"""A real Prometheus server that wants a password, and answers little at once."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from detector.reading import Reading
from detector.telemetry.prometheus import build
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.whose import Whose
from tests.telemetry import plans
from tests.telemetry.real_prometheus import planned
from tests.telemetry.test_backfill import parts_of, sample

# bcrypt of "p:w", at its least cost.
_WEB = """
tls_server_config: {{cert_file: {certificate}, key_file: {key}}}
basic_auth_users:
  ofu: $2b$04$NDdoSXBDO/GS2VvkDq0houni8wYRhz02QrhjTappt3Y77PsVeqGWC
"""

# Fewer than an hour of four series has.
_MOST_SAMPLES = 1_000


class Guarded(NamedTuple):
    """Where it is, where its past ends, and the CA that its certificate is of."""

    address: str
    until_ms: int
    ca_file: str


@pytest.fixture(scope="module")
def guarded(
    certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    made, key = certificate
    web = tmp_path_factory.mktemp("web") / "web.yml"
    web.write_text(_WEB.format(certificate=made, key=key))
    flags = [f"--web.config.file={web}", f"--query.max-samples={_MOST_SAMPLES}"]
    with planned("{}", *flags) as (address, until_ms):
        server = Guarded(address, until_ms, str(made))
        deadline = time.monotonic() + 30
        while "no counter of a GPU" not in said(server) and time.monotonic() < deadline:
            time.sleep(0.1)
        yield server


def settings_of(server: Guarded, **other: Any) -> PrometheusSettings:
    table = {
        "url": f"https://{server.address}", "ca_file": server.ca_file, "username": "ofu",
        "password_env": "P", **other,
    }  # fmt: skip
    return PrometheusSettings(**table)


def said(server: Guarded, *, password: str = "p:w", **other: Any) -> str:
    source = build(
        settings_of(server, **other), secret=lambda _, key: {"password": password}.get(key, "")
    )
    try:
        (scrape,) = source.scrape(int(time.time() * 1000))
    finally:
        source.close()
    return scrape.error


def test_a_password_and_a_ca_of_ones_own_let_in(guarded: Guarded) -> None:
    # Its past ended half an hour ago.
    assert said(guarded).startswith("no counter of a GPU in the last 2m")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"password": "p"}, "the password of 'ofu' in $P was refused"),
        (
            {"username": "", "password_env": ""},
            "HTTP 401 (Unauthorized): not let in; give username and password_file",
        ),
        ({"ca_file": ""}, "name its CA with ca_file"),
        ({"url": "https://localhost:{port}"}, "certificate is not valid for 'localhost'"),
        ({"url": "http://127.0.0.1:{port}"}, "does url lack https?"),
    ],
)
def test_a_key_that_does_not_fit_is_told_as_what_it_is(
    guarded: Guarded, wrong: dict[str, str], told: str
) -> None:
    port = guarded.address.rpartition(":")[2]
    error = said(guarded, **{key: value.format(port=port) for key, value in wrong.items()})
    assert told in error
    assert ("ca_file" in error) == ("ca_file" in told)
    assert "p:w" not in error


def test_a_past_that_is_too_much_at_once_is_asked_for_in_pieces(guarded: Guarded) -> None:
    source = build(
        settings_of(guarded), secret=lambda _, key: "p:w" if key == "password" else ""
    )
    now = [
        Reading(
            uuid=f"GPU-plain{gpu}", host="node-a", model="NVIDIA H100 80GB HBM3",
            time_ms=guarded.until_ms, jobs=("plain",), labels={"hpc_job": "plain"},
        )
        for gpu in range(2)
    ]  # fmt: skip
    try:
        parts = parts_of(source, now, guarded.until_ms, Whose())["plain"]
    finally:
        source.close()
    assert [sample(guarded, part) for part in parts] == list(range(360))
    assert [part.ofu for part in parts] == pytest.approx([plans.ofu(k) for k in range(360)])
