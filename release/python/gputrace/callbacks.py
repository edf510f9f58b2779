# SPDX-License-Identifier: Apache-2.0
"""Records a training of Hugging Face Trainer, Lightning, Accelerate or Keras, and logs what came of it to the loggers of the job.

::

    gputrace.callbacks.hugging_face(trainer)                       # before trainer.train()
    Trainer(callbacks=[gputrace.callbacks.lightning()])            # Lightning
    with gputrace.callbacks.accelerate(accelerator): train()       # Accelerate
    model.fit(x, y, callbacks=[gputrace.callbacks.keras()])        # Keras

Each logs, at the end of the training, the figures of metrics(); TensorBoard also gets the verdict with the largest holders as a text, and an
active MLflow run the page as an artifact. The figures are gputrace's own, read from the recording. Without the rights to record, the training
runs as before and one line on standard error says what is missing.
"""

import os
import sys
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

import gputrace
from gputrace._record import Path, Recorder

_TITLE = "gputrace"


def metrics(recording: "gputrace.Recording") -> Dict[str, float]:
    """Return the figures of a recording that are logged, by name.

    gpu_memory/peak_bytes, /end_bytes and /reserved_bytes are those of the first screen, /growth_bytes_per_step is the sum of all lines that
    grow, and /failed_requests is how many requests for memory failed. What is not known is left out.
    """
    answer = recording.answer
    growth = sum(finding["block_bytes_per_step"] for finding in answer["findings"])
    known = {
        "peak_bytes": answer["peak_bytes"], "end_bytes": answer["now_bytes"], "reserved_bytes": answer["reserved_bytes"],
        "growth_bytes_per_step": growth if answer["verdict"] in ("growing", "steady") else None,
        "failed_requests": len(recording.out_of_memory["ooms"]) if answer["verdict"] == "out_of_memory" else 0,
    }
    return {"gpu_memory/" + name: float(value) for name, value in known.items() if value is not None}


def text(recording: "gputrace.Recording") -> str:
    """Return the verdict, its notes and the largest holders, as Markdown."""
    from gputrace.notebook import size_text

    answer = recording.answer
    lines = [answer["sentence"]] + ["%(name)s: %(text)s" % note for note in answer["notes"]]
    lines += ["| %s | held by | allocated at |" % answer["rows_at"], "|---|---|---|"]
    for row in answer["rows"]:
        place = row["lines"][0] if row["lines"] else {"name": "", "function": None}
        where = " ".join(part for part in (place["name"], place["function"]) if part)
        lines.append("| %s | %s | %s |" % (size_text(row["bytes"]), row["holder"] or row["category"] or "", where))
    return "\n".join(lines[:1] + [""] + lines[1:])


class Training:
    """The recording of one training. log() of a subclass gets what is to be logged; it is not called if nothing was recorded."""

    def __init__(self, folder: Optional[Path], step_on: Optional[str]) -> None:
        self.folder, self.step_on = folder, step_on
        self.recorder: Optional[Recorder] = None

    def begin(self) -> None:
        """Start to record, unless a recording runs."""
        if self.recorder is None:
            self.recorder = gputrace.record(self.folder, step_on=self.step_on).start()

    def end(self) -> Optional["gputrace.Recording"]:
        """End the recording, and return it; None if there is none. Prints its verdict."""
        recorder, self.recorder = self.recorder, None
        recording = recorder.stop() if recorder is not None else None
        if recording is not None:
            print("gputrace: %s\ngputrace: see %s" % (recording.sentence, os.path.join(recording.path, "report.html")), file=sys.stderr)
        return recording


def _to_mlflow(recording: "gputrace.Recording", figures: Optional[Dict[str, float]] = None, step: int = 0) -> None:
    """Log to the active MLflow run of this process, if there is one: the page, and figures that nothing else logs."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or mlflow.active_run() is None:
        return
    if figures:
        mlflow.log_metrics(figures, step=step)
    page = os.path.join(recording.path, "report.html")
    if os.path.exists(page):
        mlflow.log_artifact(page, _TITLE)


def hugging_face(trainer: Any, folder: Optional[Path] = None, step_on: Optional[str] = None) -> Any:
    """Record the training of a transformers.Trainer, and log through Trainer.log. Returns the callback, which has been added.

    It comes before those that report: some of these close their run when the training ends.
    """
    from transformers import TrainerCallback

    class GPUMemory(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.training = Training(folder, step_on)
            self.recording: Optional[gputrace.Recording] = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_local_process_zero:
                self.training.begin()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.recording = self.training.end()
            if self.recording is None:
                return
            trainer.log(metrics(self.recording))
            for callback in trainer.callback_handler.callbacks:
                writer = getattr(callback, "tb_writer", None)
                if writer is not None:
                    writer.add_text(_TITLE, text(self.recording), state.global_step)
            _to_mlflow(self.recording)

    callback = GPUMemory()
    trainer.callback_handler.callbacks.insert(0, callback)
    return callback


def lightning(folder: Optional[Path] = None, step_on: Optional[str] = None) -> Any:
    """Return a callback for a Trainer of Lightning, which logs to all of its loggers, also after an exception."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class GPUMemory(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.training = Training(folder, step_on)
            self.recording: Optional[gputrace.Recording] = None

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                self.training.begin()

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self._end(trainer)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._end(trainer)

        def _end(self, trainer: Any) -> None:
            self.recording = self.training.end() or self.recording
            if self.recording is None:
                return
            page = os.path.join(self.recording.path, "report.html")
            for logger in trainer.loggers:
                logger.log_metrics(metrics(self.recording), step=trainer.global_step)
                experiment = logger.experiment
                if hasattr(experiment, "add_text"):  # TensorBoard's
                    experiment.add_text(_TITLE, text(self.recording), trainer.global_step)
                elif hasattr(experiment, "log_artifact") and hasattr(logger, "run_id"):  # MLflow's
                    experiment.log_artifact(logger.run_id, page, _TITLE)

    return GPUMemory()


@contextmanager
def accelerate(accelerator: Any, folder: Optional[Path] = None, step_on: Optional[str] = None, step: Optional[int] = None) -> Iterator[Training]:
    """Record the block, and log through Accelerator.log at its end, also after an exception: before accelerator.end_training()."""
    training = Training(folder, step_on)
    if accelerator.is_local_main_process:
        training.begin()
    try:
        yield training
    finally:
        recording = training.end()
        if recording is not None:
            accelerator.log(metrics(recording), step=step)
            for tracker in accelerator.trackers:
                if tracker.name == "tensorboard":
                    tracker.writer.add_text(_TITLE, text(recording), step or 0)
            _to_mlflow(recording)


def keras(folder: Optional[Path] = None, step_on: Optional[str] = None) -> Any:
    """Return a callback for Keras. The figures are in its attribute metrics, and logged to an active MLflow run."""
    from keras.callbacks import Callback

    class GPUMemory(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.training = Training(folder, step_on)
            self.recording: Optional[gputrace.Recording] = None
            self.metrics: Dict[str, float] = {}

        def on_train_begin(self, logs: Any = None) -> None:
            self.training.begin()

        def on_train_end(self, logs: Any = None) -> None:
            self.recording = self.training.end()
            if self.recording is not None:
                self.metrics = metrics(self.recording)
                _to_mlflow(self.recording, self.metrics)

    return GPUMemory()
