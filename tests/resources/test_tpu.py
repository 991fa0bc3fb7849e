"""TPU types: chips, hosts, topologies."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fray_resources import TpuConfig, tpu_topologies, tpu_types

TYPES = st.sampled_from(tpu_types())


@pytest.mark.parametrize(
    ("name", "chips", "hosts", "chips_per_host", "topology"),
    [
        ("v2-8", 4, 1, 4, "2x2"),
        ("v2-32", 16, 4, 4, "4x4"),
        ("v3-64", 32, 8, 4, "4x8"),
        ("v3-2048", 1024, 256, 4, "32x32"),
        ("v4-8", 4, 1, 4, "2x2x1"),
        ("v4-16", 8, 2, 4, "2x2x2"),
        ("v4-32", 16, 4, 4, "2x2x4"),
        ("v4-64", 32, 8, 4, "2x4x4"),
        ("v4-128", 64, 16, 4, "4x4x4"),
        ("v4-1024", 512, 128, 4, "8x8x8"),
        ("v4-8192", 4096, 1024, 4, "16x16x16"),
        ("v5litepod-1", 1, 1, 1, "1x1"),
        ("v5litepod-4", 4, 1, 4, "2x2"),
        ("v5litepod-8", 8, 1, 8, "2x4"),
        ("v5litepod-16", 16, 4, 4, "4x4"),
        ("v5litepod-256", 256, 64, 4, "16x16"),
        ("v5p-8", 4, 1, 4, "2x2x1"),
        ("v5p-4096", 2048, 512, 4, "8x16x16"),
        ("v5p-12288", 6144, 1536, 4, "16x16x24"),
        ("v6e-8", 8, 1, 8, "2x4"),
        ("v6e-32", 32, 8, 4, "4x8"),
        ("v7x-8", 4, 1, 4, "2x2x1"),
        ("v7x-4096", 2048, 512, 4, "8x16x16"),
    ],
)
def test_a_type_has_the_documented_chips_hosts_and_topology(
    name: str, chips: int, hosts: int, chips_per_host: int, topology: str
) -> None:
    tpu = TpuConfig(name)
    assert (tpu.type, tpu.chips, tpu.hosts, tpu.topology) == (name, chips, hosts, topology)
    assert tpu.chips_per_host == tpu.count == chips_per_host


@given(TYPES)
def test_the_facts_of_every_type_agree_with_each_other(name: str) -> None:
    tpu = TpuConfig(name)
    assert tpu.type == name
    assert tpu.hosts * tpu.chips_per_host == tpu.chips
    assert tpu_topologies(name)[0] == tpu.topology
    for topology in tpu_topologies(name):
        assert prod(int(side) for side in topology.split("x")) == tpu.chips
        assert topology.count("x") == (2 if tpu.generation in {"v4", "v5p", "v7x"} else 1)


@given(TYPES)
def test_any_topology_of_a_type_is_accepted_whatever_the_order_of_its_sides(name: str) -> None:
    for topology in tpu_topologies(name):
        turned = "X".join(reversed(topology.split("x")))
        assert TpuConfig(name, topology=f" {turned} ").topology == topology


def test_v5e_is_v5litepod_and_tpu7x_is_v7x_in_any_case() -> None:
    assert TpuConfig("v5e-16") == TpuConfig("v5litepod-16") == TpuConfig(" V5E-16")
    assert TpuConfig("tpu7x-8") == TpuConfig("v7x-8")
    assert tpu_types("v5e") == tpu_types("V5litepod")


def test_what_is_left_out_is_what_the_type_has() -> None:
    assert TpuConfig("v5e-16") == TpuConfig("v5e-16", 4, "4x4")
    assert TpuConfig("v5e-16") != TpuConfig("v5e-16", topology="2x8")


def test_the_count_decides_how_many_hosts_there_are() -> None:
    assert TpuConfig(type="v5e-16", count=8).hosts == 2
    assert TpuConfig(type="v6e-8", count=4).hosts == 2
    assert TpuConfig(type="v6e-8", count=8).hosts == 1


@pytest.mark.parametrize(
    ("name", "count"),
    [("v5e-16", 3), ("v5e-16", 16), ("v5e-16", 1), ("v4-16", 8), ("v5e-4", 8), ("v5e-16", 0), ("v5e-16", -4)],
)
def test_a_count_that_no_host_of_the_type_has_is_refused(name: str, count: int) -> None:
    with pytest.raises(ValueError, match=rf"^count must be .*, got {count}$"):
        TpuConfig(name, count)


@pytest.mark.parametrize("count", [True, 4.0, "4"])
def test_a_count_that_is_not_an_int_is_refused(count: object) -> None:
    with pytest.raises(ValueError, match=r"^count must be a whole number"):
        TpuConfig("v5e-16", count)  # type: ignore[arg-type]


def test_the_message_about_a_count_says_which_are_allowed() -> None:
    with pytest.raises(ValueError, match="count must be 4 or 8, the chips on each host of a v5litepod-16"):
        TpuConfig("v5e-16", 2)


@pytest.mark.parametrize("topology", ["4x8", "4x4x1", "16", "", "ax4", "2x2x2x2", 16, ("4", "4")])
def test_a_topology_that_the_chips_cannot_have_is_refused(topology: object) -> None:
    with pytest.raises(ValueError, match=r"^topology must be '4x4' or '2x8' for v5litepod-16") as caught:
        TpuConfig("v5litepod-16", topology=topology)  # type: ignore[arg-type]
    assert repr(topology) in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "close"),
    [
        ("v5e-15", "v5e-16"),
        ("v5litepod-15", "v5litepod-16"),
        ("V5E-3", "v5e-4"),
        ("v5e-1000000", "v5e-256"),
        ("v4-4", "v4-8"),
        ("v5p-12", "v5p-16"),
        ("v5e16", "v5e-16"),
        ("v7-16", "v7x-16"),
        ("TPU-v5litepod-16", "v5litepod-16"),
    ],
)
def test_a_wrong_type_is_answered_with_the_close_one_in_the_users_spelling(wrong: str, close: str) -> None:
    with pytest.raises(ValueError, match=r"^type must be") as caught:
        TpuConfig(wrong)
    assert repr(wrong) in str(caught.value)
    assert f"did you mean '{close}'?" in str(caught.value)


@pytest.mark.parametrize(
    "wrong", ["", "v5litepod", "v5e-", "v5e-1.0", "v5e-²", "v5e-" + "9" * 5000, "H100", 16, None]
)
def test_what_is_no_type_at_all_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^type must be") as caught:
        TpuConfig(wrong)  # type: ignore[arg-type]
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["v5", "", 5])
def test_an_unknown_generation_is_answered_with_those_there_are(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^generation must be one of v2, v3, v4, v5litepod, v5p, v6e, v7x"):
        tpu_types(wrong)  # type: ignore[arg-type]
