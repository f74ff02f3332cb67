"""What the processes of an instance tell each other, also where they are of two versions."""

import pickle

from app_toolkit.interfaces import Location
from app_toolkit.types import Address, NodeId


def test_a_replica_that_knows_of_no_trunks_takes_none() -> None:
    told = Location(Address("unix:/r"), NodeId("n"), trunks=True)
    assert pickle.loads(pickle.dumps(told)) == told
    del vars(told)["trunks"]  # as an older version pickles it
    assert pickle.loads(pickle.dumps(told)) == Location(Address("unix:/r"), NodeId("n"), trunks=False)
