"""``POST /api/v1/jobs/{job}/metrics``: throughput and MFU as the job itself reports them.

One report is a JSON object with at least one metric, several are a list of them::

    {"timestamp": 1764000000.0, "tokens": 812345.0, "mfu": 0.41}

A report joins the job's OFU at the same scrape. All reports of a request are taken, or none:
a sender that gets anything but 202 may send the same again, which is harmless.
"""

import hmac
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from detector.metric import METRICS
from detector.series import iso

# Chosen: an hour of a report every 10 s in one request, after a connection was down.
_MOST_REPORTS = 360
_LARGEST = 64 * 1024  # bytes; that many reports have 30 kB

# Reports older than this have no OFU left to join: the inbox closed their scrape. Chosen: the
# hour that a job's stream holds.
_OLDEST_MS = 3_600_000
_FUTURE_MS = 60_000  # as [history] future: the sender's clock is wrong

# Requests that are on their way to the store: as many as Starlette has threads for it. More are
# a store that hangs.
_AT_ONCE = 40
_LATER = {"Retry-After": "10"}
_BEFORE, _BEHIND = b"/api/v1/jobs/", b"/metrics"
_NO_JOB = "that is no job's id: 1 to 512 bytes of UTF-8 without control characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Metrics that a job reports of itself at one time, by their catalogue names."""

    job: str
    time_ms: int
    values: dict[str, float]


class Intake(Protocol):
    """Where reports go. Raises OSError when the store is out of reach."""

    def post(self, reports: Sequence[Report]) -> None:
        """Take all of them."""
        ...

    def is_job(self, job: str) -> bool:
        """Whether a job can have this id."""
        ...


class _Posted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One report as it comes in. ``timestamp`` in epoch seconds; without one, now."""

    timestamp: float | None = None
    tokens: float | None = None
    mfu: float | None = None


_DECODER = msgspec.json.Decoder(list[_Posted] | _Posted)
_REPORTED = ("tokens", "mfu")


class Metrics:
    """The endpoint.

    Parameters
    ----------
    token
        What a sender must show as ``Authorization: Bearer``; "" asks for none.
    clock
        Wall time, ms.
    """

    def __init__(self, intake: Intake, *, token: str, clock: Callable[[], int]) -> None:
        self._intake, self._token, self._clock = intake, token.encode(), clock
        self._posting = 0  # requests whose reports are on their way to the store

    async def __call__(self, request: Request) -> Response:
        """Take the reports of one request."""
        self._admit(request)
        job = _job(request)
        if not self._intake.is_job(job):
            raise HTTPException(404, _NO_JOB)
        reports = _reports(job, _posted(await _body(request)), now_ms=self._clock())
        if self._posting >= _AT_ONCE:
            raise HTTPException(503, "too much at once; send the same again", _LATER)
        self._posting += 1
        try:
            await run_in_threadpool(self._intake.post, reports)
        except OSError:
            raise HTTPException(
                503, "the store is out of reach; send the same again", _LATER
            ) from None
        finally:
            self._posting -= 1
        return reply(202, {"accepted": len(reports)})

    def _admit(self, request: Request) -> None:
        # A browser sends this type only after asking, which is refused: no page can post here.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self._token:
            scheme, _, shown = request.headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(shown.strip().encode(), self._token)
            if scheme.lower() != "bearer" or not right:
                challenge = {"WWW-Authenticate": "Bearer"}
                raise HTTPException(401, "send Authorization: Bearer <token>", challenge)
        if kind != "application/json":
            raise HTTPException(415, "send Content-Type: application/json")


def _job(request: Request) -> str:
    """Return the job that the path names; what is no UTF-8 would be one job with others."""
    path = unquote_to_bytes(request.scope["raw_path"])
    try:
        job = path.removeprefix(_BEFORE).removesuffix(_BEHIND).decode()
    except UnicodeDecodeError:
        job = ""
    return "" if any(unicodedata.category(char) == "Cc" for char in job) else job


async def _body(request: Request) -> bytes:
    """Return the body, at most the largest that is taken; its announced length may lie."""
    # Who goes on sending hears of it only while somebody reads: until the connection is cut.
    large = HTTPException(413, f"a request has at most {_LARGEST} bytes; send less")
    if int(request.headers.get("content-length", "0")) > _LARGEST:  # h11 takes digits alone
        raise large
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST:
                raise large
    except ClientDisconnect:
        raise HTTPException(400, "the request broke off") from None
    return bytes(body)


def _posted(body: bytes) -> list[_Posted]:
    try:
        posted = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is not what is taken here: {error}") from None
    posted = posted if isinstance(posted, list) else [posted]
    if not 0 < len(posted) <= _MOST_REPORTS:
        raise HTTPException(
            400, f"send 1 to {_MOST_REPORTS} reports at once, not {len(posted)}"
        )
    return posted


def _reports(job: str, posted: Sequence[_Posted], *, now_ms: int) -> list[Report]:
    """Return the reports; refuse them all when one is wrong, and say which."""
    reports = []
    for at, one in enumerate(posted):
        where = f"report {at + 1}: " if len(posted) > 1 else ""
        values = {
            name: value for name in _REPORTED if (value := getattr(one, name)) is not None
        }
        if not values:
            raise HTTPException(400, f"{where}give at least one of {', '.join(_REPORTED)}")
        for name, value in values.items():
            metric = METRICS[name]
            if not metric.low <= value <= metric.high:
                bounds = f"{metric.low:g}..{metric.high:g}"
                hint = "; give a ratio, not percent" if metric.unit == "ratio" else ""
                raise HTTPException(400, f"{where}{name} {value:g} is outside {bounds}{hint}")
        reports.append(Report(job=job, time_ms=_time(one, now_ms, where), values=values))
    return reports


def _time(one: _Posted, now_ms: int, where: str) -> int:
    if one.timestamp is None:
        return now_ms
    seconds = one.timestamp
    if not math.isfinite(seconds) or not now_ms - _OLDEST_MS <= seconds * 1000:
        raise HTTPException(
            400, f"{where}timestamp {seconds:g} is more than an hour old; it is epoch seconds"
        )
    if seconds * 1000 > now_ms + _FUTURE_MS:
        raise HTTPException(
            400,
            f"{where}timestamp {seconds:.0f} is ahead of the clock here ({iso(now_ms)}); "
            "it is epoch seconds",
        )
    return round(seconds * 1000)


def reply(status: int, content: object, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(
        msgspec.json.encode(content) + b"\n",
        status_code=status,
        headers=headers,
        media_type="application/json",
    )
