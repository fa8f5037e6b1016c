"""Limits per topic and per client on bytes in flight and on fetched bytes per second.

Owns: the counting that a broker's quotas can no longer do, because what memory serves never reaches them. Must
not know: who asks, what becomes of a request that may not go on. Invariants: what is charged is charged in
full, also beyond the bucket (debt is paid by waiting), so that no request is too large to pass; a key whose
bytes all came back and whose bucket is full is forgotten; at `max_keys` those forgotten first are looked for,
and a newcomer that still finds no place shares one common entry with all other such newcomers, limited as one
key is: a flood of client ids gains nothing by it.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

OVERFLOW: Final = "\0overflow"
SWEPT_AT_ONCE: Final = 16
OWED: Final = -1
"""Tokens from which on a key waits: less than a byte of debt is what rounding leaves."""


@dataclass(frozen=True, slots=True)
class Quota:
    """One key's limits, None for none. The bucket holds `burst_s` seconds' worth of `fetch_bytes_per_s`."""

    in_flight_bytes: int | None = None
    fetch_bytes_per_s: float | None = None
    burst_s: float = 1.0

    def __post_init__(self) -> None:
        if self.in_flight_bytes is not None and self.in_flight_bytes < 1:
            raise ValueError("in_flight_bytes must be positive")
        if self.fetch_bytes_per_s is not None and (
            self.fetch_bytes_per_s <= 0 or self.burst_s <= 0
        ):
            raise ValueError("fetch_bytes_per_s and burst_s must be positive")


UNLIMITED: Final = Quota()


class QuotaUsage(NamedTuple):
    """What one process has used of a key: bytes fetched since it was told last, and bytes in flight."""

    spent_bytes: int
    in_flight_bytes: int


class _Account:
    __slots__ = (
        "elsewhere",
        "filled_s",
        "in_flight_bytes",
        "quota",
        "spent_bytes",
        "tokens",
        "told_bytes",
    )

    def __init__(self, quota: Quota, now_s: float) -> None:
        self.quota = quota
        self.in_flight_bytes = self.spent_bytes = self.told_bytes = 0
        self.elsewhere: dict[int, int] = {}  # bytes in flight in other processes, by their numbers
        self.tokens = self.bucket_bytes
        self.filled_s = now_s

    @property
    def bucket_bytes(self) -> float:
        return (self.quota.fetch_bytes_per_s or 0.0) * self.quota.burst_s

    def set_quota(self, quota: Quota, now_s: float) -> None:
        """Take other limits. Bytes in flight and debts stay; without a rate there are no debts."""
        self.fill(now_s)
        self.quota = quota
        self.tokens = (
            0.0 if quota.fetch_bytes_per_s is None else min(self.tokens, self.bucket_bytes)
        )

    def fill(self, now_s: float) -> None:
        rate = self.quota.fetch_bytes_per_s or 0.0
        self.tokens = min(self.bucket_bytes, self.tokens + max(0.0, now_s - self.filled_s) * rate)
        self.filled_s = now_s

    def hold(self, size_bytes: int) -> None:
        """Count bytes in flight, until `let_go` of as many."""
        self.in_flight_bytes += size_bytes

    def let_go(self, size_bytes: int) -> None:
        """Undo `hold`."""
        self.in_flight_bytes -= size_bytes

    def spend(self, size_bytes: int, now_s: float) -> bool:
        """Charge fetched bytes. Return True if they are not paid for yet."""
        self.fill(now_s)
        self.tokens -= size_bytes
        self.spent_bytes += size_bytes
        return self.tokens <= OWED

    def tell(self) -> QuotaUsage | None:
        """Return what was used since the last call; None: nothing, and as much is in flight as then."""
        if not self.spent_bytes and self.in_flight_bytes == self.told_bytes:
            return None
        usage = QuotaUsage(self.spent_bytes, self.in_flight_bytes)
        self.spent_bytes, self.told_bytes = 0, self.in_flight_bytes
        return usage

    def learn(self, process: int, usage: QuotaUsage, now_s: float) -> bool:
        """Charge what another process has used. Return True if it is not paid for yet."""
        self.fill(now_s)
        self.tokens -= usage.spent_bytes
        if usage.in_flight_bytes:
            self.elsewhere[process] = usage.in_flight_bytes
        else:
            self.elsewhere.pop(process, None)
        return self.tokens <= OWED

    def forget(self, process: int) -> None:
        """Note that another process has ended."""
        self.elsewhere.pop(process, None)

    def delay_s(self, now_s: float) -> float:
        """How long until what was fetched is paid for."""
        if self.quota.fetch_bytes_per_s is None:
            return 0.0
        self.fill(now_s)
        return -self.tokens / self.quota.fetch_bytes_per_s if self.tokens <= OWED else 0.0

    def is_idle(self, now_s: float, is_shared: bool) -> bool:
        """`is_shared`: other processes have to be told of what was used."""
        self.fill(now_s)
        is_untold = is_shared and (self.spent_bytes or self.told_bytes)
        is_unused = not (self.in_flight_bytes or self.elsewhere or is_untold)
        return is_unused and self.tokens >= self.bucket_bytes


class Quotas:
    """The quotas of one kind of key: make one for topics and one for clients."""

    def __init__(self, quota_of: Callable[[str], Quota], max_keys: int = 10_000) -> None:
        if max_keys < 1:
            raise ValueError("at least one key must have a place")
        self.max_keys = max_keys
        self._quota_of = quota_of
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._overflow: _Account | None = None
        self._is_shared = False  # whether others are told of what was used
        self._owing: dict[str, None] = {}  # keys that had to wait when last looked at
        self.overflows = self.refused = self.delayed = 0

    def set_quotas(self, quota_of: Callable[[str], Quota], now_s: float) -> None:
        """Take other quotas, also for the keys that have an account. What is reserved stays so; where it is more than
        the new quota, only further requests wait.
        """
        self._quota_of = quota_of
        for key, account in self._accounts.items():
            account.set_quota(quota_of(key), now_s)
        if self._overflow is not None:
            self._overflow.set_quota(quota_of(OVERFLOW), now_s)

    def _account(self, key: str, now_s: float) -> _Account | None:
        """None where the key has no quota at all."""
        account = self._accounts.get(key)
        if account is not None:
            return account
        quota = self._quota_of(key)
        if quota.in_flight_bytes is None and quota.fetch_bytes_per_s is None:
            return None
        if len(self._accounts) >= self.max_keys:
            self._sweep(now_s)
        if len(self._accounts) >= self.max_keys:
            self.overflows += 1
            if self._overflow is None:
                self._overflow = _Account(self._quota_of(OVERFLOW), now_s)
            return self._overflow
        account = self._accounts[key] = _Account(quota, now_s)
        return account

    def _sweep(self, now_s: float) -> None:
        """Look at a few accounts in turn and forget the idle ones: O(1) a newcomer."""
        for _ in range(min(SWEPT_AT_ONCE, len(self._accounts))):
            key, account = self._accounts.popitem(last=False)
            if account.is_idle(now_s, self._is_shared):
                self._owing.pop(key, None)
            else:
                self._accounts[key] = account

    def reserve(self, keys: Sequence[str], size_bytes: int, now_s: float) -> "Reservation | None":
        """Room for `size_bytes` in flight under all of the keys, or None and nothing is reserved. A request
        larger than a quota passes where nothing else of that key is in flight.
        """
        accounts = [account for key in keys if (account := self._account(key, now_s)) is not None]
        for account in accounts:
            bound = account.quota.in_flight_bytes
            held = account.in_flight_bytes + sum(account.elsewhere.values())
            if bound is not None and held and held + size_bytes > bound:
                self.refused += 1
                return None
        for account in accounts:
            account.hold(size_bytes)
        return Reservation(accounts, size_bytes)

    def peek_delay_s(self, keys: Sequence[str], now_s: float) -> float:
        """How long a fetch of these keys should wait; 0.0 if it may go on. The longest of the keys' debts."""
        delay_s = 0.0
        for key in keys:
            account = self._account(key, now_s)
            if account is not None:
                delay_s = max(delay_s, account.delay_s(now_s))
        self.delayed += delay_s > 0
        return delay_s

    def owes(self, now_s: float) -> bool:
        """Whether there is any key that has to wait. Costs no more than keys have come to owe since."""
        while self._owing:
            key = next(iter(self._owing))
            account = self._overflow if key == OVERFLOW else self._accounts.get(key)
            if account is not None and account.delay_s(now_s) > 0:
                return True
            del self._owing[key]
        return False

    def charge(self, key: str, size_bytes: int, now_s: float) -> None:
        """So many bytes were fetched, from memory or from the broker."""
        account = self._account(key, now_s)
        if account is not None and account.quota.fetch_bytes_per_s is not None:
            owes = account.spend(size_bytes, now_s)
            if owes:
                self._owing[OVERFLOW if account is self._overflow else key] = None

    def take_usage(self) -> dict[str, QuotaUsage]:
        """Return what was used of each key since the last call, for the other processes that share these quotas."""
        self._is_shared = True
        found = {key: usage for key, account in self._accounts.items() if (usage := account.tell())}
        if self._overflow is not None and (usage := self._overflow.tell()):
            found[OVERFLOW] = usage
        return found

    def learn_usage(self, process: int, used: Mapping[str, QuotaUsage], now_s: float) -> None:
        """Charge what another process, which has this number, has used."""
        for key, usage in used.items():
            account = self._overflow if key == OVERFLOW else self._account(key, now_s)
            if account is not None and account.learn(process, usage, now_s):
                self._owing[OVERFLOW if account is self._overflow else key] = None

    def forget_process(self, process: int) -> None:
        """Another process has ended: nothing of it is in flight."""
        for account in (*self._accounts.values(), *filter(None, (self._overflow,))):
            account.forget(process)

    def statistics(self) -> dict[str, int]:
        """Keys with an account, and totals since start."""
        return {
            "keys": len(self._accounts),
            "overflows": self.overflows,
            "refused": self.refused,
            "delayed": self.delayed,
        }


class Reservation:
    """Bytes in flight, to be released once; releasing again does nothing."""

    __slots__ = ("_accounts", "size_bytes")

    def __init__(self, accounts: list[_Account], size_bytes: int) -> None:
        self._accounts = accounts
        self.size_bytes = size_bytes

    def release(self) -> None:
        """The bytes are no longer in flight."""
        for account in self._accounts:
            account.let_go(self.size_bytes)
        self._accounts = []
