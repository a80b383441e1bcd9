"""The service: what config.toml describes, built and kept running.

Side by side, sources are asked, the tick reads and judges, a dispatcher delivers to each
receiver, HTTP is answered, the lease is renewed, and the main thread minds the embedded
server. They share nothing but Redis. When Redis is away each of them says so once and tries
again; the fleet's state in memory stays as it was. Each is a public step of :class:`Service`,
so that tests take them one by one.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from detector import log
from detector.analysis.judge import Content
from detector.config import Config, secret
from detector.duties import DUTIES
from detector.incident.incident import Transition
from detector.incident.ledger import SHARDS
from detector.incident.route import Destination
from detector.notify.dispatch import Dispatcher
from detector.pacing import Work, paced
from detector.receivers import receivers
from detector.series import iso
from detector.state import FleetState, restore
from detector.store.connection import Store, inspect, open_store, problems
from detector.store.fenced import Fenced, LeaseLostError
from detector.store.history import History
from detector.store.inbox import Inbox
from detector.store.intake import Intake
from detector.store.keys import Keys
from detector.store.lease import Held, Lease
from detector.store.ledger import Ledger
from detector.store.outbox import Outbox
from detector.store.parts import Parts
from detector.store.timeseries import TimeSeries
from detector.tick import Report, Settings, run

if TYPE_CHECKING:
    from detector.collection import Collection
    from detector.web.app import Web

_DELIVER_EVERY_S = 1.0  # chosen: an alert waits at most this long once it is committed
_SWEEP_EVERY_S = 3600.0  # what is swept is 30 days old
_MIND_EVERY_S = 0.5  # how soon a dead embedded server is noticed
_REVIVE_EVERY_S = 5.0  # chosen: a full disk is not mended sooner, and each try is a process
# How long the lead outlasts its holder, see store.lease; renewed in a third of it, so that two
# renewals may fail.
_LEASE_MS = 15_000


@dataclass(slots=True, kw_only=True)
class Counters:
    """What happened since the start; read by health checks and tests."""

    ticks: int = 0
    skipped_ticks: int = 0
    entries: int = 0
    incidents_opened: int = 0
    last_tick_ms: int = 0


@dataclass(slots=True, kw_only=True)
class _Leading:
    """What the leader knows; None of it outlives the loss of the lead."""

    fences: Mapping[int, int]
    state: FleetState
    passes: int = 0
    teller: log.Teller = field(default_factory=log.Teller)


class Service:
    """Watches one fleet. :meth:`run` returns after :meth:`stop`.

    Parameters
    ----------
    announce
        Told of every transition after it was committed, for a terminal.
    clock
        Wall time, ms.
    lease_ms
        How long the lead outlasts a process that died with it.
    only
        Which of its duties this process does; others do the rest on the same Redis.

    Raises
    ------
    StoreError
        When the store cannot be used.
    ContentErrors
        When a receiver's secret cannot be read, or is none.
    """

    def __init__(
        self,
        config: Config,
        content: Content,
        *,
        announce: Callable[[Transition], None] = lambda _: None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        lease_ms: int = _LEASE_MS,
        only: Sequence[str] = DUTIES,
    ) -> None:
        self._config, self._content, self._duties = config, content, frozenset(only)
        self._announce, self._clock, self._lease_ms = announce, clock, lease_ms
        self._log = log.get()
        self._stopping = threading.Event()
        self._passing, self._renewing = threading.Lock(), threading.Lock()
        self._trouble: dict[str, str] = {}
        self._unfit: frozenset[str] = frozenset()
        self._late = self._blind = False
        self._held: Held | None = None
        self._leading: _Leading | None = None
        self.counters = Counters()
        self.store = open_store(config.redis)
        try:
            self._build(self.store)
        except BaseException:
            self.store.close()
            raise

    def _build(self, store: Store) -> None:
        config, client = self._config, store.client
        keys = Keys(config.redis.prefix)
        self._history = History(client, keys, config.history)
        self._inbox = Inbox(client, keys, self._history, config.inbox)
        self._timeseries = TimeSeries(client, keys, self._history)
        self._ledger = Ledger(client, keys)
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._lease = Lease(client, keys, owner, ttl_ms=self._lease_ms)
        if store.server is not None and store.server.owned:
            self._lease.evict()
        # Charts are drawn in other threads: they have a reader of their own.
        reader = History(client, keys, config.history)
        # One for each receiver, in a thread of its own: one that hangs holds up no other.
        self._dispatchers = {
            receiver.name: Dispatcher(
                Outbox(client, keys), [receiver], settings=config.delivery
            )
            for receiver in receivers(config, histories=reader)
        }
        self._settings = Settings(
            cluster=config.cluster,
            policy=config.incidents,
            destinations=tuple(
                Destination(name=item.name, severity=item.severity) for item in config.receivers
            ),
            silent=config.tick.silent,
        )
        self._web = self._served(Intake(client, keys))
        self._collection = self._collecting(Parts(client, keys, reader))

    def _served(self, intake: Intake) -> "Web | None":
        """Serve HTTP if it is configured; watching goes on where its address is taken."""
        settings = self._config.web
        if not settings.listen or "web" not in self._duties:
            return None
        from detector.web.app import Web, application

        app = application(intake, token=secret(settings), clock=self._clock)
        try:
            web = Web(settings, app)
        except OSError as error:
            self._log.error("web_unavailable", reason=str(error), action="going on without it")
            return None
        self._log.info("web_started", address=web.address)
        return web

    def _collecting(self, parts: Parts) -> "Collection | None":
        if not self._config.sources or "collect" not in self._duties:
            return None
        from detector.collection import Collection

        self._log.info("collecting", sources=[one.name for one in self._config.sources])
        return Collection(self._config, self._content.gpus, parts, clock=self._clock)

    def run(self) -> None:
        """Watch until :meth:`stop`, then put everything down in order."""
        self._log.info("service_started", store=self.store.chosen, pid=os.getpid())
        self._look_at_store()
        if "tick" in self._duties:
            self.renew()
        elif self.store.server is not None:
            self._log.warning(
                "nobody_judges",
                reason="an embedded server is one process's, and this one has no part `tick`",
                action="give all parts the same `url` under [redis]",
            )
        scheduler = paced(self._works(), skipped=self._skipped, failed=self._failed)
        scheduler.start()
        try:
            while not self._stopping.wait(_MIND_EVERY_S):
                self._mind_server()
        finally:
            self._stopping.set()
            scheduler.pause()
            # A standby need not wait for a delivery that is under way.
            self.save()
            scheduler.shutdown(wait=True)
            self.close()
            self._log.info("service_stopped", ticks=self.counters.ticks)

    def stop(self) -> None:
        """Ask :meth:`run` to end after the pass that is going on."""
        self._stopping.set()

    def _works(self) -> dict[str, Work]:
        """Return what this process does, by name."""
        config = self._config
        works: dict[str, Work] = {}
        if "tick" in self._duties:
            tick_s = config.tick.interval / 1000
            works = {
                "tick": Work(do=self.tick, every_s=tick_s),
                "renew": Work(do=self.renew, every_s=self._lease_ms / 3000),
                "roll": Work(do=self.roll, every_s=tick_s),
                "sweep": Work(do=self.sweep, every_s=_SWEEP_EVERY_S),
            }
        if self._collection is not None:
            every_ms = int(config.collect.interval)
            # Rounds that begin with their slots never share one.
            first = datetime.fromtimestamp(-(-self._clock() // every_ms) * every_ms / 1000, UTC)
            works["collect"] = Work(
                do=self._collection.run, every_s=every_ms / 1000, first=first
            )
        for name in self._dispatchers if "notify" in self._duties else ():
            do = partial(self.deliver, name)
            works[f"deliver:{name}"] = Work(do=do, every_s=_DELIVER_EVERY_S)
        return works

    def tick(self) -> None:
        """Judge all that is new, as often as there is more to read, if this process leads."""
        self._late = False
        try:
            with self._passing:
                passes, entries, more = 0, self.counters.entries, True
                while more and not self._stopping.is_set():
                    # Looked up for each pass: a long catch-up may lose the lead on its way.
                    leading = self._lead()
                    more = leading is not None and self._pass(leading)
                    passes += 1
            if passes > 1:
                entries = self.counters.entries - entries
                self._log.info("caught_up", passes=passes, entries=entries)
            self._well("tick")
        except LeaseLostError as lost:
            self._log.warning("lead_lost", reason=str(lost), action="standing by")
            self._leading = self._held = None
        except OSError as error:
            self._ill("tick", error)

    def _lead(self) -> _Leading | None:
        """Return what the leader knows, loaded anew when the lead was taken or retaken."""
        held = self._held
        if held is None or len(held.shards) < SHARDS:
            self._leading = None
            return None
        if self._leading is None or self._leading.fences != held.fence:
            state = restore(self._content, self._ledger.load(range(SHARDS)))
            self._leading = _Leading(fences=held.fence, state=state)
            live = sum(i.live for items in state.incidents.values() for i in items)
            self._log.info("lead_taken", jobs=len(state.cursors), live_incidents=live)
        return self._leading

    def _pass(self, leading: _Leading, *, save: bool = False) -> bool:
        """Make one pass; return whether there is more to read."""
        now_ms = self._clock()
        self._inbox.drain(now_ms)
        self._timeseries.copy(now_ms)
        leading.state, report = run(
            leading.state,
            histories=self._history,
            ledger=Fenced(self._ledger, leading.fences),
            content=self._content,
            settings=self._settings,
            now_ms=now_ms,
            checkpoint=range(SHARDS) if save else self._checkpoint(leading.passes),
        )
        leading.passes += 1
        self._tell(report, leading.teller)
        self._history.set_aside(report.rejects)
        self.counters.ticks += 1
        self.counters.entries += report.entries
        self.counters.last_tick_ms = now_ms
        if not report.more:
            self._look_for_silence(leading.state.watermark_ms, now_ms=now_ms)
        return report.more

    def _look_for_silence(self, newest_ms: int, *, now_ms: int) -> None:
        """Say once that no job at all reports any more: it is the watcher that is blind."""
        silent = newest_ms > 0 and now_ms - newest_ms > self._config.tick.silent
        if silent != self._blind:
            self._blind = silent
            if silent:
                self._log.error(
                    "fleet_silent",
                    newest=iso(newest_ms),
                    action="nothing is watched until histories grow again; look at the writers",
                )
            else:
                self._log.info("fleet_heard", newest=iso(newest_ms))

    def _checkpoint(self, passes: int) -> range:
        """Return the shards to save now: all of them once in ``[tick] checkpoint``."""
        every = max(1, self._config.tick.checkpoint // self._config.tick.interval)
        return range(passes % every, SHARDS, every)

    def _tell(self, report: Report, teller: log.Teller) -> None:
        """Put what a pass did into the log, and its transitions before who listens."""
        teller.tell(self._log, report)
        for transition in report.transitions:
            self.counters.incidents_opened += transition.type == "opened"
            self._announce(transition)

    def roll(self) -> None:
        """Pack a slice of the jobs' older entries; between two passes, never during one."""
        try:
            with self._passing:
                if self._leading is not None:
                    self._history.roll_some(self._clock())
            self._well("roll")
        except OSError as error:
            self._ill("roll", error)

    def deliver(self, receiver: str | None = None) -> None:
        """Send what is due to one receiver, or to all in turn.

        Any process may, since a lane is claimed by one at a time.
        """
        for name, dispatcher in self._dispatchers.items():
            if receiver in (None, name):
                try:
                    dispatcher.run_once(self._clock(), stop=self._stopping.is_set)
                    self._well(f"deliver:{name}")
                except OSError as error:
                    self._ill(f"deliver:{name}", error)

    def renew(self) -> None:
        """Renew the lease; who lacks shard 0 does not lead and gives back the rest."""
        try:
            with self._renewing:
                if self._stopping.is_set():
                    return  # a lease that was given back must not be taken again
                held = self._lease.acquire_or_renew(self._clock())
                if 0 not in held.shards:
                    self._lease.release()
            if 0 not in held.shards:
                if self._held is None or self._held.shards:
                    self._log.info("standing_by", leader=next(iter(self._lease.owners()), ""))
                held = Held(fence={}, until_ms=held.until_ms)
            self._held = held
            self._well("renew")
        except OSError as error:
            self._ill("renew", error)

    def sweep(self) -> None:
        """Forget incidents and receipts of a month ago; look at the server's health."""
        try:
            self._ledger.sweep(self._clock())
            self._look_at_store()
            self._well("sweep")
        except OSError as error:
            self._ill("sweep", error)

    def _look_at_store(self) -> None:
        """Say what makes the server unfit to be trusted with alerts, each thing once."""
        try:
            found = frozenset(problems(inspect(self.store.client)))
        except OSError as error:
            self._ill("look", error)
            return
        for problem in sorted(found - self._unfit):
            self._log.warning("store_unfit", reason=problem)
        self._unfit = found

    def _mind_server(self) -> None:
        """Start the embedded server again when it died; its data is on disk."""
        server = self.store.server
        if server is None or server.alive():
            return
        if "server" not in self._trouble:
            self._log.error("embedded_server_died", pid=server.pid, action="starting it again")
        try:
            self.store = self.store.revived()
            self._log.info("embedded_server_started")
            self._trouble.pop("server", None)
        except OSError as error:
            self._ill("server", error)
            self._stopping.wait(_REVIVE_EVERY_S)

    def save(self) -> None:
        """Commit the fleet's state whole and give the lead back, after the pass under way."""
        try:
            with self._passing:
                if self._leading is not None:
                    self._pass(self._leading, save=True)
            with self._renewing:
                self._stopping.set()
                self._lease.release()
        except OSError as error:
            # The next process reads the histories on from what was saved before.
            self._log.warning("state_not_saved", reason=str(error))

    def close(self) -> None:
        """Close what was opened; the embedded server ends with its data on disk."""
        if self._web is not None:
            self._web.close()
        if self._collection is not None:
            self._collection.close()
        self.store.close()

    def _ill(self, part: str, error: OSError) -> None:
        """Say what is wrong with the store, once for each part and reason."""
        if self._news(part, error):
            self._log.error(
                "store_trouble", part=part, reason=str(error), action="trying again"
            )

    def _well(self, part: str) -> None:
        if self._trouble.pop(part, None) is not None:
            self._log.info("back_to_normal", part=part)

    def _news(self, part: str, error: BaseException) -> bool:
        """Whether this is not what the part's last try failed of."""
        text = f"{type(error).__name__}: {error}"
        known, self._trouble[part] = self._trouble.get(part), text
        return known != text

    def _skipped(self, work: str) -> None:
        if work == "tick":
            self.counters.skipped_ticks += 1
            if not self._late:  # one line for a long pass, however many it makes skip
                self._late = True
                self._log.warning("tick_skipped", total=self.counters.skipped_ticks)

    def _failed(self, work: str, error: BaseException) -> None:
        if self._news(work, error):
            self._log.error("job_failed", job=work, exc_info=error)
