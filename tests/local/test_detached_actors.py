"""Detached actors of one process: which of them live on while others come and go."""

import gc
import weakref
from typing import Any

import pytest

from fray import ActorDiedError, create_context, get_job_context
from fray.testing.gates import until
from fray.testing.tasks import Counter

SPECS = pytest.mark.parametrize("spec", ["sync", "threadpool"])


class Replacing:
    """Kills the actor that it replaces."""

    def __init__(self, old: str) -> None:
        context = get_job_context()
        context.kill(context.get_actor(old))

    def answer(self) -> int:
        return 42


class Parent:
    def make(self, name: str) -> None:
        get_job_context().create_actor(Counter, name=name, lifetime="detached")


class KillsWhenPickled:
    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __reduce__(self) -> tuple[Any, ...]:
        get_job_context().kill(self.actor)
        return int, (3,)


@SPECS
def test_a_detached_actor_lives_whose_constructor_kills_the_only_other_one(spec: str) -> None:
    with create_context(spec, namespace="replacing") as context:
        context.create_actor(Counter, name="old", lifetime="detached")
        new = context.create_actor(Replacing, "old", name="new", lifetime="detached")
        try:
            assert context.get(new.answer(), timeout=60) == 42
        finally:
            context.kill(new)


@SPECS
def test_a_detached_actor_lives_that_one_made_which_has_ended(spec: str) -> None:
    with create_context(spec, namespace="parents") as context:
        parent = context.create_actor(Parent, name="parent", lifetime="detached")
        context.get(parent.make("child"), timeout=60)
        context.kill(parent)
        child = context.get_actor("child")
        try:
            assert context.get(child.increment(), timeout=60) == 1
        finally:
            context.kill(child)


@SPECS
def test_a_detached_actor_can_be_made_while_the_last_other_one_ends(spec: str) -> None:
    with create_context(spec, namespace="ending", check_serialization=True) as context:
        old = context.create_actor(Counter, name="old", lifetime="detached")
        # Its arguments are pickled after the place where it is to live was chosen.
        new = context.create_actor(Counter, KillsWhenPickled(old), name="new", lifetime="detached")
        try:
            assert context.get(new.increment(), timeout=60) == 4
        finally:
            context.kill(new)


@SPECS
def test_nothing_of_a_dead_detached_actor_is_kept_while_another_lives(spec: str) -> None:
    class Argument:
        pass

    class Failing:
        def __init__(self, argument: Argument) -> None:
            raise ValueError("no")

        def answer(self) -> None:
            pass

    def fail() -> "weakref.ref[Argument]":
        argument = Argument()
        actor = context.create_actor(Failing, argument, name="failing", lifetime="detached")
        with pytest.raises(ActorDiedError):
            context.get(actor.answer(), timeout=60)
        return weakref.ref(argument)

    def freed() -> bool:
        gc.collect()
        return argument() is None

    with create_context(spec, namespace="kept") as context:
        other = context.create_actor(Counter, name="other", lifetime="detached")
        try:
            argument = fail()
            until(freed, "the argument of the dead actor is freed", 60)
        finally:
            context.kill(other)


@SPECS
def test_detached_actors_that_were_found_by_their_name_leave_nothing_behind(spec: str) -> None:
    with create_context(spec, namespace="found") as context:
        for _ in range(2):
            made, found = (
                context.create_actor(Counter, name="counter", lifetime="detached", get_if_exists=True)
                for _ in range(2)
            )
            assert context.get([made.increment(), found.increment()], timeout=60) == [1, 2]
            context.kill(found)
