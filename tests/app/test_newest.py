"""The cache of one value."""

from app.newest import Newest


def test_a_value_is_computed_once_until_another_key_comes():
    newest, computed = Newest(), []
    for key in ([1], [1], [2], [1]):
        assert newest.get(key, lambda key: computed.append(key) or key[0]) == key[0]
    assert computed == [[1], [2], [1]]


def test_two_requests_at_once_get_their_own_values():
    class Key:
        def __ne__(self, other: object) -> bool:
            newest._newest = (other, "of the other key")
            return False

    newest = Newest()
    newest.get(Key(), lambda key: "of this key")
    assert newest.get(Key(), lambda key: "not computed") == "of this key"
