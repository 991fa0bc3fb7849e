"""What a context of processes has for its tasks is counted, in fractions, too."""

import atexit
import os
from pathlib import Path

import pytest

from fray import RuntimeEnv, TaskOptions, UnsupportedError, create_context, get_job_context
from fray.testing import tasks
from fray.testing.gates import Gate, until


@pytest.mark.timeout(60)
def test_fractions_of_a_cpu_come_out_even(tmp_path: Path) -> None:
    """Of 1 CPU without 0.3 and 0.1, with 0.3 again and 0.1 again, binary fractions leave less than 1."""
    gates = [Gate(tmp_path / name) for name in ("first", "second")]
    with create_context("process", max_workers=1, resources={"licence": 0.4}) as context:
        refs = [
            context.create_task(gate.wait, options=TaskOptions(resources={"CPU": part, "licence": part}))
            for gate, part in zip(gates, (0.3, 0.1), strict=True)
        ]
        for gate, ref in zip(gates, refs, strict=True):
            gate.open()
            context.get(ref)
        assert context.get(context.run(abs, -1), timeout=30) == 1
        all_of_it = TaskOptions(resources={"licence": 0.4})
        assert context.get(context.create_task(tasks.add, 1, options=all_of_it), timeout=30) == 2


@pytest.mark.parametrize("name", ["CPU", "GPU", "memory"])
def test_what_the_machine_has_is_not_for_the_option(name: str) -> None:
    with pytest.raises(ValueError, match=f"got '{name}': max_workers"):
        create_context("process", resources={name: 2})


@pytest.mark.parametrize("amount", ["2", -1, float("inf"), True])
def test_an_amount_that_is_none_is_refused(amount: object) -> None:
    with pytest.raises(ValueError, match=r"resources\['licence'\] must be a number of 0 or more"):
        create_context("process", resources={"licence": amount})


@pytest.mark.timeout(60)
def test_a_gpu_is_given_on_when_the_process_that_had_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Gate(tmp_path / "taken")

    def leave_late() -> tuple[int, str]:
        atexit.register(taken.wait)  # as the end of CUDA takes a while; a worker waits 3 s for it
        return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]

    def take(pid: int) -> tuple[bool, str]:
        taken.open()
        return Path(f"/proc/{pid}").exists(), os.environ["CUDA_VISIBLE_DEVICES"]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with create_context("process", max_workers=1) as context:
        gpu = TaskOptions(resources={"GPU": 1})
        pid, device = context.get(context.create_task(leave_late, options=gpu))
        later = context.create_task(take, pid, options=gpu)
        assert context.get(context.run(abs, -1)) == 1  # which needs its CPU only
        assert (device, context.get(later)) == ("5", (False, "5"))


@pytest.mark.timeout(60)
def test_inside_a_job_only_the_gpus_of_the_job_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_LOCAL_GPUS", "0,1,2,3")  # of the machine
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with create_context("process", max_workers=1) as context:
        task = context.create_task(
            os.getenv, "CUDA_VISIBLE_DEVICES", options=TaskOptions(resources={"GPU": 1})
        )
        assert context.get(task) == "2"
        with pytest.raises(UnsupportedError, match=r"asks for GPU=2 and this context has .*GPU=1"):
            context.create_task(abs, -1, options=TaskOptions(resources={"GPU": 2}))


@pytest.mark.timeout(60)
def test_no_idle_worker_stays_for_each_environment() -> None:
    with create_context("process", max_workers=1) as context:
        pids = [
            context.get(context.create_task(os.getpid, options=TaskOptions(runtime_env=RuntimeEnv(env=env))))
            for env in ({"SEED": str(seed)} for seed in range(6))
        ]
        assert len(set(pids)) == 6
        # In less than the 5 s for which any worker beyond `max_workers` is kept.
        until(lambda: sum(Path(f"/proc/{pid}").exists() for pid in pids) == 1, "all but the last end", 4)


@pytest.mark.timeout(60)
def test_a_task_that_needs_all_of_a_resource_comes_before_younger_ones(tmp_path: Path) -> None:
    def hold(begun: Gate, gate: Gate) -> None:
        begun.open()
        gate.wait()

    names = ("begun-0", "begun-1", "gate-0", "gate-1")
    begun_0, begun_1, gate_0, gate_1 = (Gate(tmp_path / name) for name in names)
    part, all_of_it = TaskOptions(resources={"licence": 1}), TaskOptions(resources={"licence": 2})
    with create_context("process", max_workers=4, resources={"licence": 2}) as context:
        held = [
            context.create_task(hold, begun, gate, options=part)
            for begun, gate in ((begun_0, gate_0), (begun_1, gate_1))
        ]
        begun_0.wait()
        begun_1.wait()
        order = tmp_path / "order"

        def note(name: str) -> None:
            with order.open("a") as file:
                file.write(name)

        later = [
            context.create_task(note, "a", options=all_of_it),
            context.create_task(note, "y", options=part),
        ]
        gate_0.open()
        context.get(held[0])
        context.get(context.run(abs, -1))
        gate_1.open()
        context.get(later)
        assert order.read_text() == "ay"


@pytest.mark.timeout(60)
def test_a_task_that_a_holder_waits_for_does_not_wait_for_an_older_one_that_needs_more(
    tmp_path: Path,
) -> None:
    begun, older = Gate(tmp_path / "begun"), Gate(tmp_path / "older")
    part = TaskOptions(resources={"licence": 1})

    def outer() -> int:
        begun.open()
        older.wait()
        mine = get_job_context()
        return mine.get(mine.create_task(tasks.add, 1, 2, options=part))

    with create_context("process", max_workers=2, resources={"licence": 2}) as context:
        holder = context.create_task(outer, options=part)
        begun.wait()
        waiting = context.create_task(tasks.add, 1, 1, options=TaskOptions(resources={"licence": 2}))
        older.open()
        assert context.get([holder, waiting]) == [3, 2]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["CPU", "licence"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cancelled_task_holds_no_younger_one_up(tmp_path: Path, name: str, when: str) -> None:
    gate = Gate(tmp_path / "gate")
    part, all_of_it = (TaskOptions(resources={name: amount}) for amount in (1, 2))
    with create_context("process", max_workers=2, resources={"licence": 2}) as context:
        held = context.create_task(gate.wait, options=part)
        wide = context.create_task(tasks.add, 1, 1, options=all_of_it)
        if when == "before":
            assert context.cancel(wide)
        younger = context.create_task(tasks.add, 1, 2, options=part)
        if when == "after":
            assert context.wait([younger], timeout=0.1) == ([], [younger])
            assert context.cancel(wide)
        try:
            assert context.get(younger, timeout=30) == 3
            assert context.wait([held], timeout=0) == ([], [held])
        finally:
            gate.open()


@pytest.mark.timeout(60)
def test_a_task_without_cpus_starts_while_another_waits_for_one(tmp_path: Path) -> None:
    gate, other = Gate(tmp_path / "gate"), Gate(tmp_path / "other")
    none = TaskOptions(resources={"CPU": 0})
    with create_context("process", max_workers=1) as context:
        held, waiting = context.create_task(gate.wait), context.create_task(gate.wait)
        try:
            first = context.create_task(other.wait, options=none)
            assert context.get(context.create_task(tasks.add, 1, 1, options=none), timeout=30) == 2
            assert context.wait([held, waiting, first], timeout=0)[0] == []
        finally:
            gate.open()
            other.open()
