"""SASL exchanges: which of them give the connection an identity, and which never do."""

import pytest

from protocol.sasl import SaslExchange

SECRET = b"s" * 32
SCRAM_ANSWERS = (b"r=abcdef,s=c2FsdA==,i=4096", b"v=c2lnbmF0dXJl")


def run(mechanism, tokens, answers, is_begun=True, secret=SECRET):
    """The identity after the last answer."""
    exchange = SaslExchange(mechanism)
    if is_begun:
        exchange.begin()
    found = None
    for token, answer in zip(tokens, answers, strict=True):
        number = exchange.count(token)
        found = exchange.find_identity(number, token, answer, secret)
    return found


def run_scram(first, mechanism="SCRAM-SHA-256", answers=SCRAM_ANSWERS):
    return run(mechanism, (first, b"c=biws,r=abcdef,p=cHJvb2Y="), answers)


def test_same_credentials_are_the_same_identity():
    for mechanism in ("PLAIN", "OAUTHBEARER"):
        token = b"\0alice\0secret"
        assert run(mechanism, [token], [b""]) == run(mechanism, [token], [b""]) is not None
    assert run_scram(b"n,,n=alice,r=one") == run_scram(b"n,,n=alice,r=two") is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("PLAIN", b"\0alice\0secret"), ("PLAIN", b"\0bob\0secret")),
        (("PLAIN", b"\0$token\0of-alice"), ("PLAIN", b"\0$token\0of-bob")),
        (("PLAIN", b"\0alice\0secret"), ("OAUTHBEARER", b"\0alice\0secret")),
        (("OAUTHBEARER", b"n,,\1auth=Bearer a\1\1"), ("OAUTHBEARER", b"n,,\1auth=Bearer b\1\1")),
    ],
)
def test_other_credentials_are_another_identity(one, other):
    first, second = (run(mechanism, [token], [b""]) for mechanism, token in (one, other))
    assert first is not None and second is not None
    assert first != second


def test_scram_user_is_not_the_token_of_that_name():
    known = {
        run_scram(b"n,,n=alice,r=x"),
        run_scram(b"n,,n=bob,r=x"),
        run_scram(b"n,,n=alice,r=x,tokenauth=true"),
        run_scram(b"n,a=alice,n=alice,r=x"),
        run_scram(b"n,,n=alice,r=x", "SCRAM-SHA-512"),
    }
    assert len(known) == 5 and None not in known


@pytest.mark.parametrize(
    "first",
    [b"", b"n,,", b"n,,m=x,n=alice,r=x", b"y,,n=alice,r=x", b"n,n=alice,r=x", b"n,,r=x,n=alice"],
)
def test_unusual_first_message_is_nobody(first):
    assert run_scram(first) is None


def test_no_certain_end_is_nobody():
    assert run("PLAIN", [b"\0alice\0secret"], [b"more"]) is None
    assert run("PLAIN", [b""], [b""]) is None
    assert run("OAUTHBEARER", [b"t"], [b'{"status":"invalid_token"}']) is None, (
        "refused, error NONE"
    )
    assert run("OAUTHBEARER", [b"t", b"\1"], [b"{}", b""]) is None
    assert run("GSSAPI", [b"ticket"], [b""]) is None
    assert run("PLAIN", [b"\0alice\0secret"], [b""], is_begun=False) is None, "handshake refused"
    first = b"n,,n=alice,r=x"
    assert run_scram(first, answers=(SCRAM_ANSWERS[0], b"e=other-error")) is None
    assert run("SCRAM-SHA-256", [first], [SCRAM_ANSWERS[1]]) is None
    assert run("SCRAM-SHA-256", [first] * 3, [*SCRAM_ANSWERS, SCRAM_ANSWERS[1]]) is None


def test_identity_holds_no_secret_and_is_of_one_process():
    found = run("PLAIN", [b"\0alice\0secret"], [b""])
    assert found is not None and b"secret" not in found.digest and b"alice" not in found.digest
    assert run("PLAIN", [b"\0alice\0secret"], [b""], secret=b"t" * 32) != found


def test_steps_do_not_end_an_exchange():
    exchange = SaslExchange("SCRAM-SHA-256")
    assert exchange.is_step(1, SCRAM_ANSWERS[0]) and not exchange.is_step(2, SCRAM_ANSWERS[1])
    assert SaslExchange("OAUTHBEARER").is_step(1, b"{}")
    assert not SaslExchange("OAUTHBEARER").is_step(1, b"")
    assert not SaslExchange("PLAIN").is_step(1, b"") and not SaslExchange("GSSAPI").is_step(1, b"x")
