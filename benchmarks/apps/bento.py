"""The POST endpoint on BentoML."""

import bentoml


@bentoml.service(workers=2)
class Echo:
    @bentoml.api(route="/item")
    def item(self, name: str, price: float) -> dict[str, str | float]:
        return {"name": name, "price": price}
