"""The account of each verifier."""

from drafter_service.verifiers.shares import VerifierShares


def test_streams_of_a_name_have_one_share_that_ends_with_the_last() -> None:
    shares = VerifierShares({"alice": 2.5})
    with shares.stream("alice") as first, shares.stream("bob") as other:
        first.nodes += 3
        with shares.stream("alice") as second:
            assert second is first and first.streams == 2
        assert [(each.name, each.weight, each.streams, each.nodes) for each in shares] == [
            ("alice", 2.5, 1, 3),
            ("bob", 1.0, 1, 0),
        ]
        assert other.nodes == 0
    assert list(shares) == []
    with shares.stream("alice") as again:
        assert again.nodes == 0
