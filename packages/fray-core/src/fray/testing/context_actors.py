"""The life of an actor, its name, its death."""

import gc
from typing import Any

import pytest

from fray._contracts.context import JobContext
from fray._discovery.current import create_context, get_job_context
from fray._values.errors import ActorAlreadyExistsError, ActorDiedError, ActorNotFoundError
from fray._values.options import ActorOptions, Lifetime
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.gates import PATIENCE
from fray.testing.tasks import Counter


@needs("actors")
class ActorContract(ContextFixtures):
    """Making, finding and ending actors."""

    def test_an_actor_keeps_its_state_between_calls(self, context: JobContext) -> None:
        counter = context.create_actor(Counter, 10)
        assert context.get([counter.increment(), counter.increment.remote(5), counter.value()]) == [
            11,
            16,
            16,
        ]

    def test_constructor_arguments_can_be_given_folded(self, context: JobContext) -> None:
        assert context.get(context.create_actor(Counter, kwargs={"start": 5}).increment()) == 6
        assert context.get(context.create_actor(Counter, args=(7,)).increment()) == 8
        named = context.create_actor(Counter, kwargs={"name": "n", "options": "o"})
        assert context.get(named.names()) == ("n", "o")

    def test_constructor_arguments_given_both_ways_are_refused(self, context: JobContext) -> None:
        with pytest.raises(ValueError, match="not both"):
            context.create_actor(Counter, 1, kwargs={"start": 5})

    def test_references_reach_the_constructor_as_values(self, context: JobContext) -> None:
        assert context.get(context.create_actor(Counter, context.put(3)).value()) == 3

    def test_a_class_may_hold_references_and_handles(self, context: JobContext) -> None:
        def holding(ref: object, counter: Any) -> Any:
            class Holding:
                def read(self) -> list[object]:
                    context = get_job_context()
                    return [context.get(held, timeout=PATIENCE) for held in (ref, counter.increment())]

            return Holding

        actor = context.create_actor(holding(context.put(3), context.create_actor(Counter, 6)))
        gc.collect()
        assert context.get(actor.read()) == [3, 7]

    def test_a_name_finds_the_actor(self, context: JobContext) -> None:
        counter = context.create_actor(Counter, name="found")
        context.get(counter.increment())
        assert context.get(context.get_actor("found").increment()) == 2

    def test_a_second_actor_of_a_name_is_refused(self, context: JobContext) -> None:
        keep = context.create_actor(Counter, name="taken")
        with pytest.raises(ActorAlreadyExistsError, match="taken") as caught:
            context.create_actor(Counter, name="taken")
        assert isinstance(caught.value, ValueError)
        assert context.get(keep.value()) == 0

    def test_get_if_exists_shares_the_living_actor(self, context: JobContext) -> None:
        first = context.create_actor(Counter, name="shared", get_if_exists=True)
        context.get(first.increment())
        second = context.create_actor(Counter, name="shared", get_if_exists=True)
        assert context.get(second.increment()) == 2

    def test_an_unknown_name_is_not_found(self, context: JobContext) -> None:
        with pytest.raises(ActorNotFoundError, match="nobody") as caught:
            context.get_actor("nobody")
        assert isinstance(caught.value, ValueError)

    def test_options_say_the_same_as_keywords_and_keywords_win(self, context: JobContext) -> None:
        options = ActorOptions(
            name="by-options",
            get_if_exists=True,
            lifetime=Lifetime.JOB,
            resources={"CPU": 0},
            preemptible=True,
        )
        keep = context.create_actor(Counter, options=options)
        assert context.get(context.get_actor("by-options").value()) == 0
        other = context.create_actor(Counter, 9, name="by-keyword", num_cpus=0, options=options)
        assert context.get([context.get_actor("by-keyword").value(), other.value(), keep.value()]) == [
            9,
            9,
            0,
        ]

    @pytest.mark.parametrize(
        "wrong",
        [{"lifetime": "for ever"}, {"name": ""}, {"get_if_exists": True}, {"num_cpus": -1}],
        ids=lambda wrong: next(iter(wrong)),
    )
    def test_a_wrong_option_is_refused_at_once(self, context: JobContext, wrong: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}|CPU"):
            context.create_actor(Counter, **wrong)  # type: ignore[arg-type]

    def test_a_killed_actor_is_dead_and_its_name_free(self, context: JobContext) -> None:
        counter = context.create_actor(Counter, 5, name="mortal")
        assert context.get(counter.value()) == 5
        context.kill(counter)
        with pytest.raises(ActorDiedError, match="mortal"):
            context.get(counter.value())
        again = context.create_actor(Counter, name="mortal")
        assert context.get(again.value()) == 0

    def test_a_constructor_that_raises_leaves_a_dead_actor_with_the_reason(self, context: JobContext) -> None:
        counter = context.create_actor(Counter, -1)
        with pytest.raises(ActorDiedError, match="cannot start at -1"):
            context.get(counter.value())

    def test_a_detached_actor_outlives_its_context(self, spec: str) -> None:
        with create_context(spec) as first:
            if not self.can.detached_actors:
                with self.refuses("detached"):
                    first.create_actor(Counter, lifetime="detached")
                return
            counter = first.create_actor(Counter, name="survivor", lifetime="detached")
            assert first.get(counter.increment()) == 1
        with create_context(spec) as second:
            found = second.get_actor("survivor")
            assert second.get(found.increment()) == 2
            second.kill(found)
            with pytest.raises(ActorDiedError):
                second.get(found.value())

    def test_a_method_that_is_none_is_an_attribute_error_at_once(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        with pytest.raises(AttributeError, match=r"incremen.*increment"):
            counter.incremen()
        assert not hasattr(counter, "__len__")
