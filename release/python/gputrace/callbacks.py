# SPDX-License-Identifier: Apache-2.0
"""Records a training of Hugging Face Trainer, Lightning, Accelerate or Keras, and logs what came of it to the loggers of the job.

::

    gputrace.callbacks.hugging_face(trainer)                       # before trainer.train()
    Trainer(callbacks=[gputrace.callbacks.lightning()])            # Lightning
    with gputrace.callbacks.accelerate(accelerator): train()       # Accelerate
    model.fit(x, y, callbacks=[gputrace.callbacks.keras()])        # Keras

Each logs the figures of metrics_now() while the training runs, and those of metrics() when it ends or fails. TensorBoard and Aim also get
the verdict with the largest holders as a text, Weights & Biases the holders as a table. MLflow and Weights & Biases get the page as an
artifact, Aim its path. The figures are gputrace's own. Without the rights to record, the training runs as before and one line on standard
error says what is missing. A logger that fails costs one line on standard error, too.
"""

import functools
import os
import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set

import gputrace
from gputrace._record import Path, Recorder

_TITLE = "gputrace"


def metrics(recording: "gputrace.Recording") -> Dict[str, float]:
    """Return the figures of a recording that are logged, by name.

    gpu_memory/peak_bytes, /end_bytes and /reserved_bytes are those of the first screen, /growth_bytes_per_step is the sum of all lines that
    grow, and /failed_requests is how many requests for memory failed. What is not known is left out.
    """
    answer = recording.answer
    failed = len(recording.out_of_memory["ooms"]) if answer["verdict"] == "out_of_memory" else 0
    return _figures(answer, {"end_bytes": answer["now_bytes"], "failed_requests": failed})


def metrics_now(recorder: Optional[Recorder]) -> Dict[str, float]:
    """Return the figures of a running recording that are logged, by name; none if nothing is known.

    They are gpu_memory/in_use_bytes and, so far, /peak_bytes, /reserved_bytes and /growth_bytes_per_step. They are read from a small file
    that gputrace replaces twice a second, and are at most about a second old; the growth is judged more seldom.
    """
    now = recorder.now if recorder is not None else None
    return _figures(now, {"in_use_bytes": now["now_bytes"]}) if now is not None else {}


def _figures(answer: Dict[str, Any], others: Dict[str, Any]) -> Dict[str, float]:
    growth = sum(finding["block_bytes_per_step"] for finding in answer["findings"])
    known = {
        "peak_bytes": answer["peak_bytes"], "reserved_bytes": answer["reserved_bytes"],
        "growth_bytes_per_step": growth if answer["verdict"] in ("growing", "steady") else None, **others,
    }
    return {"gpu_memory/" + name: float(value) for name, value in known.items() if value is not None}


Row = List[str]
Sink = Callable[[Dict[str, float], Optional[int]], Any]  # takes figures and their step


def holders(recording: "gputrace.Recording") -> List[Row]:
    """Return the largest holders as rows of texts: size, holder and the line that allocated, those of the first screen."""
    from gputrace.notebook import size_text

    rows = []
    for row in recording.answer["rows"]:
        place = row["lines"][0] if row["lines"] else {"name": "", "function": None}
        where = " ".join(part for part in (place["name"], place["function"]) if part)
        rows.append([size_text(row["bytes"]), row["holder"] or row["category"] or "", where])
    return rows


def text(recording: "gputrace.Recording") -> str:
    """Return the verdict, its notes and the largest holders, as Markdown."""
    answer = recording.answer
    lines = [answer["sentence"], ""] + ["%(name)s: %(text)s" % note for note in answer["notes"]]
    lines += ["| %s | held by | allocated at |" % answer["rows_at"], "|---|---|---|"]
    return "\n".join(lines + ["| %s |" % " | ".join(row) for row in holders(recording)])


class Training:
    """The recording of one training."""

    def __init__(self, folder: Optional[Path], step_on: Optional[str], to: "Optional[Sink]" = None) -> None:
        self.folder, self.step_on = folder, step_on
        self.recorder: Optional[Recorder] = None
        self.step: Optional[int] = None  # of the last log()
        self._to = to

    def begin(self) -> None:
        """Start to record, unless a recording runs."""
        if self.recorder is None:
            self.recorder = gputrace.record(self.folder, step_on=self.step_on).start()

    def end(self) -> Optional["gputrace.Recording"]:
        """End the recording, and return it; None if there is none. Prints its verdict."""
        recorder, self.recorder = self.recorder, None
        recording = recorder.stop() if recorder is not None else None
        if recording is not None:
            print("gputrace: %s\ngputrace: see %s" % (recording.sentence, _page(recording)), file=sys.stderr)
        return recording

    def log(self, step: Optional[int] = None) -> None:
        """Log the figures of metrics_now(), if there are any. Accelerate's loop calls it as often as it wants them."""
        self.step = step if step is not None else self.step
        figures = metrics_now(self.recorder)
        if figures and self._to is not None:
            _log(self._to, figures, step)


def _page(recording: "gputrace.Recording") -> str:
    return os.path.join(recording.path, "report.html")


_failures: Set[str] = set()  # that were printed


def _log(what: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Call what logs. A logger that fails, as after its server has gone away, must not end the job or hide why it failed."""
    try:
        what(*arguments, **named)
    except Exception as error:
        line = "gputrace: cannot log the GPU memory: %s: %s" % (type(error).__name__, error)
        if line not in _failures:
            _failures.add(line)
            print(line, file=sys.stderr, flush=True)


def _to_tensorboard(recording: "gputrace.Recording", writer: Any, step: int) -> None:
    writer.add_text(_TITLE, text(recording), step)
    writer.flush()


def _to_mlflow(recording: "gputrace.Recording", step: Optional[int] = None) -> None:
    """Log to the active MLflow run of this process, if there is one: the page, and at a step figures that nothing else logs."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or mlflow.active_run() is None:
        return
    if step is not None:
        mlflow.log_metrics(metrics(recording), step=step)
    if os.path.exists(_page(recording)):
        mlflow.log_artifact(_page(recording), _TITLE)


def _to_wandb(recording: "gputrace.Recording", runs: Iterable[Any] = ()) -> None:
    """Log to runs of Weights & Biases, or to the active one of this process: figures into the summary, the holders and the page."""
    wandb = sys.modules.get("wandb")
    if wandb is None:
        return
    for run in list(runs) or [getattr(wandb, "run", None)]:
        if run is None:
            continue
        run.summary.update(metrics(recording))
        run.log({"gputrace/holders": wandb.Table(columns=["bytes", "held by", "allocated at"], data=holders(recording))})
        if os.path.exists(_page(recording)):
            artifact = wandb.Artifact("gputrace-%s" % run.id, type="gputrace", description=recording.sentence)
            artifact.add_file(_page(recording), "report.html")
            run.log_artifact(artifact)


def _track(run: Any, figures: Dict[str, float], step: Optional[int]) -> None:
    for name, value in figures.items():
        run.track(value, name=name, step=step)


def _to_aim(recording: "gputrace.Recording", run: Any, step: int, figures: bool) -> None:
    """Log to a run of Aim: the text and the path of the page, which is uploaded if the run stores artifacts.

    figures: also the figures, which nothing else logs.
    """
    if figures:
        _track(run, metrics(recording), step)
    run.track(sys.modules["aim"].Text(text(recording)), name=_TITLE, step=step)
    page = os.path.abspath(_page(recording))
    run[_TITLE] = {"sentence": recording.sentence, "page": page}
    if os.path.exists(page) and getattr(run, "artifacts_uri", None):
        run.log_artifact(page, name="gputrace-report.html", block=True)


def _made_by(library: str, value: Any) -> bool:
    """Report whether a library made an object, without importing it."""
    return type(value).__module__.split(".")[0] == library


def hugging_face(
    trainer: Any, folder: Optional[Path] = None, step_on: Optional[str] = None, every_steps: Optional[int] = None, aim_run: Any = None
) -> Any:
    """Record the training of a transformers.Trainer, and log through Trainer.log. Returns the callback, which has been added.

    It comes before those that report: some of these close their run when the training ends. Callbacks are not called when a training fails,
    so Trainer.train is wrapped, too.

    every_steps: log what is known so far every so many steps; None: with each log of the trainer (logging_steps); 0: never.
    aim_run: a run of Aim, if Aim's own callback is not one of the trainer's.
    """
    from transformers import TrainerCallback

    class GPUMemory(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.training = Training(folder, step_on)
            self.recording: Optional[gputrace.Recording] = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_local_process_zero:
                self.training.begin()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if every_steps is None and logs is not None:
                logs.update(self._now(state.global_step))  # the callbacks that report get the same dict

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if every_steps and state.global_step % every_steps == 0:
                figures = self._now(state.global_step)
                if figures:
                    _log(trainer.log, figures)

        def _now(self, step: int) -> Dict[str, float]:
            figures = metrics_now(self.training.recorder)
            if aim_run is not None:
                _log(_track, aim_run, figures, step)
            return figures

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.end()

        def end(self) -> None:
            recording = self.training.end()
            if recording is None:
                return
            self.recording, step = recording, trainer.state.global_step
            _log(lambda: trainer.log(metrics(recording)))
            for other in trainer.callback_handler.callbacks:
                writer = getattr(other, "tb_writer", None)
                if writer is not None:
                    _log(_to_tensorboard, recording, writer, step)
                if _made_by("aim", other):
                    _log(_to_aim, recording, other.experiment, step, figures=False)
            if aim_run is not None:
                _log(_to_aim, recording, aim_run, step, figures=True)
            _log(_to_mlflow, recording)
            _log(_to_wandb, recording)

    callback = GPUMemory()
    trainer.callback_handler.callbacks.insert(0, callback)
    trainer.train = _ending(trainer.train, callback.end)
    return callback


def _ending(function: Callable[..., Any], end: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that calls end if an exception passes through it."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except BaseException:
            end()
            raise

    return called


def _to_lightning(recording: "gputrace.Recording", logger: Any, step: int) -> None:
    logger.log_metrics(metrics(recording), step=step)


def lightning(
    folder: Optional[Path] = None, step_on: Optional[str] = None, every_steps: Optional[int] = None, aim_run: Any = None
) -> Any:
    """Return a callback for a Trainer of Lightning, which logs to all of its loggers, also after an exception.

    every_steps: log what is known so far every so many steps; None: as often as the trainer logs (log_every_n_steps); 0: never.
    aim_run: a run of Aim, if Aim's own logger is not one of the trainer's.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class GPUMemory(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.training = Training(folder, step_on)
            self.recording: Optional[gputrace.Recording] = None
            self._logged = 0  # step

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self._logged = 0
            if trainer.is_global_zero:
                self.training.begin()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            step, every = trainer.global_step, trainer.log_every_n_steps if every_steps is None else every_steps
            if not every or step % every or step == self._logged:  # gradients of several batches can be one step
                return
            self._logged = step
            figures = metrics_now(self.training.recorder)
            for logger in trainer.loggers if figures else ():
                _log(logger.log_metrics, figures, step=step)
            if aim_run is not None:
                _log(_track, aim_run, figures, step)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self._end(trainer)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._end(trainer)

        def _end(self, trainer: Any) -> None:
            recording = self.training.end()
            if recording is None:
                return
            self.recording, step, runs = recording, trainer.global_step, []
            for logger in trainer.loggers:
                experiment = logger.experiment
                _log(_to_lightning, recording, logger, step)
                if hasattr(experiment, "add_text"):  # TensorBoard's
                    _log(_to_tensorboard, recording, experiment, step)
                elif hasattr(experiment, "log_artifact") and hasattr(logger, "run_id"):  # MLflow's
                    _log(experiment.log_artifact, logger.run_id, _page(recording), _TITLE)
                elif _made_by("aim", experiment):
                    _log(_to_aim, recording, experiment, step, figures=False)
                elif _made_by("wandb", experiment):
                    runs.append(experiment)
            if aim_run is not None:
                _log(_to_aim, recording, aim_run, step, figures=True)
            _log(_to_wandb, recording, runs)

    return GPUMemory()


@contextmanager
def accelerate(
    accelerator: Any, folder: Optional[Path] = None, step_on: Optional[str] = None, step: Optional[int] = None, aim_run: Any = None
) -> Iterator[Training]:
    """Record the block, and log through Accelerator.log at its end, also after an exception: before accelerator.end_training().

    The value of the block is a Training, whose log(step) logs what is known so far.

    step: the step of the last figures; None: that which log(step) had last.
    aim_run: a run of Aim, if Aim is not one of the accelerator's trackers.
    """

    def log(figures: Dict[str, float], at: Optional[int]) -> None:
        accelerator.log(figures, step=at)
        if aim_run is not None:
            _track(aim_run, figures, at)

    training = Training(folder, step_on, log)
    if accelerator.is_local_main_process:
        training.begin()
    try:
        yield training
    finally:
        recording, last = training.end(), step if step is not None else training.step
        if recording is not None:
            _log(lambda: accelerator.log(metrics(recording), step=last))
            for tracker in accelerator.trackers:
                if tracker.name == "tensorboard":
                    _log(_to_tensorboard, recording, tracker.writer, last or 0)
                elif tracker.name == "aim":
                    _log(_to_aim, recording, tracker.writer, last or 0, figures=False)
            if aim_run is not None:
                _log(_to_aim, recording, aim_run, last or 0, figures=True)
            _log(_to_mlflow, recording)
            _log(_to_wandb, recording)


def keras(folder: Optional[Path] = None, step_on: Optional[str] = None, every_steps: Optional[int] = None, aim_run: Any = None) -> Any:
    """Return a callback for Keras. The figures are in its attribute metrics, and logged to the active runs of MLflow and Weights & Biases.

    Keras calls no callback when a training fails, so the model's train_function is wrapped meanwhile. A training that fails elsewhere, as
    in another callback, is not logged.

    every_steps: log what is known so far every so many batches; None: after each epoch; 0: never. aim_run: a run of Aim.
    """
    from keras.callbacks import Callback

    class GPUMemory(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.training = Training(folder, step_on, self._to)
            self.recording: Optional[gputrace.Recording] = None
            self.metrics: Dict[str, float] = {}
            self._unwrapped: Any = None
            self._steps = 0

        def on_train_begin(self, logs: Any = None) -> None:
            self.training.begin()
            self._unwrapped, self._steps = self.model.train_function, 0
            if self._unwrapped is not None:
                self.model.train_function = _ending(self._unwrapped, self.on_train_end)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._steps += 1
            if every_steps and self._steps % every_steps == 0:
                self.training.log(self._steps)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if every_steps is None:
                self.training.log(self._steps)

        def _to(self, figures: Dict[str, float], step: Optional[int]) -> None:
            mlflow, wandb = sys.modules.get("mlflow"), sys.modules.get("wandb")
            if mlflow is not None and mlflow.active_run() is not None:
                mlflow.log_metrics(figures, step=step)
            if getattr(wandb, "run", None) is not None:
                wandb.run.log(figures)  # type: ignore[union-attr]
            if aim_run is not None:
                _track(aim_run, figures, step)

        def on_train_end(self, logs: Any = None) -> None:
            if self._unwrapped is not None:
                self.model.train_function, self._unwrapped = self._unwrapped, None
            recording = self.training.end()
            if recording is None:
                return
            self.recording = recording
            _log(lambda: self.metrics.update(metrics(recording)))
            if aim_run is not None:
                _log(_to_aim, recording, aim_run, self._steps, figures=True)
            _log(_to_mlflow, recording, step=self._steps)
            _log(_to_wandb, recording)

    return GPUMemory()
