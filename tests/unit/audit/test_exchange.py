"""One process without a group tells and asks itself."""

from ddp_tokens.audit.exchange import Exchange


def test_one_process_needs_no_group():
    exchange = Exchange(timeout_s=1)
    assert (exchange.size, exchange.rank, exchange.collectives()) == (1, 0, 0)
    value = {"a": [1, None]}
    assert exchange.of_all(value, 1) == [value]
    assert exchange.to_first(b"abc", [3]) == [b"abc"]
    assert exchange.from_first(value) == value
