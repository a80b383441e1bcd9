import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slack_sdk.models.blocks import Block

from detector.analysis.change import Estimate
from detector.fleet import Gpu, Job
from detector.incident.incident import RuledOut, State
from detector.notify.message import (
    slack_blocks,
    slack_message,
    slack_text,
    terminal_line,
    thread_line,
)
from detector.notify.wording import action_words, plain, span_text, value_text
from tests.notify.incidents import (
    MINUTE_MS,
    ONSET_MS,
    STRAGGLER,
    incident,
    opened,
    resolved,
    step,
)

# Names as users and attackers write them: mark-up, control and format characters, lone
# surrogates, and far more of it than anybody reads.
hostile = st.one_of(
    st.text(st.characters(codec=None), max_size=60),
    st.sampled_from(
        [
            "<!channel>",
            "<https://evil.example|click>",
            "@here `x` *b* _i_ ~s~ & &lt;!here&gt;",
            "\x1b[2J\x1b]0;owned\x07",
            "\u202egnihton",
            "\ud800",
            "&" * 5_000,
            "<" * 5_000,
            "w" * 50_000,
            "\n\n\n",
            "🔥" * 3_000,
        ]
    ),
)


def told(blocks: list[dict[str, Any]]) -> str:
    return json.dumps(blocks, ensure_ascii=False)


def texts(blocks: list[dict[str, Any]], kind: str) -> list[str]:
    """Every text object of a kind in the message."""
    found = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if node.get("type") == kind:
                found.append(node["text"])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(blocks)
    return found


@settings(deadline=None)
@given(data=st.data())
def test_no_name_however_hostile_breaks_slacks_limits_or_its_mark_up(
    data: st.DataObject,
) -> None:
    name = data.draw(hostile)
    other = data.draw(hostile)
    gpus = tuple(
        Gpu(uuid=other, host=name + str(n)) for n in range(data.draw(st.integers(0, 40)))
    )
    hurt = incident(
        id=other,
        cluster=name,
        kind=other,
        rule=name,
        summary=name + other,
        job=Job(id=other, name=name, owner=name, team=other, roster=gpus),
        gpus=gpus,
        gpus_total=None,
        acknowledged_by=name,
        state=data.draw(st.sampled_from(list(State))),
        ruled_out=tuple(RuledOut(rule=name, reason=other) for _ in range(30)),
        runners_up=(name,) * 30,
        runbook=data.draw(st.sampled_from([name, "https://wiki.example/" + name])),
        recommended_action=other,
        family=data.draw(st.sampled_from(["performance", "accounting"])),
    )
    link = "https://ofu.example.com/i/" + other
    blocks = slack_blocks(hurt, "opened", now_ms=ONSET_MS, permalink=link)
    for block in Block.parse_all(blocks):
        block.validate_json()
    assert 0 < len(blocks) <= 50
    for text in texts(blocks, "mrkdwn"):
        assert 0 < len(text) <= 3_000
        # What is left in angle brackets is ours: a date, or a link with our own words.
        for token in re.findall(r"<[^>]*>?", text):
            assert re.fullmatch(
                r"<!date\^-?\d+\^[^<>]*>|<https://[^<>|]*\|(open|runbook)>", token
            )
    for text in texts(blocks, "plain_text"):
        assert len(text) <= 150
        assert "<" not in text
    fallback = slack_text(hurt, "opened", now_ms=ONSET_MS, permalink=link)
    assert 0 < len(fallback) < 3_000
    assert "<!channel>" not in fallback
    json.dumps([blocks, fallback]).encode()
    assert told(blocks).encode()


@settings(deadline=None)
@given(name=hostile, summary=hostile)
def test_a_terminal_gets_no_control_characters_and_few_lines(name: str, summary: str) -> None:
    lines = terminal_line(opened(job=Job(id=name, name=summary), summary=summary)).split("\n")
    assert len(lines) <= 3
    for line in lines:
        assert len(line) < 1_000
        assert not any(unicodedata.category(character)[0] == "C" for character in line)


@settings(deadline=None)
@given(text=hostile, limit=st.integers(1, 200))
def test_a_cleaned_text_is_bounded_and_cleaning_it_again_changes_nothing(
    text: str, limit: int
) -> None:
    once = plain(text, limit)
    assert len(once) <= limit
    assert plain(once, limit) == once


def test_the_message_says_what_how_bad_since_when_where_how_sure_and_what_to_do() -> None:
    said = told(slack_blocks(opened().incident, "opened", now_ms=opened().time_ms))
    for fact in (
        ":red_circle: OFU −19.7 % · straggler · llm-70b-v3 (5728163)",
        "41.2 % → 33.1 % (−19.7 %)",
        "77 GPU-hours so far, 202 more each hour",
        "<!date^1795913460^{date_short_pretty} {time}|2026-11-29 00:51 UTC> ± 2 min",
        "seen after 23 min",
        "GPU 5 on gpu-node-042 (1 of 1,024 GPUs, 1 of 128 hosts)",
        "97 % that it changed, 91 % that it is these GPUs",
        "alice · pretrain",
        "One GPU runs far below its peers",
        "*Ruled out:* restart (no restart within 10 min)",
        "*Do:* look at the node before anything else",
        "section straggler of docs/rules.md",
    ):
        assert fact in said


def test_the_example_in_the_documentation_is_what_is_sent() -> None:
    page = (Path(__file__).parents[2] / "docs" / "slack.md").read_text()
    shown = re.search(r"```\n🔴.*?```", page, flags=re.DOTALL)
    assert shown
    example = " ".join(shown.group().split())
    blocks = slack_blocks(opened().incident, "opened", now_ms=opened().time_ms)
    for text in (*texts(blocks, "plain_text"), *texts(blocks, "mrkdwn")):
        # Slack turns the marks into looks, and the date into the reader's own.
        for line in re.sub(r":red_circle: |<!date[^>]*>|[*`]", "", text).splitlines():
            for piece in line.split(", "):
                assert piece.strip() in example


def test_a_resolved_message_says_why_and_after_how_long_and_asks_for_nothing() -> None:
    over = resolved()
    blocks = slack_blocks(over.incident, over.type, now_ms=over.time_ms, mention="")
    said = told(blocks)
    assert texts(blocks, "plain_text")[0].startswith(
        ":white_check_mark: Recovered after 29 min"
    )
    assert "98 GPU-hours lost" in said
    assert "*Do:*" not in said
    assert terminal_line(over).count("\n") == 0


def test_an_end_that_nobody_saw_gets_no_green_mark() -> None:
    for reason in ("telemetry_lost", "expired"):
        lost = resolved(resolve_reason=reason)
        assert ":white_check_mark:" not in told(
            slack_blocks(lost.incident, lost.type, now_ms=0)
        )
        assert "unknown" in slack_text(lost.incident, lost.type, now_ms=0)


def test_an_acknowledged_message_shows_who_has_it() -> None:
    taken = step("acknowledged", 25, state=State.ACKNOWLEDGED, acknowledged_by="bob")
    header = texts(slack_blocks(taken.incident, taken.type, now_ms=0), "plain_text")[0]
    assert header.startswith(":eyes: Acknowledged by bob")


@pytest.mark.parametrize(
    "changes",
    [
        {"severity": "info", "kind": "precision_shift"},
        {"direction": "up", "relative_change": 0.2, "kind": "unexplained"},
    ],
)
def test_news_is_not_told_as_a_fault(changes: dict[str, Any]) -> None:
    news = incident(**changes)
    blocks = slack_blocks(news, "opened", now_ms=ONSET_MS + 60 * MINUTE_MS)
    assert texts(blocks, "plain_text")[0].startswith(":information_source:")
    assert "GPU-hours" not in told(blocks)
    assert "FIRING" not in slack_text(news, "opened", now_ms=ONSET_MS)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("paged_ms", [None, ONSET_MS + 23 * MINUTE_MS])
def test_only_what_passed_the_page_bound_and_nobody_has_taken_calls_somebody(
    state: State, paged_ms: int | None
) -> None:
    transition = step("updated", 24, state=state, severity="critical", paged_ms=paged_ms)
    called = "<!here>" in told(slack_message(transition, mention="<!here>").blocks)
    assert called == (state is State.OPEN and paged_ms is not None)
    line = thread_line(transition.incident, "escalated", now_ms=0, mention="<!here>")
    assert ("<!here>" in line) == called


def test_a_transition_makes_the_same_message_at_every_try() -> None:
    assert slack_message(opened()) == slack_message(opened())


def test_a_link_is_only_ever_http() -> None:
    for address in ("javascript:alert(1)", "ftp://x/y", "//x", "", "https://[::1"):
        said = told(slack_blocks(incident(), "opened", now_ms=0, permalink=address))
        assert "|open>" not in said
    said = told(slack_blocks(incident(), "opened", now_ms=0, permalink="https://x/a|b> c"))
    assert "<https://x/a%7Cb%3E%20c|open>" in said


def test_a_job_that_stands_still_is_told_as_a_loss_of_everything() -> None:
    hung = incident(relative_change=-1.0, after=Estimate(value=0.0, low=0.0, high=0.0))
    assert "41.2 % → 0.0 % (−100 %)" in slack_text(hung, "opened", now_ms=ONSET_MS)


def test_a_frozen_value_is_told_as_stuck_and_not_as_a_change_of_nothing() -> None:
    stuck = incident(cause="frozen", relative_change=0.0, after=STRAGGLER.before)
    said = slack_text(stuck, "opened", now_ms=ONSET_MS)
    assert "OFU frozen · straggler" in said
    assert "stuck at 41.2 %" in said
    assert "±0" not in said


def test_values_carry_their_unit() -> None:
    assert value_text(0.412, "ofu") == "41.2 %"
    assert value_text(2.117, "mfu_ratio") == "2.12×"
    assert value_text(1016, "gpus") == "1,016"
    assert value_text(1980, "clock") == "1,980 MHz"


def test_spans_are_told_as_people_tell_them() -> None:
    spans = [-1, 45_000, 29 * MINUTE_MS, 125 * MINUTE_MS, 100 * 60 * MINUTE_MS]
    assert [span_text(span) for span in spans] == [
        "0 s", "45 s", "29 min", "2 h 05 min", "4 d 4 h",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("runbook", "base", "where"),
    [
        ("docs/rules.md#capacity_loss", "", "section capacity loss of docs/rules.md"),
        ("docs/rules.md#hang", "https://ofu/", "https://ofu/docs/rules.md#hang"),
        ("https://wiki/hang", "https://ofu", "https://wiki/hang"),
        ("https://wiki/hang", "", "https://wiki/hang"),
        ("runbook.md", "", "runbook.md"),
    ],
)
def test_a_runbook_is_a_link_only_where_it_leads_somewhere(
    runbook: str, base: str, where: str
) -> None:
    step = opened(runbook=runbook)
    assert f"(runbook: {where})" in terminal_line(step, permalink_base=base)
    told = str(slack_message(step, permalink_base=base).blocks)
    linked = where.startswith("https://")
    assert (f"<{where}|runbook>" if linked else f"runbook: {where}") in told


def test_the_advice_for_a_hang_is_what_its_runbook_asks_for_first() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    runbook = page.partition("\n## hang\n")[2].partition("\n## ")[0]
    assert "Before you requeue, take\nthe stacks of a few ranks" in runbook
    assert action_words("requeue_job").startswith(
        "take the stacks of a few ranks, then requeue"
    )
