"""GPU types, and peak rates of everything."""

import pytest

from fray_resources import GpuConfig, ResourceConfig, TpuConfig, gpu_types, tpu_types

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
    ("wrong", "close"), [("H10", "H100"), ("A100-80GB", "A100-80G"), ("rtx 4091", "RTX-4090")]
)
def test_a_wrong_gpu_type_is_answered_with_the_close_one_and_all_there_are(wrong: str, close: str) -> None:
    with pytest.raises(ValueError, match=rf"^type must be .*did you mean '{close}'") as caught:
        GpuConfig(wrong)
    assert all(name in str(caught.value) for name in (repr(wrong), *gpu_types()))


@pytest.mark.parametrize("wrong", ["", "v5e-16", None, 100])
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
        (GpuConfig("MI300X"), "bf16", 1307.4e12),
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
