"""The tester's end of the call channel: the candidate's functions and objects as proxies."""

import builtins
from typing import Any, NoReturn

from .wire import Channel, FrameTooLarge, WireError, decode, encode


class Abandoned(BaseException):
    """The test cannot go on; `Session.fatal` says why. A test that swallows it changes nothing."""


class Session:
    """The tester's end of the call channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.calls = 0
        self.fatal: dict[str, Any] | None = None
        self.last = ""  # the last result, for messages

    def abandon(self, outcome: str, detail: str = "") -> NoReturn:
        self.fatal = self.fatal or {"outcome": outcome, "detail": detail}
        raise Abandoned

    def loaded(self) -> None:
        """Waits until the candidate's top level has run."""
        self.receive(0)

    def request(self, op: str, on: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.fatal:
            raise Abandoned
        self.calls += 1
        message = {
            "id": self.calls,
            "op": op,
            "on": on,
            "args": [encode(a, self.refer) for a in args],
            "kwargs": {name: encode(a, self.refer) for name, a in kwargs.items()},
        }
        try:
            self.channel.send(message)
        except FrameTooLarge:
            # The test's own data may be large; what the candidate has sent must not choose the weaker way to judge it.
            self.abandon("beside" if self.calls == 1 else "too_large", "an argument too large to send")
        except OSError:
            self.abandon("lost")
        answer = self.receive(self.calls)
        try:
            for index, after in answer.get("changed", ()):
                _update(args[index], decode(after, self.resolve))
            value = decode(answer["value"], self.resolve)
        except (WireError, LookupError, TypeError, ValueError) as e:
            self.abandon("violation", f"answered with what is no data: {e}")
        if op == "call":
            self.last = _short(value)
        return value

    def receive(self, number: int) -> dict[str, Any]:
        try:
            answer = self.channel.receive()
        except FrameTooLarge as e:
            self.abandon("too_large", str(e))
        except WireError as e:
            self.abandon("lost" if str(e) == "closed" else "violation", str(e))
        if not isinstance(answer, dict) or answer.get("id") != number:
            self.abandon("violation", "answered out of turn")
        if "exit" in answer:
            self.abandon("exited", f"exit status {answer['exit']}")
        if "too_large" in answer:
            self.abandon("too_large", str(answer["too_large"]))
        if "raised" in answer:
            raise _as_exception(answer["raised"])
        return answer

    def refer(self, value: object) -> list[Any]:
        if not isinstance(value, Remote):
            self.abandon("beside", f"the test passes a {type(value).__name__}")
        return object.__getattribute__(value, "_handle")  # type: ignore[no-any-return]

    def resolve(self, parts: list[Any]) -> object:
        number, kind = parts
        if type(number) is not int or type(kind) is not str:
            raise WireError("a bad handle")
        return Remote(self, ["ref", number, kind])


class Remote:
    """An object that stays in the candidate's process. Equal to itself alone: its own `__eq__` is never asked."""

    __slots__ = ("_handle", "_session")

    def __init__(self, session: Session, handle: object) -> None:
        self._session, self._handle = session, handle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.request("call", self._handle, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._session.request("getattr", self._handle, (name,), {})

    def __iter__(self) -> Any:
        return self._session.request("iter", self._handle, (), {})

    def __next__(self) -> Any:
        return self._session.request("next", self._handle, (), {})

    def __len__(self) -> Any:
        return self._session.request("len", self._handle, (), {})

    def __getitem__(self, key: Any) -> Any:
        return self._session.request("getitem", self._handle, (key,), {})

    def __contains__(self, key: Any) -> Any:
        return self._session.request("contains", self._handle, (key,), {})

    def __str__(self) -> str:
        return str(self._session.request("str", self._handle, (), {}))

    def __repr__(self) -> str:
        return str(self._session.request("repr", self._handle, (), {}))

    def __bool__(self) -> bool:
        return self._session.request("bool", self._handle, (), {}) is True


def _as_exception(described: Any) -> BaseException:
    """The candidate's exception as its nearest built-in class, so that a test's `except` works."""
    described = described if isinstance(described, dict) else {}
    kinds = [getattr(builtins, str(name), None) for name in described.get("bases", ())]
    kind = next((k for k in kinds if isinstance(k, type) and issubclass(k, Exception)), RuntimeError)
    error = kind.__new__(kind)
    error.args = (str(described.get("text", "")),)
    error.described = described  # type: ignore[attr-defined]
    return error


def _update(old: Any, new: Any) -> None:
    """Repeats on the tester's argument what the call did to the candidate's copy."""
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)


def _short(value: object) -> str:
    if isinstance(value, Remote):
        return f"an object of type {object.__getattribute__(value, '_handle')[2]}"
    try:
        text = repr(value)
    except ValueError:  # an int of too many digits
        text = "a huge number"
    return text if len(text) <= 200 else text[:197] + "..."
