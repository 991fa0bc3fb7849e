"""Peak rates of one chip, dense (no sparsity), in operations per second.

Each row names the document of the maker that prints its figures. Datasheets of NVIDIA print many figures
"with sparsity"; the rows hold half of those. Where a datasheet tells two accumulators apart, the row has
the figure with fp32 accumulation, which training uses; `fp32` is that of the ordinary cores. A dtype that
a source does not mention is left out.
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
_HALVED = ", figures with sparsity / 2"
_ADA = "NVIDIA Ada GPU architecture whitepaper, "
_RTX50 = "NVIDIA RTX Blackwell GPU architecture whitepaper, "
_HOPPER = "NVIDIA H100 GPU architecture whitepaper, SXM5, dense"

# By what a TPU type starts with.
TPU_PEAKS = {
    "v2": Peak("Google, announcement of Cloud TPU v2: 180 TFLOPS for a board of 4 chips", bf16=45),
    "v3": Peak(_CLOUD + '"TPU v3"', bf16=123),
    "v4": Peak(_CLOUD + '"TPU v4"', bf16=275, int8=275),
    "v5litepod": Peak(_CLOUD + '"TPU v5e"', bf16=197, int8=393),
    "v5p": Peak(_CLOUD + '"TPU7x (Ironwood)", which compares it', bf16=459, fp8=459),
    "v6e": Peak(_CLOUD + '"TPU v6e"; fp8 from page "TPU7x (Ironwood)"', bf16=918, fp8=918, int8=1836),
    "v7x": Peak(_CLOUD + '"TPU7x (Ironwood)"', bf16=2307, fp8=4614),
}

# By canonical GPU type. A type without a row may be asked for, but its rates are not known. A figure that
# two documents of the maker give differently (fp32 of the B200, say) is left out.
GPU_PEAKS = {
    "V100": Peak("NVIDIA V100 datasheet, SXM2", fp32=15.7, fp16=125),
    "T4": Peak("NVIDIA T4 datasheet", fp32=8.1, fp16=65, int8=130),
    "A10": Peak("NVIDIA A10 datasheet", fp32=31.2, half=125),
    "A10G": Peak("NVIDIA A10G datasheet", half=70),
    "A40": Peak("NVIDIA A40 datasheet", fp32=37.4, tf32=74.8, half=149.7, int8=299.3),
    "A100": Peak("NVIDIA A100 datasheet", fp32=19.5, tf32=156, half=312, int8=624),
    "A100-40G": Peak("NVIDIA A100 datasheet", fp32=19.5, tf32=156, half=312, int8=624),
    "A100-80G": Peak("NVIDIA A100 datasheet", fp32=19.5, tf32=156, half=312, int8=624),
    "L4": Peak("NVIDIA L4 datasheet" + _HALVED, tf32=60, half=121, fp8=242.5, int8=242.5),
    "L40": Peak("NVIDIA L40 datasheet", fp32=90.5, tf32=90.5, half=181.05, fp8=362, int8=362),
    "L40S": Peak("NVIDIA L40S datasheet", fp32=91.6, tf32=183, half=362.05, fp8=733, int8=733),
    "H100": Peak(_HOPPER, fp32=66.9, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    # The H200 datasheet prints the rates of the H100; these are its unrounded ones.
    "H200": Peak(_HOPPER, fp32=66.9, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    "B200": Peak("NVIDIA HGX B200 datasheet" + _HALVED, half=2250, fp8=4500, int8=4500, fp4=9000),
    # One GPU of a board of 8; the published figures for fp4 and int8 contradict each other.
    "B300": Peak("NVIDIA HGX B300 datasheet" + _HALVED, tf32=1125, half=2250, fp8=4500),
    # One GPU of the two on a superchip.
    "GB200": Peak(
        "NVIDIA GB200 NVL72 specifications" + _HALVED, tf32=1250, half=2500, fp8=5000, int8=5000, fp4=10000
    ),
    "GB300": Peak("NVIDIA GB300 NVL72 specifications" + _HALVED, tf32=1250, half=2500, fp8=5000),
    "RTX-A6000": Peak("NVIDIA RTX A6000 datasheet" + _HALVED, fp32=38.7, half=154.8),
    "RTX-4090": Peak(_ADA + "GeForce RTX 4090", fp32=82.6, tf32=82.6, half=165.2, fp8=330.3, int8=660.6),
    "RTX-5090": Peak(_RTX50 + "GeForce RTX 5090", fp32=104.8, half=209.5, fp8=419, int8=838, fp4=1676),
    "MI250X": Peak("AMD Instinct MI250X specifications", fp32=47.9, half=383, int8=383),
    "MI300X": Peak(
        "AMD Instinct MI300X specifications", fp32=163.4, tf32=653.7, half=1307.4, fp8=2614.9, int8=2614.9
    ),
    "MI325X": Peak(
        "AMD Instinct MI325X specifications", fp32=163.4, tf32=653.7, half=1307.4, fp8=2614.9, int8=2614.9
    ),
    # AMD prints 2.5 and 5 PFLOPS; these are 1024 matrix cores x 512 (fp8: 1024) FMAs at 2400 MHz.
    "MI355X": Peak("AMD Instinct MI355X specifications, unrounded", half=2516.6, fp8=5033.2),
}

# Cards of a type that are slower than the SXM modules above. Nobody can ask for one; JAX names them.
PCIE_PEAKS = {
    "V100": Peak("NVIDIA V100 datasheet, PCIe", fp32=14, fp16=112),
    "H100": Peak("NVIDIA H100 datasheet, PCIe" + _HALVED, fp32=51, tf32=378, half=756, fp8=1513, int8=1513),
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
        known = ", ".join(sorted(GPU_PEAKS))
        hint = did_you_mean(device, GPU_PEAKS)
        raise ValueError(
            f"no peak rate is known for {device}, asked for with dtype {dtype!r}; known: {known}{hint}"
        )
    canonical = _canonical(dtype)
    if canonical not in peak.rates:
        known = ", ".join(sorted(peak.rates))
        raise invalid("dtype", f"one of {known} for {device}", dtype, did_you_mean(canonical, peak.rates))
    return peak.rates[canonical]


def known_rate(peak: Peak | None, dtype: object) -> float | None:
    """Look up a peak; None where there is no figure.

    Raises:
        ValueError: `dtype` is the name of no number format, so that the question is wrong.
    """
    canonical = _canonical(dtype)
    if canonical not in _DTYPE_NAMES:
        hint = did_you_mean(canonical, _CANONICAL)
        raise invalid("dtype", f"one of {', '.join(_DTYPE_NAMES)}", dtype, hint)
    return None if peak is None else peak.rates.get(canonical)


def _canonical(dtype: object) -> str:
    key = dtype.strip().lower() if isinstance(dtype, str) else ""
    return _CANONICAL.get(key, key)
