"""Which models a replica has, under every order of events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app_toolkit.calls.model_slots import MOST_OVERTAKING, GrantModel, LoadModel, ModelPlaces, UnloadModel

MODELS = ["a", "b", "c", "d"]


class Replica(RuleBasedStateMachine):
    """A replica whose models load, fail and unload, and whose requests come, use a model, and go."""

    @initialize(max_models=st.integers(1, 3))
    def start(self, max_models: int) -> None:
        self.places = ModelPlaces[int](max_models)
        self.count = 0
        self.waiting: dict[int, str] = {}
        self.using: dict[int, str] = {}
        self.states: dict[str, str] = {}
        self.used_at: dict[str, int] = {}
        self.reported = (0, [""], 0)

    def closed(self, name: str) -> bool:
        return self.places.models[name].closed

    def act(self) -> None:
        while actions := self.places.decide():
            for action in actions:
                self.perform(action)

    def perform(self, action: GrantModel[int] | LoadModel | UnloadModel) -> None:
        name = action.model
        match action:
            case GrantModel():
                assert self.states[name] == "loaded"
                assert self.waiting.pop(action.request) == name
                self.using[action.request] = name
                self.count += 1
                self.used_at[name] = self.count
            case LoadModel():
                assert name not in self.states
                assert name in self.waiting.values()
                self.states[name] = "loading"
                self.count += 1
                self.used_at[name] = self.count
            case UnloadModel():
                assert self.states[name] == "loaded"
                assert name not in self.using.values()
                idle = [
                    each for each, state in self.states.items() if state == "loaded" and each not in self.using.values()
                ]
                assert all(self.used_at[name] <= self.used_at[each] for each in idle)
                self.states[name] = "unloading"
                needed = set(self.waiting.values()) - self.states.keys()
                assert list(self.states.values()).count("unloading") <= len(needed)
                assert len(self.states) == self.places.max_models

    @rule(name=st.sampled_from(MODELS))
    def ask(self, name: str) -> None:
        self.count += 1
        self.waiting[self.count] = name
        self.places.add(self.count, name)
        self.act()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[request]
        assert self.places.remove(request)
        assert not self.places.remove(request)
        self.act()

    @precondition(lambda self: self.using)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.using)))
        assert not self.places.remove(request)
        self.places.release(self.using.pop(request))
        self.act()

    @precondition(lambda self: "loading" in self.states.values())
    @rule(data=st.data(), works=st.booleans())
    def end_load(self, data: st.DataObject, works: bool) -> None:
        name = data.draw(st.sampled_from(sorted(each for each, state in self.states.items() if state == "loading")))
        if works:
            self.states[name] = "loaded"
            self.places.loaded(name)
        else:
            del self.states[name]
            failed = self.places.failed(name)
            assert failed == [request for request, needed in self.waiting.items() if needed == name]
            for request in failed:
                del self.waiting[request]
        self.act()

    @precondition(lambda self: "unloading" in self.states.values())
    @rule(data=st.data())
    def end_unload(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(each for each, state in self.states.items() if state == "unloading")))
        del self.states[name]
        self.places.unloaded(name)
        self.act()

    @invariant()
    def there_are_never_too_many_models(self) -> None:
        if hasattr(self, "places"):
            assert len(self.states) <= self.places.max_models
            assert {name: place.state for name, place in self.places.models.items()} == self.states

    @invariant()
    def what_is_reported_is_up_to_date_and_has_another_version_after_each_change(self) -> None:
        if hasattr(self, "places"):
            kept = [name for name, state in self.states.items() if state != "unloading" and not self.closed(name)]
            needed = [name for name in dict.fromkeys(self.waiting.values()) if name not in self.states]
            coming = needed[: len(self.states) - len(kept)]
            held = coming + sorted(kept, key=lambda name: self.used_at[name], reverse=True)
            assert self.places.held == held
            assert self.places.free == self.places.max_models - len(self.states)
            report = self.places.changes, sorted(held), self.places.free
            assert report[0] >= self.reported[0]
            assert report[0] > self.reported[0] or report == self.reported or self.reported[1] == [""]
            self.reported = report

    @invariant()
    def nobody_waits_for_a_model_that_could_be_used(self) -> None:
        if hasattr(self, "places"):
            usable = [name for name, state in self.states.items() if state == "loaded" and not self.closed(name)]
            assert not set(usable) & set(self.waiting.values())

    @invariant()
    def a_request_waits_only_while_something_is_going_to_happen(self) -> None:
        if hasattr(self, "places") and self.waiting:
            assert self.using or {"loading", "unloading"} & set(self.states.values())


TestReplica = Replica.TestCase
TestReplica.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_requests_for_a_loaded_model_overtake_one_for_another_a_bounded_number_of_times() -> None:
    places = ModelPlaces[int](1)
    places.add(0, "a")
    places.decide()
    places.loaded("a")
    assert places.decide() == [GrantModel(0, "a")]
    places.add(-1, "b")
    for number in range(1, MOST_OVERTAKING + 1):  # one is always in use
        places.add(number, "a")
        assert places.decide() == [GrantModel(number, "a")]
        places.release("a")
        assert places.decide() == []
    places.add(MOST_OVERTAKING + 1, "a")
    assert places.decide() == []
    assert places.held == ["b"], "what it will have next"
    places.release("a")
    assert places.decide() == [UnloadModel("a")]
    assert places.held == ["b"]
    places.unloaded("a")
    assert places.decide() == [LoadModel("b")]
    places.loaded("b")
    assert places.decide() == [GrantModel(-1, "b")]
    places.release("b")
    assert places.decide() == [UnloadModel("b")], "the one that came too late has its turn"
