"""The host engine that the stand-in's modules speak to: a JSON file with a clock of its own."""

import json
import os
import time

import dcgm_structs

HZ_FIELDS = (1603, 1606, 1608, 1611)  # since 4.6.1
CYCLES = (1084, 1086)  # since 4.6
INTEGERS = (55, 100, 110, 112, 113, 140, 150, 156, 203, 230, 1009, 1010, 1011, 1012, 1084, 1086,
            1603, 1606, 1608, 1611)  # fmt: skip
NEVER_OF_INSTANCE = (1009, 1010, 1011, 1012, 1084, 1086)


def state():
    with open(os.environ["PYDCGM_STANDIN"], encoding="utf-8") as file:
        found = json.load(file)
    found.setdefault(
        "now_us", time.time_ns() // 1_000
    )  # the host's own clock, where none is set
    return found


def note(*what):
    with open(os.environ["PYDCGM_STANDIN"] + ".log", "a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


def refuse(code):
    raise dcgm_structs.DCGMError(code)


class Link:
    """One client's connection: names of groups live and die with it, as in the engine."""

    def __init__(self):
        now = state()
        if now.get("hang") == "connect":
            time.sleep(3600)
        if now.get("refuse_connect"):
            refuse(now["refuse_connect"])
        self.generation = now.get("generation", 0)
        self.names = set(now.get("taken", ()))
        self.watches = {}

    def ask(self):
        now = state()
        if now.get("hang") == "ask":
            time.sleep(3600)
        if now.get("down") or now.get("generation", 0) != self.generation:
            refuse(-21)
        return now

    def name(self, name):
        if name in self.names:
            refuse(-26)
        self.names.add(name)


def known(field):
    version = state().get("version", "4.5")
    if field in HZ_FIELDS:
        return version == "4.6.1"
    return field not in CYCLES or version >= "4.6"


def value_at(now, entity, field, at_us, watch):
    """Return (status, value) of a sample: constant, or steps of [from, value]."""
    group, number = entity
    if group == 1:
        gpu = next((one for one in now["gpus"] if one["id"] == number), None)
        if gpu is None or gpu.get("lost"):
            return -18, None
    if 1000 < field < 1100 and at_us == watch["start"]:
        # The first sample of a difference: blank, with status OK.
        return 0, 0x7FFFFFFFFFFFFFF0 if field in INTEGERS else 2.0**47
    if group == 4 and field in NEVER_OF_INSTANCE:
        return -14, None
    told = now["values"].get(f"{group}:{number}", {}).get(str(field))
    if told is None and group == 4 and field < 1000:
        told = now["values"].get(f"1:{owner(now, number)}", {}).get(str(field))
    if told is None:
        return -6, None
    if isinstance(told, list):
        past = [value for since_s, value in told if since_s * 1_000_000 <= at_us]
        told = past[-1] if past else {"status": -14}
    if isinstance(told, dict) and "per_s" in told:
        return 0, int(told["per_s"] * at_us / 1e6)
    return (told["status"], None) if isinstance(told, dict) else (0, told)


def owner(now, instance):
    return next(one["gpu"] for one in now["instances"] if one["id"] == instance)


def samples(link, now, entity, fields, keep):
    """Yield (field, ts, status, value) of everything in the cache, oldest first."""
    if entity[0] == 1 and entity[1] in now.get("mute", ()):
        return  # listed, and never sampled
    watches = [one for one in link.watches.values() if entity in one["entities"]]
    for field in fields:
        for watch in watches:
            if field not in watch["fields"] or watch["keep"] != keep:
                continue
            frozen = now.get("frozen_us", now["now_us"])
            # What an earlier client's watch left in the cache is replayed as well.
            start = watch["start"] - now.get("replay_us", 0)
            every = watch["every"]
            # The engine samples at multiples; the oldest go by age and by count.
            count = (frozen - start) // every if frozen >= start else -1
            for k in range(max(0, count - watch["samples"] + 1), count + 1):
                at = start + k * every
                if at < frozen - watch["age"] * 1_000_000:
                    continue
                status, value = value_at(now, entity, field, at, watch)
                yield field, at, status, value
