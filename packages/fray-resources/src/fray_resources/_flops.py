"""Peak rates of one chip, dense (no sparsity), in operations per second.

Each row names its source. Where that was a text of the maker (a page, or documentation and code in
a repository of the maker), the row names it. Where it was a copy of figures from a datasheet, the row names
the document and its quotation. Figures that are printed "with sparsity" are halved. Where two accumulators
are distinguished, the row has the figure with fp32 accumulation, which training uses; `fp32` is that of the
ordinary cores. Of several figures of the maker that of the product's specification counts. Where
specifications differ by more than rounding (fp32 and tf32 of the B200), the figure is left out, as is a
dtype that no source mentions.
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
# Repositories of the makers: figures here are the makers' own.
_TRT = "NVIDIA/TensorRT-LLM, cluster_info.py"
_NEMO = "NVIDIA-NeMo/RL, flops_tracker.py"
_MI350 = 'AMD ROCm documentation, page "AMD Instinct MI350 Series microarchitecture"'
# Those who quote them.
_BOOK = ", as quoted by stas00/ml-engineering"
_LIGHTNING = ", as quoted by Lightning's throughput.py"
_SELLER = ", as quoted by the seller mullet.se"
_GPUMAP = ", as quoted by lamonoai/gpumap"
_HOPPER = "NVIDIA H100 GPU architecture whitepaper, SXM5, as quoted by glennklockwood.com"

# By what a TPU type starts with.
TPU_PEAKS = {
    # The notes round down: Google's JAX has 46 for a chip (tpu_info.py).
    "v2": Peak(
        "Cloud TPU release notes of 27 June 2018, in a copy: up to 180 teraflops for a Cloud TPU of 4 chips",
        bf16=45,
    ),
    "v3": Peak(_CLOUD + '"TPU v3"', bf16=123),
    "v4": Peak(_CLOUD + '"TPU v4"', bf16=275, int8=275),
    "v5litepod": Peak(_CLOUD + '"TPU v5e"', bf16=197, int8=393),
    "v5p": Peak(_CLOUD + '"TPU7x (Ironwood)", which compares it', bf16=459, fp8=459),
    "v6e": Peak(_CLOUD + '"TPU v6e"; fp8 from page "TPU7x (Ironwood)"', bf16=918, fp8=918, int8=1836),
    "v7x": Peak(_CLOUD + '"TPU7x (Ironwood)"', bf16=2307, fp8=4614),
}

_A100 = Peak(f"{_TRT}; fp32: {_NEMO}", fp32=19.5, tf32=156, half=312, int8=624)

# By canonical GPU type. A type without a row may be requested, but its rates are not known.
GPU_PEAKS = {
    "V100": Peak(
        f"NVIDIA V100 datasheet, SXM2{_LIGHTNING}; fp16 also on NVIDIA's developer site", fp32=15.7, fp16=125
    ),
    "T4": Peak("NVIDIA T4 datasheet" + _LIGHTNING, fp32=8.1, fp16=65, int8=130),
    "A10": Peak(f"{_TRT}; fp32: NVIDIA A10 datasheet{_LIGHTNING}", fp32=31.2, tf32=62.5, half=125, int8=250),
    # Not the A10: its tensor cores are slower, though some tables give it the figures of the A10.
    "A10G": Peak(_TRT, tf32=35, half=70, int8=140),
    "A30": Peak(_TRT, tf32=82, half=165, int8=330),
    "A40": Peak(
        f"NVIDIA A40 datasheet, as quoted by astroC86/gpu-datasheet; fp32 and tf32{_GPUMAP}",
        fp32=37.4,
        tf32=74.8,
        half=149.7,
        int8=299.3,
    ),
    "A100": _A100,
    "A100-40G": _A100,
    "A100-80G": _A100,
    "L4": Peak(
        f"NVIDIA L4 page{_HALVED}, as quoted by Tensward/tensward; tf32: {_TRT}",
        tf32=60,
        half=121,
        fp8=242.5,
        int8=242.5,
    ),
    "L40": Peak("NVIDIA L40 datasheet" + _SELLER, fp32=90.5, tf32=90.5, half=181.05, fp8=362, int8=362),
    "L40S": Peak(
        f"NVIDIA L40S datasheet{_SELLER}; int8: {_TRT}", fp32=91.6, tf32=183, half=362.05, fp8=733, int8=733
    ),
    # NVIDIA/TensorRT-LLM has these rounded.
    "H100": Peak(_HOPPER, fp32=66.9, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    # NVIDIA/TensorRT-LLM has those of the H200 datasheet, which are the rounded ones of the H100.
    "H200": Peak(_HOPPER, fp32=66.9, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    "B200": Peak(
        f"NVIDIA/dgxc-benchmarking, llama3.1/README.md; int8 and fp4: NVIDIA DGX B200 datasheet{_BOOK}",
        half=2250,
        fp8=4500,
        int8=4500,
        fp4=9000,
    ),
    # The published figures for fp4 and int8 contradict each other.
    "B300": Peak(
        f"{_NEMO}{_HALVED}; tf32 and fp8: NVIDIA DGX B300 datasheet{_BOOK}", tf32=1125, half=2250, fp8=4500
    ),
    # One GPU of the two on a superchip. NVIDIA/dgxc-benchmarking counts with 2450 (fp8: 4900).
    "GB200": Peak(
        "NVIDIA's ai-dynamo/aisimulate, gb200_sxm.yaml; "
        f"tf32 and fp4: NVIDIA GB200 NVL72 specifications{_BOOK}",
        tf32=1250,
        half=2500,
        fp8=5000,
        int8=5000,
        fp4=10000,
    ),
    "GB300": Peak("NVIDIA GB300 NVL72 specifications" + _BOOK, tf32=1250, half=2500, fp8=5000),
    "RTX-A6000": Peak(
        f"NVIDIA GA102 whitepaper, as quoted by DS436/sanskrit-token; fp32{_GPUMAP}", fp32=38.7, half=154.8
    ),
    "RTX-4090": Peak(
        "NVIDIA Ada GPU architecture whitepaper, as quoted by karpathy/llm.c; int8, as quoted by "
        "Tensward/tensward; fp32, as quoted by ohdoking/gpu_spec",
        fp32=82.6,
        tf32=82.6,
        half=165.2,
        fp8=330.3,
        int8=660.6,
    ),
    # Tables with 419 for bf16 mean fp16 accumulation, or sparsity.
    "RTX-5090": Peak(
        "NVIDIA RTX Blackwell GPU architecture whitepaper, as quoted by DS436/sanskrit-token; "
        f"fp32, as quoted by VladislavDuma/gpu_specs; fp8{_GPUMAP}; "
        "int8 and fp4: NVIDIA's ai-dynamo/aiconfigurator, rtx_5090.yaml",
        fp32=104.8,
        half=209.5,
        fp8=419,
        int8=838,
        fp4=1676,
    ),
    # One of the two dies of a module: each is a GPU device of the system, says the documentation of ROCm.
    "MI250X": Peak(
        f"AMD Instinct MI250X specifications{_BOOK}, of a module / 2", fp32=23.95, half=191.5, int8=191.5
    ),
    "MI300X": Peak(
        'AMD ROCm documentation, page "AMD Instinct MI300 series microarchitecture"',
        fp32=163.4,
        tf32=653.7,
        half=1307.4,
        fp8=2614.9,
        int8=2614.9,
    ),
    # AMD prints these rounded.
    "MI325X": Peak(
        'AMD ROCm blog, "Completing the GPU Performance Picture"; '
        f"fp32 and tf32: AMD Instinct MI325X specifications{_BOOK}",
        fp32=163.4,
        tf32=653.7,
        half=1300,
        fp8=2610,
    ),
    "MI350X": Peak(_MI350, fp32=144.2, half=2300, fp8=4600, int8=4600),
    "MI355X": Peak(_MI350, fp32=157.3, half=2500, fp8=5000, int8=5000),
}

# Cards of a type that are slower than the SXM modules above. Nobody can request one; JAX names them.
PCIE_PEAKS = {
    "V100": Peak("NVIDIA V100 datasheet, PCIe" + _LIGHTNING, fp32=14, fp16=112),
    "H100": Peak(
        f"{_TRT}; fp32: NVIDIA H100 datasheet, PCIe{_LIGHTNING}",
        fp32=51,
        tf32=378,
        half=756,
        fp8=1513,
        int8=1513,
    ),
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
