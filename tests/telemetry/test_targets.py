"""Where targets are found, and that what was found stays while a place is out of reach."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from detector.series import Duration
from detector.telemetry.settings import TargetSettings
from detector.telemetry.source import SourceError
from detector.telemetry.targets import Targets
from tests.telemetry.api import Asked, Reply, serving

SECOND = Duration.parse("1s")
NOW_MS = 1_700_000_000_000


def found(path: Path, text: str | bytes) -> list[str]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Targets(TargetSettings(files=(str(path),))).find(NOW_MS)


def test_targets_are_made_whole_and_each_is_asked_once() -> None:
    names = ("node1", "node1:9400", "https://node2/custom?x=1", "[::1]", "http://node3:80")
    assert Targets(TargetSettings(targets=names)).find(NOW_MS) == [
        "http://node1:9400/metrics",
        "https://node2/custom?x=1",
        "http://[::1]:9400/metrics",
        "http://node3:80/metrics",
    ]


def test_a_file_of_json_or_yaml_names_targets(tmp_path: Path) -> None:
    groups = [{"targets": ["a:1", "b"], "labels": {"rack": "7"}}, {"targets": ["c:3"]}]
    urls = ["http://a:1/metrics", "http://b:9400/metrics", "http://c:3/metrics"]
    assert found(tmp_path / "t.json", json.dumps(groups)) == urls
    assert found(tmp_path / "t.yml", "- targets: [a:1, b]\n- targets: ['c:3']\n") == urls


def test_scheme_and_path_of_a_group_are_its_labels(tmp_path: Path) -> None:
    labels = {"__scheme__": "https", "__metrics_path__": "/gpu"}
    groups = [{"targets": ["a:1"], "labels": labels}, {"targets": ["b:1"], "labels": None}]
    urls = found(tmp_path / "t.json", json.dumps(groups))
    assert urls == ["https://a:1/gpu", "http://b:1/metrics"]


def test_files_are_read_anew_when_it_is_time(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"targets": ["a:1"]}]')
    targets = Targets(TargetSettings(files=(f"{tmp_path}/*.json",), refresh=SECOND))
    assert targets.find(NOW_MS) == ["http://a:1/metrics"]
    (tmp_path / "b.json").write_text('[{"targets": ["b:1"]}]')
    assert targets.find(NOW_MS + 999) == ["http://a:1/metrics"]
    assert targets.find(NOW_MS + 1000) == ["http://a:1/metrics", "http://b:1/metrics"]
    (tmp_path / "a.json").unlink()
    assert targets.find(NOW_MS + 2000) == ["http://b:1/metrics"]
    assert not targets.troubles


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.json", "[{", "is no JSON"),
        ("t.json", "{}", "must hold a list"),
        ("t.json", "[3]", 'each entry must have "targets"'),
        ("t.json", '[{"targets": "a:1"}]', 'each entry must have "targets"'),
        ("t.json", '[{"targets": [1]}]', 'each entry must have "targets"'),
        ("t.json", "[" * 100_000, "is no JSON"),
        ("t.json", b"\xff\xfe\x00", "is no JSON"),
        ("t.json", " " * (8 << 20) + "[]", "has more than 8 MiB"),
        ("t.json", "", "none is configured or found"),
        ("t.json", '[{"targets": ["a b", "ftp://x"]}]', "is neither host:port"),
        ("t.yaml", "- targets: [", "is no YAML"),
        ("t.yaml", "!!python/object/apply:os.system ['false']", "is no YAML"),
        ("t.yaml", "- <<: {targets: [a]}", "is no YAML"),
        ("t.yaml", "- [" * 5_000, "is no YAML"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_told_in_one_line(
    tmp_path: Path, name: str, text: str | bytes, said: str
) -> None:
    with pytest.raises(SourceError, match=said) as raised:
        found(tmp_path / name, text)
    assert "\n" not in str(raised.value)
    assert "byte string" not in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_a_pattern_that_no_file_has_is_named_when_nothing_is_left_to_scrape(
    tmp_path: Path,
) -> None:
    patterns = (f"{tmp_path}/a/*.yml", f"{tmp_path}/b.y*ml")
    with pytest.raises(SourceError) as raised:
        Targets(TargetSettings(files=patterns)).find(NOW_MS)
    for pattern in patterns:
        assert f"no file matches {pattern}" in str(raised.value)


def test_aliases_of_yaml_fill_no_memory(tmp_path: Path) -> None:
    merges = "- &m0 {a: 1}\n" + "".join(
        f"- &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 40)
    )
    lists = "- &l0 [x]\n" + "".join(f"- &l{n} [*l{n - 1}, *l{n - 1}]\n" for n in range(1, 40))
    names = "- &t {targets: [" + ", ".join(f"h{n}" for n in range(1000)) + "]}\n"
    for text, said in (
        (merges, "is no YAML"),
        (lists, 'must have "targets"'),
        (names + "- *t\n" * 1000, "more than 10,000 targets"),
    ):
        with pytest.raises(SourceError, match=said):
            found(tmp_path / "t.yaml", text)


def test_one_odd_target_or_file_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"targets": ["a:1", "no port:x"]}]')
    (tmp_path / "b.json").write_text("broken")
    settings = TargetSettings(targets=("c:1",), files=(f"{tmp_path}/*.json", f"{tmp_path}/no"))
    targets = Targets(settings)
    assert targets.find(NOW_MS) == ["http://c:1/metrics", "http://a:1/metrics"]
    told = dict(targets.troubles)
    assert "'no port:x' is neither" in told[f"{tmp_path}/a.json"]
    assert "is no JSON" in told[f"{tmp_path}/b.json"]
    assert told[f"{tmp_path}/no"] == "cannot be read: No such file or directory"


def test_a_file_that_breaks_leaves_what_was_known(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text('[{"targets": ["a:1"]}]')
    targets = Targets(TargetSettings(files=(str(file),), refresh=SECOND))
    before = targets.find(NOW_MS)
    file.write_text('[{"targets": ["a:1", "b')  # as one is half written
    assert targets.find(NOW_MS + 1000) == before
    assert targets.troubles
    file.write_text('[{"targets": ["b:1"]}]')
    assert targets.find(NOW_MS + 2000) == ["http://b:1/metrics"]
    assert not targets.troubles


@contextmanager
def nameserver(answer: Callable[[dns.message.Message], dns.message.Message]) -> Iterator[None]:
    """Answer the system's DNS questions, until the end."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            question, asker = server.recvfrom(4096)
            if not question:
                return
            server.sendto(answer(dns.message.from_wire(question)).to_wire(), asker)

    thread = threading.Thread(target=serve)
    thread.start()
    before = dns.resolver.default_resolver
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], server.getsockname()[1]
    dns.resolver.default_resolver = resolver
    try:
        yield
    finally:
        dns.resolver.default_resolver = before
        server.sendto(b"", server.getsockname())
        thread.join()
        server.close()


def test_srv_records_name_targets_that_stay_when_the_server_fails() -> None:
    lines = ["0 5 9400 n1.example.", "0 5 9401 n2.example.", "0 0 0 ."]
    works = [True]

    def answer(question: dns.message.Message) -> dns.message.Message:
        reply = dns.message.make_response(question)
        name = question.question[0].name
        if works[0]:
            reply.answer.append(dns.rrset.from_text(name, 5, "IN", "SRV", *lines))
        else:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply

    with nameserver(answer):
        targets = Targets(TargetSettings(dns_srv=("_gpu._tcp.example.",), refresh=SECOND))
        urls = targets.find(NOW_MS)
        assert sorted(urls) == [
            "http://n1.example:9400/metrics",
            "http://n2.example:9401/metrics",
        ]
        works[0] = False
        assert targets.find(NOW_MS + 1000) == urls
        ((place, why),) = targets.troubles
    assert place == "dns_srv _gpu._tcp.example."
    assert "no SRV record" in why


def test_a_name_server_that_hangs_holds_up_no_later_round() -> None:
    hangs, release = threading.Event(), threading.Event()

    def answer(question: dns.message.Message) -> dns.message.Message:
        if hangs.is_set():
            release.wait(20)
        reply = dns.message.make_response(question)
        name = question.question[0].name
        port = 2 if hangs.is_set() else 1
        reply.answer.append(dns.rrset.from_text(name, 5, "IN", "SRV", f"0 5 {port} n."))
        return reply

    with nameserver(answer):
        targets = Targets(TargetSettings(dns_srv=("_gpu._tcp.example.",), refresh=SECOND))
        assert targets.find(NOW_MS) == ["http://n:1/metrics"]
        hangs.set()
        assert targets.find(NOW_MS + 1000) == ["http://n:1/metrics"]
        release.set()
        while targets.find(NOW_MS + 1000) != ["http://n:2/metrics"]:
            pass  # each look waits up to a second for the one under way


def slice_of(
    *endpoints: dict[str, Any], family: str = "IPv4", port: int = 9400
) -> dict[str, Any]:
    ports = [{"name": "health", "port": 1}, {"name": "metrics", "port": port}]
    return {"addressType": family, "ports": ports, "endpoints": list(endpoints)}


def endpoint(address: str, *, ready: bool | None = True, pod: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {"addresses": [address], "conditions": {"ready": ready}}
    return made | ({"targetRef": {"kind": "Pod", "uid": pod}} if pod else {})


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The files of a service account."""
    (tmp_path / "token").write_text("t0ken\n")
    return tmp_path


def test_ready_endpoints_of_all_pages_are_targets(account: Path) -> None:
    pages = {
        "": [
            slice_of(endpoint("fd00::1", pod="a"), endpoint("fd00::3"), family="IPv6"),
            slice_of(endpoint("10.0.0.1", pod="a"), endpoint("10.0.0.2", ready=False)),
        ],
        "more": [
            slice_of(endpoint("10.0.0.4", ready=None), port=9401),
            {"addressType": "IPv4", "ports": None, "endpoints": None},
        ],
    }

    def answer(asked: Asked) -> Reply:
        query = parse_qs(urlsplit(asked.path).query)
        (mark,) = query.get("continue", [""])
        assert query["labelSelector"] == ["kubernetes.io/service-name=dcgm"]
        assert asked.headers["authorization"] == "Bearer t0ken"
        rest = "more" if not mark else ""
        return 200, {"items": pages[mark], "metadata": {"continue": rest}}

    settings = TargetSettings(kubernetes_service="gpu/dcgm:metrics")
    with serving(answer) as api:
        urls = Targets(settings, api=api.url, account=account).find(NOW_MS)
        path = "/apis/discovery.k8s.io/v1/namespaces/gpu/endpointslices"
        assert [urlsplit(asked.path).path for asked in api.asked] == [path, path]
    assert urls == [
        "http://10.0.0.1:9400/metrics",
        "http://10.0.0.4:9401/metrics",
        "http://[fd00::3]:9400/metrics",
    ]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((403, {}), "answered 403; apply deploy/kubernetes/rbac.yaml"),
        ((500, {}), "answered 500"),
        ((200, b"<html>"), "answered no JSON"),
        ((200, {"kind": "Status"}), "no list of endpoint slices"),
        ((200, {"items": [3]}), "no list of endpoint slices"),
    ],
)
def test_endpoints_stay_while_the_api_server_fails(
    account: Path, reply: Reply, said: str
) -> None:
    fine: Reply = (200, {"items": [slice_of(endpoint("10.0.0.1"), port=1)], "metadata": {}})
    settings = TargetSettings(kubernetes_service="gpu/dcgm:metrics", refresh=SECOND)
    with serving(lambda _: fine) as api:
        targets = Targets(settings, api=api.url, account=account)
        urls = targets.find(NOW_MS)
        api.answer = lambda _: reply
        assert targets.find(NOW_MS + 1000) == urls == ["http://10.0.0.1:1/metrics"]
        ((place, why),) = targets.troubles
        assert place == "kubernetes_service gpu/dcgm:metrics"
        assert said in why
        assert "t0ken" not in why


def test_outside_of_a_pod_it_is_told_that_there_is_no_account(tmp_path: Path) -> None:
    settings = TargetSettings(kubernetes_service="gpu/dcgm")
    with pytest.raises(SourceError, match=r"token .* cannot be read"):
        Targets(settings, api="http://127.0.0.1:1", account=tmp_path).find(NOW_MS)
