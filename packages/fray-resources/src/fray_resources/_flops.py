"""Peak rates of one chip, dense (no sparsity), in operations per second.

Each row says where its figures are from. Datasheets of NVIDIA print many figures "with sparsity";
the rows hold half of those. Where a datasheet tells two accumulators apart, the row has the
figure with fp32 accumulation, which training uses; `fp32` is that of the ordinary cores. A dtype
that a source does not mention is left out.
"""

from __future__ import annotations

from fray_resources._errors import did_you_mean, invalid


class Peak:
    """The rates of one chip by dtype, and where they are from."""

    def __init__(self, source: str, *, half: float | None = None, **tera: float) -> None:
        """Take rates in units of 10^12 per second; `half` is that of both bf16 and fp16."""
        if half is not None:
            tera |= {"bf16": half, "fp16": half}
        self.source = source
        # Rounded, for 989.4 * 1e12 need not be a whole number in binary.
        self.rates = {dtype: float(round(rate * 1e12)) for dtype, rate in tera.items()}


_CLOUD = "Google Cloud TPU documentation, page "
_HALVED = " datasheet, figures with sparsity / 2"
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper, "
_ADA = "NVIDIA Ada GPU architecture whitepaper, "
_RTX50 = "NVIDIA RTX Blackwell GPU architecture whitepaper, "
_HOPPER = "NVIDIA H100 GPU architecture whitepaper, SXM5, dense"

# By what a TPU type starts with.
TPU_PEAKS = {
    "v2": Peak("Google, Cloud TPU v2: 180 TFLOPS for a board of 4 chips", bf16=45),
    "v3": Peak(_CLOUD + '"TPU v3"', bf16=123),
    "v4": Peak(_CLOUD + '"TPU v4"', bf16=275, int8=275),
    "v5litepod": Peak(_CLOUD + '"TPU v5e"', bf16=197, int8=393),
    "v5p": Peak(_CLOUD + '"TPU v5p"', bf16=459, fp8=459),
    "v6e": Peak(_CLOUD + '"TPU v6e"; fp8 from page "TPU7x"', bf16=918, fp8=918, int8=1836),
    "v7x": Peak(_CLOUD + '"TPU7x"', bf16=2307, fp8=4614),
}

# By canonical GPU type. A type without a row may be asked for, but its rates are not known.
GPU_PEAKS = {
    "P4": Peak("NVIDIA Tesla P4 datasheet", fp32=5.5, int8=22),
    "P100": Peak("NVIDIA Tesla P100 datasheet, SXM2", fp32=10.6, fp16=21.2),
    "V100": Peak("NVIDIA V100 datasheet, SXM2", fp32=15.7, fp16=125),
    "T4": Peak("NVIDIA T4 datasheet", fp32=8.1, fp16=65, int8=130),
    "A10": Peak("NVIDIA A10 datasheet", fp32=31.2, tf32=62.5, half=125, int8=250),
    "A10G": Peak("NVIDIA A10G datasheet", fp32=35, tf32=35, half=70, int8=140),
    "A30": Peak("NVIDIA A30 datasheet", fp32=10.3, tf32=82, half=165, int8=330),
    "A40": Peak("NVIDIA A40 datasheet", fp32=37.4, tf32=74.8, half=149.7, int8=299.3),
    "A100": Peak("NVIDIA A100 datasheet", fp32=19.5, tf32=156, half=312, int8=624),
    "A100-40G": Peak("NVIDIA A100 datasheet", fp32=19.5, tf32=156, half=312, int8=624),
    "A100-80G": Peak("NVIDIA A100 80GB datasheet", fp32=19.5, tf32=156, half=312, int8=624),
    "L4": Peak("NVIDIA L4" + _HALVED, fp32=30.3, tf32=60, half=121, fp8=242.5, int8=242.5),
    "L40": Peak("NVIDIA L40 datasheet", fp32=90.5, tf32=90.5, half=181.05, fp8=362, int8=362),
    "L40S": Peak("NVIDIA L40S datasheet", fp32=91.6, tf32=183, half=362.05, fp8=733, int8=733),
    "H100": Peak(_HOPPER, fp32=66.9, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    # The H200 datasheet prints the rates of the H100; these are its unrounded ones.
    "H200": Peak(_HOPPER, fp32=66.9, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    "B200": Peak("NVIDIA HGX B200" + _HALVED, fp32=75, tf32=1100, half=2250, fp8=4500, int8=4500, fp4=9000),
    # One GPU of a board of 8; the published figures for fp4 and int8 contradict each other.
    "B300": Peak("NVIDIA HGX B300" + _HALVED, fp32=75, tf32=1125, half=2250, fp8=4500),
    # One GPU of the two on a superchip.
    "GB200": Peak(
        "NVIDIA GB200 NVL72" + _HALVED, fp32=80, tf32=1250, half=2500, fp8=5000, int8=5000, fp4=10000
    ),
    "RTX-3090": Peak(_GA102 + "GeForce RTX 3090", fp32=35.6, tf32=35.6, half=71, int8=284),
    "RTX-A6000": Peak(_GA102 + "RTX A6000", fp32=38.7, tf32=77.4, half=154.8, int8=309.7),
    "RTX-4090": Peak(_ADA + "GeForce RTX 4090", fp32=82.6, tf32=82.6, half=165.2, fp8=330.3, int8=660.6),
    "RTX-6000-ADA": Peak("NVIDIA RTX 6000 Ada" + _HALVED, fp32=91.1, fp8=728.5),
    "RTX-5090": Peak(
        _RTX50 + "GeForce RTX 5090", fp32=104.8, tf32=104.8, half=209.5, fp8=419, int8=838, fp4=1676
    ),
    "MI250X": Peak("AMD Instinct MI250X datasheet", fp32=47.9, half=383, int8=383),
    "MI300X": Peak(
        "AMD Instinct MI300X datasheet", fp32=163.4, tf32=653.7, half=1307.4, fp8=2614.9, int8=2614.9
    ),
    "MI325X": Peak(
        "AMD Instinct MI325X datasheet", fp32=163.4, tf32=653.7, half=1307.4, fp8=2614.9, int8=2614.9
    ),
    "MI350X": Peak("AMD Instinct MI350X datasheet", half=2306.9, fp8=4613.7),
    "MI355X": Peak("AMD Instinct MI355X datasheet", half=2516.6, fp8=5033.2),
}

_DTYPE_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16 half f16",
    "fp32": "float32 float f32",
    "tf32": "tensorfloat32",
    "fp8": "float8 float8_e4m3 float8_e4m3fn float8_e5m2 f8",
    "fp4": "float4 float4_e2m1fn nvfp4 mxfp4 f4",
    "int8": "i8 s8",
}
_CANONICAL = {alias: dtype for dtype, aliases in _DTYPE_NAMES.items() for alias in (dtype, *aliases.split())}


def rate(device: str, peak: Peak | None, dtype: object) -> float:
    """Look up the peak of `device` for a dtype given by any of its names.

    Raises:
        ValueError: No figure is known; the message lists the dtypes that have one.
    """
    if peak is None:
        raise ValueError(f"no peak rate is known for {device}, asked for with dtype {dtype!r}")
    key = dtype.strip().lower() if isinstance(dtype, str) else ""
    canonical = _CANONICAL.get(key, key)
    if canonical not in peak.rates:
        known = ", ".join(sorted(peak.rates))
        raise invalid("dtype", f"one of {known} for {device}", dtype, did_you_mean(key, peak.rates))
    return peak.rates[canonical]
