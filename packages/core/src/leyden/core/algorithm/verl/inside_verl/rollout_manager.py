"""`RolloutManager`: gives VERL rollouts that the run's agents make, through VERL's queue.

It lives in VERL's task runner, a VERL process that may be on another machine than the run.
"""

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import msgspec

from leyden.core.algorithm.external_loop import RunEndpoint, StepTasks, TaskRequest, TaskUsage
from leyden.core.algorithm.verl import verl_config
from leyden.core.algorithm.verl.driver.datasets import RowOrigin
from leyden.core.algorithm.verl.driver.empty_prompts import EmptyPrompt, empty_batch_message, empty_prompt_of
from leyden.core.algorithm.verl.driver.launch import TOKEN, URL
from leyden.core.algorithm.verl.inside_verl import verl_queue
from leyden.core.algorithm.verl.inside_verl.monitors import watch_parts
from leyden.core.algorithm.verl.inside_verl.run_client import RunClient
from leyden.core.algorithm.verl.row_sampling import RowSampling, can_adjust
from leyden.core.algorithm.verl.rows import PromptRows, Row, RowLimits, training_rows, validation_rows
from leyden.core.algorithm.verl.settings import SECTION, LeydenOptions
from leyden.core.algorithm.verl.wire import FailedPrompts, Replicas, WeightChange
from leyden.core.credit.registry import CREDIT
from leyden.core.data.encoding.tokens import log_probs, token_ids
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import NothingToLearn, TrainingError

log = logging.getLogger(__name__)

TRAIN, VALIDATE = "train", "val"
"""Partitions of VERL's queue."""
REQUEST_TAG = "leyden_asked"
"""Tag of a prompt in VERL's queue: the request that was sent to the run, as JSON."""
PADDING_SUFFIX = "padding"
"""End of the key of a padding row, for a prompt that has no row: VERL cannot take an empty batch."""
MISSING_TAG = "leyden_missing"
"""Tag of a padding row: why the prompt has no row, as JSON."""

Columns = dict[str, Any]


class RolloutManager:
    """Starts the rollouts of a batch and returns; a prompt's rows are in the queue once its rollouts have finished.

    If VERL's trainer begins batches ahead of its updates, that trainer is a `ReportingTrainer`, which reports weight
    changes.
    """

    def __init__(self, config: Any, llm_client: Any) -> None:
        self._rollout = config.actor_rollout_ref.rollout
        options = LeydenOptions.of(verl_config.plain(config.algorithm[SECTION]))
        self._credit, self._advantage = CREDIT.make(options.credit), options.estimation().estimator
        self._limits = RowLimits(
            prompt=config.data.max_prompt_length,
            response=config.data.max_response_length,
            temperature=self._rollout.temperature,
            sampling=RowSampling(partial(_policy, config.actor_rollout_ref.model.path)) if can_adjust(config) else None,
        )
        self._servers = llm_client._load_balancer
        self._prompt_counts: Counter[int] = Counter()
        """Number of training prompts of each step so far."""
        self._version = 0
        """Version of the weights that are served."""
        self._trainer_reports = config.trainer.v1.trainer_mode != "sync"
        self._by_uid: dict[str, TaskRequest] = {}
        """Requests for training prompts from which no step has learned; used only if VERL begins batches ahead."""
        self._has_ended = False
        """Whether VERL has ended its training, successfully or not."""
        self._lost_parts: Callable[[], list[str]] = list
        """Returns the parts of VERL's queue that died; known inside `watch_queue`."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="leyden rollouts", daemon=True).start()
        self._client = RunClient(RunEndpoint(url=os.environ[URL], token=os.environ[TOKEN]))

    @classmethod
    def create(cls, config: Any, llm_client: Any, **unused: Any) -> "RolloutManager":
        """Return a new collection, as VERL calls it; VERL's teachers and reward workers are not used."""
        del unused
        return cls(config, llm_client)

    def generate_sequences(self, prompts: Any) -> None:
        """Start the tasks of a batch, for training or for validation."""
        validate = bool(prompts["validate"]) if "validate" in prompts else False
        asyncio.run_coroutine_threadsafe(self._batch(verl_queue.rows_of(prompts), validate=validate), self._loop)

    def begin(self, version: int) -> None:
        """Report for the first time where the policy is served; continue with the prompts of a restored queue."""
        tags = verl_queue.prompt_tags(TRAIN)
        self._by_uid = {
            uid: msgspec.json.decode(tag[REQUEST_TAG], type=TaskRequest)
            for uid, tag in tags.items()
            if REQUEST_TAG in tag
        }
        self.serve(version)

    def pause(self, version: int) -> None:
        """Stop generation, and return when no token is generated; the weights change to those of `version`."""
        self._wait(self._client.pause(WeightChange(version)))

    def serve(self, version: int) -> None:
        """Route calls to the current replicas, all of which serve `version`; returns when that is done."""
        self._wait(self._serve(version))

    def serve_same_version(self) -> None:
        """Route calls to the current replicas, which serve the same version as before; returns when that is done."""
        self.serve(self._version)

    def taken(self, step: int, keys: Sequence[str]) -> None:
        """Report the prompts that a step learns from: those of the rows `keys`. Padding rows of the batch have none."""
        uids = dict.fromkeys(key.partition("_")[0] for key in keys)
        requests = tuple(self._by_uid.pop(uid) for uid in uids if uid in self._by_uid)
        queued = verl_queue.prompt_tags(TRAIN)
        dropped_uids = [uid for uid in list(self._by_uid) if uid not in queued]
        left_out = tuple(self._by_uid.pop(uid) for uid in dropped_uids)
        self._wait(self._client.taken(StepTasks(step=step, tasks=requests, left_out=left_out)))

    def sampled(self, step: int, partition: str, tags: Sequence[Mapping[str, Any]]) -> None:
        """End the run if VERL is about to learn from a batch without a row of a call; `tags` are those of its rows.

        VERL would fail, or take the step without a loss, depending on its settings. Raises NothingToLearn.
        """
        if partition != TRAIN or any(MISSING_TAG not in tag for tag in tags):
            return
        reason = empty_batch_message(step, [msgspec.json.decode(tag[MISSING_TAG], type=EmptyPrompt) for tag in tags])
        self._wait(self._client.failed(FailedPrompts(reason, to_mend=True)))
        raise NothingToLearn(reason)

    @contextmanager
    def watch_queue(self) -> Generator[None]:
        """End the run if a part of VERL's queue dies inside the block, because VERL often waits for it silently.

        VERL raises an error if it just uses that part; the run reports the loss in this case, too.

        After the block VERL closes its queue. Rollouts that still run cannot be stored then, but they do not end the
        run: VERL itself reports why it ended.
        """
        try:
            with watch_parts(verl_queue.queue_parts, self._queue_lost) as self._lost_parts:
                try:
                    yield
                except Exception:
                    if parts := self._lost_parts():
                        self._queue_lost(parts)
                    raise
        finally:
            self._has_ended = True

    def _queue_lost(self, parts: list[str]) -> None:
        self._wait(self._report_failure(FailedPrompts(queue_lost_message(parts))))

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _serve(self, version: int) -> None:
        addresses: list[str] = await self._servers.get_all_servers.remote()
        self._version = version
        await self._client.serve_from(Replicas(tuple(addresses), version))

    async def _batch(self, prompts: list[Columns], *, validate: bool) -> None:
        step, partition = int(prompts[0]["global_steps"]), VALIDATE if validate else TRAIN
        try:
            if not self._trainer_reports:
                # Training step n begins with the weights after n - 1 updates; its validation uses those after n.
                await self._serve(step if validate else step - 1)
        except Exception as error:
            await self._give_up("could not send the addresses of the policy's servers to the run", error)
            return
        await asyncio.gather(*(self._prompt(prompt, partition) for prompt in prompts))

    async def _prompt(self, prompt: Columns, partition: str) -> None:
        """Run one task, and put its rows into VERL's queue."""
        uid: str = prompt["uid"]
        try:
            request = self._by_uid.get(uid) or self._make_request(prompt, partition)
            if self._trainer_reports and partition == TRAIN:
                self._by_uid[uid] = request
            await verl_queue.put_status(uid, partition, "running", {REQUEST_TAG: msgspec.json.encode(request).decode()})
            group = await self._client.rollouts(request)
            found = await asyncio.to_thread(self._rows, group, uid, partition)
            if partition == TRAIN:
                await self._client.used(_usage(found, request))
            await verl_queue.put_rows(
                partition, self._queue_items(found, prompt, partition, empty_prompt_of(found, group))
            )
            await verl_queue.put_status(uid, partition, "finished")
        except Exception as error:
            if self._has_ended:
                log.info(
                    "rollouts are not passed to VERL, because its training has ended: %s", verl_config.one_line(error)
                )
                return
            await self._give_up("rollouts could not be passed to VERL", error)

    async def _give_up(self, what: str, error: Exception) -> None:
        """End the run, and VERL with it, because VERL would take a step without the prompts that failed."""
        log.error("%s", what, exc_info=error)
        parts = await asyncio.to_thread(self._lost_parts)
        reason = f"{what}: {type(error).__name__}: {verl_config.one_line(error)}"
        await self._report_failure(FailedPrompts(queue_lost_message(parts) if parts else reason))

    async def _report_failure(self, failed: FailedPrompts) -> None:
        try:
            await self._client.failed(failed)
        except TrainingError:
            log.exception("the failure could not be reported to the run")
            os._exit(1)

    def _make_request(self, prompt: Columns, partition: str) -> TaskRequest:
        step, origin = int(prompt["global_steps"]), RowOrigin.of(prompt["extra_info"])
        copies = prompt.pop("__rollout_n__", None)
        if partition == VALIDATE:
            index, default_copies = origin.row, self._rollout.val_kwargs.n
        else:
            index, default_copies = self._prompt_counts[step], self._rollout.n
            self._prompt_counts[step] += 1
        return TaskRequest(
            step=step,
            place=index,
            row=origin.row,
            copies=int(default_copies if copies is None else copies),
            held_out=origin.held_out,
        )

    def _rows(self, group: TrajectoryGroup, uid: str, partition: str) -> PromptRows:
        if partition == TRAIN:
            return training_rows(uid, group, self._credit, self._advantage, self._limits)
        found = validation_rows(uid, group)
        sessions = {row.session for row in found.rows}
        for session, trajectory in enumerate(group.trajectories):
            # The calls of a greedy agent cannot be trained, so it has no row; VERL still has to count its reward.
            if session not in sessions and trajectory.reward is not None:
                found.rows.append(_placeholder_row(uid, session, trajectory.reward, self._version))
        return found

    def _queue_items(
        self, found: PromptRows, prompt: Columns, partition: str, empty_prompt: EmptyPrompt
    ) -> list[tuple[str, Columns, Columns]]:
        """Return key, fields and tag of every row.

        A prompt without rows gets the witness row or a padding row, which has no effect in training and has the tag
        `empty_prompt`.
        """
        step, validate = int(prompt["global_steps"]), partition == VALIDATE
        rows = found.rows or ([] if found.witness is None else [found.witness])
        if rows:
            return [(row.key, {**prompt, **row.fields(validate=validate)}, row.tag(step)) for row in rows]
        # VERL computes the age of a batch from this version.
        padding = _placeholder_row(prompt["uid"], 0, 0.0, self._version)
        fields = padding.fields(validate=True)
        masks = {name: fields[name] * 0 for name in ("response_mask", "loss_mask")}
        tag = {**padding.tag(step), MISSING_TAG: msgspec.json.encode(empty_prompt).decode()}
        return [(f"{prompt['uid']}_{PADDING_SUFFIX}", {**prompt, **fields, **masks}, tag)]


def queue_lost_message(parts: Sequence[str]) -> str:
    """Return why a run ends whose queue lost the actors `parts`."""
    return f"VERL's queue is lost because {' and '.join(parts)} died"


def _policy(path: str) -> tuple[str, int]:
    """Return a policy's folder or hub name, and the number of its logits."""
    transformers: Any = import_module("transformers")
    config: Any = transformers.AutoConfig.from_pretrained(path)
    return path, int(config.get_text_config().vocab_size)


def _placeholder_row(uid: str, session: int, reward: float, version: int) -> Row:
    """Return a row of one placeholder token, for a rollout without calls."""
    return Row(
        uid=uid,
        session=session,
        place=0,
        prompt_ids=token_ids([0]),
        response_ids=token_ids([0]),
        logprobs=log_probs([0.0]),
        credit=reward,
        weight=0.0,
        reward=reward,
        turns=0,
        min_version=version,
        max_version=version,
    )


def _usage(found: PromptRows, request: TaskRequest) -> TaskUsage:
    reasons = found.calls_left_out
    return TaskUsage(
        asked=request,
        calls=len(found.rows),
        tokens=sum(len(row.response_ids) for row in found.rows),
        calls_left_out=dict(reasons),
        group_dropped=found.dropped,
        account=found.account,
    )
