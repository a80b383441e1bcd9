import pytest
import redis

from detector.store.errors import Trouble, translate


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (redis.ConnectionError("Error 111 connecting"), Trouble.UNREACHABLE),
        (redis.TimeoutError("Timeout reading"), Trouble.UNREACHABLE),
        (redis.AuthenticationError("invalid username-password pair"), Trouble.WRONG_PASSWORD),
        (redis.ResponseError("WRONGPASS invalid pair"), Trouble.WRONG_PASSWORD),
        (redis.exceptions.NoPermissionError("no permissions"), Trouble.FORBIDDEN),
        (redis.exceptions.ReadOnlyError("You can't write"), Trouble.READ_ONLY),
        (redis.exceptions.OutOfMemoryError("command not allowed"), Trouble.OUT_OF_MEMORY),
        (redis.ResponseError("WRONGTYPE Operation against a key"), Trouble.WRONG_TYPE),
        (redis.exceptions.BusyLoadingError("loading"), Trouble.LOADING),
        (redis.ResponseError("MISCONF Errors writing to the AOF"), Trouble.NOT_PERSISTING),
        (redis.ResponseError("unknown command 'XADD'"), Trouble.TOO_OLD),
        (
            redis.ResponseError("Command # 1 (XADD k) of pipeline caused error: OOM command"),
            Trouble.OUT_OF_MEMORY,
        ),
        (redis.RedisError("?"), Trouble.OTHER),
    ],
)
def test_each_trouble_is_told_in_one_line_that_says_what_to_do(
    exc: redis.RedisError, kind: Trouble
) -> None:
    error = translate(exc, "unix:///run/s")
    assert error.kind is kind
    assert str(error).startswith("the store at unix:///run/s ")
    assert "\n" not in str(error)


def test_no_password_is_ever_repeated() -> None:
    exc = redis.ConnectionError("cannot connect to redis://bob:hun@ter2@db")
    error = translate(exc, "redis://bob:hunter@2@db:6379/0")
    assert "hunter" not in str(error)
    assert "redis://db:6379/0" in str(error)
