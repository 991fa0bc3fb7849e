"""ResourceConfig and the devices as values."""

import copy
import dataclasses
import json
import pickle
from operator import methodcaller
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fray_resources import (
    CpuConfig,
    DeviceConfig,
    GpuConfig,
    ResourceConfig,
    TpuConfig,
    gpu_types,
    tpu_topologies,
    tpu_types,
)


@st.composite
def tpus(draw: st.DrawFn) -> TpuConfig:
    name = draw(st.sampled_from(tpu_types()))
    return TpuConfig(name, topology=draw(st.none() | st.sampled_from(tpu_topologies(name))))


DEVICES: st.SearchStrategy[DeviceConfig] = st.one_of(
    st.just(CpuConfig()),
    st.builds(GpuConfig, st.sampled_from(gpu_types()), st.integers(1, 16)),
    tpus(),
)
CONFIGS = st.builds(
    ResourceConfig,
    cpu=st.integers(1, 512) | st.floats(0.001, 512),
    ram=st.integers(1, 2**50),
    disk=st.sampled_from(["1g", "16GB", "0.5t", "100"]),
    device=DEVICES,
    replicas=st.integers(1, 100) | st.lists(st.integers(1, 9), min_size=1, unique=True),
    preemptible=st.booleans(),
    regions=st.none() | st.lists(st.sampled_from(["eu-west4", "us-east1", "us-west4"]), min_size=1),
)


@given(CONFIGS)
def test_a_config_survives_json_and_pickle(config: ResourceConfig) -> None:
    data = json.loads(json.dumps(config.to_dict()))
    for copied in (ResourceConfig.from_dict(data), pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert copied == config
        assert hash(copied) == hash(config)
        assert repr(copied) == repr(config)


@given(DEVICES)
def test_a_device_survives_json_and_pickle(device: DeviceConfig) -> None:
    data = json.loads(json.dumps(device.to_dict()))
    assert type(device).from_dict(data) == pickle.loads(pickle.dumps(device)) == device


@given(CONFIGS)
def test_a_printed_config_is_the_call_that_makes_it(config: ResourceConfig) -> None:
    assert eval(repr(config)) == config


@given(CONFIGS, CONFIGS)
def test_configs_are_equal_exactly_when_their_data_is(one: ResourceConfig, other: ResourceConfig) -> None:
    assert (one == other) == (one.to_dict() == other.to_dict())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"ram": "1024m"}, {"ram": "1g"}),
        ({"ram": "1"}, {"ram": 2**30}),
        ({"disk": "16"}, {}),
        ({"cpu": 1.0}, {"cpu": 1}),
        ({"device": TpuConfig("v5e-16")}, {"device": TpuConfig("v5litepod-16")}),
        ({"device": GpuConfig("nvidia-h100")}, {"device": GpuConfig("H100", 1)}),
        ({"regions": ["a", "b", "a"]}, {"regions": ("a", "b")}),
        ({"regions": set("abcdefgh")}, {"regions": iter("abcdefgh")}),
        ({"regions": frozenset("abcdefgh")}, {"regions": list("abcdefgh")}),
        ({"replicas": [4, 2]}, {"replicas": (4, 2)}),
        ({"replicas": (2,)}, {"replicas": 2}),
    ],
)
def test_what_means_the_same_is_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = ResourceConfig(**one), ResourceConfig(**other)
    assert first == second
    assert len({first, second}) == 1
    assert repr(first) == repr(second)


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": 2},
        {"ram": "2g"},
        {"disk": "17g"},
        {"device": GpuConfig("H100")},
        {"replicas": 2},
        {"preemptible": False},
        {"regions": ["eu-west4"]},
    ],
    ids=str,
)
def test_every_field_counts_and_can_be_replaced(change: dict[str, Any]) -> None:
    changed = dataclasses.replace(ResourceConfig(), **change)
    assert changed == ResourceConfig(**change)
    assert changed != ResourceConfig()
    assert ResourceConfig.from_dict(changed.to_dict()) == changed


def test_fields_are_kept_in_canonical_form() -> None:
    config = ResourceConfig(cpu=2.0, ram="1024m", disk="1.5TiB", replicas=[4, 2], regions=["eu-west4"])
    assert (config.cpu, config.ram, config.disk) == (2, "1g", "1536g")
    assert (config.ram_bytes, config.disk_bytes) == (2**30, 1536 * 2**30)
    assert (config.replicas, config.regions) == ((4, 2), ("eu-west4",))
    assert isinstance(config.cpu, int)


def test_the_defaults_are_one_small_preemptible_cpu_replica() -> None:
    config = ResourceConfig()
    assert config == ResourceConfig(
        cpu=1, ram="1g", disk="16g", device=CpuConfig(), replicas=1, preemptible=True, regions=None
    )
    assert (config.device.kind, config.device.chips) == ("cpu", 0)


@pytest.mark.parametrize(
    "value", [ResourceConfig(), CpuConfig(), GpuConfig("H100"), TpuConfig("v4-8")], ids=repr
)
def test_values_refuse_changes(value: object) -> None:
    for name in ("cpu", "type", "count", "brand_new"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(value, name)


def test_values_have_the_manners_of_dataclasses() -> None:
    config = ResourceConfig.with_gpu("H100", 8)
    assert [(field.name, field.default) for field in dataclasses.fields(config)][:3] == [
        ("cpu", 1),
        ("ram", "1g"),
        ("disk", "16g"),
    ]
    assert dataclasses.asdict(config)["device"] == {"type": "H100", "count": 8}
    assert [field.name for field in dataclasses.fields(TpuConfig)] == ["type", "count", "topology"]
    # What copy.replace of Python 3.13 calls.
    assert methodcaller("__replace__", cpu=2)(config) == dataclasses.replace(config, cpu=2)
    match config.device:
        case GpuConfig(name, count):
            assert (name, count) == ("H100", 8)


def test_values_of_different_kinds_differ() -> None:
    assert CpuConfig() == CpuConfig()
    others: list[object] = [ResourceConfig(), GpuConfig("H100"), (), None]
    assert CpuConfig() not in others


def test_shorthands_pass_further_fields_on() -> None:
    assert ResourceConfig.with_tpu(
        "v5litepod-16", slices=2, cpu=96, ram="512g", regions=["a"]
    ) == ResourceConfig(cpu=96, ram="512g", device=TpuConfig("v5litepod-16"), replicas=2, regions=["a"])
    assert ResourceConfig.with_tpu("v5e-16", count=8, topology="2x8", preemptible=False) == ResourceConfig(
        device=TpuConfig("v5e-16", 8, "2x8"), preemptible=False
    )
    assert ResourceConfig.with_gpu("H100", 8, replicas=3) == ResourceConfig(
        device=GpuConfig("H100", 8), replicas=3
    )
    assert ResourceConfig.with_cpu(cpu=0.5, disk="1t") == ResourceConfig(cpu=0.5, disk="1t")


def test_slices_and_replicas_are_two_names_of_one_thing() -> None:
    assert ResourceConfig.with_tpu("v4-8", replicas=[2, 4]) == ResourceConfig.with_tpu("v4-8", slices=(2, 4))
    assert ResourceConfig.with_tpu("v4-8", 2, replicas=2).replicas == 2
    with pytest.raises(ValueError, match=r"^replicas must be .* slices \(2\), got 3"):
        ResourceConfig.with_tpu("v4-8", 2, replicas=3)
    with pytest.raises(ValueError, match=r"^replicas must be a whole number of 1 or more, got 0"):
        ResourceConfig.with_tpu("v4-8", slices=0)
    with pytest.raises(ValueError, match=r"^slice_count must be left out or the same as slices \(2\), got 3"):
        ResourceConfig.with_tpu("v4-8", 2, slice_count=3)
    assert ResourceConfig.with_tpu("v4-128", slice_count=4) == ResourceConfig.with_tpu("v4-128", slices=4)


def test_types_have_longer_names() -> None:
    assert ResourceConfig.with_tpu(tpu_type="v5e-16") == ResourceConfig.with_tpu("v5litepod-16")
    assert ResourceConfig.with_gpu(gpu_type="H100", count=8) == ResourceConfig.with_gpu("H100", 8)
    with pytest.raises(ValueError, match=r"^tpu_type must be left out or the same as type \('v4-8'\)"):
        ResourceConfig.with_tpu("v4-8", tpu_type="v4-16")
    with pytest.raises(ValueError, match=r"^type must be a TPU type such as .*, got None"):
        ResourceConfig.with_tpu(slices=2)


WRONG: dict[str, list[object]] = {
    "cpu": [0, -1, 0.0, float("nan"), float("inf"), True, "2", None],
    "replicas": [0, -1, 1.0, True, "2", None, (), [], (2, 2), (2, 0), (1, "2"), {1, 2}],
    "preemptible": [1, 0, None, "yes"],
    "regions": ["eu-west4", "", [], [""], [" "], [None], ["a", 1], 4],
    "device": [None, "H100", "v5e-16", CpuConfig, {"kind": "cpu"}],
}


@pytest.mark.parametrize(("field", "wrong"), [(field, wrong) for field in WRONG for wrong in WRONG[field]])
def test_a_wrong_field_is_named_with_its_value(field: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be"):
        ResourceConfig(**{field: wrong})


def test_a_missing_field_has_its_default_in_a_dict() -> None:
    assert ResourceConfig.from_dict({}) == ResourceConfig()
    assert ResourceConfig.from_dict({"device": {"kind": "tpu", "type": "v5e-4"}}) == ResourceConfig.with_tpu(
        "v5e-4"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"rams": "1g"}, "got 'rams'; did you mean 'ram'"),
        ({1: "1g"}, "a key of ResourceConfig must be one of cpu, ram"),
        ([], "the data of a ResourceConfig must be a dict"),
        ({"ram": "x"}, "^ram must be"),
        ({"device": "H100"}, "^device must be a dict whose 'kind' is one of 'cpu', 'gpu', 'tpu'"),
        ({"device": {"type": "H100"}}, "^device must be"),
        ({"device": {"kind": ["gpu"]}}, "^device must be"),
        ({"device": {"kind": "gpu"}}, "must have a 'type'"),
        ({"device": {"kind": "gpu", "type": "H100", "topology": "2x2"}}, "a key of GpuConfig must be"),
    ],
)
def test_wrong_data_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResourceConfig.from_dict(data)


def test_a_device_refuses_the_data_of_another_kind() -> None:
    with pytest.raises(ValueError, match=r"^kind must be 'tpu' for a TpuConfig, got 'gpu'"):
        TpuConfig.from_dict(GpuConfig("H100").to_dict())


def test_the_calls_of_the_first_documents_run() -> None:
    training = ResourceConfig(cpu=96, ram="512g", device=TpuConfig(type="v5e-16", count=8))
    assert training.device == TpuConfig("v5litepod-16", 8)
    inference = ResourceConfig(
        cpu=1,
        ram="16",
        disk="10g",
        device=TpuConfig(type="v5litepod-4"),
        replicas=1,
        regions=["eu-west4"],
    )
    assert (inference.ram_bytes, inference.regions) == (16 * 2**30, ("eu-west4",))
    assert ResourceConfig(replicas=1) == ResourceConfig()
