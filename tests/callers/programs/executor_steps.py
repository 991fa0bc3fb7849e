"""An executor of experiment steps: each is a job, named as its output is; what is done is not done again."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fray.cluster import Entrypoint, EnvironmentConfig, JobRequest, JobStatus, ResourceConfig, current_cluster
from fray.cluster.base import JobId

StepFunction = Callable[[Mapping[str, Any], str, Mapping[str, str]], None]


@dataclass(frozen=True, eq=False)
class ExecutorStep:
    """One step of an experiment.

    Args:
        name: Of its output, e.g. `tokenized/fineweb`.
        fn: Takes the config, the path to write to, and the paths of the steps that it needs.
        needs: Those steps.
    """

    name: str
    fn: StepFunction
    config: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple["ExecutorStep", ...] = ()
    resources: ResourceConfig = field(default_factory=ResourceConfig.with_cpu)
    pip_dependency_groups: Sequence[str] | None = None


class Executor:
    """Runs steps in the order of their needs, those that can run at the same time at the same time."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.launched: dict[str, JobId] = {}

    def run(self, steps: Sequence[ExecutorStep]) -> dict[str, JobStatus]:
        """Run steps and what they need, and return how each of their jobs ended."""
        waiting = list(dict.fromkeys(step for wanted in steps for step in _with_needs(wanted)))
        statuses: dict[str, JobStatus] = {}
        while waiting:
            ready = [step for step in waiting if all(map(self._is_done, step.needs))]
            if not ready:
                break  # what they need failed
            waiting = [step for step in waiting if step not in ready]
            statuses |= self._run_all([step for step in ready if not self._is_done(step)])
        return statuses

    def output_path(self, step: ExecutorStep) -> Path:
        """Return where a step writes."""
        return self.prefix / step.name.replace(":", "-")

    def _run_all(self, steps: list[ExecutorStep]) -> dict[str, JobStatus]:
        cluster = current_cluster()
        jobs = {step: cluster.launch(self._request(step)) for step in steps}
        self.launched |= {step.name: job_id for step, job_id in jobs.items()}
        statuses = {}
        for step, job_id in jobs.items():
            status = cluster.monitor(job_id).status
            assert JobStatus.finished(status)
            if status == JobStatus.SUCCEEDED:
                (self.output_path(step) / ".executor_status").write_text(json.dumps({"status": status}))
            statuses[step.name] = status
        return statuses

    def _request(self, step: ExecutorStep) -> JobRequest:
        inputs = {need.name: str(self.output_path(need)) for need in step.needs}
        return JobRequest(
            name=f"executor:{step.name}",
            entrypoint=Entrypoint.from_callable(
                step.fn, args=[step.config, str(self.output_path(step)), inputs]
            ),
            resources=step.resources,
            environment=EnvironmentConfig.create(
                extras=step.pip_dependency_groups, env_vars={"STEP": step.name}
            ),
        )

    def _is_done(self, step: ExecutorStep) -> bool:
        return (self.output_path(step) / ".executor_status").exists()


def _with_needs(step: ExecutorStep) -> list[ExecutorStep]:
    return [*(needed for need in step.needs for needed in _with_needs(need)), step]


# --- the experiment ---


def download(config: Mapping[str, Any], output: str, inputs: Mapping[str, str]) -> None:
    """Write documents."""
    Path(output).mkdir(parents=True, exist_ok=True)
    documents = [f"document {number} of {config['source']}" for number in range(config["documents"])]
    (Path(output) / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)))


def tokenize(config: Mapping[str, Any], output: str, inputs: Mapping[str, str]) -> None:
    """Count the words of every document of the one input."""
    (source,) = inputs.values()
    documents = map(json.loads, (Path(source) / "documents.jsonl").read_text().splitlines())
    Path(output).mkdir(parents=True, exist_ok=True)
    (Path(output) / "tokens.json").write_text(json.dumps([len(document.split()) for document in documents]))


def train(config: Mapping[str, Any], output: str, inputs: Mapping[str, str]) -> None:
    """Add up the tokens of all inputs; refuse to train on none."""
    tokens = sum(sum(json.loads((Path(path) / "tokens.json").read_text())) for path in inputs.values())
    if tokens < config["tokens"]:
        raise ValueError(f"{tokens} tokens are too few for {config['tokens']}")
    Path(output).mkdir(parents=True, exist_ok=True)
    (Path(output) / "checkpoint.json").write_text(json.dumps({"tokens": tokens}))


def experiment(tokens: int = 100) -> ExecutorStep:
    """Return the last step of an experiment of five."""
    sources = [
        ExecutorStep(f"raw/{name}:v1", download, {"source": name, "documents": 20})
        for name in ("fineweb", "code")
    ]
    tokenized = tuple(
        ExecutorStep(source.name.replace("raw", "tokenized"), tokenize, needs=(source,)) for source in sources
    )
    return ExecutorStep("checkpoints/llama-30m", train, {"tokens": tokens}, needs=tokenized)
