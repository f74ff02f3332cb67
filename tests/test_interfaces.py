"""What the processes of an instance tell each other, also where they are of two versions."""

import pickle

from app_toolkit.interfaces import Location
from app_toolkit.types import Address, NodeId


def test_what_another_version_did_not_say_of_a_location_has_its_default() -> None:
    told = Location(Address("unix:/r"), NodeId("n"), Address("tcp:n:1"))
    assert pickle.loads(pickle.dumps(told)) == told
    del vars(told)["remote_address"]  # as an older version pickles it
    assert pickle.loads(pickle.dumps(told)) == Location(Address("unix:/r"), NodeId("n"))


def test_what_another_version_says_beyond_that_is_not_minded() -> None:
    told = Location(Address("unix:/r"), NodeId("n"))
    vars(told)["trunks"] = True
    assert pickle.loads(pickle.dumps(told)) == Location(Address("unix:/r"), NodeId("n"))
