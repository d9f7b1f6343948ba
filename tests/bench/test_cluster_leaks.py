from tests.bench.cluster_leaks import _BLOCK, found_in


def test_a_secret_is_found_wherever_it_lies_also_across_two_blocks() -> None:
    secret, other = bytes(range(1, 65)), b"another"
    for at in (0, 1, _BLOCK - 64, _BLOCK - 63, _BLOCK - 1, _BLOCK, 2 * _BLOCK - 5):
        content = bytearray(2 * _BLOCK + 100)
        content[at : at + 64] = secret
        found, total = found_in([bytes(content)], {"keys": [secret], "names": [other]})
        assert found == {"keys": 1}
        assert total == len(content)


def test_part_of_a_secret_is_not_the_secret() -> None:
    secret = bytes(range(1, 65))
    assert not found_in([secret[:-1], secret[1:], bytes(100)], {"keys": [secret]})[0]
