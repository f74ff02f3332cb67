"""`@multiplexed` on Ray: requests go to the replica that has loaded their model."""

from tests.cluster import Cluster

from .translators import NAMES


def test_all_requests_of_a_model_go_to_one_replica_and_the_models_are_spread(cluster: Cluster) -> None:
    served = cluster.deploy("translators:app")
    try:
        with served.client() as client:
            answers: dict[str, set[str]] = {name: set() for name in NAMES}
            for name in NAMES * 5:
                body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
                document = client.post("/v1/chat/completions", json=body).json()
                answers[name].add(document["choices"][0]["message"]["content"])
    finally:
        served.delete()
    assert [len(texts) for texts in answers.values()] == [1] * len(NAMES)
    assert all(text.startswith(f"{name.upper()} of ") for name, texts in answers.items() for text in texts)
