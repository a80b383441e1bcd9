"""Names of the keys in Redis, and how a job's id is written in them.

Everything of a job has the hash tag ``{<job>}``, so that a cluster keeps it in one slot. The
layout is public: third parties write ``ofu:{<job>}:s`` and ``ofu:in``.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

# Longer ids are refused: chosen, far above what Slurm (32-bit numbers), Kubernetes (253
# characters) and Ray (hexadecimal ids) give.
LONGEST_JOB = 512

# "%" starts an escape, braces would end the hash tag, white space and control characters
# (C0, DEL, C1) break logs and redis-cli's output.
_UNSAFE = re.compile(r"[%{}\s\x00-\x1f\x7f-\x9f]")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def encode_job(job: str) -> str:
    """Return ``job`` as it stands in a key.

    Raises
    ------
    ValueError
        When ``job`` is empty, longer than 512 bytes in UTF-8, or not valid Unicode.
    """
    try:
        size = len(job.encode())
    except UnicodeEncodeError:
        msg = f"job id {job!a} is not valid Unicode"
        raise ValueError(msg) from None
    if not 0 < size <= LONGEST_JOB:
        msg = f"a job id has 1 to {LONGEST_JOB} bytes, {job[:20]!a}... has {size}"
        raise ValueError(msg)
    return _UNSAFE.sub(_escape, job)


def is_job(job: str) -> bool:
    """Whether ``job`` can stand in a key."""
    try:
        encode_job(job)
    except ValueError:
        return False
    return True


def decode_job(text: str) -> str:
    """Return the job whose encoded id is ``text``.

    Raises
    ------
    ValueError
        When :func:`encode_job` never writes ``text``.
    """
    try:
        job = unquote_to_bytes(text).decode()
    except UnicodeError:
        job = ""
    if not job or encode_job(job) != text:
        msg = f"{text!a} is not an encoded job id"
        raise ValueError(msg)
    return job


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode())


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all keys that share a prefix.

    Raises
    ------
    ValueError
        When the prefix is not 1 to 64 of ``A-Z a-z 0-9 _ . : -``.
    """

    prefix: str = "ofu"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            msg = f"key prefix {self.prefix!r} is not 1 to 64 of A-Z a-z 0-9 _ . : -"
            raise ValueError(msg)

    @property
    def inbox(self) -> str:
        """Stream of entries that name their job."""
        return f"{self.prefix}:in"

    @property
    def pattern(self) -> str:
        """Glob that every samples key matches."""
        return f"{self.prefix}:{{*}}:s"

    def samples(self, job: str) -> str:
        """Stream of a job's entries, one a scrape."""
        return f"{self.prefix}:{{{encode_job(job)}}}:s"

    def about(self, job: str) -> str:
        """Hash that says who a job is."""
        return f"{self.prefix}:{{{encode_job(job)}}}:m"

    def events(self, job: str) -> str:
        """Stream of what was announced about a job."""
        return f"{self.prefix}:{{{encode_job(job)}}}:e"

    def chunks(self, job: str) -> str:
        """Hash of a job's older history in packed five-minute chunks."""
        return f"{self.prefix}:{{{encode_job(job)}}}:h"

    def rejects(self, job: str) -> str:
        """Hash that counts a job's refused entries; job "" is the inbox itself."""
        return f"{self.prefix}:{{{encode_job(job)}}}:r" if job else f"{self.inbox}:r"

    def shard(self, number: int, name: str) -> str:
        """Control key of a shard of jobs.

        Raises
        ------
        ValueError
            When ``name`` has one letter: a job called ``s07`` owns those keys.
        """
        if len(name) < 2:
            msg = f"a shard's key needs a name of two letters or more, not {name!r}"
            raise ValueError(msg)
        return f"{self.prefix}:{{s{number:02d}}}:{name}"

    def job_of(self, key: str | bytes) -> str | None:
        """Return the job whose samples ``key`` holds, or None when it is no such key."""
        try:
            text = key.decode() if isinstance(key, bytes) else key
            head = f"{self.prefix}:{{"
            if not (text.startswith(head) and text.endswith("}:s")):
                return None
            return decode_job(text[len(head) : -len("}:s")])
        except ValueError:
            return None
