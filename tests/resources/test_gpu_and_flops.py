"""GPU types, and peak rates of everything."""

import re

import pytest

from fray_resources import (
    CpuConfig,
    DeviceConfig,
    GpuConfig,
    ResourceConfig,
    TpuConfig,
    device_flops_for_jax_device,
    gpu_types,
    tpu_types,
)

DTYPES = ("bf16", "fp16", "fp32", "tf32", "fp8", "fp4", "int8")
FIRST_OF_EACH = [tpu_types(name)[0] for name in ("v2", "v3", "v4", "v5e", "v5p", "v6e", "v7x")]


@pytest.mark.parametrize(
    "spelling", ["RTX-4090", "rtx 4090", "RTX4090", "rtx_4090", "NVIDIA GeForce RTX 4090", " rtx-4090 "]
)
def test_a_gpu_type_may_be_spelled_in_many_ways(spelling: str) -> None:
    assert GpuConfig(spelling) == GpuConfig("RTX-4090")
    assert GpuConfig(spelling).type == "RTX-4090"


@pytest.mark.parametrize("name", gpu_types())
def test_every_listed_gpu_type_is_accepted_as_it_is(name: str) -> None:
    gpu = GpuConfig(name, 3)
    assert (gpu.type, gpu.count, gpu.chips) == (name, 3, 3)


@pytest.mark.parametrize(
    ("unknown", "close"), [("H10", "H100"), ("A100-80GB", "A100-80G"), ("rtx 4091", "RTX-4090")]
)
def test_a_gpu_type_in_no_table_may_be_asked_for_and_has_no_rate(unknown: str, close: str) -> None:
    gpu = GpuConfig(f" {unknown} ", 2)
    assert (gpu.type, gpu.variant, gpu.chips, gpu.flops_source) == (unknown, unknown, 2, None)
    with pytest.raises(ValueError, match=f"no peak rate is known for {unknown}.*did you mean '{close}'"):
        gpu.device_flops()


def test_any_gpu_may_be_asked_for() -> None:
    assert ResourceConfig.with_gpu(count=2).device == GpuConfig("any", 2)
    assert GpuConfig() == GpuConfig("auto") == GpuConfig("any", 1)
    with pytest.raises(ValueError, match="no peak rate is known for any"):
        GpuConfig().device_flops()


@pytest.mark.parametrize("wrong", ["", " - ", "nvidia", "v5e-16", "v4-8", "H\n100", None, 100])
def test_what_is_no_gpu_type_at_all_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^type must be"):
        GpuConfig(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, True, 0.5, "8", None])
def test_a_wrong_number_of_gpus_is_refused(count: object) -> None:
    with pytest.raises(ValueError, match=r"^count must be a whole number of 1 or more, got"):
        GpuConfig("H100", count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "dtype", "flops"),
    [
        (TpuConfig("v2-8"), "bf16", 45e12),
        (TpuConfig("v3-8"), "bf16", 123e12),
        (TpuConfig("v4-8"), "bf16", 275e12),
        (TpuConfig("v5e-16"), "bfloat16", 197e12),
        (TpuConfig("v5e-16"), "int8", 393e12),
        (TpuConfig("v5p-8"), "bf16", 459e12),
        (TpuConfig("v6e-8"), "BF16", 918e12),
        (TpuConfig("v7x-8"), "float8_e4m3fn", 4614e12),
        (GpuConfig("V100"), "half", 125e12),
        (GpuConfig("T4"), "int8", 130e12),
        (GpuConfig("A10G"), "bf16", 70e12),
        (GpuConfig("A100"), "bf16", 312e12),
        (GpuConfig("A100"), "tf32", 156e12),
        (GpuConfig("L4"), "bf16", 121e12),
        (GpuConfig("L40S"), "fp8", 733e12),
        (GpuConfig("H100", 8), "bf16", 989.4e12),
        (GpuConfig("H100"), "float32", 66.9e12),
        (GpuConfig("H200"), "fp8", 1978.9e12),
        (GpuConfig("B200"), "fp16", 2250e12),
        (GpuConfig("GB200"), "bf16", 2500e12),
        (GpuConfig("RTX-A6000"), "bf16", 154.8e12),
        (GpuConfig("RTX-5090"), "bf16", 209.5e12),
        (GpuConfig("MI250X"), "bf16", 191.5e12),  # one die of the two of a module
        (GpuConfig("MI300X"), "bf16", 1307.4e12),
        (GpuConfig("MI325X"), "fp8", 2610e12),
        (GpuConfig("MI355X"), "bf16", 2500e12),
    ],
)
def test_the_peak_of_one_chip_is_the_published_dense_one(
    device: GpuConfig | TpuConfig, dtype: str, flops: float
) -> None:
    assert device.device_flops(dtype) == flops
    assert ResourceConfig(device=device, replicas=3).device_flops(dtype) == flops


@pytest.mark.parametrize("device", [*map(TpuConfig, FIRST_OF_EACH), *map(GpuConfig, gpu_types())], ids=repr)
def test_every_figure_has_a_source_and_narrow_types_are_not_slower(device: GpuConfig | TpuConfig) -> None:
    rates = {}
    for dtype in DTYPES:
        try:
            rates[dtype] = device.device_flops(dtype)
        except ValueError:
            continue
    assert bool(rates) == bool(device.flops_source)
    widest_first = [rates[dtype] for dtype in ("fp32", "tf32", "fp16", "fp8", "fp4") if dtype in rates]
    assert widest_first == sorted(widest_first)
    assert all(1e12 < rate < 1e17 for rate in rates.values())


@pytest.mark.parametrize("device", [*map(TpuConfig, FIRST_OF_EACH), *map(GpuConfig, gpu_types())], ids=repr)
def test_a_source_names_a_text_of_the_maker_or_who_quotes_it(device: GpuConfig | TpuConfig) -> None:
    for part in (device.flops_source or "").split("; "):
        document = part.partition(", as quoted by ")[0]
        assert not re.search(r"datasheet|whitepaper|specifications", document) or document != part


def test_the_total_counts_all_chips_of_all_replicas() -> None:
    assert ResourceConfig.with_gpu("A100", 8, replicas=4).total_flops("bf16") == 4 * 8 * 312e12
    assert ResourceConfig.with_tpu("v5e-16", slices=2).total_flops("bf16") == 2 * 16 * 197e12
    assert ResourceConfig.with_tpu("v4-16").total_flops("bf16") == 8 * 275e12


def test_the_total_of_an_open_number_of_replicas_needs_the_number_that_runs() -> None:
    config = ResourceConfig.with_tpu("v5e-4", slices=(4, 1))
    assert config.total_flops("bf16", replicas=4) == 4 * 4 * 197e12
    for wrong in (None, 3, True):
        with pytest.raises(ValueError, match=r"^replicas must be .* 4 or 1, got"):
            config.total_flops("bf16", replicas=wrong)


@pytest.mark.parametrize("dtype", ["fp64", "", None, 16])
def test_an_unknown_dtype_is_answered_with_those_that_have_a_figure(dtype: object) -> None:
    with pytest.raises(ValueError, match=r"^dtype must be one of bf16, int8 for TPU v4, got") as caught:
        TpuConfig("v4-8").device_flops(dtype)  # type: ignore[arg-type]
    assert repr(dtype) in str(caught.value)


def test_a_cpu_and_a_gpu_without_figures_say_so() -> None:
    with pytest.raises(ValueError, match="CPU has no known peak"):
        ResourceConfig().total_flops("bf16")
    with pytest.raises(ValueError, match="no peak rate is known for H20"):
        GpuConfig("H20").device_flops("bf16")


def test_the_rate_is_that_of_bf16_unless_said() -> None:
    assert TpuConfig("v4-8").device_flops() == ResourceConfig.with_tpu("v4-8").device_flops() == 275e12
    assert ResourceConfig.with_gpu("H100", 8).total_flops() == 8 * GpuConfig("H100").device_flops("bf16")


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("TPU v2", 45e12 / 2),
        ("TPU v3", 123e12 / 2),
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5e", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("TPU7x", 2307e12 / 2),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA RTX A6000", 154.8e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("AMD Instinct MI250X", 191.5e12),
        ("AMD Instinct MI300X", 1307.4e12),
    ],
)
def test_a_device_of_jax_is_known_by_its_kind(kind: str, flops: float) -> None:
    assert device_flops_for_jax_device(kind) == flops
    assert device_flops_for_jax_device(kind.upper(), "bfloat16") == flops


@pytest.mark.parametrize(
    "kind", ["cpu", "", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D"]
)
def test_a_relative_of_a_known_device_has_no_rate(kind: str) -> None:
    assert device_flops_for_jax_device(kind) is None


def test_a_dtype_of_a_jax_device_is_checked() -> None:
    assert device_flops_for_jax_device("Tesla V100-SXM2-16GB", "bf16") is None  # it has none
    assert device_flops_for_jax_device("Tesla V100-SXM2-16GB", "fp16") == 125e12
    assert device_flops_for_jax_device("Tesla V100-PCIE-16GB", "fp16") == 112e12
    for kind in ("TPU v4", "cpu"):
        with pytest.raises(
            ValueError, match=r"^dtype must be one of bf16, .* got 'bf61'; did you mean 'bf16'"
        ):
            device_flops_for_jax_device(kind, "bf61")


def test_a_config_counts_its_chips() -> None:
    assert ResourceConfig.with_tpu("v4-128", slice_count=4).chip_count() == 4 * 64
    assert ResourceConfig.with_gpu("H100", 8, replicas=2).chip_count() == 16
    assert ResourceConfig(replicas=5).chip_count() == 0
    with pytest.raises(ValueError, match=r"^replicas must be given to chip_count as 4 or 2, got None"):
        ResourceConfig.with_tpu("v4-8", slices=(4, 2)).chip_count()
    assert ResourceConfig.with_tpu("v4-8", slices=(4, 2)).chip_count(replicas=2) == 2 * 4


def test_a_device_says_its_kind_and_its_variant() -> None:
    devices: list[DeviceConfig] = [CpuConfig(), GpuConfig("h100"), TpuConfig("v5e-16")]
    assert [(device.kind, device.variant) for device in devices] == [
        ("cpu", "cpu"),
        ("gpu", "H100"),
        ("tpu", "v5litepod-16"),
    ]
