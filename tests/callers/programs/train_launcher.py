"""A launcher of training: one TPU job of several slices, its hosts told apart by their variables."""

import json
import os
from dataclasses import dataclass, field

from fray.cluster import (
    Entrypoint,
    EnvironmentConfig,
    JobInfo,
    JobRequest,
    ResourceConfig,
    TpuConfig,
    current_cluster,
)


@dataclass(frozen=True)
class TrainLmConfig:
    """What to train, and on what."""

    model: str = "llama-30m"
    steps: int = 3
    resources: ResourceConfig = field(
        default_factory=lambda: ResourceConfig.with_tpu(
            "v4-16", slice_count=2, cpu=0.1, ram="64m", disk="64m"
        )
    )

    @property
    def peak_flops(self) -> float:
        """Return the peak rate of all chips, for MFU."""
        return self.resources.device_flops() * self.resources.chip_count()


def train_lm(config: TrainLmConfig) -> None:
    """Train on one host; the first of all says what it saw."""
    seen = {name: os.environ[name] for name in ("MEGASCALE_SLICE_ID", "FRAY_HOST_ID", "FRAY_REPLICA_ID")}
    tpu = config.resources.device
    assert isinstance(tpu, TpuConfig)
    print(
        json.dumps({"host": seen, "variant": tpu.variant, "wandb": os.environ["WANDB_PROJECT"]}), flush=True
    )


def launch(config: TrainLmConfig) -> JobInfo:
    """Launch the training, follow it to its end, and raise when it failed."""
    cluster = current_cluster()
    env = {"WANDB_PROJECT": "marginal", "TPU_STDERR_LOG_LEVEL": "2"}
    job_id = cluster.launch(
        JobRequest(
            name=f"train_lm:{config.model}",
            entrypoint=Entrypoint.from_callable(train_lm, args=[config]),
            resources=config.resources,
            environment=EnvironmentConfig.create(env_vars=env, extras=None),
            max_retries_failure=0,
        )
    )
    return cluster.wait(job_id, raise_on_failure=True)
