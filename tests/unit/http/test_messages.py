"""Which request ids a caller may choose. tests/integration/supervisor/test_front.py tests the same in nginx."""

from __future__ import annotations

import pytest

from sm.http.messages import caller_network, given_id
from tests.support.request_id_examples import ACCEPTED, INFERENCE, REFUSED, ROOT, TRACE


def wsgi_header(header: str, value: str) -> dict[str, str]:
    return {"HTTP_" + header.upper().replace("-", "_"): value}


@pytest.mark.parametrize(("header", "value"), ACCEPTED)
def test_an_id_in_the_grammar_of_aws_becomes_the_request_id(header: str, value: str) -> None:
    assert given_id(wsgi_header(header, value)) == value


@pytest.mark.parametrize(("header", "value"), REFUSED)
def test_any_other_id_is_ignored(header: str, value: str) -> None:
    assert given_id(wsgi_header(header, value)) is None


def test_the_id_chosen_by_nginx_comes_first_unless_it_is_malformed() -> None:
    callers_headers = {**wsgi_header(INFERENCE, "mine"), **wsgi_header(TRACE, ROOT)}
    assert given_id(callers_headers) == "mine"
    for chosen, expected in (("0123456789abcdef" * 2,) * 2, (ROOT, ROOT), ("x" * 300, "mine")):
        assert given_id({**callers_headers, **wsgi_header("X-Trireme-Request-Id", chosen)}) == expected


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("", ""),
    ],
)
def test_addresses_of_one_ipv6_network_are_one_caller(address: str, network: str) -> None:
    assert caller_network(address) == network
